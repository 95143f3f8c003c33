"""The native decoder of Protobuf: the same columns, bad values and reasons as the one in Python."""

from __future__ import annotations

import zlib
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from kafka_ordered_ops.decoding import Protobuf
from kafka_ordered_ops.decoding.column_reader import NotNativeError
from kafka_ordered_ops.decoding.protobuf.native import NativeProtobufReader
from kafka_ordered_ops.decoding.protobuf.records import ProtobufReader
from kafka_ordered_ops.kafka.native_module import native_module
from tests.support.decoders import Counting, assert_same_columns, some_array
from tests.support.examples import examples
from tests.support.protobuf_schemas import class_of, descriptor_of
from tests.support.random_protobuf import RandomProtobuf
from tests.support.readers import needs_native

pytestmark = [pytest.mark.native, needs_native]

#: Schemas of one run, by day.
CASES = 2_000
PARTS = 8
FRAME = b"\0\0\0\0\x07"


def readers(
    descriptor: bytes, message: str, framing: str = "none"
) -> tuple[NativeProtobufReader, Counting, ProtobufReader]:
    """Return the native reader, what decodes for it in Python, and the reader in Python."""
    wanted = Protobuf(message, descriptor=descriptor, framing=framing)
    left: Any = Counting(ProtobufReader(wanted, None))
    module: Any = native_module()
    return NativeProtobufReader(module, left), left, ProtobufReader(wanted, None)


def frame_of(place: int) -> bytes:
    """Return what stands before the message at a place of its file."""
    return FRAME + (bytes([2, 2 * place]) if place else b"\0")


@pytest.mark.parametrize("part", range(PARTS))
def test_random_schemas_and_values(part: int) -> None:
    """Thousands of schemas, with messages that the library wrote, merged, damaged, of other schemas, and null, in one column."""
    count = examples(CASES)
    seen: Counter[str] = Counter()
    for seed in range(part * count // PARTS, (part + 1) * count // PARTS):
        make = RandomProtobuf(seed)
        framing = make.random.choice(["none", "confluent"])
        try:
            native, left, python = readers(make.descriptor, make.message, framing)
        except NotNativeError:
            # A message without fields.
            seen["not native"] += 1
            continue
        values: list[bytes | None] = []
        written = set()
        for row in range(20):
            frame = own = frame_of(make.place) if framing == "confluent" else b""
            if frame and make.random.random() < 0.1:
                frame = frame_of(make.random.randrange(4))
            elif frame and make.random.random() < 0.1:
                frame = make.damaged(frame)
            kind = make.random.choices(
                ["written", "merged", "damaged", "foreign", "random", "null"], [8, 1, 4, 1, 1, 1]
            )[0]
            payload = make.payload()
            if kind == "merged":
                payload += make.payload()
            elif kind == "damaged":
                payload = make.damaged(payload)
            elif kind == "foreign":
                payload = RandomProtobuf(seed + 1).payload()
            elif kind == "random":
                payload = make.random.randbytes(make.random.randrange(20))
            elif kind == "written" and frame == own:
                written.add(row)
            seen[kind] += 1
            values.append(None if kind == "null" else frame + payload)
        array, first = some_array(make.random, values)
        bad = assert_same_columns(native, python, array)
        seen["bad"] += len(bad)
        # Everything that a serializer writes is decoded here.
        assert not {values[row] for row in written if row >= first} & set(left.values)
        seen["left"] += len(left.values)
    assert seen["not native"] < count / PARTS / 3
    assert seen["bad"] > count / PARTS


ODD = descriptor_of(
    """
    syntax = "proto3"; package t; import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto";
    enum E { ZERO = 0; }
    message Row { int32 n = 1; string s = 2; I i = 3; repeated int32 l = 4; map<string, I> m = 5;
      oneof o { int32 a = 6; I b = 7; } google.protobuf.Timestamp at = 8; google.protobuf.Duration took = 9; E e = 10;
      map<sint32, bool> signs = 11; repeated fixed32 fixed = 12; }
    message I { int32 x = 1; string y = 2; }
    """
)


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"\x08\x01\x08\x02", id="a number twice"),
        pytest.param(b"\x1a\x02\x08\x01\x1a\x03\x12\x01z", id="a message twice: merged"),
        pytest.param(b"\x12\x01\xff\x12\x01a", id="an invalid text, then a valid one"),
        pytest.param(b"\x30\x01\x3a\x02\x08\x01", id="two of a oneof"),
        pytest.param(
            b"\x3a\x02\x08\x01\x30\x01\x3a\x03\x12\x01z", id="of a oneof, a message twice"
        ),
        pytest.param(b"\x2a\x03\x0a\x01k\x2a\x07\x0a\x01k\x12\x02\x08\x05", id="a key twice"),
        pytest.param(b"\x2a\x00", id="an entry without key and value"),
        pytest.param(b"\x5a\x04\x08\x01\x10\x01\x5a\x04\x08\x02\x10\x00", id="keys with signs"),
        pytest.param(b"\x22\x03\x01\x02\x03\x20\x04", id="packed and unpacked"),
        pytest.param(b"\x62\x05\0\0\0\0\0", id="packed numbers with a byte too many"),
        pytest.param(b"\x08" + b"\xff" * 9 + b"\x7f", id="a number of more than 64 bits"),
        pytest.param(b"\x08" + b"\x80" * 10 + b"\x01", id="a number of 11 bytes"),
        pytest.param(b"\x88\x80\x80\x80\x80\x00\x01", id="a tag of six bytes"),
        pytest.param(b"\x12\xff\xff\xff\xff\x0f", id="a length of 4 GiB"),
        pytest.param(b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", id="a negative length"),
        pytest.param(b"\x12\x81\x80\x80\x80\x80\x00z", id="a length of six bytes"),
        pytest.param(b"\x0a\x01z", id="another type"),
        pytest.param(b"\x9b\x06\x08\x01\x9c\x06", id="an unknown group"),
        pytest.param(b"\x9b\x06\x08\x01", id="a group without end"),
        pytest.param(b"\x00\x01", id="the field 0"),
        pytest.param(b"\x0e", id="an unknown wire type"),
        pytest.param(b"\x42\x06\x10\x80\x94\xeb\xdc\x03", id="a second of nanoseconds"),
        pytest.param(b"\x42\x0b\x08" + b"\xff" * 8 + b"\x7f\x10", id="a time too far"),
        pytest.param(b"\x4a\x0d\x08\x01\x10" + b"\xff" * 9 + b"\x01", id="two signs"),
        pytest.param(b"\x50\xff\xff\xff\xff\x1f", id="an enum of more than 32 bits"),
        pytest.param(b"\x80\x7d\x01" * 3, id="unknown fields"),
    ],
)
def test_unusual_bytes_are_decoded_in_python(payload: bytes) -> None:
    """What no serializer writes, beside a good value on both sides."""
    good = class_of(ODD, "t.Row")(n=1, s="é", l=[1]).SerializeToString()
    native, _, python = readers(ODD, "t.Row")
    bad = assert_same_columns(native, python, pa.array([good, payload, good], pa.binary()))
    assert bad in ([], [1])


