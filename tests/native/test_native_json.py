"""The native decoder of JSON: the same columns, bad values and reasons as the one in Python."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from kafka_ordered_ops.core.errors import DecodeError
from kafka_ordered_ops.core.window.formats import Framing, UnknownFields
from kafka_ordered_ops.decoding import Json
from kafka_ordered_ops.decoding.column_reader import ColumnReader, NotNativeError
from kafka_ordered_ops.decoding.decoder import reader_of
from kafka_ordered_ops.decoding.discarded import Discarded
from kafka_ordered_ops.decoding.json.inference import JsonInference
from kafka_ordered_ops.decoding.native_columns import NativeJsonReader
from kafka_ordered_ops.kafka.native_module import native_module
from tests.support.decoders import Counting, assert_same_columns, decoded_by, some_array
from tests.support.examples import examples
from tests.support.random_json import RandomJson
from tests.support.readers import needs_native

pytestmark = [pytest.mark.native, needs_native]

#: Random columns of one run, by day.
CASES = 2_000
PARTS = 8


def readers(columns: Any, **options: Any) -> tuple[NativeJsonReader, Counting, ColumnReader]:
    """Return the native reader, what decodes for it in Python, and the reader in Python."""
    wanted = Json(columns, **options)
    with decoded_by("python"):
        python: Any = reader_of(wanted, None)
    left, module = Counting(python), native_module()
    assert module is not None
    framing = Framing(wanted.framing or Framing.NONE)
    refuses_unknown = wanted.unknown is UnknownFields.BAD
    counting: Any = left
    return NativeJsonReader(module, counting, refuses_unknown, framing), left, python


@pytest.mark.parametrize("part", range(PARTS))
def test_random_columns_and_texts(part: int) -> None:
    """Thousands of schemas, with texts as serializers write them, odd values, damaged texts, and null, in one column."""
    count = examples(CASES)
    seen: Counter[str] = Counter()
    for seed in range(part * count // PARTS, (part + 1) * count // PARTS):
        make = RandomJson(seed)
        unknown = make.random.choice(["ignore", "bad"])
        native, left, python = readers(make.columns, unknown=unknown)
        values: list[bytes | None] = []
        written = set()
        for row in range(20):
            kind = make.random.choices(["written", "odd", "damaged", "null"], [8, 6, 5, 1])[0]
            text = make.odd() if kind == "odd" else make.text()
            if kind == "written" and (unknown == "ignore" or b'"more"' not in text):
                written.add(row)
            seen[kind] += 1
            damaged = make.damaged(text) if kind == "damaged" else text
            values.append(None if kind == "null" else damaged)
        array, first = some_array(make.random, values)
        bad = assert_same_columns(native, python, array)
        seen["bad"] += len(bad)
        # Everything that a serializer writes is decoded here.
        assert not {values[row] for row in written if row >= first} & set(left.values)
        seen["left"] += len(left.values)
    assert seen["bad"] > count / PARTS
    # Few rows that are good after all are left to Python.
    assert seen["left"] < 1.3 * seen["bad"]


@pytest.mark.parametrize("infer", ["freeze", "discard"])
def test_inferred_columns(infer: str) -> None:
    """Of random records, with fields that are new, null, or of another type: the same values, and the same reasons."""
    seen: Counter[str] = Counter()
    for seed in range(examples(CASES) // 4):
        make = RandomJson(seed)
        texts = [make.text() for _ in range(20)]
        inference = JsonInference()
        try:
            for offset, text in enumerate(texts[:5]):
                inference.add(text, ("orders", 0, offset))
            found = inference.columns()
        except DecodeError:
            seen["conflict"] += 1
            continue
        wanted = Json(infer=infer).with_columns(found.columns)
        with decoded_by("python"):
            python: Any = reader_of(wanted, None)
        with decoded_by("native"):
            native: Any = reader_of(wanted, None)
        more = [text[:-1] + b', "none": [null]}' for text in texts if text[-2:-1] != b"{"]
        array = pa.array([*texts, *more, *(make.odd() for _ in range(5))], pa.binary())
        seen["bad"] += len(bad := assert_same_columns(native, python, array))
        # What was looked at is decoded, but for an object that says nothing.
        assert not {row for row in bad if row < 5}
        seen["good"] += len(array) - len(bad)
        counts = [Discarded(), Discarded()]
        for reader, discarded in zip((native, python), counts, strict=True):
            reader.read_counted(array, discarded)
        assert (counts[0].values, counts[0].fields) == (counts[1].values, counts[1].fields)
        seen["discarded"] += counts[0].values
    assert seen["bad"] > 10
    assert seen["good"] > 10
    assert (seen["discarded"] > 10) is (infer == "discard")


TYPES: dict[str, Any] = {"id": pa.int64(), "name": pa.string(), "more": pa.list_(pa.int32())}
COLUMNS = pa.schema(TYPES)
GOOD = b'{"id": 1, "name": "\xc3\xa9", "more": [1]}'


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"null",
        b"[]",
        b"1",
        b"\xef\xbb\xbf{}",
        b"{}{}",
        b"{} x",
        b' \t\r\n{ "id" : 1 } \n',
        b'{"id":1}\x00',
        b'{"id":1,"id":1}',
        b'{"id":1,"\\u0069d":1}',
        b'{"a":1,"a":2}',
        b'{"a":1,"\\u0061":2}',
        b'{"a":{"b":1,"b":1}}',
        b'{"\\ud800":1}',
        b'{"a":"\\ud800"}',
        b'{"a":1e99999999999999999999}',
        b'{"a":-1e-99999999999999999999}',
        b'{"name":"' + b"7" * 401 + b'"}',
        b'{"name":"' + b"7" * 400 + b'"}',
        b'{"name":"\x1f"}',
        b'{"name":"\x7f\xc2\x80"}',
        b'{"name":"\xed\xa0\x80"}',
        b'{"name":"1234567\\"90"}',
        b'{"name":"12345678\\\\"}',
        b'{"other":' + b"[" * 127 + b"]" * 127 + b"}",
        b'{"other":' + b"[" * 128 + b"]" * 128 + b"}",
        b'{"other":' + b"[" * 100_000,
        b'{"more":[1,2,3,null]}',
        b'{"more":[1.0,2.5]}',
        b'{"id":NaN}',
        b"{'id':1}",
        b'{"id":1,}',
        b'{"id":01}',
        b'/**/{"id":1}',
    ],
    ids=lambda text: ascii(text[:40]),
)
def test_texts_beside_good_ones(text: bytes) -> None:
    """Syntax, keys that are there twice, depth, and what only Python takes."""
    for unknown in ("ignore", "bad"):
        native, _, python = readers(COLUMNS, unknown=unknown)
        assert assert_same_columns(native, python, pa.array([GOOD, text, GOOD])) in ([], [1])


@pytest.mark.parametrize(
    ("framing", "frame"),
    [("confluent", bytes(5)), ("apicurio-8", bytes(9)), ("glue", b"\3\0" + bytes(16))],
)
def test_frames(framing: str, frame: bytes) -> None:
    """The id before a text is not looked at."""
    native, left, python = readers(COLUMNS, framing=framing)
    values = pa.array(
        [frame + GOOD, GOOD, b"\1" + frame[1:] + GOOD, frame[:-1], None, frame + GOOD]
    )
    assert assert_same_columns(native, python, values) == [1, 2, 3]
    assert len(left.values) == 3


def test_columns_that_are_decoded_in_python() -> None:
    """Their types are rare."""
    rare = (pa.float16(), pa.date64(), pa.decimal256(50, 2), pa.large_string())
    for arrow in rare:
        with pytest.raises(NotNativeError):
            readers(pa.schema({"x": arrow}))


def test_a_text_of_wide_objects_is_left_to_python() -> None:
    """It is bad there: its fields would take a thousand times its bytes."""
    wide = pa.struct([(f"f{number}", pa.int64()) for number in range(2_000)])
    native, left, python = readers(pa.schema({"w": pa.list_(wide)}))
    values = pa.array([b'{"w":[{},{}]}', b'{"w":[' + b"{}," * 5_000 + b"{}]}", b'{"w":[]}'])
    assert assert_same_columns(native, python, values) == [1]
    assert len(left.values) == 1
