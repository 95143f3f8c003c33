"""Columns that follow from values of JSON: the exact union of their types, whatever the order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import DecodeError
from kafka_ordered_ops.decoding import Json, decode
from kafka_ordered_ops.decoding.json.inference import FIELDS_MAX, Inferred, JsonInference
from kafka_ordered_ops.decoding.json.records import is_blank
from tests.support.encoded_values import batch_of

NAMES = st.sampled_from(["a", "b", "c", "größe", "x.y", ""])
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.none() | st.booleans() | NUMBERS | st.text(max_size=4)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
#: Of one shape, so that most of them have a union.
ALIKE = st.fixed_dictionaries(
    {},
    optional={
        "id": st.none() | st.integers(-(2**53), 2**53),
        "price": st.none()
        | st.integers(-100, 100)
        | st.floats(allow_nan=False, allow_infinity=False),
        "tags": st.none() | st.lists(st.none() | st.text(max_size=3), max_size=3),
        "to": st.none()
        | st.fixed_dictionaries(
            {},
            optional={
                "zip": st.text(max_size=3),
                "lines": st.lists(st.just({}) | st.just({"n": 1})),
            },
        ),
    },
)
OBJECTS = st.lists(ALIKE, min_size=1, max_size=6) | st.lists(
    st.dictionaries(NAMES, VALUES, max_size=4), min_size=1, max_size=4
)


def inferred(
    values: Sequence[Any], places: Sequence[int] | None = None, **options: Any
) -> Inferred | str:
    """Return what is inferred of values at these offsets, or the error."""
    inference = JsonInference()
    try:
        for value, offset in zip(values, places or range(len(values)), strict=True):
            text = value if isinstance(value, str) else json.dumps(value)
            inference.add(text.encode(), ("orders", 0, offset))
        return inference.columns(**options)
    except DecodeError as error:
        return error.message


def same(value: Any, decoded: Any, kind: Any) -> bool:
    """Return whether a decoded value is the written one, but for fields that have nothing in them anywhere."""
    if value is None or decoded is None:
        return value is decoded
    if pa.types.is_struct(kind):
        known = {field.name: field.type for field in kind}
        return all(is_blank(value[name]) for name in value.keys() - known.keys()) and all(
            same(value.get(name), decoded[name], part) for name, part in known.items()
        )
    if pa.types.is_list(kind):
        return len(value) == len(decoded) and all(
            same(one, other, kind.value_type) for one, other in zip(value, decoded, strict=True)
        )
    return bool(value == decoded) and isinstance(value, bool) == isinstance(decoded, bool)


@given(OBJECTS)
def test_what_is_inferred_decodes_every_value(values: list[dict[str, Any]]) -> None:
    """Without a bad one, and without a change: the columns are exact for what they were inferred from."""
    found = inferred(values)
    if isinstance(found, str):
        assert found.startswith("columns cannot be inferred: orders[0] at offset ")
        return
    if not found.columns.names:
        assert all(map(is_blank, values))
        return
    frozen = Json(infer="freeze").with_columns(found.columns)
    texts = [json.dumps(value).encode() for value in values]
    table = decode(batch_of(texts), values=frozen).read_all()
    table.validate(full=True)
    kind = table.schema.field("value").type
    for value, decoded in zip(values, table["value"].to_pylist(), strict=True):
        assert same(value, decoded, kind)


@given(OBJECTS, st.randoms())
def test_the_order_does_not_matter(values: list[dict[str, Any]], random: Any) -> None:
    """Neither that of partitions, which arrive in any, nor a second look: the same columns, or the same error."""
    order = [*range(len(values)), 0]
    random.shuffle(order)
    assert inferred([values[at] for at in order], order) == inferred(
        [*values, values[0]], [*range(len(values)), 0]
    )


@given(OBJECTS, OBJECTS)
def test_evolving_only_adds(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> None:
    """What decoded before still does, and known columns keep their places and types."""
    known = inferred(first)
    if isinstance(known, str) or isinstance(found := inferred(second, known=known.columns), str):
        return
    assert found.columns.names[: len(known.columns.names)] == known.columns.names
    texts = [json.dumps(value).encode() for value in first]
    # An empty list says nothing as long as its field has no column.
    if known.columns.names and not {*known.blank} & {*found.added}:
        decode(batch_of(texts), values=Json(infer="freeze").with_columns(found.columns)).read_all()
    if not found.added:
        assert found.columns == known.columns


@pytest.mark.parametrize(
    ("values", "columns"),
    [
        ([{"a": 1}, {"a": None}, {}], "a: int64"),
        ([{"a": 1}, {"a": 1.5}], "a: double"),
        ([{"a": 2**53}, {"a": 1e300}], "a: double"),
        (['{"a": 1.0}'], "a: double"),
        (['{"a": 1e3}'], "a: double"),
        (['{"a": 0.10000000000000001}'], "a: double"),
        ([{"a": -(2**63)}, {"a": 2**63 - 1}], "a: int64"),
        ([{"a": True}], "a: bool"),
        ([{"a": "2026-01-01"}, {"a": "12"}], "a: string"),
        ([{"a": []}, {"a": [1, None]}, {"a": [2.5]}], "a: list<item: double>"),
        ([{"b": 1}, {"a": {"y": 1}}, {"a": {"x": "t"}}], "b: int64|a: struct<y: int64, x: string>"),
        (
            [{"a": [{"x": 1}, {"y": [[True]]}]}],
            "a: list<item: struct<x: int64, y: list<item: list<item: bool>>>>",
        ),
    ],
)
def test_types(values: list[Any], columns: str) -> None:
    """The narrowest type that holds all values exactly; texts stay texts."""
    found = inferred(values)
    assert isinstance(found, Inferred)
    assert "|".join(f"{field.name}: {field.type}" for field in found.columns) == columns


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            [{"a": "x"}, {"a": {"b": 1}}],
            "orders[0] at offset 0 has a text, and orders[0] at offset 1 an object at a:",
        ),
        ([{"a": [1, "x"]}], "has a text, and orders[0] at offset 0 a whole number at a[]:"),
        (
            [{"a": {"b": 1}}, {"a": {"b": [1]}}],
            "at a.b: no column holds all values exactly. Give the type of 'a'",
        ),
        (
            [{"a": 1}, {"a": 1.5}, {"a": True}],
            "at offset 0 has a whole number, and orders[0] at offset 2 true or false",
        ),
        (
            [{"a": 0.5}, {"a": 2**53 + 1}],
            "offset 1 has 9007199254740993, which a double would change",
        ),
        ([{"a": 2**63}], "has 9223372036854775808, which is beyond int64"),
        (
            ['{"a": 0.1234567890123456789}'],
            "has 0.1234567890123456789, which a double would change",
        ),
        (['{"a": 1e400}'], "has 1E+400, which a double would change"),
        (["{" + '"a":{' * 40 + '"b":1' + "}" * 41], "more than 30 levels"),
    ],
)
def test_conflicts_name_both_places(values: list[Any], words: str) -> None:
    """And the path, and what to do."""
    found = inferred(values)
    assert isinstance(found, str)
    assert words in found


def test_given_columns_are_not_inferred() -> None:
    """Whatever their values are."""
    found = inferred([{"a": 1, "b": 1}, {"a": {}, "b": 2}], given=["a"])
    assert isinstance(found, Inferred)
    assert found.columns.names == ["b"]
    wanted = Json(pa.schema([("a", pa.decimal128(9, 2))]), infer=True).with_columns(found.columns)
    table = decode(batch_of([b'{"a": 1.50, "b": 3}']), values=wanted).read_all()
    assert table["value"].to_pylist() == [{"b": 3, "a": Decimal("1.50")}]


def test_what_says_nothing_is_named() -> None:
    """Nulls, empty lists and empty objects have no type, and are not new either when values are frozen."""
    found = inferred([{"a": 1, "n": None, "l": [None], "o": {"p": {}}}])
    assert isinstance(found, Inferred)
    assert (found.columns.names, found.blank) == (["a"], ["n", "l", "o"])
    frozen = Json(infer="freeze").with_columns(found.columns)
    values = [b'{"a": 1, "n": null, "z": [[], {}]}', b'{"a": 1, "n": 5}', b'{"a": 1.5}']
    table = decode(batch_of(values), values=frozen, on_bad="keep").read_all()
    assert table["value_error"].to_pylist() == [
        None,
        "the field 'n' is not among the inferred columns: infer='discard' leaves it out, infer='evolve' makes new fields columns",
        "a: 1.5 where a whole number is expected",
    ]
    discards = Json(infer="discard").with_columns(found.columns)
    assert (
        decode(batch_of(values[:2]), values=discards).read_all()["value"].to_pylist()
        == [{"a": 1}] * 2
    )


def test_fields_that_are_left_out_are_counted() -> None:
    """With their paths, and only values in which something is."""
    known = pa.schema(
        [("a", pa.struct([("x", pa.int64())])), ("l", pa.list_(pa.struct([("x", pa.int64())])))]
    )
    values = [
        {"a": {"x": 1, "y": 2}, "n": None},
        {"a": {"y": "z"}, "l": [{"z": 1}, {"z": 2}], "n": 1},
    ]
    found = inferred(values, known=known, adds=False)
    assert isinstance(found, Inferred)
    assert found.left_out == {"a.y": 2, "l[].z": 2, "n": 1}
    assert found.columns == known


def test_keys_that_are_data_are_refused() -> None:
    """Thousands of different fields are no columns, and are not held in memory."""
    found = inferred([{f"k{number}": 1} for number in range(FIELDS_MAX + 1)])
    assert f"more than {FIELDS_MAX:,} different fields, 'k{FIELDS_MAX}' among them" in str(found)


def test_bad_texts_are_counted() -> None:
    """They say nothing about columns; the first one is named, whichever comes first."""
    inference = JsonInference()
    for offset, text in ((3, b"[1]"), (1, b"{"), (2, b'{"a": 1}')):
        inference.add(text, ("orders", 0, offset))
    assert (inference.values, inference.bad) == (1, 2)
    assert inference.first_bad is not None
    assert inference.first_bad[0] == ("orders", 0, 1)
    assert inference.columns().columns.names == ["a"]
