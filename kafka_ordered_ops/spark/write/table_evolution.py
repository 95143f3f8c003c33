"""Columns and nested fields that a table does not have yet, and gets with the rows that have them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.core.strict_json import Stored, Text, Texts
from kafka_ordered_ops.spark.write.table_rules import by_name, quoted, sql_type

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

_NESTED: Final = ("struct", "array", "map")

Folded = Callable[[str], str]
#: The names from a column down to a field, with ``element`` and ``value`` within arrays and maps, as in Spark's SQL.
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Addition:
    """A column or a nested field to add; it may be null."""

    path: Path
    #: In Spark's SQL.
    type: str

    @property
    def name(self) -> str:
        """The column or field, in a statement."""
        return ".".join(map(quoted, self.path))

    def to_json(self) -> dict[str, Any]:
        """Return JSON for the ledger."""
        return {"path": list(self.path), "type": self.type}


class StoredAddition(Stored, frozen=True):
    """The JSON of an `Addition`."""

    path: Texts
    type: Text

    @property
    def value(self) -> Addition:
        """The addition."""
        return Addition(self.path, self.type)


def additions(actual: Any, expected: Any, folded: Folded, path: Path = ()) -> Iterator[Addition]:
    """Yield what a type has and another one does not; types that differ otherwise are left to `misfits`."""
    kind = expected.typeName()
    if actual.typeName() != kind:
        return
    match kind:
        case "struct":
            known = by_name(expected, folded)
            for field in actual.fields:
                there = known.get(folded(field.name))
                if there is None:
                    yield Addition((*path, field.name), sql_type(field.dataType))
                else:
                    below = (*path, there.name)
                    yield from additions(field.dataType, there.dataType, folded, below)
        case "array":
            below = (*path, "element")
            yield from additions(actual.elementType, expected.elementType, folded, below)
        case "map":
            below = (*path, "value")
            yield from additions(actual.valueType, expected.valueType, folded, below)


def evolved(
    table: Any, rows: Any, folded: Folded, added: Collection[Path] | None = None, path: Path = ()
) -> DataType:
    """Return the type of a table, with the fields of the rows' type that it does not have.

    Args:
        added: the paths of these fields; None for all.
    """
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    kind: DataType = table
    if rows.typeName() != table.typeName():
        return kind
    match table.typeName():
        case "struct":
            known, new = by_name(table, folded), by_name(rows, folded)
            fields = []
            for name, field in known.items():
                type_ = field.dataType
                if name in new:
                    below = (*path, field.name)
                    # Another window may have added the field with fewer fields in it.
                    inside = None if added is None or below in added else added
                    type_ = evolved(type_, new[name].dataType, folded, inside, below)
                fields.append(StructField(field.name, type_, field.nullable))
            for name, field in new.items():
                if name not in known and (added is None or (*path, field.name) in added):
                    fields.append(StructField(field.name, field.dataType))
            kind = StructType(fields)
        case "array":
            below = (*path, "element")
            inner = evolved(table.elementType, rows.elementType, folded, added, below)
            kind = ArrayType(inner, table.containsNull)
        case "map":
            below = (*path, "value")
            inner = evolved(table.valueType, rows.valueType, folded, added, below)
            kind = MapType(table.keyType, inner, table.valueContainsNull)
    return kind


def common(rows: Any, table: Any, folded: Folded) -> DataType:
    """Return the type of rows with exactly the fields of a table's type, for a comparison by Spark."""
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    kind: DataType = rows
    if rows.typeName() != table.typeName():
        return kind
    match table.typeName():
        case "struct":
            new = by_name(rows, folded)
            kind = StructType(
                [
                    StructField(
                        field.name,
                        common(new[name].dataType, field.dataType, folded)
                        if name in new
                        else field.dataType,
                    )
                    for name, field in by_name(table, folded).items()
                ]
            )
        case "array":
            kind = ArrayType(common(rows.elementType, table.elementType, folded))
        case "map":
            kind = MapType(rows.keyType, common(rows.valueType, table.valueType, folded))
    return kind


def clash(one: Any, other: Any, folded: Folded) -> bool:
    """Return whether a field that two types have is of another type in each of them."""
    kind = one.typeName()
    if kind != other.typeName():
        return True
    match kind:
        case "struct":
            there = by_name(other, folded)
            return any(
                clash(field.dataType, there[name].dataType, folded)
                for name, field in by_name(one, folded).items()
                if name in there
            )
        case "array":
            return clash(one.elementType, other.elementType, folded)
        case "map":
            is_other_key = sql_type(one.keyType) != sql_type(other.keyType)
            return is_other_key or clash(one.valueType, other.valueType, folded)
    return bool(sql_type(one) != sql_type(other))


def columns_as(rows: Any, wanted: Any, folded: Folded) -> list[str]:
    """Return the expressions that make rows of a wanted type: by name, and null for fields that rows do not have.

    Args:
        rows, wanted: schemas.
    """
    there = by_name(rows, folded)
    return [
        f"{_field_as(quoted(there[name].name) if name in there else None, there.get(name), field, folded, 0)} "
        f"AS {quoted(field.name)}"
        for name, field in by_name(wanted, folded).items()
    ]


def _field_as(value: str | None, actual: Any, wanted: Any, folded: Folded, depth: int) -> str:
    if value is None:
        return f"CAST(NULL AS {sql_type(wanted.dataType)})"
    return _value_as(value, actual.dataType, wanted.dataType, folded, depth)


def _value_as(value: str, actual: Any, wanted: Any, folded: Folded, depth: int) -> str:
    kind = wanted.typeName()
    if kind not in _NESTED or actual.typeName() != kind or sql_type(actual) == sql_type(wanted):
        return value
    variable = f"koo_{depth}"
    if kind == "struct":
        there = by_name(actual, folded)
        parts = []
        for name, field in by_name(wanted, folded).items():
            below = f"{value}.{quoted(there[name].name)}" if name in there else None
            text = field.name.replace("\\", "\\\\").replace("'", "\\'")
            parts += [f"'{text}'", _field_as(below, there.get(name), field, folded, depth)]
        return f"IF({value} IS NULL, NULL, named_struct({', '.join(parts)}))"
    if kind == "array":
        inner = _value_as(variable, actual.elementType, wanted.elementType, folded, depth + 1)
        return f"transform({value}, {variable} -> {inner})"
    inner = _value_as(variable, actual.valueType, wanted.valueType, folded, depth + 1)
    return f"transform_values({value}, (koo_key_{depth}, {variable}) -> {inner})"


def add_columns(added: Sequence[Addition], table: str) -> str:
    """Return the statement that adds columns and fields to a table."""
    columns = ", ".join(f"{each.name} {each.type}" for each in added)
    return f"ALTER TABLE {table} ADD COLUMNS ({columns})"
