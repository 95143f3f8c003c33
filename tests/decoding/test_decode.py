"""Values as columns: what `decode` returns, keeps and refuses."""

from __future__ import annotations

import json
from typing import Any, cast

import polars
import pyarrow as pa
import pytest

from kafka_ordered_ops import ConfigError, DecodeError, OrderedReader, OrderedWindows, Window
from kafka_ordered_ops.decoding import Avro, Json, decode
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.encoded_values import batch_of, encoded

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"]}],
}
AVRO = Avro(json.dumps(ORDER), framing="none")


def order(number: int, note: str | None = None) -> bytes:
    """Return an order in Avro."""
    return encoded({"id": number, "note": note}, ORDER)


def test_values_are_a_struct_and_other_columns_stay() -> None:
    """A tombstone stays null."""
    table = decode(batch_of([order(1, "x"), None]), values=AVRO).read_all()
    assert table.schema.names == ["topic", "partition", "offset", "value"]
    assert table["value"].to_pylist() == [{"id": 1, "note": "x"}, None]


def test_fields_take_the_place_of_the_struct() -> None:
    """If that is wanted, and no other column has their names."""
    table = decode(batch_of([order(1), None]), values=AVRO, flatten=True).read_all()
    assert table.schema.names == ["topic", "partition", "offset", "id", "note"]
    assert table["id"].to_pylist() == [1, None]
    clash = Json(pa.schema([("offset", pa.int64())]))
    with pytest.raises(ConfigError, match="the names of others, offset"):
        decode(batch_of([b"{}"]), values=clash, flatten=True)


def test_a_bad_value_fails_with_its_place() -> None:
    """The first of them, its reason, and how many there are; nothing of its batch is returned."""
    reader = decode(batch_of([order(1), order(2)[:1], order(3) + b"x"]), values=AVRO)
    with pytest.raises(DecodeError) as failure:
        reader.read_all()
    error = failure.value
    assert (error.topic, error.partition, error.offset, error.bad) == ("orders", 0, 1, 2)
    assert "orders[0] at offset 1: the value cannot be decoded: the record is too short" in str(
        error
    )
    assert not error.retriable


def test_bad_values_are_kept_with_their_reasons() -> None:
    """The bytes and the reason stand beside; other rows have neither."""
    cut = order(2)[:1]
    table = decode(batch_of([order(1), cut, None]), values=AVRO, on_bad="keep").read_all()
    assert table["value"].to_pylist() == [{"id": 1, "note": None}, None, None]
    assert table["value_raw"].to_pylist() == [None, cut, None]
    assert table["value_error"].to_pylist() == [None, "the record is too short", None]


def test_keys_and_values_are_decoded_in_one_pass() -> None:
    """Each by its own format."""
    batch = batch_of([order(1)]).append_column("key", pa.array([b'{"shop": 7}'], pa.binary()))
    keys = Json(pa.schema([("shop", pa.int32())]))
    table = decode(batch, keys=keys, values=AVRO).read_all()
    assert table["key"].to_pylist() == [{"shop": 7}]
    assert table["value"].to_pylist() == [{"id": 1, "note": None}]


def test_a_window_is_decoded_and_written(tmp_path: Any) -> None:
    """From Kafka to files with typed columns, without Spark; streamed, in order, published with the window."""
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders", partitions=2)
        for number in range(10):
            kafka.produce(
                "orders", partition=number % 2, timestamp_ms=1_000 + number, value=order(number)
            )
        windows = OrderedWindows(kafka.settings, group_id="g")
        window = Window("orders", cutoff="1970-01-02T00:00:00Z", starting_offsets="earliest")

        def decoded(window: Any) -> None:
            window.write(decode(window, values=AVRO, flatten=True))

        result = windows.run(window, tmp_path / "lake", job=decoded)
        table = result.to_arrow()
        assert table["id"].to_pylist() == list(range(10))
        with windows.open(Window("orders", cutoff="1970-01-03T00:00:00Z")) as later:
            frame = polars.DataFrame(decode(later, values=AVRO))
            assert frame.schema["value"] == polars.Struct(
                {"id": polars.Int64, "note": polars.String}
            )


