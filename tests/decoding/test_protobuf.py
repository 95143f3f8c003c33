"""Values in Protobuf as columns: types, frames, bad values, schemas that are refused, and windows."""

from __future__ import annotations

import base64
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from kafka_ordered_ops import ConfigError, DecodeError, OrderedWindows, Window, WindowPlan
from kafka_ordered_ops.decoding import Protobuf, decode
from kafka_ordered_ops.decoding.decoder import Decoder
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.encoded_values import batch_of
from tests.support.protobuf_schemas import class_of, descriptor_of

ORDERS = descriptor_of(
    """
    syntax = "proto3"; package shop;
    message Order { int64 id = 1; optional string note = 2; map<string, Line> lines = 3;
      message Line { int32 n = 1; } message Tax { int32 percent = 1; } }
    message Sale { int64 id = 1; }
    """
)
NO_MAPS = descriptor_of(
    """
    syntax = "proto3"; package shop;
    message Order { int64 id = 1; }
    message Sale { int64 id = 1; }
    """
)
ORDER = class_of(ORDERS, "shop.Order")
BARE = Protobuf("shop.Order", descriptor=ORDERS, framing="none")


def order(number: int, frame: bytes = b"") -> bytes:
    """Return an order in Protobuf."""
    return frame + bytes(ORDER(id=number).SerializeToString())


def column(text: str, payload: bytes, message: str | None = None) -> Any:
    """Return the decoded value of one record."""
    values = Protobuf(message, descriptor=descriptor_of(text), framing="none")
    table = decode(batch_of([payload]), values=values).read_all()
    table.validate(full=True)
    return table["value"]


def ids(batch: pa.RecordBatch) -> Any:
    """Return the field `id` of the values."""
    values: Any = batch["value"]
    return values.field("id").to_pylist()


def reason(values: Protobuf, payload: bytes) -> str | None:
    """Return why a value is bad."""
    table = decode(batch_of([payload]), values=values, on_bad="keep").read_all()
    text: str | None = table["value_error"][0].as_py()
    assert (table["value"][0].as_py() is None) == (text is not None)
    return text


IMPORTS = "".join(
    f'import "google/protobuf/{name}.proto";'
    for name in ("any", "duration", "empty", "struct", "timestamp", "wrappers")
)
E = "enum E { ZERO = 0; ONE = 1; }"
#: A field, what follows the message, its bytes, its type, its value, and that of an empty message.
TYPES: list[tuple[str, bytes, pa.DataType, Any, Any]] = [
    ("double v = 1;", b"\x09" + bytes(6) + b"\xf8\x3f", pa.float64(), 1.5, 0.0),
    ("float v = 1;", b"\x0d\0\0\xc0\x3f", pa.float32(), 1.5, 0.0),
    ("int32 v = 1;", b"\x08" + b"\xff" * 9 + b"\x01", pa.int32(), -1, 0),
    ("int64 v = 1;", b"\x08" + b"\xff" * 9 + b"\x01", pa.int64(), -1, 0),
    ("uint32 v = 1;", b"\x08\xff\xff\xff\xff\x0f", pa.uint32(), 2**32 - 1, 0),
    ("uint64 v = 1;", b"\x08" + b"\xff" * 9 + b"\x01", pa.uint64(), 2**64 - 1, 0),
    ("sint32 v = 1;", b"\x08\x01", pa.int32(), -1, 0),
    ("sint64 v = 1;", b"\x08\x01", pa.int64(), -1, 0),
    ("fixed32 v = 1;", b"\x0d" + b"\xff" * 4, pa.uint32(), 2**32 - 1, 0),
    ("fixed64 v = 1;", b"\x09" + b"\xff" * 8, pa.uint64(), 2**64 - 1, 0),
    ("sfixed32 v = 1;", b"\x0d" + b"\xff" * 4, pa.int32(), -1, 0),
    ("sfixed64 v = 1;", b"\x09" + b"\xff" * 8, pa.int64(), -1, 0),
    ("bool v = 1;", b"\x08\x01", pa.bool_(), True, False),
    ("string v = 1;", b"\x0a\x02\xc3\xa9", pa.string(), "é", ""),
    ("bytes v = 1;", b"\x0a\x01\xff", pa.binary(), b"\xff", b""),
    (f"{E} E v = 1;", b"\x08\x01", pa.string(), "ONE", "ZERO"),
    (f"{E} E v = 1;", b"\x08\x07", pa.string(), "7", "ZERO"),
    ("optional int32 v = 1;", b"\x08\x00", pa.int32(), 0, None),
    ("oneof o { int32 v = 1; string w = 2; }", b"\x08\x00", pa.int32(), 0, None),
    ("repeated int32 v = 1;", b"\x0a\x02\x01\x02", pa.list_(pa.int32()), [1, 2], []),
    (
        "map<string, int32> v = 1;",
        b"\x0a\x05\x0a\x01b\x10\x01\x0a\x05\x0a\x01a\x10\x02",
        pa.map_(pa.string(), pa.int32()),
        [("a", 2), ("b", 1)],
        [],
    ),
    (
        "map<int64, bool> v = 1;",
        b"\x0a\x04\x08\x05\x10\x01",
        pa.map_(pa.string(), pa.bool_()),
        [("5", True)],
        [],
    ),
    (
        "map<bool, bytes> v = 1;",
        b"\x0a\x02\x08\x01",
        pa.map_(pa.string(), pa.binary()),
        [("true", b"")],
        [],
    ),
    (
        "message I { int32 a = 1; } I v = 1;",
        b"\x0a\x02\x08\x05",
        pa.struct([("a", pa.int32())]),
        {"a": 5},
        None,
    ),
    ("google.protobuf.Empty v = 1;", b"\x0a\x00", pa.bool_(), True, None),
    ("google.protobuf.StringValue v = 1;", b"\x0a\x00", pa.string(), "", None),
    ("google.protobuf.UInt64Value v = 1;", b"\x0a\x02\x08\x05", pa.uint64(), 5, None),
    (
        "repeated google.protobuf.Int32Value v = 1;",
        b"\x0a\x02\x08\x05\x0a\x00",
        pa.list_(pa.int32()),
        [5, 0],
        [],
    ),
    (
        "google.protobuf.Any v = 1;",
        b"\x0a\x06\x0a\x01t\x12\x01x",
        pa.struct([("type_url", pa.string()), ("value", pa.binary())]),
        {"type_url": "t", "value": b"x"},
        None,
    ),
    ("google.protobuf.Struct v = 1;", b"\x0a\x00", pa.string(), "{}", None),
]


