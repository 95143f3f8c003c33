"""Decode messages of Protobuf, each for itself: the values of the reader's descriptor, or the reason why not.

The official library parses the bytes. A frame is checked: the message that it names must be the reader's.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.wrappers_pb2 import StringValue

from kafka_ordered_ops.core.arguments import shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.window.formats import Framing, Protobuf
from kafka_ordered_ops.decoding.bad import BadValueError
from kafka_ordered_ops.decoding.column_reader import ValueReader
from kafka_ordered_ops.decoding.frames import (
    delimited,
    glue_id,
    glue_message_index,
    id_end,
    message_index,
    schema_id,
    without_compression,
)
from kafka_ordered_ops.decoding.protobuf.schemas import (
    CompilerError,
    main_file,
    ordered_files,
    with_bundled,
)
from kafka_ordered_ops.decoding.protobuf.sizes import Shape, check_size, length_without_look
from kafka_ordered_ops.decoding.protobuf.types import message_type
from kafka_ordered_ops.kafka.schema_registry import SchemaClient

#: Frames whose message was checked. There are a few, unless the bytes are no frames.
_FRAMES_MAX: Final = 1_000
_NAMES_SHOWN: Final = 10
#: How each frame names its message, after the schema's id.
_NAMED: Final[Mapping[Framing, Callable[[bytes, int], tuple[bytes | tuple[int, ...], int]]]] = {
    Framing.CONFLUENT: message_index,
    Framing.APICURIO_8: delimited,
    Framing.GLUE: glue_message_index,
}


class ProtobufReader(ValueReader):
    """Decodes the values of one column."""

    def __init__(self, protobuf: Protobuf, registry: SchemaClient | None) -> None:
        if protobuf.needs_registry and registry is None:
            raise ConfigError(
                f"{protobuf!r}: the schema of each value comes from a registry, by its id. Name the registry, or give the "
                "descriptor without the subject: ids are then not looked up"
            )
        schema = _Schema(protobuf.descriptor or "")
        message = schema.message(protobuf.message)
        kind = message_type(message, schema.checked_texts)
        self.arrow = kind.arrow
        self._to_values: Any = kind.read
        self._shape = kind.shape or Shape()
        self._length_without_look = length_without_look(self._shape)
        self._class: Any = GetMessageClass(message)
        #: Only older schemas have required fields.
        self._is_initialized = self._class.IsInitialized if schema.has_older_files else None
        #: Its descriptor.
        self.message = message
        self._name: str = message.full_name
        self.framing = protobuf.framing
        self._file = schema.main
        self._registry = registry if protobuf.needs_registry else None
        self._reasons: dict[bytes, str | None] = {}
        #: That of the last value whose frame was good: the next one mostly has the same.
        self._last: bytes | None = None

    def read(self, data: bytes) -> Any:
        """Return a value as pyarrow takes it; raise `BadValueError`."""
        if self.framing is Framing.GLUE:
            data = without_compression(data)
        start = self._checked_frame(data) if self.framing is not Framing.NONE else 0
        content = data[start:]
        if len(content) > self._length_without_look:
            check_size(content, self._shape)
        try:
            message = self._class.FromString(content)
        except DecodeError:
            raise BadValueError(f"the bytes are not a message {self._name}") from None
        if self._is_initialized is not None and not self._is_initialized(message):
            missing = self._class.FindInitializationErrors(message)[:_NAMES_SHOWN]
            raise BadValueError(f"required fields are missing: {', '.join(missing)}")
        return self._to_values(message)

    def _checked_frame(self, data: bytes) -> int:
        """Return where the message begins; raise `BadValueError` for another message than the reader's."""
        if self._last is not None and data.startswith(self._last):
            return len(self._last)
        _, _, start = self._frame(data)
        frame = data[:start]
        if (reason := self.frame_reason(frame)) is not None:
            raise BadValueError(reason)
        self._last = frame
        return start

    def _frame(self, data: bytes) -> tuple[int, bytes | tuple[int, ...], int]:
        """Return where the schema's id ends, the message that is named, and where it begins; raise `BadValueError`."""
        end = id_end(data, self.framing)
        return end, *_NAMED[self.framing](data, end)

    def frame_reason(self, frame: bytes) -> str | None:
        """Return why a frame is bad, if it is."""
        if frame not in self._reasons:
            if len(self._reasons) >= _FRAMES_MAX:
                self._reasons.clear()
            end, named, _ = self._frame(frame)
            self._reasons[frame] = self._reason(frame, end, named)
        return self._reasons[frame]

    def _reason(self, frame: bytes, end: int, named: bytes | tuple[int, ...]) -> str | None:
        """Return why a frame is bad, if it is; `named` is the message in it, by its name or its index."""
        file, where = self._file, "the schema"
        if self._registry is not None:
            is_glue = self.framing is Framing.GLUE
            number = self._registry.id_of(glue_id(frame)) if is_glue else schema_id(frame, end)
            name = self._registry.name(number)
            where = f"schema {name}"
            written = self._registry.schema(number)
            if written is None:
                return f"the registry has no schema {name}"
            if written.kind != "PROTOBUF":
                return f"{where} is {written.kind}, not Protobuf"
            try:
                file = main_file(written)
            except CompilerError:
                raise
            except ConfigError as error:
                return f"{where}: {error}"
        if isinstance(named, bytes):
            return self._reason_of_name(named)
        names = (_glue_names_at if self.framing is Framing.GLUE else _names_at)(file, named)
        if not names:
            return f"{where} has no message with the index {list(named)}"
        return None if self._name in names else self._other(" or ".join(names))

    def _reason_of_name(self, ref: bytes) -> str | None:
        try:
            # A message whose first field is a name.
            name: str = StringValue.FromString(ref).value
        except DecodeError:
            return "it does not have the name of its message"
        # The serializer writes the name without its package, or nothing.
        is_own = name in ("", self._name, self._name.rpartition(".")[2])
        return None if is_own else self._other(name)

    def _other(self, name: str) -> str:
        return f"it is a message {name[:200]}, not {self._name}"


