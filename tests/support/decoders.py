"""Both decoders, for tests of what either promises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from kafka_ordered_ops.decoding import column_reader


@contextmanager
def decoded_by(name: str) -> Iterator[None]:
    """Decode with ``python`` or ``native`` in this block; columns that are read later keep their decoder."""
    column_reader.forced = name
    try:
        yield
    finally:
        column_reader.forced = None


def stored(array: pa.Array[Any]) -> pa.Array[Any]:
    """Return an array whose times are the numbers that are stored: Python has no values for all of them."""
    return array.cast(number_type(array.type))


def number_type(arrow: Any) -> Any:
    """Return a type with numbers for times."""
    if pa.types.is_timestamp(arrow) or pa.types.is_time64(arrow):
        return pa.int64()
    if pa.types.is_date32(arrow) or pa.types.is_time32(arrow):
        return pa.int32()
    if pa.types.is_null(arrow):
        # Arrow's cast of a list of nulls to itself is invalid.
        return pa.string()
    if pa.types.is_struct(arrow):
        return pa.struct([(part.name, number_type(part.type)) for part in arrow])
    if pa.types.is_list(arrow):
        return pa.list_(number_type(arrow.value_type))
    if pa.types.is_map(arrow):
        return pa.map_(pa.string(), number_type(arrow.item_type))
    return arrow
