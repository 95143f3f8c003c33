"""Both decoders, for tests of what either promises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from kafka_ordered_ops.decoding import column_reader
from kafka_ordered_ops.decoding.column_reader import ColumnReader, ValueReader


@contextmanager
def decoded_by(name: str) -> Iterator[None]:
    """Decode with ``python`` or ``native`` in this block; columns that are read later keep their decoder."""
    column_reader.forced = name
    try:
        yield
    finally:
        column_reader.forced = None


class Counting(ValueReader):
    """A reader in Python that counts the values that were left to it."""

    def __init__(self, python: ValueReader) -> None:
        self.arrow = python.arrow
        self._python = python
        self.values: list[bytes] = []

    def read(self, data: bytes) -> Any:
        """Return a value; raise `BadValueError`."""
        self.values.append(data)
        return self._python.read(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._python, name)


def assert_same_columns(native: ColumnReader, python: ColumnReader, values: Any) -> list[int]:
    """Check that two readers return the same values and reasons; return which are bad."""
    arrays, reasons = zip(*(reader.read_column(values) for reader in (native, python)), strict=True)
    assert reasons[0] == reasons[1]
    for array in arrays:
        array.validate(full=True)
        assert len(array) == len(values)
    assert arrays[0].type.equals(arrays[1].type, check_metadata=True)
    if not arrays[0].equals(arrays[1]):
        # As text: a number that is none is not equal to itself.
        texts = [repr(stored(array).to_pylist()) for array in arrays]
        assert texts[0] == texts[1]
    return sorted(reasons[0])


def some_array(random: Any, values: list[bytes | None]) -> tuple[Any, int]:
    """Return values in one of the ways in which Arrow has them, and which is the first of them."""
    array: Any = pa.array(values, random.choice([pa.binary(), pa.large_binary()]))
    first = random.randrange(len(values)) if random.random() < 0.3 else 0
    return array.slice(first), first


def stored(array: pa.Array[Any]) -> pa.Array[Any]:
    """Return an array whose times are the numbers that are stored: Python has no values for all of them."""
    return array.cast(number_type(array.type))


def number_type(arrow: Any) -> Any:
    """Return a type with numbers for times."""
    if pa.types.is_timestamp(arrow) or pa.types.is_time64(arrow) or pa.types.is_duration(arrow):
        return pa.int64()
    if pa.types.is_date32(arrow) or pa.types.is_time32(arrow):
        return pa.int32()
    if pa.types.is_null(arrow):
        # Arrow's cast of a list of nulls to itself is invalid.
        return pa.string()
    if pa.types.is_struct(arrow):
        return pa.struct([part.with_type(number_type(part.type)) for part in arrow])
    if pa.types.is_list(arrow):
        return pa.list_(number_type(arrow.value_type))
    if pa.types.is_map(arrow):
        return pa.map_(pa.string(), number_type(arrow.item_type))
    return arrow