class _Schema:
    """The files of a descriptor, linked."""

    def __init__(self, descriptor: str) -> None:
        try:
            files = FileDescriptorSet.FromString(base64.b64decode(descriptor)).file
        except DecodeError:
            files = []
        if not files:
            raise ConfigError(
                "the descriptor is not a FileDescriptorSet: protoc --include_imports --descriptor_set_out=FILE writes one"
            )
        #: What the others are imported by.
        self.main: FileDescriptorProto = files[-1]
        known = with_bundled(files)
        self._files = ordered_files(known, [file.name for file in files]).file
        self._pool = DescriptorPool()
        for file in self._files:
            try:
                self._pool.AddSerializedFile(file.SerializeToString())
            except TypeError as error:
                raise ConfigError(f"the Protobuf file {shown(file.name)}: {error}") from None
        #: Files whose texts the library checks.
        self.checked_texts = frozenset(file.name for file in self._files if file.syntax == "proto3")

    @property
    def has_older_files(self) -> bool:
        """Whether messages may have required fields."""
        return len(self.checked_texts) < len(self._files)

    def message(self, name: str | None) -> Any:
        """Return the descriptor of a message, or of the first one; raise `ConfigError` if there is none."""
        messages = [_full_name(self.main.package, part.name) for part in self.main.message_type]
        if name is None and not messages:
            raise ConfigError(f"the Protobuf file {shown(self.main.name)} has no messages")
        try:
            return self._pool.FindMessageTypeByName(name or messages[0])
        except KeyError:
            raise ConfigError(
                f"the Protobuf schema has no message {shown(name)}. {shown(self.main.name)} has "
                f"{', '.join(messages[:_NAMES_SHOWN])}"
            ) from None


def _names_at(file: FileDescriptorProto, index: Sequence[int]) -> list[str]:
    """Return the full names that an index may mean.

    Maps are messages within a message for some serializers, as they are in descriptors, and not for others, which count the
    messages in the text.
    """
    names = []
    for counts_maps in (True, False):
        name, messages = file.package, list(file.message_type)
        for number in index:
            if not counts_maps:
                messages = [part for part in messages if not part.options.map_entry]
            if number >= len(messages) or messages[number].options.map_entry:
                break
            name = _full_name(name, messages[number].name)
            messages = list(messages[number].nested_type)
        else:
            names.append(name)
    return list(dict.fromkeys(names))


def _glue_names_at(file: FileDescriptorProto, index: Sequence[int]) -> list[str]:
    """Return the full name that an index of AWS Glue means: its place among all names of the file, sorted.

    Messages within messages, and maps, have names there too.
    """
    names: list[str] = []
    waiting = [(file.package, message) for message in file.message_type]
    while waiting:
        outer, message = waiting.pop()
        names.append(_full_name(outer, message.name))
        waiting += [(names[-1], inner) for inner in message.nested_type]
    return sorted(names)[index[0] : index[0] + 1]


def _full_name(package: str, name: str) -> str:
    return f"{package}.{name}" if package else name