@pytest.mark.parametrize(("field", "payload", "arrow", "value", "empty"), TYPES)
def test_types(field: str, payload: bytes, arrow: pa.DataType, value: Any, empty: Any) -> None:
    """Each with a value, and missing."""
    text = f'syntax = "proto3"; {IMPORTS} message M {{ {field} }}'
    struct: Any = column(text, payload).type
    assert struct.field("v").type == arrow
    assert column(text, payload).to_pylist()[0]["v"] == value
    assert column(text, b"").to_pylist()[0]["v"] == empty


def test_older_schemas_have_presence_groups_and_required_fields() -> None:
    """A missing field is null, not its default; an unknown number of a closed enum is missing."""
    text = f"""
        syntax = "proto2";
        message M {{ required int32 id = 1; optional int32 n = 2 [default = 7]; {E} optional E e = 3;
          optional group Part = 4 {{ optional string s = 5; }} repeated string t = 6;
          map<string, int32> m = 7; }}
    """
    values = Protobuf(descriptor=descriptor_of(text), framing="none")
    table = decode(batch_of([b"\x08\x01", b"\x08\x01\x18\x09\x23\x2a\x01x\x24"]), values=values)
    missing: dict[str, Any] = {"id": 1, "n": None, "e": None, "part": None, "t": [], "m": []}
    assert table.read_all()["value"].to_pylist() == [missing, {**missing, "part": {"s": "x"}}]
    assert reason(values, b"\x10\x01") == "required fields are missing: id"
    # The library does not check these texts itself.
    assert reason(values, b"\x08\x01\x32\x01\xff") == "a text is not valid UTF-8"
    assert (
        reason(values, b"\x08\x01\x3a\x03\x0a\x01a\x3a\x03\x0a\x01\xff")
        == "a text is not valid UTF-8"
    )


TIMES = f"""
    syntax = "proto3"; {IMPORTS}
    message M {{ google.protobuf.Timestamp at = 1; google.protobuf.Duration took = 2; }}
"""