def test_streams_without_records_have_columns() -> None:
    """An hour or a topic without records is no error; with records, a reader is decoded as it is read."""
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders", partitions=2)
        with OrderedReader(kafka.settings, "orders") as reader:
            assert decode(reader, values=AVRO).read_all().num_rows == 0
        windows = OrderedWindows(kafka.settings, group_id="g")
        hour = Window("orders", cutoff="1970-01-02T00:00:00Z", starting_offsets="earliest")
        with windows.open(hour) as window:
            for data in (window, window.to_batches(), window.to_arrow()):
                table = decode(data, values=AVRO, flatten=True).read_all()
                assert (table.num_rows, table.schema.names[6:8]) == (0, ["id", "note"])
        for number in range(5):
            kafka.produce("orders", partition=number % 2, timestamp_ms=number, value=order(number))
        with OrderedReader(kafka.settings, "orders") as reader:
            table = decode(reader, values=AVRO, flatten=True).read_all()
        assert table["id"].to_pylist() == list(range(5))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda batch: decode(batch, values="arvo"), "values is 'arvo': give Avro"),
        (lambda batch: decode(batch, values="json:id int64, x"), "a type is ''"),
        (lambda batch: decode(batch, values="json:id strange"), "a type is 'strange'"),
        (lambda batch: decode(batch, values={"format": "avro", "x": 1}), "values.format"),
        (lambda batch: decode(batch, values="{"), "not readable as JSON"),
        (lambda batch: decode(batch, values=cast("Any", 5)), "values is 5"),
        (lambda batch: decode(batch, values=AVRO, on_bad="skip"), "on_bad is 'skip'"),
        (lambda batch: decode(batch, keys=AVRO), "no column 'key' among topic, partition"),
        (lambda batch: decode(5, values=AVRO), "data is 5: give a table"),
        (lambda batch: decode([], values=AVRO), "there are no batches"),
        (lambda batch: decode([5], values=AVRO), "data has 5"),
        (
            lambda batch: decode(batch.rename_columns(["value", "b", "c", "d"]), values=AVRO),
            "the column 'value' has the type string: bytes are expected",
        ),
        (lambda batch: decode(batch, values=Avro()), "give a schema, or the subject"),
        (lambda batch: Avro(cast("Any", 5)), "schema is 5: give JSON as text"),
        (lambda batch: Avro("x" * 600_000), "have 600,000 characters"),
        (lambda batch: Avro(subject="s", references=["int"]), "references without a schema"),
        (lambda batch: decode(batch, values=Avro("int")), "Name the registry"),
        (lambda batch: decode(batch, values=Avro(subject="s")), "give the registry that has it"),
        (
            lambda batch: decode(batch, registry={"url": "http://r", "proxy": "p"}),
            "'proxy' is not allowed",
        ),
        (lambda batch: decode(batch, registry={"ssl.ca.location": "f"}), "give its URL"),
        (lambda batch: Json(cast("Any", "x")), "give a pyarrow.Schema"),
        (
            lambda batch: decode(batch, values=Json(pa.schema([("x", pa.duration("s"))]))),
            "JSON has no values",
        ),
    ],
)
def test_invalid_arguments_are_named(call: Any, words: str) -> None:
    """Before anything is read."""
    with pytest.raises(ConfigError) as failure:
        call(batch_of([order(1)]))
    assert words in str(failure.value)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("{", "not valid JSON"),
        (
            {"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]},
            "contains itself",
        ),
        ({"type": "bytes", "logicalType": "decimal", "precision": 77}, "Arrow's limit is 76"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3},
            "has the scale 3",
        ),
        ("strange", "not valid JSON"),
        ({"type": "strange"}, "uses the type 'strange'"),
        ({"type": "enum", "name": "E", "symbols": []}, "has no symbols"),
        (["int", "int"], "one of them twice"),
        (["int", ["string"]], "contains another union"),
        ({"type": "array"}, "without 'items'"),
        (
            {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}] * 2},
            "of one name",
        ),
        ({"type": "fixed", "name": "F", "size": -1}, "'size' -1"),
        (5, "where a type is expected"),
    ],
)
def test_invalid_schemas_are_named(schema: Any, words: str) -> None:
    """Recursive types too: Arrow has none."""
    text = schema if isinstance(schema, str) else json.dumps(schema)
    with pytest.raises(ConfigError) as failure:
        decode(batch_of([b""]), values=Avro(text, framing="none"))
    assert words in str(failure.value)


@pytest.mark.parametrize(
    ("written", "read", "words"),
    [
        ("long", "int", "long was written, and int is expected"),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            {"type": "long", "logicalType": "timestamp-micros"},
            "timestamp-millis was written, and timestamp-micros is expected",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3},
            "decimal(9, 2) was written, and decimal(9, 3) is expected",
        ),
        (ORDER, {**ORDER, "name": "Sale"}, "Order was written, and Sale is expected"),
        (
            {**ORDER, "fields": ORDER["fields"][:1]},
            {**ORDER, "fields": [{"name": "new", "type": "int"}]},
            "field new was not written, and has no default",
        ),
        (
            {**ORDER, "fields": ORDER["fields"][:1]},
            {**ORDER, "fields": [{"name": "new", "type": "int", "default": "x"}]},
            "field new has an invalid default",
        ),
        (
            {**ORDER, "fields": ORDER["fields"][:1]},
            {**ORDER, "fields": [{"name": "new", "type": "int", "default": 2**31}]},
            "field new has an invalid default: 2147483648 has more than 32 bits",
        ),
        (
            "string",
            {"type": "bytes", "logicalType": "decimal", "precision": 9},
            "string was written, and a decimal is expected",
        ),
        (
            "bytes",
            {"type": "string", "logicalType": "uuid"},
            "bytes was written, and a uuid is expected",
        ),
    ],
)
def test_schemas_that_do_not_fit_are_refused(written: Any, read: Any, words: str) -> None:
    """Changes of a unit or of a scale too, which would change every value silently."""
    with pytest.raises(ConfigError) as failure:
        decode(
            batch_of([b""]),
            values=Avro(json.dumps(read), writer=json.dumps(written), framing="none"),
        )
    assert words in str(failure.value)


