"""What objects of JSON would take as columns: three bytes are an object whose hundreds of fields are all missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import pyarrow as pa

from kafka_ordered_ops.decoding.bad import BadValueError

_Count: TypeAlias = Callable[[Any], int]

#: Fields that the objects in lists and maps of a text may have, whatever its length, and for each of its bytes.
_FIELDS_MIN: Final = 20_000
_FIELDS_PER_BYTE: Final = 16
#: Of an object in a list without a field: its brackets, and a comma.
_BYTES_MIN: Final = 3


def size_check(arrow: pa.DataType) -> Callable[[Any, int], None] | None:
    """Return what takes a parsed text and its length, and raises `BadValueError` if it has too many fields.

    None for the usual types, of which no text can have too many.
    """
    count = _counter(arrow)
    if count is None:
        return None

    def check(value: Any, length: int) -> None:
        if count(value) > _FIELDS_MIN + _FIELDS_PER_BYTE * length:
            raise BadValueError(
                f"its {length:,} bytes are objects with more than {_FIELDS_MIN:,} fields, and {_FIELDS_PER_BYTE} for each byte"
            )

    return check


def _counter(arrow: Any) -> _Count | None:
    """Return what counts the fields of objects in lists and maps; None if it is few of them."""
    if pa.types.is_struct(arrow):
        found = {part.name: _counter(part.type) for part in arrow}
        inner = {name: count for name, count in found.items() if count is not None}
        return _of_object(inner) if inner else None
    is_map = pa.types.is_map(arrow)
    if not is_map and not pa.types.is_list(arrow) and not pa.types.is_large_list(arrow):
        return None
    item = arrow.item_type if is_map else arrow.value_type
    width, count = _width(item), _counter(item)
    if width <= _FIELDS_PER_BYTE * _BYTES_MIN and count is None:
        return None
    return _of_items(dict if is_map else list, width, count)


def _of_object(inner: dict[str, _Count]) -> _Count:
    def count(value: Any) -> int:
        if type(value) is not dict:
            return 0
        return sum(part(value.get(name)) for name, part in inner.items())

    return count


def _of_items(kind: type[Any], width: int, inner: _Count | None) -> _Count:
    def count(value: Any) -> int:
        if not isinstance(value, kind):
            return 0
        items: Any = value.values() if kind is dict else value
        return len(value) * width + (0 if inner is None else sum(inner(item) for item in items))

    return count


def _width(arrow: Any) -> int:
    """Return how many fields an object has, with those of objects in it."""
    if not pa.types.is_struct(arrow):
        return 0
    return sum(1 + _width(part.type) for part in arrow)