@pytest.mark.parametrize(
    ("field", "seconds", "nanos", "stored"),
    [
        ("at", 0, 0, 0),
        ("at", -1, 999_999_999, -1),
        ("at", 9_223_372_036, 854_775_807, 2**63 - 1),
        ("at", -9_223_372_037, 145_224_192, -(2**63)),
        ("at", 9_223_372_036, 854_775_808, "a Timestamp of 9,223,372,036 seconds does not fit"),
        ("at", 0, 1_000_000_000, "a Timestamp has 1,000,000,000 nanoseconds"),
        ("at", 0, -1, "a Timestamp has -1 nanoseconds"),
        ("took", -1, -5, -1_000_000_005),
        ("took", 1, -5, "a Duration has 1 seconds and -5 nanoseconds"),
        ("took", 315_576_000_000, 0, "a Duration of 315,576,000,000 seconds does not fit"),
    ],
)
def test_times_are_exact_or_bad(field: str, seconds: int, nanos: int, stored: Any) -> None:
    """In nanoseconds, over all that 64 bits hold."""
    values = Protobuf(descriptor=descriptor_of(TIMES), framing="none")
    message = class_of(descriptor_of(TIMES), "M")()
    part = getattr(message, field)
    part.seconds, part.nanos = seconds, nanos
    payload = message.SerializeToString()
    if isinstance(stored, str):
        assert stored in (reason(values, payload) or "")
        return
    value: Any = decode(batch_of([payload]), values=values, flatten=True).read_all()
    assert value.schema.field("at").type == pa.timestamp("ns", "UTC")
    assert value.schema.field("took").type == pa.duration("ns")
    assert value[field].cast(pa.int64()).to_pylist() == [stored]


def test_dynamic_values_are_json() -> None:
    """With sorted keys; a number that JSON does not have is bad."""
    text = f'syntax = "proto3"; {IMPORTS} message M {{ google.protobuf.Struct v = 1; }}'
    message = class_of(descriptor_of(text), "M")()
    message.v.update({"b": [1, 1.5, None, True, {"é": "x"}], "a": {}})
    value = column(text, message.SerializeToString()).to_pylist()[0]["v"]
    assert value == '{"a":{},"b":[1,1.5,null,true,{"é":"x"}]}'
    message.v["a"] = float("nan")
    values = Protobuf(descriptor=descriptor_of(text), framing="none")
    assert "the number nan" in (reason(values, message.SerializeToString()) or "")


def test_fields_may_have_the_names_of_methods() -> None:
    """They are read as fields."""
    text = 'syntax = "proto3"; message M { optional string HasField = 1; int32 DESCRIPTOR = 2; int32 from = 3; }'
    assert column(text, b"\x0a\x01x\x10\x05").to_pylist() == [
        {"HasField": "x", "DESCRIPTOR": 5, "from": 0}
    ]


BEFORE = "it ends before its message begins"
NO_FRAME = "it does not begin with a zero byte and a schema id"


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"\0\0\0\0\x05\0\x08\x05", None),
        (b"\0\0\0\0\x05\x02\0\x08\x05", None),
        (b"\0\0\0\0\x05\0", None),
        (b"\0\0\0\0\x05\x02\x02\x08\x05", "it is a message shop.Sale, not shop.Order"),
        (b"\0\0\0\0\x05\x02\x04", "the schema has no message with the index [2]"),
        (b"\0\0\0\0\x05\x04\0\0", "the schema has no message with the index [0, 0]"),
        (b"\0\0\0\0\x05\x02\x01", "the index of its message has the number -1"),
        (b"\0\0\0\0\x05\x01", "the index of its message has -1 numbers"),
        (b"\0\0\0\0\x05\x82\x01", "the index of its message has 65 numbers"),
        (b"\0\0\0\0\x05", BEFORE),
        (b"\0\0\0\0\x05\x02\x80", BEFORE),
        (b"\0\0\0\0\x05" + b"\x80" * 20, BEFORE),
        (b"\x01\0\0\0\x05\0", NO_FRAME),
        (b"\0\0\0\0", NO_FRAME),
        (b"", NO_FRAME),
    ],
)
def test_the_index_before_a_value_must_be_that_of_the_message(
    payload: bytes, words: str | None
) -> None:
    """As Confluent's serializers write it, in the long form or in the short one."""
    values = Protobuf("shop.Order", descriptor=NO_MAPS)
    assert reason(values, payload) == words


@pytest.mark.parametrize("message", ["shop.Order.Line", "shop.Order.Tax"])
def test_maps_count_as_messages_for_some_writers(message: str) -> None:
    """An index within a message with a map may mean two messages: either is accepted."""
    values = Protobuf(message, descriptor=ORDERS)
    # The entries of the map are first in the descriptor, and are not in the text.
    by_descriptor, by_text = {"shop.Order.Line": (2, 0), "shop.Order.Tax": (4, 2)}[message]
    for number in (by_descriptor, by_text):
        assert reason(values, bytes([0, 0, 0, 0, 5, 4, 0, number])) is None
    assert reason(values, bytes([0, 0, 0, 0, 5, 4, 0, 6])) is not None


