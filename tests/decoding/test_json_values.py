"""JSON to columns: exactly, or not at all."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops.decoding import Json, decode
from tests.support.encoded_values import batch_of

UTC = dt.UTC


def decoded(text: str | bytes, arrow: Any, **options: Any) -> tuple[Any, str | None]:
    """Return the column ``x`` of one text, and the reason if it is bad."""
    data = text.encode() if isinstance(text, str) else text
    json_ = Json(pa.schema([pa.field("x", arrow)]), **options)
    table = decode(batch_of([data]), values=json_, on_bad="keep").read_all()
    table.validate(full=True)
    value = table["value"][0].as_py()
    return value and value["x"], table["value_error"][0].as_py()


@pytest.mark.parametrize(
    ("arrow", "text", "value"),
    [
        (pa.int64(), "9223372036854775807", 2**63 - 1),
        (pa.int64(), "1e3", 1_000),
        (pa.int8(), "-128", -128),
        (pa.uint64(), "18446744073709551615", 2**64 - 1),
        (pa.float64(), "0.1", 0.1),
        (pa.float64(), "3", 3.0),
        (pa.bool_(), "true", True),
        (pa.string(), '"\\u00e9\\ud83d\\ude00"', "é😀"),
        (pa.binary(), '"AAE="', b"\x00\x01"),
        (pa.decimal128(5, 2), "1.50", Decimal("1.50")),
        (pa.decimal128(5, 2), '"-123.4"', Decimal("-123.40")),
        (pa.decimal128(5, 2), "1.500", Decimal("1.50")),
        (pa.decimal128(5, 2), "0e99", Decimal("0.00")),
        (pa.decimal128(5, 2), "1e2", Decimal("100.00")),
        (pa.float32(), "0.5", 0.5),
        (pa.time32("s"), '"03:04"', dt.time(3, 4)),
        (
            pa.timestamp("ms", "UTC"),
            '"2026-01-02T03:04:05.678+01:00"',
            dt.datetime(2026, 1, 2, 2, 4, 5, 678_000, UTC),
        ),
        (
            pa.timestamp("ms", "UTC"),
            '"1969-12-31T23:59:59.5Z"',
            dt.datetime(1969, 12, 31, 23, 59, 59, 500_000, UTC),
        ),
        (
            pa.timestamp("us"),
            '"2026-01-02 03:04:05"',
            dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).replace(tzinfo=None),
        ),
        (pa.timestamp("s", "UTC"), "5", dt.datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)),
        (pa.date32(), '"2026-02-28"', dt.date(2026, 2, 28)),
        (pa.time64("us"), '"03:04:05.25"', dt.time(3, 4, 5, 250_000)),
        (pa.list_(pa.int32()), "[1, null]", [1, None]),
        (pa.map_(pa.string(), pa.int32()), '{"a": 1}', [("a", 1)]),
        (pa.struct([("y", pa.string())]), '{"y": "z", "more": 1}', {"y": "z"}),
        (pa.int64(), "null", None),
    ],
)
def test_values_are_exact(arrow: Any, text: str, value: Any) -> None:
    """Of each type."""
    found, reason = decoded(f'{{"x": {text}}}', arrow)
    assert reason is None
    assert found == value


@pytest.mark.parametrize(
    ("arrow", "text", "words"),
    [
        (pa.int64(), "1.5", "x: 1.5 where a whole number is expected"),
        (pa.int64(), '"12"', "a whole number is expected"),
        (pa.int64(), "true", "a whole number is expected"),
        (pa.int64(), "9223372036854775808", "is beyond int64"),
        (pa.int64(), "1e999999999", "is beyond int64"),
        (pa.uint8(), "-1", "is beyond uint8"),
        (pa.float64(), '"1.5"', "a number is expected"),
        (pa.float64(), "NaN", "NaN is not JSON"),
        (pa.float64(), "1e400", "beyond the column's range"),
        (pa.float32(), "1e39", "beyond the column's range"),
        (pa.float16(), "70000", "beyond the column's range"),
        (pa.time32("s"), '"03:04:05.25"', "does not fit time32[s] exactly"),
        (pa.time64("us"), '"03:04:05.1234567"', "does not fit"),
        (pa.time64("us"), '"03:04+01:00"', "without a zone"),
        (pa.date32(), '"20260228"', "a date is expected"),
        (pa.bool_(), "1", "true or false is expected"),
        (pa.string(), "5", "a text is expected"),
        (pa.string(), '"\\ud800"', "half of a surrogate pair"),
        (pa.binary(), '"-"', "not base64"),
        (pa.decimal128(5, 2), "1.234", "does not fit decimal128(5, 2) exactly"),
        (pa.decimal128(5, 2), "1000", "does not fit"),
        (pa.decimal128(5, 2), '"NaN"', "a number is expected"),
        (pa.timestamp("ms", "UTC"), '"2026-01-02T03:04:05"', "a time with a zone is expected"),
        (pa.timestamp("ms"), '"2026-01-02T03:04:05Z"', "a time without a zone is expected"),
        (
            pa.timestamp("ms", "UTC"),
            '"2026-01-02T03:04:05.0001Z"',
            "does not fit timestamp[ms, tz=UTC] exactly",
        ),
        (pa.timestamp("ms", "UTC"), "1.5", "a whole number is expected"),
        (pa.timestamp("ms", "UTC"), '"2026-02-30T00:00:00Z"', "a time is expected"),
        (pa.date32(), '"2026-02-30"', "a date is expected"),
        (pa.time32("s"), '"25:00:00"', "a time of day is expected"),
        (pa.list_(pa.int32()), "{}", "a list is expected"),
        (pa.map_(pa.string(), pa.int32()), '{"\\ud800": 1}', "half of a surrogate pair"),
        (pa.float64(), "1e99999999999999999999", "an exponent beyond those of decimals"),
        (pa.struct([("y", pa.string())]), "[]", "x: [] where an object is expected"),
        (pa.struct([pa.field("y", pa.string(), nullable=False)]), "{}", "y: it must not be null"),
    ],
)
def test_other_values_are_bad(arrow: Any, text: str, words: str) -> None:
    """Nothing is rounded, cut or guessed."""
    value, reason = decoded(f'{{"x": {text}}}', arrow)
    assert value is None
    assert reason is not None
    assert words in reason


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not valid JSON"),
        ("{} {}", "not valid JSON"),
        ('{"x": 1,}', "not valid JSON"),
        ('{"x": 01}', "not valid JSON"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        (b'{"x": "\xff"}', "not valid UTF-8"),
        ('{"x": 1, "x": 1}', "the key 'x' is there twice"),
        ("[1]", "an object is expected"),
        ('{"y": ' + "[" * 200 + "]" * 200 + "}", "more than 128 levels"),
        ('{"y": ' + "9" * 500 + "}", "more than 400 digits"),
    ],
)
def test_other_texts_are_bad(text: str | bytes, words: str) -> None:
    """A byte order mark, trailing commas and deep nesting among them."""
    _, reason = decoded(text, pa.int64())
    assert reason is not None
    assert words in reason


def test_null_is_no_object() -> None:
    """A field may be null; a value that is null would be taken for a tombstone."""
    assert decoded('{"x": null}', pa.int64()) == (None, None)
    table = decode(
        batch_of([b"null", None]), values=Json(pa.schema([("x", pa.int64())])), on_bad="keep"
    ).read_all()
    assert table["value"].to_pylist() == [None, None]
    assert table["value_error"].to_pylist() == ["null where an object is expected", None]


def test_unknown_fields_are_bad_if_wanted() -> None:
    """By default they are ignored."""
    assert decoded('{"x": 1, "y": 2}', pa.int64()) == (1, None)
    _, reason = decoded('{"x": 1, "y": 2}', pa.int64(), unknown="bad")
    assert reason == "the field 'y' is not in the schema"


TYPES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    (pa.string(), st.text(max_size=5)),
    (pa.bool_(), st.booleans()),
    (pa.list_(pa.int32()), st.lists(st.integers(-5, 5) | st.none(), max_size=3)),
]


@given(st.data())
def test_what_python_writes_is_read_back(data: st.DataObject) -> None:
    """Random values of random types."""
    arrow, values = data.draw(st.sampled_from(TYPES))
    value = data.draw(values | st.none())
    assert decoded(json.dumps({"x": value}), arrow) == (value, None)


@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_any_bytes_are_a_value_or_have_a_reason(data: bytes) -> None:
    """Never an error of another kind."""
    decoded(data, pa.struct([("x", pa.string())]))


@pytest.mark.parametrize(("item", "text"), [("list", "[" + "{}," * 999 + "{}]"), ("map", None)])
def test_a_text_of_too_many_missing_fields_is_bad(item: str, text: str | None) -> None:
    """A thousand objects of a thousand fields would take a thousand times the text; one of them is a value."""
    wide = pa.struct([(f"f{number}", pa.int64()) for number in range(1_000)])
    arrow: Any = pa.list_(wide) if item == "list" else pa.map_(pa.string(), wide)
    text = text or "{" + ",".join(f'"{number}":{{}}' for number in range(1_000)) + "}"
    _, reason = decoded(f'{{"x": {text}}}', arrow)
    assert reason is not None
    assert "objects with more than 20,000 fields" in reason
    _, reason = decoded('{"x": ' + ("[{}]" if item == "list" else '{"a":{}}') + "}", arrow)
    assert reason is None
