"""Fields of JSON objects that columns leave out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa

from kafka_ordered_ops.decoding.json.records import is_blank

#: Adds the paths of fields of a value, for which there is no column, to a set.
_Find: TypeAlias = Callable[[Any, set[str]], None]


def unknown_fields(arrow: pa.DataType) -> Callable[[Any], set[str]]:
    """Return what finds, in a value that fits a type, the paths of fields without a column: ``to.city``, ``lines[].price``.

    Those that are null, or have nothing in them, are not among them.
    """
    find = _finder(arrow, "")

    def found(value: Any) -> set[str]:
        paths: set[str] = set()
        if find is not None:
            find(value, paths)
        return paths

    return found


def _finder(arrow: Any, path: str) -> _Find | None:
    """Return what finds fields in values of a type, at a path; None if it has no objects with columns."""
    if pa.types.is_struct(arrow):
        return _in_object(arrow, f"{path}." if path else "")
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return _in_items(_finder(arrow.value_type, f"{path}[]"), lambda value: value)
    if pa.types.is_map(arrow):
        return _in_items(_finder(arrow.item_type, f"{path}[]"), lambda value: value.values())
    return None


def _in_object(arrow: Any, prefix: str) -> _Find:
    finders = {field.name: _finder(field.type, f"{prefix}{field.name}") for field in arrow}

    def find(value: Any, paths: set[str]) -> None:
        for name, part in (value or {}).items():
            if name not in finders:
                if not is_blank(part):
                    # Half of a surrogate pair is not text.
                    paths.add(f"{prefix}{name}".encode(errors="replace").decode())
            elif (inner := finders[name]) is not None:
                inner(part, paths)

    return find


def _in_items(item: _Find | None, parts: Callable[[Any], Any]) -> _Find | None:
    if item is None:
        return None

    def find(value: Any, paths: set[str]) -> None:
        for part in parts(value) if value else ():
            item(part, paths)

    return find
