"""The state of each partition of an ordered read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from kafka_ordered_ops.core.types import TopicPartition

_FIELDS: Final[list[pa.Field[Any]]] = [
    pa.field("topic", pa.string(), nullable=False),
    pa.field("partition", pa.int32(), nullable=False),
    pa.field("start", pa.int64(), nullable=False),
    pa.field("committed", pa.int64()),
    pa.field("position", pa.int64(), nullable=False),
    pa.field("end", pa.int64(), nullable=False),
    pa.field("timestamp", pa.timestamp("ms", tz="UTC")),
    pa.field("live", pa.bool_(), nullable=False),
    pa.field("held", pa.int64(), nullable=False),
    pa.field("holds_back", pa.bool_(), nullable=False),
    pa.field("lag", pa.int64(), nullable=False),
    pa.field("time_lag", pa.duration("ms")),
    pa.field("late", pa.int64(), nullable=False),
    pa.field("paused", pa.bool_(), nullable=False),
]

#: A row for each partition.
#:
#: ===============  =================================================================================
#: ``topic``        name
#: ``partition``    number, from 0
#: ``start``        the offset where this read started, or the offset of the last seek
#: ``committed``    the group's committed offset as this member knows it; null without one
#: ``position``     the next offset to read
#: ``end``          the last known end of the log
#: ``timestamp``    the greatest timestamp so far; null before the first record
#: ``live``         whether it has been read up to its end at the start of the read
#: ``held``         records that were read and wait for their place in the order
#: ``holds_back``   whether the records of other partitions wait for this one
#: ``lag``          offsets between position and end
#: ``time_lag``     the time from the greatest timestamp to now; 0 at the end; null before the first record
#: ``late``         records that arrived after their place in the order had passed
#: ``paused``       whether it is paused
#: ===============  =================================================================================
STATE_SCHEMA: Final = pa.schema(_FIELDS)


@dataclass(slots=True)
class PartitionState:
    """The state of one partition."""

    tp: TopicPartition
    start: int
    position: int
    end: int
    #: The position from which the partition is live.
    live_at: int
    is_live: bool = False
    is_finished: bool = False
    timestamp_ms: int | None = None
    held: int = 0
    holds_back: bool = False
    late: int = 0
    committed: int | None = None
    is_paused: bool = False


def state_batch(partitions: Sequence[PartitionState], now_ms: int) -> pa.RecordBatch:
    """Return the partitions as rows of `STATE_SCHEMA`."""
    values: dict[str, list[Any]] = {
        "topic": [state.tp.topic for state in partitions],
        "partition": [state.tp.partition for state in partitions],
        "start": [state.start for state in partitions],
        "committed": [state.committed for state in partitions],
        "position": [state.position for state in partitions],
        "end": [max(state.end, state.position) for state in partitions],
        "timestamp": [state.timestamp_ms for state in partitions],
        "live": [state.is_live for state in partitions],
        "held": [state.held for state in partitions],
        "holds_back": [state.holds_back for state in partitions],
        "lag": [max(state.end - state.position, 0) for state in partitions],
        "time_lag": [_time_lag_ms(state, now_ms) for state in partitions],
        "late": [state.late for state in partitions],
        "paused": [state.is_paused for state in partitions],
    }
    columns = [pa.array(values[field.name], field.type) for field in STATE_SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=STATE_SCHEMA)


def _time_lag_ms(state: PartitionState, now_ms: int) -> int | None:
    if state.position >= state.end:
        return 0
    if state.timestamp_ms is None:
        return None
    return max(now_ms - state.timestamp_ms, 0)
