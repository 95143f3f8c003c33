"""Columns to the native decoders and back.

They decode what serializers write. Any other row, bad or merely unusual, is decoded in Python, so that a record has the same
value, or the same reason why not, with and without them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from kafka_ordered_ops.core.window.formats import Framing
from kafka_ordered_ops.decoding.bad import ColumnTooLargeError
from kafka_ordered_ops.decoding.column_reader import CountingReader, NotNativeError, Reasons
from kafka_ordered_ops.decoding.discarded import Discarded

_Array: TypeAlias = "pa.Array[Any]"


class NativeJsonReader:
    """Decodes the texts of one column, all at once.

    Args:
        module: the native extension.
        python: decodes what the extension does not.
        refuses_unknown: whether fields without a column are bad.
        framing: what stands before a text.

    Raises:
        NotNativeError: there are columns that are only decoded in Python.
    """

    needs_keys = False

    def __init__(
        self, module: ModuleType, python: CountingReader, refuses_unknown: bool, framing: Framing
    ) -> None:
        self.arrow = python.arrow
        self._python = python
        try:
            self._decoder = module.JsonDecoder(
                stored_type(self.arrow), refuses_unknown, framing.value
            )
        except (RuntimeError, ValueError) as error:
            raise NotNativeError(f"JSON as {self.arrow}: {error}") from None

    def read_column(self, values: _Array, keys: _Array | None = None) -> tuple[_Array, Reasons]:
        """Return the decoded values, null for bad ones, and why they are bad; see `ColumnReader`."""
        column, left = self._decoder.decode(buffers_of(values))
        return completed(pa.array(column), left, values, self._python.read_column)

    def read_counted(self, values: _Array, discarded: Discarded) -> tuple[_Array, Reasons]:
        """Return what `read_column` returns, and count the values with fields that have no column."""
        column, left, count, fields = self._decoder.decode_counted(buffers_of(values))
        discarded.add(count, fields)
        return completed(
            pa.array(column), left, values, lambda rest: self._python.read_counted(rest, discarded)
        )


def buffers_of(values: _Array) -> tuple[bytes, bytes, int, int, bytes | None, int]:
    """Return the parts of a binary array that hold its values.

    They are the bytes of its values, the offsets and their width, the first offset, and the bits of what is not null, with the
    place of the first one. The extension takes copies, because memory that it does not own would need unsafe code.
    """
    validity, offsets, data = values.buffers()
    width, code = (8, "<q") if pa.types.is_large_binary(values.type) else (4, "<i")
    if not len(values) or offsets is None:
        return b"", bytes(width), width, 0, None, 0
    places = offsets.slice(values.offset * width, (len(values) + 1) * width).to_pybytes()
    first, end = (struct.unpack_from(code, places, at)[0] for at in (0, len(values) * width))
    content = b"" if data is None else data.slice(first, end - first).to_pybytes()
    if validity is None or not values.null_count:
        return content, places, width, first, None, 0
    start, bit = divmod(values.offset, 8)
    bits = validity.slice(start, (bit + len(values) + 7) // 8).to_pybytes()
    return content, places, width, first, bits, bit


def stored_type(arrow: pa.DataType) -> bytes:
    """Return a schema with one field of a type, in Arrow's IPC format."""
    return pa.schema([pa.field("value", arrow)]).serialize().to_pybytes()


def completed(
    decoded: _Array,
    left: list[int],
    values: _Array,
    python: Callable[[_Array], tuple[_Array, Reasons]],
) -> tuple[_Array, Reasons]:
    """Decode in Python the values of the rows that were left to it; return all values, and the reasons of bad rows."""
    if not left:
        return decoded, {}
    rest, bad = python(values.take(pa.array(left, pa.int64())))
    if len(bad) < len(left):
        decoded = _merged(decoded, left, rest)
    return decoded, {left[row]: reason for row, reason in bad.items()}


def _merged(decoded: _Array, left: list[int], rest: _Array) -> _Array:
    """Return decoded values with others in the rows that were left."""
    rows = np.arange(len(decoded))
    rows[left] = len(decoded) + np.arange(len(left))
    try:
        return pa.concat_arrays([decoded, rest]).take(pa.array(rows, pa.int64()))
    except pa.ArrowInvalid:
        raise ColumnTooLargeError from None
