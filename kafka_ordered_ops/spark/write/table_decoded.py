"""Decoded records in tables: their types, and which of them delete rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.record_schema import RECORD_SCHEMA
from kafka_ordered_ops.ordered.records.columns import SPARK_SCHEMA
from kafka_ordered_ops.spark.write.table_facts import quoted
from kafka_ordered_ops.spark.write.table_rules import sql_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

#: The column in which `Debezium`, and Debezium's own transformation, mark deleted rows.
DELETED: Final = "__deleted"
_BAD: Final = "value_error"
#: What is known of bad values.
_ABOUT: Final = frozenset({_BAD, "value_raw", "key_error", "key_raw"})
#: Columns by which rows delete others; a result may have them although the table does not.
DELETIONS: Final = frozenset({"value", DELETED})
#: Without these columns, rows that hold nothing of the source would look like rows that do.
MARKS: Final = (DELETED, _BAD, "key_error")


def is_field(name: str) -> bool:
    """Return whether a column of decoded records is a field of their values, not the record's own or one about it."""
    return not (name in SPARK_SCHEMA.names or name.startswith("__") or name in _ABOUT)


def decoded_types(
    records: pa.Schema, undecoded: Mapping[str, str], known: Callable[[str, Any], Any]
) -> dict[str, str]:
    """Return the types of decoded records in Spark's SQL, with those that are given for columns that stay as they are.

    Args:
        records: the columns.
        undecoded: the types of columns that stay as they are.
        known: takes a name and a type, and returns the type to use.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    from kafka_ordered_ops.decoding.plain_types import plain_columns

    schema = from_arrow_schema(plain_columns(records), prefer_timestamp_ntz=True)
    types = {field.name: sql_type(known(field.name, field.dataType)) for field in schema.fields}
    for name, type_ in undecoded.items():
        index = RECORD_SCHEMA.get_field_index(name)
        is_same = index >= 0 and name in types
        if index < 0 or (is_same and records.field(name).type == RECORD_SCHEMA.types[index]):
            types[name] = type_
    return types


def deletion(df: DataFrame, columns: Mapping[str, str]) -> Column:
    """Return which rows delete the row with their key: marked ones, or, in a result without marks, tombstones.

    Args:
        df: the result.
        columns: its columns by their folded names.

    Raises:
        ConfigError: it has neither marks nor values.
    """
    from pyspark.sql import functions as f

    def is_marked(column: Column) -> Column:
        # Text in topics of ExtractNewRecordState.
        return f.coalesce(column.cast("boolean"), f.lit(False))

    if (mark := columns.get(DELETED)) is not None:
        # A row of a database may have a column ``value`` of its own, which may be null.
        return is_marked(f.col(quoted(mark)))
    if (value := columns.get("value")) is None:
        raise ConfigError(
            f"delete_tombstones finds tombstones by the column value, or {DELETED}, and the result has neither: keep it"
        )
    is_deleted = f.col(quoted(value)).isNull()
    if (reason := columns.get(_BAD)) is not None:
        is_deleted &= f.col(quoted(reason)).isNull()
    kind: Any = df.schema[value].dataType
    if kind.typeName() == "struct" and DELETED in kind.names:
        is_deleted |= is_marked(f.col(quoted(value)).getField(DELETED))
    return is_deleted