@pytest.mark.parametrize(
    ("ref", "words"),
    [
        (b"\x07\x0a\x05Order", None),
        (b"\x0c\x0a\x0ashop.Order", None),
        (b"\x00", None),
        (b"\x06\x0a\x04Sale", "it is a message Sale, not shop.Order"),
        (b"\x06\x0a\x04\xffale", "it does not have the name of its message"),
        (b"\x7f\x0a", "it ends before its message begins"),
    ],
)
def test_older_serializers_of_apicurio_write_a_name(ref: bytes, words: str | None) -> None:
    """After an id of eight bytes."""
    values = Protobuf("shop.Order", descriptor=ORDERS, framing="apicurio-8")
    assert reason(values, order(5, b"\0" + bytes(8) + ref)) == words


def test_bad_values_have_reasons() -> None:
    """The library says no more than that the bytes do not fit; other records stay."""
    table = decode(
        batch_of([order(1), b"\x08", None, b""]), values=BARE, on_bad="keep", flatten=True
    ).read_all()
    assert table["id"].to_pylist() == [1, None, None, 0]
    assert table["value_error"][1].as_py() == "the bytes are not a message shop.Order"
    with pytest.raises(DecodeError, match=r"orders\[0\] at offset 0: the value cannot be decoded"):
        decode(batch_of([b"\x08"]), values=BARE).read_all()


WIDE = " ".join(f"string f{number} = {number};" for number in range(1, 500))
WIDE_TEXT = f"""
    syntax = "proto3"; message M {{ repeated I v = 1; map<int32, I> m = 2; optional N n = 3; bytes b = 4; }}
    message I {{ {WIDE} }} message N {{ repeated I v = 1; }}
"""


@pytest.mark.parametrize("item", [b"\x0a\x00", b"\x12\x00", b"\x1a\x02\x0a\x00"])
def test_a_few_bytes_do_not_become_gigabytes(item: bytes) -> None:
    """Two bytes are a message whose fields are all missing: in lists, in maps, and in other messages."""
    values = Protobuf(descriptor=descriptor_of(WIDE_TEXT), framing="none")
    assert reason(values, item * 15) is None
    assert "are messages with more than 20,000 fields" in (reason(values, item * 500_000) or "")
    # The same bytes where they are no messages.
    other = b"\x22" + bytes([0x80 | 1_000 % 128, 1_000 // 128]) + (item * 500)[:1_000]
    assert reason(values, other) is None


def test_long_records_with_wide_messages_are_read() -> None:
    """Damaged ones get the library's verdict."""
    values = Protobuf(descriptor=descriptor_of(WIDE_TEXT), framing="none")
    full = class_of(descriptor_of(WIDE_TEXT), "M")()
    for number in range(200):
        part = full.v.add()
        for name in range(1, 41):
            setattr(part, f"f{name}", f"text {number}")
    payload = full.SerializeToString()
    assert reason(values, payload) is None
    for damaged in (payload[:-1], payload + b"\x07", payload + b"\x80", payload + b"\x0c"):
        assert reason(values, damaged) == "the bytes are not a message M"


def levels(count: int) -> str:
    """Return a schema with messages within messages."""
    chain = " ".join(f"message M{n} {{ M{n + 1} m = 1; }}" for n in range(count - 1))
    return f'syntax = "proto3"; {chain} message M{count - 1} {{ int32 v = 1; }}'


DOUBLING = " ".join(f"message M{n} {{ M{n + 1} a = 1; M{n + 1} b = 2; }}" for n in range(20))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("message T { repeated T kids = 1; }", "the Protobuf message T contains itself"),
        ("message A { B b = 1; } message B { map<int32, A> a = 1; }", "message A contains itself"),
        (f"{DOUBLING} message M20 {{ int32 v = 1; }}", "has more than 20,000 types in it"),
        ("enum E { ZERO = 0; }", "'main.proto' has no messages"),
    ],
)
def test_schemas_that_cannot_become_columns_are_refused(text: str, words: str) -> None:
    """By the name of the message."""
    values = Protobuf(descriptor=descriptor_of(f'syntax = "proto3"; {text}'), framing="none")
    with pytest.raises(ConfigError) as failure:
        decode(batch_of([]), values=values)
    assert words in str(failure.value)


def test_messages_may_be_48_levels_deep() -> None:
    """Which the library reads as well, and no more."""
    assert column(levels(48), b"").to_pylist() == [{"m": None}]
    with pytest.raises(ConfigError, match="48 levels"):
        column(levels(49), b"")


