"""The conditions of a table for each row, and the differences between a result's columns and the table's, nested ones too."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

#: The metadata in which Spark keeps the length limit of a string column, whose type is a plain string.
_CHAR: Final = "__CHAR_VARCHAR_TYPE_STRING"
_NOT_NULL: Final = " NOT NULL"
_LIMITED: Final = re.compile(r"(?:var)?char\((\d+)\)")


def quoted(name: str) -> str:
    """Return a column's name for a statement."""
    return f"`{name.replace('`', '``')}`"


def required(schema: StructType) -> dict[str, str]:
    """Return the conditions for a row with this schema, by readable names: NOT NULL values, and lengths."""
    rules = dict[str, str]()
    for field in schema.fields:
        name = quoted(field.name)
        rules |= dict(_of_field(field, name, field.name, 0))
        if limit := _LIMITED.fullmatch(str(field.metadata.get(_CHAR, ""))):
            # Delta also counts spaces at the end.
            rules[f"{field.name} {limit[0]}"] = f"{name} IS NULL OR length({name}) <= {limit[1]}"
    return rules


def required_inside(schema: StructType) -> list[str]:
    """Return the paths within columns that are NOT NULL."""
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
    """Yield the conditions within a value that is not null; no condition is ever null."""
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
    variable = f"koo_{depth}"
    if not may_be_null:
        yield f"{path}{_NOT_NULL}", f"forall({values}, {variable} -> {variable} IS NOT NULL)"
    for inner, condition in _inside(kind, variable, path, depth + 1):
        yield inner, f"forall({values}, {variable} -> {variable} IS NULL OR {condition})"


def misfits(
    actual: Any,
    expected: Any,
    folded: Callable[[str], str],
    path: str = "",
    *,
    may_evolve: bool = False,
) -> Iterator[str]:
    """Yield how a value's type differs from a column's: missing and unknown fields, and values of another kind.

    Spark silently fills in nulls for a missing field of a struct. Spark itself decides whether one simple type can be stored
    as another. With `may_evolve`, unknown fields are added, and missing ones are null where they may be.
    """
    below: Any = partial(misfits, folded=folded, may_evolve=may_evolve)
    kinds = [kind.typeName() for kind in (actual, expected)]
    if kinds[0] == "void":
        return
    nested = {"struct", "array", "map"} & set(kinds)
    if nested and kinds[0] != kinds[1]:
        yield f"{path} is {actual.simpleString()[:80]} instead of {expected.simpleString()[:80]}"
        return
    match kinds[1]:
        case "struct":
            actual_fields = by_name(actual, folded)
            expected_fields = by_name(expected, folded)
            for name, field in expected_fields.items():
                inner = f"{path}.{field.name}"
                if name in actual_fields:
                    yield from below(actual_fields[name].dataType, field.dataType, path=inner)
                elif not (may_evolve and field.nullable):
                    yield f"{inner} is missing"
            for name, field in actual_fields.items():
                if name not in expected_fields and not may_evolve:
                    yield f"{path}.{field.name} is not in the table"
        case "array":
            yield from below(actual.elementType, expected.elementType, path=f"{path}.element")
        case "map":
            yield from misfits(actual.keyType, expected.keyType, folded, f"{path}.key")
            yield from below(actual.valueType, expected.valueType, path=f"{path}.value")


def by_name(kind: StructType, folded: Callable[[str], str]) -> Mapping[str, StructField]:
    """Return the fields of a struct by their folded names."""
    return {folded(field.name): field for field in kind.fields}


def sql_type(kind: Any) -> str:
    """Return a type for a statement, with quoted field names."""
    match kind.typeName():
        case "struct":
            fields = (f"{quoted(field.name)}: {sql_type(field.dataType)}" for field in kind.fields)
            return f"struct<{', '.join(fields)}>"
        case "array":
            return f"array<{sql_type(kind.elementType)}>"
        case "map":
            return f"map<{sql_type(kind.keyType)}, {sql_type(kind.valueType)}>"
    return str(kind.simpleString())