def doubling(levels: int) -> Any:
    """Return a schema that uses each of its records twice."""
    schema: Any = "int"
    for level in range(levels):
        name = schema if isinstance(schema, str) else schema["name"]
        fields = [{"name": "a", "type": schema}, {"name": "b", "type": name}]
        schema = {"type": "record", "name": f"R{level}", "fields": fields}
    return schema


def test_a_schema_that_would_have_a_billion_columns_is_refused() -> None:
    """From a few lines of text."""
    with pytest.raises(ConfigError, match=r"has more than 20,000 types in it"):
        decode(batch_of([b""]), values=Avro(json.dumps(doubling(14)), framing="none"))


def test_unions_within_unions_are_resolved_in_time() -> None:
    """Each pair of types once."""
    schema: Any = "int"
    for level in range(12):
        name = f"R{level}"
        record = {"type": "record", "name": name, "fields": [{"name": "x", "type": schema}]}
        schema = ["null", "string", record]
    table = decode(batch_of([b"\0"]), values=Avro(json.dumps(schema), framing="none")).read_all()
    assert table["value"].to_pylist() == [None]


def nested(size: int) -> Any:
    """Return a schema with an array of empty records."""
    empty = {"type": "record", "name": "E", "fields": []}
    return {"type": "array", "items": empty} if size else empty


@pytest.mark.parametrize(
    ("schema", "data", "words"),
    [
        ("boolean", b"\x02", "a boolean has the byte 2"),
        ("int", b"\x80\x80\x80\x80\x20", "more than 32 bits"),
        ("long", b"\xff" * 10, "more than 64 bits"),
        ("string", b"\x02\xff", "not valid UTF-8"),
        ("bytes", b"\x08a", "a length of 4, and 1 bytes are left"),
        ("bytes", b"\x01", "a length of -1"),
        (nested(1), b"\x80\x80\x80\x10\x00", "16,777,216 items, and 1 bytes are left"),
        ({"type": "map", "values": "int"}, b"\x80\x80\x80\x10\x00", "16,777,216 items"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "the index 1"),
        (["null", "int"], b"\x04", "the branch 2"),
        ({"type": "int", "logicalType": "time-millis"}, b"\x01", "-1 is not a time of day"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 2},
            b"\x02\x64",
            "more than 2 digits",
        ),
        ({"type": "string", "logicalType": "uuid"}, b"\x02x", "not a UUID"),
        ({"type": "string", "logicalType": "uuid"}, b"\x40" + b" 0x" + b"1" * 29, "not a UUID"),
        (nested(1), b"\x82\x10\x00", "1,025 items"),
        ("int", b"", "the record is too short"),
        ("double", b"123", "the record is too short"),
        ({"type": "fixed", "name": "F", "size": 4}, b"123", "the record is too short"),
        ("null", b"x", "1 bytes follow the record"),
    ],
)
def test_bad_records_have_reasons(schema: Any, data: bytes, words: str) -> None:
    """A few bytes that ask for millions of items among them."""
    avro = Avro(json.dumps(schema), framing="none")
    table = decode(batch_of([data]), values=avro, on_bad="keep").read_all()
    assert words in table["value_error"][0].as_py()


def test_unions_of_several_types_are_structs() -> None:
    """One field for each type, of which one is set."""
    union = ["null", "int", "string", {**ORDER, "namespace": "shop"}]
    rows = [None, 5, "x", {"id": 1, "note": None}]
    table = decode(
        batch_of([encoded(row, union) for row in rows]),
        values=Avro(json.dumps(union), framing="none"),
    ).read_all()
    empty = {"int": None, "string": None, "Order": None}
    assert table["value"].to_pylist() == [
        None,
        {**empty, "int": 5},
        {**empty, "string": "x"},
        {**empty, "Order": {"id": 1, "note": None}},
    ]


def test_readers_know_aliases_and_default_symbols() -> None:
    """As the specification has them."""
    written = {
        "type": "record",
        "name": "Old",
        "fields": [{"name": "a", "type": {"type": "enum", "name": "E", "symbols": ["X", "Z"]}}],
    }
    enum = {"type": "enum", "name": "E", "symbols": ["X"], "default": "X"}
    read = {
        "type": "record",
        "name": "New",
        "aliases": ["Old"],
        "fields": [{"name": "b", "aliases": ["a"], "type": enum}],
    }
    avro = Avro(json.dumps(read), writer=json.dumps(written), framing="none")
    table = decode(batch_of([encoded({"a": "Z"}, written)]), values=avro).read_all()
    assert table["value"].to_pylist() == [{"b": "X"}]