def test_a_descriptor_may_lack_the_files_of_google() -> None:
    """They come with the library, in its version; others must be there."""
    files = FileDescriptorSet.FromString(descriptor_of(TIMES)).file
    alone = FileDescriptorSet(file=files[-1:]).SerializeToString()
    values = Protobuf(descriptor=base64.encodebytes(alone).decode(), framing="none")
    assert decode(batch_of([b""]), values=values).read_all()["value"].to_pylist() == [
        {"at": None, "took": None}
    ]
    importing = FileDescriptorProto(name="a.proto", dependency=["b.proto"])
    other = FileDescriptorSet(file=[importing]).SerializeToString()
    with pytest.raises(ConfigError, match=r"imports 'b.proto', which is neither"):
        decode(batch_of([]), values=Protobuf("M", descriptor=other, framing="none"))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (lambda: Protobuf("M", descriptor="message M {}"), "give the bytes of a FileDescriptorSet"),
        (lambda: Protobuf("M", descriptor=bytes(400_000)), "has 533,336 characters"),
        (lambda: Protobuf("M", descriptor=b"\xff"), "is not a FileDescriptorSet"),
        (lambda: Protobuf("M", descriptor=b""), "is not a FileDescriptorSet"),
        (
            lambda: Protobuf("Order", descriptor=ORDERS),
            "no message 'Order'. 'main.proto' has shop.Order",
        ),
        (lambda: Protobuf("M", subject="s"), "give the registry that has it"),
        (lambda: Protobuf("shop.Order", subject="s", descriptor=ORDERS), "Name the registry"),
    ],
)
def test_invalid_arguments_are_named(values: Any, words: str) -> None:
    """Before anything is read."""
    with pytest.raises(ConfigError) as failure:
        decode(batch_of([]), values=values())
    assert words in str(failure.value)


@pytest.mark.slow
def test_the_extra_is_named_where_the_library_is_missing() -> None:
    """Only formats of Protobuf need it."""
    program = """
import sys
sys.modules["google.protobuf"] = None
import pyarrow as pa
from kafka_ordered_ops import ConfigError
from kafka_ordered_ops.decoding import Json, Protobuf, decode
batch = pa.RecordBatch.from_pydict({"value": pa.array([b"{}"], pa.binary())})
decode(batch, values=Json(pa.schema([]))).read_all()
try:
    decode(batch, values=Protobuf(descriptor=b"x"))
except ConfigError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "pip install 'kafka-ordered-ops[protobuf]'" in done.stdout


def test_decoders_are_pickled_for_tasks() -> None:
    """Without what was made for this process."""
    decoder = Decoder(BARE, None)
    assert ids(decoder.decoded(batch_of([order(1)]))) == [1]
    copy = pickle.loads(pickle.dumps(decoder))
    assert copy == decoder
    assert ids(copy.decoded(batch_of([order(2)]))) == [2]


def test_a_window_is_written_with_typed_columns(tmp_path: Path) -> None:
    """The plan stores the descriptor; durations and empty messages are stored in files too."""
    text = f"""
        syntax = "proto3"; {IMPORTS}
        message M {{ int64 id = 1; google.protobuf.Timestamp at = 2; google.protobuf.Duration took = 3;
          google.protobuf.Empty none = 4; map<int32, string> tags = 5; uint64 h = 6; }}
    """
    descriptor = descriptor_of(text)
    message = class_of(descriptor, "M")
    values = Protobuf(descriptor=descriptor)
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders", partitions=2)
        for number in range(10):
            record = message(id=number, h=2**64 - 1, tags={number: "x"})
            record.at.FromMicroseconds(number)
            record.took.FromMicroseconds(-number)
            payload = b"\0\0\0\0\x05\0" + record.SerializeToString()
            kafka.produce("orders", partition=number % 2, timestamp_ms=number, value=payload)
        windows = OrderedWindows(kafka.settings, group_id="g")
        window = Window(
            "orders",
            cutoff="1970-01-02T00:00:00Z",
            starting_offsets="earliest",
            values=values,
            flatten=True,
        )
        plan = windows.plan(window)
        assert windows.show(plan.window_id).plan.window.values == values
        assert WindowPlan.from_text(plan.to_text()).window.values == values
        assert json.loads(plan.to_text())["window"]["values"]["format"] == "protobuf"
        table = windows.run(window, tmp_path / "lake").to_arrow()
    assert table["id"].to_pylist() == list(range(10))
    assert table["at"].cast(pa.int64()).to_pylist() == list(range(10))
    assert table["took"].cast(pa.int64()).to_pylist() == [-number for number in range(10)]
    assert table["tags"].to_pylist() == [[(str(number), "x")] for number in range(10)]
    assert table["none"].to_pylist() == [None] * 10
    assert table["h"].to_pylist() == [2**64 - 1] * 10
