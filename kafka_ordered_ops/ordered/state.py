"""What is known of each partition of an ordered read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from kafka_ordered_ops.core.types import TopicPartition

_FIELDS: Final[list[pa.Field[Any]]] = [
    pa.field("topic", pa.string(), nullable=False),
    pa.field("partition", pa.int32(), nullable=False),
    pa.field("position", pa.int64(), nullable=False),
    pa.field("end", pa.int64(), nullable=False),
    pa.field("timestamp", pa.timestamp("ms", tz="UTC")),
    pa.field("live", pa.bool_(), nullable=False),
    pa.field("held", pa.int64(), nullable=False),
    pa.field("holds_back", pa.bool_(), nullable=False),
    pa.field("lag", pa.int64(), nullable=False),
    pa.field("late", pa.int64(), nullable=False),
]

#: One partition a row.
#:
#: ===============  =================================================================================
#: ``topic``        name
#: ``partition``    number, from 0
#: ``position``     the next offset to read
#: ``end``          where the log ended when it was looked at last
#: ``timestamp``    the greatest timestamp so far; null before the first record
#: ``live``         whether it has been read up to where it ended when the read began
#: ``held``         records that were read and wait for their place in the order
#: ``holds_back``   whether the records of other partitions wait for this one
#: ``lag``          offsets between position and end
#: ``late``         records that came after their place in the order had passed
#: ===============  =================================================================================
STATE_SCHEMA: Final = pa.schema(_FIELDS)


@dataclass(slots=True)
class PartitionState:
    """One partition."""

    tp: TopicPartition
    start: int
    position: int
    end: int
    #: Once its position is here, the partition is live.
    live_at: int
    is_live: bool = False
    is_finished: bool = False
    timestamp_ms: int | None = None
    held: int = 0
    holds_back: bool = False
    late: int = 0


def state_batch(partitions: Sequence[PartitionState]) -> pa.RecordBatch:
    """Return the partitions as rows of `STATE_SCHEMA`."""
    values: dict[str, list[Any]] = {
        "topic": [one.tp.topic for one in partitions],
        "partition": [one.tp.partition for one in partitions],
        "position": [one.position for one in partitions],
        "end": [max(one.end, one.position) for one in partitions],
        "timestamp": [one.timestamp_ms for one in partitions],
        "live": [one.is_live for one in partitions],
        "held": [one.held for one in partitions],
        "holds_back": [one.holds_back for one in partitions],
        "lag": [max(one.end - one.position, 0) for one in partitions],
        "late": [one.late for one in partitions],
    }
    columns = [pa.array(values[field.name], field.type) for field in STATE_SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=STATE_SCHEMA)
