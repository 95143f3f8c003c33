"""Decoded columns as values of Python, for functions that get one record at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kafka_ordered_ops.decoding.bad import BadValueError

_Convert = Callable[[Any], Any]


def python_values(array: pa.Array[Any]) -> list[Any]:
    """Return a value for each row: a dict for a struct or a map, a list, or a plain value.

    Times are cut to microseconds. A row is a `BadValueError` if it has a time that Python has no value for.
    """
    kind = _in_micros(array.type)
    if kind != array.type:
        cast: Any = array.cast
        array = cast(options=pc.CastOptions(kind, allow_time_truncate=True))
    try:
        values = array.to_pylist()
    except (ValueError, OverflowError):
        values = [_value(array, row) for row in range(len(array))]
    convert = _converter(kind)
    if convert is None:
        return values
    return [
        one if one is None or isinstance(one, BadValueError) else convert(one) for one in values
    ]


def _value(array: pa.Array[Any], row: int) -> Any:
    try:
        return array[row].as_py()
    except (ValueError, OverflowError) as error:
        return BadValueError(f"Python has no value for it: {error}")


def _in_micros(kind: Any) -> Any:
    """Return a type with microseconds in place of nanoseconds, which Python's times do not have."""
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([field.with_type(_in_micros(field.type)) for field in kind])
    if types.is_list(kind):
        return pa.list_(_in_micros(kind.value_type))
    if types.is_map(kind):
        return pa.map_(kind.key_type, _in_micros(kind.item_type))
    if types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if types.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    if types.is_time64(kind) and kind.unit == "ns":
        return pa.time64("us")
    return kind


def _converter(kind: Any) -> _Convert | None:
    """Return what makes dicts of the pairs that PyArrow has for maps; None if there are no maps."""
    types = pa.types
    if types.is_map(kind):
        inner = _optional(_converter(kind.item_type))
        return lambda pairs: {key: inner(value) for key, value in pairs}
    if types.is_list(kind):
        of_items = _converter(kind.value_type)
        if of_items is None:
            return None
        item = _optional(of_items)
        return lambda values: [item(value) for value in values]
    if types.is_struct(kind):
        of_fields = {
            field.name: _optional(convert)
            for field in kind
            if (convert := _converter(field.type)) is not None
        }
        if not of_fields:
            return None
        return lambda value: {
            **value,
            **{name: convert(value[name]) for name, convert in of_fields.items()},
        }
    return None


def _optional(convert: _Convert | None) -> _Convert:
    def converted(value: Any) -> Any:
        return value if value is None or convert is None else convert(value)

    return converted
