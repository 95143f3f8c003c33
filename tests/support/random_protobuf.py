"""Random schemas of Protobuf, and values that the official library writes; by numbers of a seed, the same in every run."""

from __future__ import annotations

import math
from random import Random
from typing import Any, Final

from google.protobuf import duration_pb2, empty_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

from tests.support.protobuf_schemas import class_of

F = FieldDescriptorProto
_IMPORTS: Final = (duration_pb2, empty_pb2, timestamp_pb2, wrappers_pb2)
_KNOWN: Final = [
    "Timestamp",
    "Duration",
    "Empty",
    "BoolValue",
    "BytesValue",
    "DoubleValue",
    "FloatValue",
    "Int32Value",
    "Int64Value",
    "StringValue",
    "UInt32Value",
    "UInt64Value",
]
_KEYS: Final = (
    F.TYPE_INT32,
    F.TYPE_INT64,
    F.TYPE_UINT32,
    F.TYPE_UINT64,
    F.TYPE_SINT32,
    F.TYPE_SINT64,
    F.TYPE_FIXED32,
    F.TYPE_FIXED64,
    F.TYPE_SFIXED32,
    F.TYPE_SFIXED64,
    F.TYPE_BOOL,
    F.TYPE_STRING,
)
_SCALARS: Final = (*_KEYS, F.TYPE_DOUBLE, F.TYPE_FLOAT, F.TYPE_BYTES, F.TYPE_ENUM)
#: The least and the greatest number.
_BOUNDS: Final = {
    **dict.fromkeys((F.TYPE_INT32, F.TYPE_SINT32, F.TYPE_SFIXED32), (-(2**31), 2**31 - 1)),
    **dict.fromkeys((F.TYPE_INT64, F.TYPE_SINT64, F.TYPE_SFIXED64), (-(2**63), 2**63 - 1)),
    **dict.fromkeys((F.TYPE_UINT32, F.TYPE_FIXED32), (0, 2**32 - 1)),
    **dict.fromkeys((F.TYPE_UINT64, F.TYPE_FIXED64), (0, 2**64 - 1)),
}
_NUMBERS: Final = {"ZERO": 0, "ONE": 1, "MINUS": -5, "FAR": 70_000}


