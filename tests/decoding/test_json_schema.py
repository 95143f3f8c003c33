"""The columns of a JSON Schema."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from kafka_ordered_ops import ConfigError
from kafka_ordered_ops.decoding import Json, decode
from kafka_ordered_ops.decoding.json.schema import columns_of
from tests.support.encoded_values import batch_of


def columns(schema: Any, references: Any = ()) -> pa.Schema:
    """Return the columns of an object with one property."""
    text = json.dumps({"type": "object", "properties": {"a": schema}})
    return columns_of(text, references)


@pytest.mark.parametrize(
    ("schema", "arrow"),
    [
        ({"type": "integer"}, pa.int64()),
        ({"type": ["null", "number"]}, pa.float64()),
        ({"type": ["integer", "number"]}, pa.float64()),
        ({"oneOf": [{"type": "null"}, {"type": "string"}]}, pa.string()),
        ({"anyOf": [{"type": "boolean"}]}, pa.bool_()),
        ({"enum": ["x", "y", None]}, pa.string()),
        ({"const": 5}, pa.int64()),
        ({"type": "string", "format": "date-time"}, pa.timestamp("us", "UTC")),
        ({"type": "string", "format": "date"}, pa.date32()),
        ({"type": "string", "format": "email"}, pa.string()),
        ({"type": "string", "contentEncoding": "base64"}, pa.binary()),
        ({"type": "integer", "connect.type": "int16"}, pa.int16()),
        ({"type": "number", "connect.type": "float32"}, pa.float32()),
        ({"type": "string", "connect.type": "bytes"}, pa.binary()),
        (
            {"type": "integer", "title": "org.apache.kafka.connect.data.Timestamp"},
            pa.timestamp("ms", "UTC"),
        ),
        (
            {
                "type": "number",
                "title": "org.apache.kafka.connect.data.Decimal",
                "connect.parameters": {"scale": "2"},
            },
            pa.decimal128(38, 2),
        ),
        ({"type": "array", "items": {"type": "string"}}, pa.list_(pa.string())),
        (
            {"type": "object", "additionalProperties": {"type": "integer"}},
            pa.map_(pa.string(), pa.int64()),
        ),
        (
            {
                "allOf": [
                    {"type": "object", "properties": {"x": {"type": "integer"}}},
                    {"properties": {"y": {"type": "string"}}},
                ]
            },
            pa.struct([("x", pa.int64()), ("y", pa.string())]),
        ),
    ],
)
def test_each_type_has_a_column(schema: Any, arrow: pa.DataType) -> None:
    """Null is allowed everywhere: older records may lack what a newer schema requires."""
    assert columns(schema) == pa.schema([pa.field("a", arrow)])


def test_references_are_followed() -> None:
    """Within the schema, and to others that were registered with it."""
    text = json.dumps(
        {
            "type": "object",
            "properties": {
                "to": {"$ref": "#/$defs/address"},
                "from": {"$ref": "other.json#/definitions/a~1b"},
                "whole": {"$ref": "other.json"},
            },
            "$defs": {
                "address": {"type": "object", "properties": {"city": {"$ref": "#/$defs/name"}}},
                "name": {"type": "string"},
            },
        }
    )
    other = {
        "type": "object",
        "properties": {"n": {"$ref": "#/definitions/a~1b"}},
        "definitions": {"a/b": {"type": "integer"}},
    }
    assert columns_of(text, [("other.json", json.dumps(other))]) == pa.schema(
        [
            pa.field("to", pa.struct([("city", pa.string())])),
            pa.field("from", pa.int64()),
            pa.field("whole", pa.struct([("n", pa.int64())])),
        ]
    )


def deep(levels: int) -> Any:
    """Return a schema of lists within lists."""
    schema: Any = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def doubling(levels: int) -> Any:
    """Return a schema that would have a billion columns."""
    parts = {
        f"l{level}": {
            "type": "object",
            "properties": {name: {"$ref": f"#/$defs/l{level + 1}"} for name in "xy"},
        }
        for level in range(levels)
    }
    parts[f"l{levels}"] = {"type": "string"}
    return {"$ref": "#/$defs/l0"}, parts


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({}, "the schema.a: a value may be anything"),
        (True, "the schema.a: any value is allowed"),
        ({"type": ["string", "integer"]}, "a value may be integer or string"),
        ({"type": "strange"}, "the type 'strange' is unknown"),
        ({"type": "object"}, "does not say which properties"),
        ({"type": "array"}, "the schema.a[]: any value is allowed"),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "2 alternatives besides null"),
        ({"oneOf": 5}, "oneOf is not a list"),
        ({"allOf": [{"type": "string"}, {"type": "string"}]}, "not objects with properties"),
        ({"$ref": "#/nothing"}, "'#/nothing', which is not there"),
        ({"$ref": "http://elsewhere"}, "'http://elsewhere', which is not among"),
        ({"$ref": "#"}, "it contains itself"),
        (deep(40), "more than 32 levels"),
        (
            {"type": "number", "title": "org.apache.kafka.connect.data.Decimal"},
            "a decimal has the scale None",
        ),
    ],
)
def test_what_has_no_column_is_named(schema: Any, words: str) -> None:
    """With its place, and what to do."""
    with pytest.raises(ConfigError) as failure:
        columns(schema)
    assert words in str(failure.value)
    assert "Say which columns you want" in str(failure.value)


def test_a_schema_of_a_billion_columns_is_refused() -> None:
    """From a few lines of text."""
    schema, parts = doubling(16)
    text = json.dumps({"type": "object", "properties": {"a": schema}, "$defs": parts})
    with pytest.raises(ConfigError, match="20,000 types"):
        columns_of(text)


@pytest.mark.parametrize("text", ["{", '{"type": "string"}', "5"])
def test_a_schema_without_columns_is_refused(text: str) -> None:
    """Also one that is no JSON."""
    with pytest.raises(ConfigError, match="JSON"):
        columns_of(text)


def test_a_frame_stands_before_values() -> None:
    """As Confluent's serializer writes it; a value without one is bad."""
    values = Json(pa.schema([("id", pa.int64())]), framing="confluent")
    rows = [b'\0\0\0\0\7{"id": 1}', b'{"id": 1}']
    table = decode(batch_of(rows), values=values, on_bad="keep").read_all()
    assert table["value"].to_pylist() == [{"id": 1}, None]
    assert table["value_error"][1].as_py() == "it does not begin with a zero byte and a schema id"