def test_schemas_that_are_decoded_in_python() -> None:
    """Groups, values of any kind, extensions, and messages that are no records."""
    for text in (
        'syntax = "proto2"; message M { optional group G = 1 { optional int32 a = 1; } }',
        'syntax = "proto3"; import "google/protobuf/struct.proto"; message M { google.protobuf.Value v = 1; }',
        'syntax = "proto2"; message M { optional int32 a = 1; extensions 100 to 200; }',
        'syntax = "proto3"; message M { }',
    ):
        with pytest.raises(NotNativeError):
            readers(descriptor_of(text), "M")


def test_a_wide_message_in_two_bytes_is_left_to_python() -> None:
    """It is bad there: its fields would take a thousand times its bytes."""
    fields = " ".join(f"int64 f{number} = {number};" for number in range(1, 2_001))
    wide = descriptor_of(
        f'syntax = "proto3"; message W {{ {fields} }} message M {{ repeated W w = 1; }}'
    )
    native, left, python = readers(wide, "M")
    values = pa.array([b"\x0a\x00" * 5, b"\x0a\x00" * 5_000, b""], pa.binary())
    assert assert_same_columns(native, python, values) == [1]
    assert len(left.values) == 1


def test_values_of_glue() -> None:
    """Those without compression are decoded here, and all others in Python."""
    text = 'syntax = "proto3"; message B { int32 n = 1; } message A { int32 n = 1; }'
    native, left, python = readers(descriptor_of(text), "B", "glue")
    frame = bytes(16)
    plain = b"\3\0" + frame + b"\1\x08\7"
    rest = [
        b"\3\5" + frame + zlib.compress(b"\1\x08\7"),
        b"\3\0" + frame + b"\0\x08\7",
        b"\3\0" + frame + b"\x81",
        b"\3\1" + frame + b"\1\x08\7",
        b"\0\0" + frame + b"\1\x08\7",
        b"\3\0",
    ]
    values = pa.array([plain, *rest, None, plain])
    assert assert_same_columns(native, python, values) == [2, 3, 4, 5, 6]
    assert [*left.values] == rest
