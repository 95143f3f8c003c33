"""Types of decoded values that files, tables and Spark all have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from kafka_ordered_ops.core.errors import ConfigError

#: The greatest precision of Spark's decimals.
_DIGITS_MAX: Final = 38
#: What Spark has in place of types that it lacks.
_OTHERS: Final[tuple[tuple[Callable[[pa.DataType], bool], pa.DataType], ...]] = (
    (pa.types.is_uint8, pa.int16()),
    (pa.types.is_uint16, pa.int32()),
    (pa.types.is_uint32, pa.int64()),
    (pa.types.is_uint64, pa.decimal128(20, 0)),
    (pa.types.is_float16, pa.float32()),
    (pa.types.is_date, pa.date32()),
    (pa.types.is_time32, pa.int32()),
    (pa.types.is_time64, pa.int64()),
    (pa.types.is_duration, pa.duration("us")),
    (pa.types.is_null, pa.string()),
    (pa.types.is_large_string, pa.string()),
    (pa.types.is_large_binary, pa.binary()),
    (pa.types.is_fixed_size_binary, pa.binary()),
)


def plain_columns(schema: pa.Schema, undecoded: pa.Schema | None = None) -> pa.Schema:
    """Return decoded columns with the types that files, tables and Spark have for them, the same with and without Spark.

    Args:
        schema: the columns.
        undecoded: columns that stay as they are.

    Raises:
        ConfigError: there is no such type, or names differ by case alone.
    """
    kept = [] if undecoded is None else list(undecoded)
    fields = [field if field in kept else _field(field) for field in schema]
    _check_names(fields)
    return pa.schema(fields)


def plain_batch(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the types of `plain_columns`."""
    arrays = [
        array if array.type == field.type else _cast(array, field.type)
        for array, field in zip(batch.columns, columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _check_names(fields: Sequence[Any]) -> None:
    names = [field.name.lower() for field in fields]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(
            f"columns have the same name but for upper and lower case, which Spark does not tell apart: "
            f"{', '.join(field.name for field in fields if field.name.lower() in twice)}"
        )


def _field(field: Any) -> Any:
    try:
        return field.with_type(_type(field.type))
    except ConfigError as error:
        raise ConfigError(f"{field.name}: {error}") from None


def _type(kind: Any) -> pa.DataType:
    """Return the type in files and in Spark: times of day are numbers, and all other times are cut to microseconds."""
    types = pa.types
    if types.is_struct(kind):
        if not kind.num_fields:
            raise ConfigError(
                "a record without fields, which a file cannot have: give a schema without it"
            )
        fields = [_field(field) for field in kind]
        _check_names(fields)
        return pa.struct(fields)
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(_type(kind.value_type))
    if types.is_map(kind):
        return pa.map_(pa.string(), _type(kind.item_type))
    if types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if types.is_decimal(kind):
        if kind.precision > _DIGITS_MAX:
            raise ConfigError(
                f"decimals of files and of Spark have at most {_DIGITS_MAX} digits, and this is {kind}: read it with to_arrow"
            )
        return pa.decimal128(kind.precision, kind.scale)
    spark_type: pa.DataType = kind
    for matches, other in _OTHERS:
        if matches(kind):
            spark_type = other
    return spark_type


def _cast(array: pa.Array[Any], kind: pa.DataType) -> pa.Array[Any]:
    cast: Any = array.cast
    result: pa.Array[Any] = cast(options=pc.CastOptions(kind, allow_time_truncate=True))
    return result
