"""The columns of a window's records, also as Spark reads them, and computations on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa

from kafka_ordered_ops.core.errors import ReadError
from kafka_ordered_ops.core.offset_set import Int64Array, OffsetSet
from kafka_ordered_ops.core.record_schema import LATE, RECORD_SCHEMA, WINDOW_SCHEMA
from kafka_ordered_ops.core.types import INT64_MAX, TopicPartition
from kafka_ordered_ops.ordered.records.pieces import Piece

#: The columns of a window's records in files.
STAGE_SCHEMA: Final = WINDOW_SCHEMA

_SPARK_TYPES: dict[str, Any] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_type": pa.int32(),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(
        pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
    ),
    "late": pa.bool_(),
    "window_id": pa.string(),
}
#: The same schema in Spark: time in microseconds, every column nullable, and the window's id.
SPARK_SCHEMA: Final = pa.schema(_SPARK_TYPES)

#: `STAGE_SCHEMA` in Spark's DDL. The type `timestamp` would depend on a setting of the session.
STAGE_DDL: Final = (
    "topic string, partition int, offset bigint, timestamp timestamp_ltz, timestamp_type int, key binary, "
    "value binary, headers array<struct<key: string, value: binary>>, late boolean"
)

#: The temporary column with the index of a window among those that are read or written together.
WINDOW_NUMBER: Final = "_koo_window"

#: The schema of a task's records for Spark; users never see the number.
SOURCE_SCHEMA: Final = SPARK_SCHEMA.append(pa.field(WINDOW_NUMBER, pa.int32()))

#: The same for the only window of a read, without its columns.
WITHOUT_WINDOW: Final = pa.schema(list(SPARK_SCHEMA)[: len(STAGE_SCHEMA)])

#: Spark counts microseconds in 64 bits: about 292,000 years before and after 1970.
SPARK_TIMESTAMP_MS_MAX: Final = INT64_MAX // 1000

#: The total order. Time alone is not enough: records with equal times, which are common, would have no defined order.
ORDER: Final = ("timestamp", "topic", "partition", "offset")

#: The same for several windows, one after another.
MANY_ORDER: Final = (WINDOW_NUMBER, *ORDER)


def partition_of(batch: pa.RecordBatch) -> TopicPartition:
    """Return the one partition that a batch of the reader comes from."""
    return TopicPartition(batch.column("topic")[0].as_py(), batch.column("partition")[0].as_py())


def offsets_of(batch: pa.RecordBatch) -> Int64Array:
    """Return the offsets; no copy."""
    return cast(Int64Array, batch.column("offset").to_numpy())


def timestamps_ms_of(batch: pa.RecordBatch) -> Int64Array:
    """Return the timestamps in ms since the epoch; no copy."""
    column: Any = batch.column("timestamp")
    return cast(Int64Array, column.view(pa.int64()).to_numpy())


def judged(batch: pa.RecordBatch, piece: Piece) -> tuple[pa.RecordBatch, Int64Array]:
    """Return a batch with the column ``late``, and the index of each record's share."""
    offsets = offsets_of(batch)
    owners = piece.owners_of(offsets)
    late = piece.late_of(owners, offsets, timestamps_ms_of(batch))
    return batch.append_column(LATE, pa.array(late)), owners


class OffsetsDone:
    """Counts the wanted offsets that the reader has passed, including offsets without a record."""

    def __init__(self, wanted: Mapping[TopicPartition, OffsetSet]) -> None:
        self.total = sum(offsets.count for offsets in wanted.values())
        self._bounds = {tp: offsets.bounds for tp, offsets in wanted.items()}
        self._before = {
            tp: np.concatenate(([0], np.cumsum(bounds[:, 1] - bounds[:, 0])))
            for tp, bounds in self._bounds.items()
        }
        self._done = dict.fromkeys(wanted, 0)

    def reached(self, tp: TopicPartition, offset: int) -> int:
        """Count up to a record; return the count over all partitions."""
        bounds = self._bounds[tp]
        index = int(np.searchsorted(bounds[:, 0], offset, side="right")) - 1
        self._done[tp] = int(self._before[tp][index]) + offset + 1 - int(bounds[index, 0])
        return sum(self._done.values())


def to_spark(
    batch: pa.RecordBatch, piece: Piece, owners: Int64Array | None = None
) -> pa.RecordBatch:
    """Return a batch of `SOURCE_SCHEMA` from the result of `judged`; without `owners`, only the columns without windows.

    Raises:
        ReadError: a timestamp is out of Spark's range.
    """
    check_times(batch)
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, SPARK_SCHEMA, strict=False)
    ]
    if owners is None:
        return pa.RecordBatch.from_arrays(columns, schema=WITHOUT_WINDOW)
    columns.append(pa.array([share.window_id for share in piece.shares]).take(owners))
    columns.append(pa.array(piece.windows_of(owners), pa.int32()))
    return pa.RecordBatch.from_arrays(columns, schema=SOURCE_SCHEMA)


def check_times(batch: pa.RecordBatch) -> None:
    """Raise `ReadError` for a timestamp that does not fit into 64 bits in microseconds."""
    timestamps_ms = timestamps_ms_of(batch)
    far = np.flatnonzero(
        (timestamps_ms > SPARK_TIMESTAMP_MS_MAX) | (timestamps_ms < -SPARK_TIMESTAMP_MS_MAX)
    )
    if far.size:
        row = int(far[0])
        tp, offset, ms = partition_of(batch), int(offsets_of(batch)[row]), int(timestamps_ms[row])
        raise ReadError(
            f"the record at {tp} offset {offset} is stamped {ms:,} ms since 1970, but Spark's timestamps end at "
            f"{SPARK_TIMESTAMP_MS_MAX:,} ms. Plan the window with a cutoff below it, or write it with "
            "stage_window, which keeps milliseconds",
            partition=str(tp),
            offset=offset,
            timestamp_ms=ms,
        )


def with_late(rows: pa.RecordBatch, is_late: bool) -> pa.RecordBatch:
    """Return records with the column ``late``; the records of a plan already have it."""
    if rows.num_columns == len(STAGE_SCHEMA) and not is_late:
        return rows
    late: Any = pa.repeat(is_late, rows.num_rows)
    columns = rows.columns[: len(RECORD_SCHEMA)]
    return pa.RecordBatch.from_arrays([*columns, late], schema=STAGE_SCHEMA)
