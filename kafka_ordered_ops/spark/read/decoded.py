"""Decode values and keys in Spark's tasks, whatever engine has read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from kafka_ordered_ops.decoding.decoder import Decoder
from kafka_ordered_ops.decoding.left_out import Without
from kafka_ordered_ops.decoding.plain_types import plain_batch, plain_columns
from kafka_ordered_ops.spark.read.files_source import to_arrow
from kafka_ordered_ops.spark.read.order import InOrder, mark_in_order, order_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def decoded_frame(frame: DataFrame, decoder: Decoder, without: Without) -> DataFrame:
    """Return records with decoded columns, in the same order and partitions.

    Args:
        frame: the records.
        decoder: how they are decoded. A bad record fails the task, unless it is kept or left out.
        without: leaves out the records that become dead letters.

    Raises:
        ConfigError: there is no type for a column in Spark.
    """
    decoded = _decoded(frame, decoder, without)
    if (known := order_of(frame)) is not None:
        dealt = None if known.dealt is None else _decoded(known.dealt, decoder, without)
        mark_in_order(decoded, InOrder(known.window_ids, dealt))
    return decoded


def _decoded(frame: DataFrame, decoder: Decoder, without: Without) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema

    columns = plain_columns(decoder.schema_of(to_arrow(frame.schema)))
    schema = from_arrow_schema(columns, prefer_timestamp_ntz=True)
    return frame.mapInArrow(partial(_batches, decoder, without, columns), schema)


def _batches(
    decoder: Decoder, without: Without, columns: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield plain_batch(decoder.decoded(without(batch)), columns)