class RandomProtobuf:
    """One schema."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.is_proto3 = self.random.random() < 0.7
        self._file = FileDescriptorProto(
            name="random.proto", syntax="proto3" if self.is_proto3 else "proto2"
        )
        self._file.dependency.extend(module.DESCRIPTOR.name for module in _IMPORTS)
        enum = self._file.enum_type.add(name="E")
        for name, number in _NUMBERS.items():
            enum.value.add(name=name, number=number)
        for number in range(self.random.randrange(1, 4)):
            self._add_message(f"M{number}")
        files = [module.DESCRIPTOR.serialized_pb for module in _IMPORTS]
        parsed = [FileDescriptorProto.FromString(file) for file in files]
        self.descriptor = FileDescriptorSet(file=[*parsed, self._file]).SerializeToString()
        self.message = self._file.message_type[-1].name
        self.place = len(self._file.message_type) - 1
        self._class = class_of(self.descriptor, self.message)

    def payload(self) -> bytes:
        """Return a message as the library writes it."""
        message = self._class()
        self._fill(message, 3)
        return bytes(message.SerializeToString())

    def damaged(self, data: bytes) -> bytes:
        """Return bytes that are changed, cut or longer."""
        random, changed = self.random, bytearray(data)
        for _ in range(random.randrange(1, 4)):
            at = random.randrange(len(changed) + 1)
            match random.randrange(5):
                case 0:
                    changed[at : at + 1] = random.randbytes(1)
                case 1:
                    del changed[at:]
                case 2:
                    changed[at:at] = random.randbytes(random.randrange(1, 4))
                case 3:
                    del changed[at : at + 1]
                case _:
                    # A number with more bytes than it needs.
                    changed[at:at] = b"\x80" * random.randrange(1, 11)
        return bytes(changed)

    def _add_message(self, name: str) -> None:
        random = self.random
        message = DescriptorProto(name=name)
        numbers = random.sample([*range(1, 20), 300, 5_000], random.randrange(7))
        for place, number in enumerate(numbers):
            label = random.choice(["single", "single", "list", "map", "oneof", "optional"])
            field = message.field.add(name=f"f{place}", number=number, label=F.LABEL_OPTIONAL)
            if label == "map":
                self._make_map(message, field)
                continue
            self._set_type(field)
            if label == "list":
                field.label = F.LABEL_REPEATED
                if field.type not in (F.TYPE_STRING, F.TYPE_BYTES, F.TYPE_MESSAGE):
                    field.options.packed = random.random() < 0.5
            elif label == "oneof":
                if not message.oneof_decl:
                    message.oneof_decl.add(name="choice")
                field.oneof_index = 0
            elif label == "optional" and not self.is_proto3 and random.random() < 0.3:
                field.label = F.LABEL_REQUIRED
            elif label == "optional" and self.is_proto3:
                field.proto3_optional = True
        for field in message.field:
            # Each optional field is in a oneof of its own, after the others.
            if field.proto3_optional:
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field.name}")
        self._file.message_type.append(message)

    def _make_map(self, message: DescriptorProto, field: Any) -> None:
        entry = message.nested_type.add(name=f"{field.name.upper()}Entry")
        entry.options.map_entry = True
        key = entry.field.add(name="key", number=1, label=F.LABEL_OPTIONAL)
        key.type = self.random.choice(_KEYS)
        self._set_type(entry.field.add(name="value", number=2, label=F.LABEL_OPTIONAL))
        field.type, field.label = F.TYPE_MESSAGE, F.LABEL_REPEATED
        field.type_name = f".{message.name}.{entry.name}"

    def _set_type(self, field: Any) -> None:
        random = self.random
        match random.randrange(5):
            case 0 if self._file.message_type:
                field.type = F.TYPE_MESSAGE
                field.type_name = f".{random.choice(self._file.message_type).name}"
            case 1:
                field.type = F.TYPE_MESSAGE
                field.type_name = f".google.protobuf.{random.choice(_KNOWN)}"
            case _:
                field.type = random.choice(_SCALARS)
                if field.type == F.TYPE_ENUM:
                    field.type_name = ".E"

    # --- values ----------------------------------------------------------------------------------

    def _fill(self, message: Any, levels: int) -> None:
        random = self.random
        message.SetInParent()
        name = message.DESCRIPTOR.full_name
        if name in ("google.protobuf.Timestamp", "google.protobuf.Duration"):
            message.seconds = random.randrange(-(10**9), 10**9)
            # A Duration has one sign.
            nanos = random.choice([0, 1, 999_999_999])
            is_back = name.endswith("Duration") and message.seconds < 0
            message.nanos = -nanos if is_back else nanos
            return
        for field in message.DESCRIPTOR.fields:
            is_required = not field.is_repeated and getattr(field, "is_required", False)
            if not is_required and random.random() < 0.4:
                continue
            self._set(message, field, levels)

    def _set(self, message: Any, field: Any, levels: int) -> None:
        random = self.random
        part = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            for _ in range(random.randrange(4) if levels else 0):
                if value.message_type is not None:
                    self._fill(part[self._scalar(key)], levels - 1)
                else:
                    part[self._scalar(key)] = self._scalar(value)
        elif field.is_repeated:
            for _ in range(random.randrange(4) if levels else 0):
                if field.message_type is not None:
                    self._fill(part.add(), levels - 1)
                else:
                    part.append(self._scalar(field))
        elif field.message_type is not None:
            self._fill(part, levels - 1)
        else:
            setattr(message, field.name, self._scalar(field))

    def _scalar(self, field: Any) -> Any:
        random = self.random
        match field.type:
            case F.TYPE_BOOL:
                return random.random() < 0.5
            case F.TYPE_STRING:
                return "".join(random.choice("ab é😀\0") for _ in range(random.randrange(5)))
            case F.TYPE_BYTES:
                return random.randbytes(random.randrange(5))
            case F.TYPE_ENUM:
                # A number without a name: only where the library takes any.
                others = [7, -(2**31), 300] if self.is_proto3 else []
                return random.choice([*_NUMBERS.values(), *others])
            case F.TYPE_DOUBLE | F.TYPE_FLOAT:
                return random.choice([0.0, -0.0, 1.5, -math.inf, math.nan, 2.0**100])
        least, greatest = _BOUNDS[field.type]
        return random.choice([0, 1, least, greatest, random.randint(least, greatest)])
