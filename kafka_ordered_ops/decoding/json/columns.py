"""The reader of a column of JSON texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import pyarrow as pa

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.window.formats import Framing, Infer, Json, UnknownFields
from kafka_ordered_ops.decoding.bad import BadValueError
from kafka_ordered_ops.decoding.column_reader import (
    CountingReader,
    Reasons,
    ValueReader,
    native_or_python,
)
from kafka_ordered_ops.decoding.discarded import Discarded
from kafka_ordered_ops.decoding.frames import content
from kafka_ordered_ops.decoding.json.records import json_reader
from kafka_ordered_ops.decoding.json.unknown import unknown_fields
from kafka_ordered_ops.decoding.native_columns import NativeJsonReader

_Array: TypeAlias = "pa.Array[Any]"


def json_column_reader(wanted: Json) -> CountingReader:
    """Return what decodes values of JSON; raise `ConfigError` if their columns are not known."""
    if wanted.is_open:
        raise ConfigError(
            f"{wanted!r}: columns are inferred when a group's window is planned, and only then. Give the columns here: "
            "Json(pyarrow.schema(...))"
        )
    python = _JsonReader(wanted)
    refuses_unknown = _refuses_unknown(wanted)
    framing = Framing(wanted.framing or Framing.NONE)
    reader = native_or_python(
        lambda module: NativeJsonReader(module, python, refuses_unknown, framing), python
    )
    return cast("CountingReader", reader)


def _refuses_unknown(json: Json) -> bool:
    return json.unknown is UnknownFields.BAD or json.infer is Infer.FREEZE


class _JsonReader(ValueReader):
    def __init__(self, json: Json) -> None:
        # Looked up before, if it was not given.
        self.arrow = pa.struct(json.columns)
        self._framing = Framing(json.framing or Framing.NONE)
        self._read = json_reader(
            self.arrow,
            refuses_unknown=_refuses_unknown(json),
            # The first values may have had fields without anything in them, of which no type follows.
            but_blank=json.infer is not None,
        )
        self._unknown = unknown_fields(self.arrow)

    def read(self, data: bytes) -> Any:
        return self._value(data)

    def read_counted(self, values: _Array, discarded: Discarded) -> tuple[_Array, Reasons]:
        """Return what `read_column` returns, and count the values with fields that have no column."""

        def seen(value: Any) -> None:
            if paths := self._unknown(value):
                discarded.add(1, paths)

        return _Counted(self.arrow, lambda data: self._value(data, seen)).read_column(values)

    def _value(self, data: bytes, *seen: Callable[[Any], object]) -> Any:
        value = self._read(content(data, self._framing), *seen)
        if value is None:
            # Not a tombstone, which deletes a row in tables that are merged.
            raise BadValueError("null where an object is expected")
        return value


class _Counted(ValueReader):
    """Decodes by a function that counts."""

    def __init__(self, arrow: pa.DataType, read: Callable[[bytes], Any]) -> None:
        self.arrow = arrow
        self._read = read

    def read(self, data: bytes) -> Any:
        return self._read(data)
