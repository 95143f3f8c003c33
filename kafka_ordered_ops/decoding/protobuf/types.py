"""Protobuf messages as Arrow types: the descriptor of a message gives the type, and what reads a message that the library parsed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, TypeAlias

import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.decoding.bad import BadValueError
from kafka_ordered_ops.decoding.protobuf.sizes import Shape

#: Takes what the library returns for a field, or the message of it, and returns a value as pyarrow takes it.
_Read: TypeAlias = Callable[[Any], Any]

#: Types within a type: messages that are used twice at each of 30 levels would be a billion of them.
_TYPES_MAX: Final = 20_000
#: Messages within messages. The library reads 100 levels, and maps take two.
_LEVELS_MAX: Final = 48
_INT64: Final = 2**63
_SECOND: Final = 1_000_000_000
#: Doubles with all smaller whole numbers.
_WHOLE_MAX: Final = 2.0**53

_SCALARS: Final[Mapping[int, pa.DataType]] = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.uint32(),
    FieldDescriptor.CPPTYPE_UINT64: pa.uint64(),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
}
#: What becomes of messages of Google, by their names.
_GOOGLE: Final = {
    "Timestamp": "timestamp",
    "Duration": "duration",
    **dict.fromkeys(("Struct", "Value", "ListValue"), "json"),
    **dict.fromkeys(
        ("BoolValue", "BytesValue", "DoubleValue", "FloatValue", "StringValue"), "wrapper"
    ),
    **dict.fromkeys(("Int32Value", "Int64Value", "UInt32Value", "UInt64Value"), "wrapper"),
}


@dataclass(frozen=True, slots=True)
class ProtobufType:
    """A type of a schema."""

    #: What values become; nullable everywhere.
    arrow: pa.DataType
    #: None for values that the library returns as pyarrow takes them.
    read: _Read | None = None
    #: Types in it, itself included.
    count: int = 1
    #: Messages within messages, itself included.
    levels: int = 0
    #: Of a message, or of the items of a list or a map.
    shape: Shape | None = None


def message_type(message: Any, checked_texts: Collection[str]) -> ProtobufType:
    """Return the type of a message.

    Args:
        message: its descriptor.
        checked_texts: the names of the files whose texts the library checks.

    Raises:
        ConfigError: a type contains itself, or is too large.
    """
    return _Types(checked_texts).message(message)


def well_known(message: Any) -> str | None:
    """Return what a message of Google becomes: a timestamp, a duration, a text of JSON, or the value that it is a wrapper of.

    None for any other message, which becomes a record.
    """
    is_googles = message.file.name.startswith("google/protobuf/")
    package, _, name = message.full_name.rpartition(".")
    return _GOOGLE.get(name) if is_googles and package == "google.protobuf" else None


class _Types:
    """The types of messages, each made once."""

    def __init__(self, checked_texts: Collection[str]) -> None:
        self._checked_texts = checked_texts
        #: By the full name; None while it is made.
        self._known: dict[str, ProtobufType | None] = {}
        #: Messages that are made: each is in the one before.
        self._level = 0

    def message(self, message: Any) -> ProtobufType:
        name = message.full_name
        if (known := well_known(message)) is not None:
            return self._wrapper(message) if known == "wrapper" else _WELL_KNOWN[known]
        if name not in self._known:
            if self._level >= _LEVELS_MAX:
                raise ConfigError(
                    f"the Protobuf message {name} is more than {_LEVELS_MAX} levels deep in others"
                )
            self._known[name] = None
            self._level += 1
            self._known[name] = self._record(message)
            self._level -= 1
        if (kind := self._known[name]) is None:
            raise ConfigError(
                f"the Protobuf message {name} contains itself: Arrow has no recursive types, so it cannot become columns"
            )
        if kind.levels > _LEVELS_MAX:
            raise ConfigError(f"the Protobuf message {name} has more than {_LEVELS_MAX} levels")
        return kind

    def _record(self, message: Any) -> ProtobufType:
        plain: list[str] = []
        others: list[tuple[str, _Read]] = []
        kinds = {field.name: self._field(field) for field in message.fields}
        for field in message.fields:
            get = _getter(message, field, kinds[field.name])
            if get is None:
                plain.append(field.name)
            else:
                others.append((field.name, get))
        count = 1 + sum(kind.count for kind in kinds.values())
        if count > _TYPES_MAX:
            raise ConfigError(
                f"the Protobuf message {message.full_name} has more than {_TYPES_MAX:,} types in it"
            )
        levels = 1 + max((kind.levels for kind in kinds.values()), default=0)
        shape = _shape({field.number: kinds[field.name] for field in message.fields})
        if not kinds:
            # Files and tables have no struct without fields.
            return ProtobufType(pa.bool_(), lambda value: True, count, levels, shape)
        arrow = pa.struct([(name, kind.arrow) for name, kind in kinds.items()])
        return ProtobufType(arrow, _record_reader(plain, others), count, levels, shape)

    def _field(self, field: Any) -> ProtobufType:
        """Return the type of a field, with all its items."""
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            return self._map(field.message_type)
        item = self._value(field)
        if not is_repeated(field):
            return item
        return ProtobufType(
            pa.list_(item.arrow), _list_reader(item.read), item.count + 1, item.levels, item.shape
        )

    def _map(self, entry: Any) -> ProtobufType:
        key, item = (self._value(entry.fields_by_name[name]) for name in ("key", "value"))
        arrow = pa.map_(pa.string(), item.arrow)
        read = _map_reader(key.read or _key_text(key.arrow), item.read)
        shape = _shape({1: key, 2: item})
        # Made with the entry, even if its bytes do not have it.
        shape.width += item.shape.width if item.shape is not None else 0
        return ProtobufType(arrow, read, item.count + 2, item.levels, shape)

    def _value(self, field: Any) -> ProtobufType:
        """Return the type of one value of a field."""
        if field.message_type is not None:
            return self.message(field.message_type)
        if field.enum_type is not None:
            return ProtobufType(pa.string(), _enum_reader(field.enum_type))
        if field.type == FieldDescriptor.TYPE_BYTES:
            return ProtobufType(pa.binary())
        if field.type == FieldDescriptor.TYPE_STRING:
            is_checked = field.file.name in self._checked_texts
            return ProtobufType(pa.string(), None if is_checked else _text)
        return ProtobufType(_SCALARS[field.cpp_type])

    def _wrapper(self, message: Any) -> ProtobufType:
        item = self._value(message.fields_by_name["value"])

        def read(value: Any) -> Any:
            return value.value

        return ProtobufType(item.arrow, read)


def _shape(kinds: Mapping[int, ProtobufType]) -> Shape:
    """Return the shape of a message, from the types of its fields by their numbers."""
    inner = {number: kind.shape for number, kind in kinds.items() if kind.shape is not None}
    return Shape(1 + len(kinds), inner)


def is_repeated(field: Any) -> bool:
    """Return whether a field has many values."""
    # Newer versions of the library warn about the label, older ones have nothing else.
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == FieldDescriptor.LABEL_REPEATED)


def _getter(message: Any, field: Any, kind: ProtobufType) -> _Read | None:
    """Return what gets a field of a message; None if its value is taken as it is."""
    name, read = field.name, kind.read
    if not field.has_presence:
        if read is None:
            return None
        return lambda value: read(getattr(value, name))
    # Of the class: a field may have the method's name.
    has_field = GetMessageClass(message).HasField

    def get(value: Any) -> Any:
        if not has_field(value, name):
            return None
        item = getattr(value, name)
        return item if read is None else read(item)

    return get


def _record_reader(plain: Sequence[str], others: Sequence[tuple[str, _Read]]) -> _Read:
    # All at once; a single name would return no tuple.
    values_of = attrgetter(*plain) if len(plain) > 1 else None

    def read(value: Any) -> Any:
        row = dict(zip(plain, values_of(value), strict=True)) if values_of else {}
        if values_of is None and plain:
            row[plain[0]] = getattr(value, plain[0])
        for name, get in others:
            row[name] = get(value)
        return row

    return read


def _list_reader(read: _Read | None) -> _Read:
    if read is None:
        return lambda value: list(value)
    return lambda value: [read(item) for item in value]


def _map_reader(key: _Read, read: _Read | None) -> _Read:
    def read_map(value: Any) -> Any:
        keys = [(name, key(name)) for name in value]
        # The library's order differs from process to process.
        return [
            (text, value[name] if read is None else read(value[name]))
            for name, text in sorted(keys)
        ]

    return read_map


def _key_text(arrow: pa.DataType) -> _Read:
    if pa.types.is_boolean(arrow):
        return lambda value: "true" if value else "false"
    return lambda value: str(value)


def _text(value: Any) -> Any:
    # Without a check of its own, the library returns other bytes as they are.
    if type(value) is not str:
        raise BadValueError("a text is not valid UTF-8")
    return value


def _enum_reader(enum: Any) -> _Read:
    names: dict[int, str] = {}
    for value in enum.values:
        # Of names with one number, the first.
        names.setdefault(value.number, value.name)

    def read(value: Any) -> Any:
        return names.get(value) or str(value)

    return read


# --- types of Google ---------------------------------------------------------------------------


def _timestamp(value: Any) -> int:
    if not 0 <= value.nanos < _SECOND:
        raise BadValueError(f"a Timestamp has {value.nanos:,} nanoseconds")
    return _nanoseconds(value, "Timestamp")


def _duration(value: Any) -> int:
    seconds, nanos = value.seconds, value.nanos
    if not -_SECOND < nanos < _SECOND or (seconds < 0 < nanos) or (nanos < 0 < seconds):
        raise BadValueError(f"a Duration has {seconds:,} seconds and {nanos:,} nanoseconds")
    return _nanoseconds(value, "Duration")


def _nanoseconds(value: Any, name: str) -> int:
    nanoseconds: int = value.seconds * _SECOND + value.nanos
    if not -_INT64 <= nanoseconds < _INT64:
        raise BadValueError(
            f"a {name} of {value.seconds:,} seconds does not fit nanoseconds in 64 bits"
        )
    return nanoseconds


def _json_text(value: Any) -> str:
    return json.dumps(_json(value), ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def _json(value: Any) -> Any:
    """Return a Struct, a ListValue or a Value as JSON's values in Python."""
    name = value.DESCRIPTOR.name
    if name == "Struct":
        return {key: _json(value.fields[key]) for key in value.fields}
    if name == "ListValue":
        return [_json(item) for item in value.values]
    kind = value.WhichOneof("kind")
    if kind is None or kind == "null_value":
        return None
    if kind in ("struct_value", "list_value"):
        return _json(getattr(value, kind))
    if kind != "number_value":
        return getattr(value, kind)
    number: float = value.number_value
    if not math.isfinite(number):
        raise BadValueError(f"a Value has the number {number}, which JSON does not have")
    return int(number) if number.is_integer() and abs(number) < _WHOLE_MAX else number


#: By the names of `well_known`.
_WELL_KNOWN: Final = {
    "timestamp": ProtobufType(pa.timestamp("ns", "UTC"), _timestamp),
    "duration": ProtobufType(pa.duration("ns"), _duration),
    "json": ProtobufType(pa.string(), _json_text),
}
