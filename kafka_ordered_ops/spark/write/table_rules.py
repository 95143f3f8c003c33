"""What a table requires of each row, as conditions; and how a result's columns differ from the table's, to the leaves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

#: How Spark keeps that a string has a limit: its type is a plain string.
_CHAR: Final = "__CHAR_VARCHAR_TYPE_STRING"
_NOT_NULL: Final = " NOT NULL"
_LIMITED: Final = re.compile(r"(?:var)?char\((\d+)\)")


def quoted(name: str) -> str:
    """Return a column's name for a statement."""
    return f"`{name.replace('`', '``')}`"


def required(schema: StructType) -> dict[str, str]:
    """Return what a row with this schema must satisfy, by names for people: values that are NOT NULL, and lengths."""
    rules = dict[str, str]()
    for field in schema.fields:
        name = quoted(field.name)
        rules |= dict(_of_field(field, name, field.name, 0))
        if limit := _LIMITED.fullmatch(str(field.metadata.get(_CHAR, ""))):
            # Delta counts blanks at the end, too.
            rules[f"{field.name} {limit[0]}"] = f"{name} IS NULL OR length({name}) <= {limit[1]}"
    return rules


def required_inside(schema: StructType) -> list[str]:
    """Return what is NOT NULL within columns, by paths."""
    return [
        name.removesuffix(_NOT_NULL)
        for field in schema.fields
        for name, _ in _inside(field.dataType, quoted(field.name), field.name, 0)
    ]


def _of_field(field: StructField, value: str, path: str, depth: int) -> Iterator[tuple[str, str]]:
    if not field.nullable:
        yield f"{path}{_NOT_NULL}", f"{value} IS NOT NULL"
    for inner, condition in _inside(field.dataType, value, path, depth):
        yield inner, f"({value} IS NULL OR {condition})"


def _inside(kind: Any, value: str, path: str, depth: int) -> Iterator[tuple[str, str]]:
    """Return what a value that is there must satisfy inside; no condition is ever null."""
    match kind.typeName():
        case "struct":
            for field in kind.fields:
                name, below = f"{value}.{quoted(field.name)}", f"{path}.{field.name}"
                yield from _of_field(field, name, below, depth)
        case "array":
            yield from _each(kind.elementType, kind.containsNull, value, f"{path}.element", depth)
        case "map":
            keys, values = f"map_keys({value})", f"map_values({value})"
            yield from _each(kind.keyType, True, keys, f"{path}.key", depth)
            yield from _each(kind.valueType, kind.valueContainsNull, values, f"{path}.value", depth)


def _each(
    kind: DataType, may_be_null: bool, values: str, path: str, depth: int
) -> Iterator[tuple[str, str]]:
    one = f"koo_{depth}"
    if not may_be_null:
        yield f"{path}{_NOT_NULL}", f"forall({values}, {one} -> {one} IS NOT NULL)"
    for inner, condition in _inside(kind, one, path, depth + 1):
        yield inner, f"forall({values}, {one} -> {one} IS NULL OR {condition})"


def misfits(given: Any, wanted: Any, folded: Callable[[str], str], path: str = "") -> Iterator[str]:
    """Return how a value's type differs from a column's: fields that are missing or unknown, and other kinds of values.

    Spark fills in nulls for a missing field of a struct without a word. Whether one simple type can be stored as another one
    is for Spark to say.
    """
    kinds = [one.typeName() for one in (given, wanted)]
    if kinds[0] == "void":
        return
    nested = {"struct", "array", "map"} & set(kinds)
    if nested and kinds[0] != kinds[1]:
        yield f"{path} is {given.simpleString()[:80]} instead of {wanted.simpleString()[:80]}"
        return
    match kinds[1]:
        case "struct":
            mine = _by_name(given, folded)
            theirs = _by_name(wanted, folded)
            for name, field in theirs.items():
                below = f"{path}.{field.name}"
                if name not in mine:
                    yield f"{below} is missing"
                else:
                    yield from misfits(mine[name].dataType, field.dataType, folded, below)
            for name, field in mine.items():
                if name not in theirs:
                    yield f"{path}.{field.name} is not in the table"
        case "array":
            yield from misfits(given.elementType, wanted.elementType, folded, f"{path}.element")
        case "map":
            yield from misfits(given.keyType, wanted.keyType, folded, f"{path}.key")
            yield from misfits(given.valueType, wanted.valueType, folded, f"{path}.value")


def _by_name(kind: StructType, folded: Callable[[str], str]) -> Mapping[str, StructField]:
    return {folded(field.name): field for field in kind.fields}


def sql_type(kind: Any) -> str:
    """Return a type for a statement, whatever its fields are called."""
    match kind.typeName():
        case "struct":
            fields = (f"{quoted(one.name)}: {sql_type(one.dataType)}" for one in kind.fields)
            return f"struct<{', '.join(fields)}>"
        case "array":
            return f"array<{sql_type(kind.elementType)}>"
        case "map":
            return f"map<{sql_type(kind.keyType)}, {sql_type(kind.valueType)}>"
    return str(kind.simpleString())
