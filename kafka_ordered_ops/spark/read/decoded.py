"""Decode values and keys in Spark's tasks, whatever engine has read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.decoding.decoder import Decoder
from kafka_ordered_ops.spark.read.files_source import to_arrow
from kafka_ordered_ops.spark.read.order import InOrder, mark_in_order, order_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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


def decoded_frame(frame: DataFrame, decoder: Decoder) -> DataFrame:
    """Return records with decoded columns, in the same order and partitions; raise `ConfigError` for types without one in Spark."""
    decoded = _decoded(frame, decoder)
    if (known := order_of(frame)) is not None:
        dealt = None if known.dealt is None else _decoded(known.dealt, decoder)
        mark_in_order(decoded, InOrder(known.window_ids, dealt))
    return decoded


def _decoded(frame: DataFrame, decoder: Decoder) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema

    columns = spark_columns(decoder.schema_of(to_arrow(frame.schema)))
    schema = from_arrow_schema(columns, prefer_timestamp_ntz=True)
    return frame.mapInArrow(partial(_batches, decoder, columns), schema)


def _batches(
    decoder: Decoder, columns: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        decoded = decoder.decoded(batch)
        arrays = [
            _cast(array, field.type) for array, field in zip(decoded.columns, columns, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=columns)


def _cast(array: pa.Array[Any], kind: pa.DataType) -> pa.Array[Any]:
    cast: Any = array.cast
    result: pa.Array[Any] = cast(options=pc.CastOptions(kind, allow_time_truncate=True))
    return result


def spark_columns(schema: pa.Schema) -> pa.Schema:
    """Return columns with the types that Spark has for them; raise `ConfigError` where it has none."""
    return pa.schema([_field(field) for field in schema])


def _field(field: Any) -> Any:
    try:
        return field.with_type(_type(field.type))
    except ConfigError as error:
        raise ConfigError(f"{field.name}: {error}") from None


def _type(kind: Any) -> pa.DataType:
    """Return the type in Spark: times of day are numbers, and all other times are cut to microseconds, as Spark's own readers do."""
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([_field(field) for field in kind])
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(_type(kind.value_type))
    if types.is_map(kind):
        return pa.map_(pa.string(), _type(kind.item_type))
    if types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if types.is_decimal(kind):
        if kind.precision > _DIGITS_MAX:
            raise ConfigError(
                f"Spark's decimals have at most {_DIGITS_MAX} digits, and this is {kind}: read it without Spark"
            )
        return pa.decimal128(kind.precision, kind.scale)
    spark_type: pa.DataType = kind
    for matches, other in _OTHERS:
        if matches(kind):
            spark_type = other
    return spark_type
