"""Records spread over hours, and what became of them: for tests on whole hosts."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pyarrow.dataset as ds

from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.offsets.committed_offsets import read_committed_offsets
from kafka_ordered_ops.windows import OrderedWindows

#: partition and offset -> time
Records = dict[tuple[int, int], datetime]


def ms_of(time: datetime) -> int:
    """A time as Kafka has it, in milliseconds."""
    return round(time.timestamp() * 1000)


def times(first: datetime, last: datetime, count: int = 120) -> list[datetime]:
    """Times from the first up to the last, evenly."""
    return [first + (last - first) * n / count for n in range(count)]


def within(
    records: Records, before: datetime, since: datetime | None = None
) -> list[tuple[int, int]]:
    """Where the records of a time are."""
    return sorted(
        place
        for place, time in records.items()
        if time < before and (since is None or time >= since)
    )


def committed(
    windows: OrderedWindows, topic: str, partitions: int
) -> dict[int, tuple[int, str] | None]:
    """A group's committed offsets of a topic, with their offset maps, by partition."""
    every = [TopicPartition(topic, n) for n in range(partitions)]
    found = read_committed_offsets(windows.settings, windows.group_id, every, timeout_s=30)
    return {
        tp.partition: None if one is None else (one.offset, str(one.metadata))
        for tp, one in found.items()
    }


def delivered(folder: str | Path) -> list[tuple[int, int]]:
    """Where the records came from that a reader of an output sees; twice, if they are there twice."""
    found = ds.dataset(str(folder), format="parquet") if Path(folder).exists() else None
    if found is None or not found.files:
        return []
    table = found.to_table(columns=["partition", "offset"])
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))
