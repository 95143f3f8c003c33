"""The native decoder of Protobuf, which decodes by a plan of the message's fields."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final, TypeAlias

import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor

from kafka_ordered_ops.decoding.column_reader import NotNativeError, Reasons
from kafka_ordered_ops.decoding.native_columns import buffers_of, completed, stored_type
from kafka_ordered_ops.decoding.protobuf.records import ProtobufReader
from kafka_ordered_ops.decoding.protobuf.types import is_repeated, well_known

_Array: TypeAlias = "pa.Array[Any]"
#: Its name, the place of its message or enum, and whether it is the value of a wrapper.
_Kind: TypeAlias = tuple[str, int, bool]

#: The native decoder has a bit for each.
_ONEOFS_MAX: Final = 64
_NAMES: Final = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in vars(FieldDescriptor).items()
    if name.startswith("TYPE_")
}


class NativeProtobufReader:
    """Decodes the values of one column, all at once.

    Args:
        module: the native extension.
        python: decodes what the extension does not; it knows which frames are good.

    Raises:
        NotNativeError: the message has fields that are only decoded in Python.
    """

    needs_keys = False

    def __init__(self, module: ModuleType, python: ProtobufReader) -> None:
        self.arrow = python.arrow
        self._python = python
        if not pa.types.is_struct(self.arrow):
            raise NotNativeError(
                f"the message {python.message.full_name} has no fields, or its own type"
            )
        plan = _Plan()
        plan.add(python.message)
        try:
            self._decoder = module.ProtobufDecoder(
                stored_type(self.arrow), plan.messages, plan.enums, python.framing.value
            )
        except (RuntimeError, ValueError) as error:
            raise NotNativeError(f"the message {python.message.full_name}: {error}") from None

    def read_column(self, values: _Array, keys: _Array | None = None) -> tuple[_Array, Reasons]:
        """Return the decoded values, null for bad ones, and why they are bad; see `ColumnReader`."""
        buffers = buffers_of(values)
        frames = self._decoder.frames(buffers)
        good = [frame for frame in frames if self._python.frame_reason(frame) is None]
        column, left = self._decoder.decode(buffers, good)
        return completed(pa.array(column), left, values, self._python.read_column)


class _Plan:
    """The messages of a type, each after those in it, and its enums."""

    def __init__(self) -> None:
        self.messages: list[list[Any]] = []
        self.enums: list[tuple[list[tuple[int, str]], bool]] = []
        self._places: dict[str, int] = {}

    def add(self, message: Any) -> int:
        """Add a message, and return its place."""
        name = message.full_name
        if name not in self._places:
            if message.is_extendable:
                raise NotNativeError(f"the message {name} has extensions")
            groups = [oneof.name for oneof in message.oneofs if len(oneof.fields) > 1]
            if len(groups) > _ONEOFS_MAX:
                raise NotNativeError(f"the message {name} has more than {_ONEOFS_MAX} oneofs")
            fields = [self._field(field, groups) for field in message.fields]
            self._places[name] = len(self.messages)
            self.messages.append(fields)
        return self._places[name]

    def _field(self, field: Any, groups: list[str]) -> tuple[Any, ...]:
        key = None
        value = field
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key = _NAMES[field.message_type.fields_by_name["key"].type]
            value = field.message_type.fields_by_name["value"]
        oneof = field.containing_oneof
        return (
            field.number,
            self._kind(value),
            key,
            is_repeated(field),
            field.has_presence,
            _is_required(field),
            groups.index(oneof.name) if oneof is not None and oneof.name in groups else None,
        )

    def _kind(self, field: Any) -> _Kind:
        if field.type == FieldDescriptor.TYPE_GROUP:
            raise NotNativeError(f"the field {field.full_name} is a group")
        if field.message_type is not None:
            return self._message_kind(field.message_type)
        if field.enum_type is not None:
            return "enum", self._enum(field.enum_type), False
        return _NAMES[field.type], 0, False

    def _message_kind(self, message: Any) -> _Kind:
        known = well_known(message)
        if known is None:
            return "message", self.add(message), False
        if known == "wrapper":
            name, place, _ = self._kind(message.fields_by_name["value"])
            return name, place, True
        if known == "json":
            raise NotNativeError(f"{message.full_name} becomes JSON")
        return known, 0, False

    def _enum(self, enum: Any) -> int:
        if enum.full_name not in self._places:
            names: dict[int, str] = {}
            for value in enum.values:
                names.setdefault(value.number, value.name)
            self._places[enum.full_name] = len(self.enums)
            self.enums.append(([*names.items()], enum.is_closed))
        return self._places[enum.full_name]


def _is_required(field: Any) -> bool:
    # As with what is repeated: newer versions of the library warn about the label.
    if hasattr(field, "is_required"):
        return bool(field.is_required)
    return bool(field.label == FieldDescriptor.LABEL_REQUIRED)
