"""Random schemas and messages in Protobuf: the values that the official library was given, or refused where it refuses too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops.decoding import Protobuf, decode
from tests.support.encoded_values import batch_of
from tests.support.protobuf_schemas import class_of

F = FieldDescriptorProto
INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
UINT32, UINT64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
NAMES = {0: "ZERO", 1: "ONE", -5: "MINUS"}
#: A type, its values, and the default.
SCALARS: dict[int, tuple[st.SearchStrategy[Any], Any]] = {
    F.TYPE_DOUBLE: (st.floats(allow_nan=False), 0.0),
    F.TYPE_FLOAT: (st.floats(width=32, allow_nan=False), 0.0),
    F.TYPE_INT64: (INT64, 0),
    F.TYPE_UINT64: (UINT64, 0),
    F.TYPE_INT32: (INT32, 0),
    F.TYPE_FIXED64: (UINT64, 0),
    F.TYPE_FIXED32: (UINT32, 0),
    F.TYPE_BOOL: (st.booleans(), False),
    F.TYPE_STRING: (st.text(max_size=6), ""),
    F.TYPE_BYTES: (st.binary(max_size=6), b""),
    F.TYPE_UINT32: (UINT32, 0),
    F.TYPE_SFIXED32: (INT32, 0),
    F.TYPE_SFIXED64: (INT64, 0),
    F.TYPE_SINT32: (INT32, 0),
    F.TYPE_SINT64: (INT64, 0),
    F.TYPE_ENUM: (st.sampled_from([*NAMES, 77]), 0),
}
KEYS = [
    kind for kind in SCALARS if kind not in (F.TYPE_DOUBLE, F.TYPE_FLOAT, F.TYPE_BYTES, F.TYPE_ENUM)
]


@dataclass
class Field:
    """A field: ``implicit``, ``optional``, ``oneof``, ``list`` or ``map``."""

    name: str
    label: str
    kind: int
    #: Of a message.
    inner: Message | None = None
    #: Keys of a map.
    keys: tuple[Any, ...] = ()

    def shown(self, value: Any) -> Any:
        """Return one value as `decode` has it."""
        if self.inner is not None:
            return self.inner.expected(value)
        return NAMES.get(value, str(value)) if self.kind == F.TYPE_ENUM else value

    def expected(self, value: Any) -> Any:
        """Return the value of the field, or None where it is missing, as `decode` has it."""
        if self.label == "list":
            return [self.shown(item) for item in value or ()]
        if self.label == "map":
            return sorted((key_text(key), self.shown(item)) for key, item in (value or {}).items())
        if value is None:
            is_null = self.label != "implicit" or self.inner is not None
            return None if is_null else self.shown(SCALARS[self.kind][1])
        return self.shown(value)

    def values(self) -> st.SearchStrategy[Any]:
        """Return values to write; None writes nothing."""
        one = self.inner.values() if self.inner is not None else SCALARS[self.kind][0]
        if self.label == "list":
            return st.lists(one, max_size=3)
        if self.label == "map":
            return st.dictionaries(st.sampled_from(self.keys), one, max_size=3)
        return st.none() | one


@dataclass
class Message:
    """A message, by its fields."""

    name: str
    fields: list[Field]

    def values(self) -> st.SearchStrategy[dict[str, Any]]:
        """Return values of its fields by their names, of which one of a oneof is written last."""
        return st.fixed_dictionaries({field.name: field.values() for field in self.fields})

    def expected(self, value: dict[str, Any]) -> dict[str, Any] | bool:
        """Return a message as `decode` has it."""
        row = {field.name: field.expected(value.get(field.name)) for field in self.fields}
        set_of_oneof = [
            field.name
            for field in self.fields
            if field.label == "oneof" and value.get(field.name) is not None
        ]
        # The last one that is written is the one that is set.
        row.update(dict.fromkeys(set_of_oneof[:-1]))
        return row or True


def key_text(key: Any) -> str:
    """Return a key as `decode` has it."""
    return str(key).lower() if isinstance(key, bool) else str(key)


@st.composite
def messages(
    draw: st.DrawFn, file: FileDescriptorProto, numbers: Iterator[int], depth: int = 2
) -> Message:
    """Add a message to a file, and those that it uses before it."""
    fields: list[Field] = []
    proto = DescriptorProto(name=f"M{next(numbers)}")
    for number in range(1, draw(st.integers(0, 5)) + 1):
        label = draw(st.sampled_from(["implicit", "optional", "oneof", "list", "map"]))
        is_message = depth > 0 and draw(st.integers(0, 2)) == 0
        inner = draw(messages(file, numbers, depth - 1)) if is_message else None
        kind = F.TYPE_MESSAGE if inner else draw(st.sampled_from(list(SCALARS)))
        name = f"f{number}"
        keys: list[Any] = []
        if label == "map":
            key = draw(st.sampled_from(KEYS))
            entry = proto.nested_type.add(name=f"F{number}Entry")
            entry.options.map_entry = True
            add_field(entry, "key", 1, key, None)
            add_field(entry, "value", 2, kind, inner)
            field = proto.field.add(name=name, number=number, type=F.TYPE_MESSAGE)
            field.type_name, field.label = f".{proto.name}.{entry.name}", F.LABEL_REPEATED
            keys = draw(st.lists(SCALARS[key][0], min_size=1, max_size=4))
        else:
            field = add_field(proto, name, number, kind, inner)
            if label == "list":
                field.label = F.LABEL_REPEATED
            elif label == "oneof":
                if not proto.oneof_decl:
                    proto.oneof_decl.add(name="choice")
                field.oneof_index = 0
        fields.append(Field(name, label, kind, inner, tuple(keys)))
    for field, made in zip(proto.field, fields, strict=True):
        # Each optional field is in a oneof of its own, after the others.
        if made.label == "optional":
            field.oneof_index = len(proto.oneof_decl)
            field.proto3_optional = True
            proto.oneof_decl.add(name=f"_{made.name}")
    file.message_type.append(proto)
    return Message(proto.name, fields)


def add_field(
    proto: DescriptorProto, name: str, number: int, kind: int, inner: Message | None
) -> Any:
    """Add a field."""
    field = proto.field.add(name=name, number=number, type=kind, label=F.LABEL_OPTIONAL)
    if inner is not None:
        field.type_name = f".{inner.name}"
    elif kind == F.TYPE_ENUM:
        field.type_name = ".E"
    return field


@st.composite
def schemas(draw: st.DrawFn) -> tuple[Message, bytes]:
    """Return a message, and its descriptor."""
    file = FileDescriptorProto(name="random.proto", syntax="proto3")
    enum = file.enum_type.add(name="E")
    for number, name in NAMES.items():
        enum.value.add(name=name, number=number)
    message = draw(messages(file, count()))
    return message, FileDescriptorSet(file=[file]).SerializeToString()


def fill(target: Any, message: Message, value: dict[str, Any]) -> None:
    """Write values to a message of the official library."""
    target.SetInParent()
    for field in message.fields:
        item = value[field.name]
        if item is None:
            continue
        part = getattr(target, field.name)
        if field.label == "list" and field.inner:
            for each in item:
                fill(part.add(), field.inner, each)
        elif field.label == "list":
            part.extend(item)
        elif field.label == "map" and field.inner:
            for key, each in item.items():
                fill(part[key], field.inner, each)
        elif field.label == "map":
            part.update(item)
        elif field.inner:
            fill(part, field.inner, item)
        else:
            setattr(target, field.name, item)


def listed(parsed: Any, message: Message) -> dict[str, Any]:
    """Return the values of a message of the official library that are set, as `fill` takes them."""
    present = {field.name: item for field, item in parsed.ListFields()}
    value: dict[str, Any] = {}
    for field in message.fields:
        item = present.get(field.name)
        if item is not None and field.label == "list":
            item = [listed(each, field.inner) if field.inner else each for each in item]
        elif item is not None and field.label == "map":
            pairs = [(key, item[key]) for key in item]
            item = {key: listed(each, field.inner) if field.inner else each for key, each in pairs}
        elif item is not None and field.inner:
            item = listed(item, field.inner)
        value[field.name] = item
    return value


def decoded(payloads: list[bytes], message: Message, descriptor: bytes) -> pa.Table:
    """Return decoded records, with the reasons of bad ones."""
    values = Protobuf(message.name, descriptor=descriptor, framing="none")
    table = decode(batch_of(payloads), values=values, on_bad="keep").read_all()
    table.validate(full=True)
    return table


def same(own: Any, theirs: Any) -> bool:
    """Whether two values are equal, with maps in any order of keys, and NaN equal to itself."""
    if isinstance(theirs, dict):
        return own.keys() == theirs.keys() and all(same(own[name], theirs[name]) for name in theirs)
    if isinstance(theirs, list | tuple):
        if theirs and all(isinstance(item, tuple) for item in theirs):
            own = sorted(own, key=lambda pair: pair[0])
            theirs = sorted(theirs, key=lambda pair: pair[0])
        return len(own) == len(theirs) and all(map(same, own, theirs))
    return bool(own == theirs) or (own != own and theirs != theirs)


@pytest.mark.slow
@given(st.data())
def test_values_are_those_that_were_written(data: st.DataObject) -> None:
    """Every scalar type, enums, lists, maps, oneofs and messages, present and missing."""
    message, descriptor = data.draw(schemas())
    rows = data.draw(st.lists(message.values(), min_size=1, max_size=4))
    official = class_of(descriptor, message.name)
    payloads = []
    for row in rows:
        target = official()
        fill(target, message, row)
        payloads.append(target.SerializeToString())
    table = decoded(payloads, message, descriptor)
    assert table["value_error"].to_pylist() == [None] * len(rows)
    assert same(table["value"].to_pylist(), [message.expected(row) for row in rows])


@pytest.mark.slow
@given(st.data())
def test_older_and_newer_writers_are_read(data: st.DataObject) -> None:
    """Bytes of any message are a value with the fields of the reader that are in them, or bad where the library refuses them."""
    written, writers = data.draw(schemas())
    message, descriptor = data.draw(schemas())
    target = class_of(writers, written.name)()
    fill(target, written, data.draw(written.values()))
    check(target.SerializeToString(), message, descriptor)


@given(st.data())
def test_damaged_bytes_are_bad_or_as_the_library_reads_them(data: st.DataObject) -> None:
    """A changed byte, a cut, bytes at the end: an error of this record, or a value that the library has too."""
    message, descriptor = data.draw(schemas())
    target = class_of(descriptor, message.name)()
    fill(target, message, data.draw(message.values()))
    payload = bytearray(target.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        if payload:
            payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(payload)))
    check(bytes(payload)[:cut] + data.draw(st.binary(max_size=8)), message, descriptor)


def check(payload: bytes, message: Message, descriptor: bytes) -> None:
    """Compare with the official library, with a good record on both sides."""
    table = decoded([b"", payload, b""], message, descriptor)
    reasons = table["value_error"].to_pylist()
    assert reasons[0] is reasons[2] is None
    empty = message.expected({})
    own = table["value"].to_pylist()
    assert own[0] == own[2] == empty
    try:
        parsed = class_of(descriptor, message.name).FromString(payload)
    except DecodeError:
        assert reasons[1] == f"the bytes are not a message {message.name}"
        assert own[1] is None
        assert table["value_raw"][1].as_py() == payload
        return
    assert reasons[1] is None
    assert same(own[1], message.expected(listed(parsed, message)))
