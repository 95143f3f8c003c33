"""Random logs, and their way through an ordered release."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from kafka_ordered_ops.core.release.ordered_release import OrderedRelease
from kafka_ordered_ops.core.types import INT64_MAX, INT64_MIN, TopicPartition

FIELDS: list[pa.Field[Any]] = [
    pa.field("topic", pa.string(), nullable=False),
    pa.field("partition", pa.int32(), nullable=False),
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
    pa.field("value", pa.binary()),
]
SCHEMA = pa.schema(FIELDS)

A, B = TopicPartition("t", 0), TopicPartition("t", 1)

#: A record: timestamp, topic, partition, offset.
Row = tuple[int, str, int, int]


class MemorySpill:
    """Runs in memory: what a disk does, without one."""

    def __init__(self) -> None:
        self.written = self.removed = 0

    def write(self, batches: Iterator[pa.RecordBatch]) -> MemoryRun:
        self.written += 1
        return MemoryRun(self, list(batches))


@dataclass
class MemoryRun:
    spill: MemorySpill
    batches: list[pa.RecordBatch]
    is_removed: bool = False

    @property
    def num_batches(self) -> int:
        return len(self.batches)

    @property
    def nbytes(self) -> int:
        return sum(batch.nbytes for batch in self.batches)

    def batch(self, number: int) -> pa.RecordBatch:
        return self.batches[number]

    def remove(self) -> None:
        self.spill.removed += not self.is_removed
        self.is_removed = True


def rows_at(tp: TopicPartition, offsets: list[int], times: list[int]) -> pa.RecordBatch:
    """Records of a partition; each value tells its offset."""
    values: dict[str, Any] = {
        "topic": [tp.topic] * len(offsets),
        "partition": [tp.partition] * len(offsets),
        "offset": offsets,
        "timestamp": times,
        "value": [b"%d" % offset if offset % 3 else None for offset in offsets],
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(values[one.name], one.type) for one in SCHEMA], schema=SCHEMA
    )


@dataclass
class Log:
    tp: TopicPartition
    times: list[int]
    #: Gaps before each record: offsets without one.
    gaps: list[int]
    fed: int = 0
    offsets: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.offsets = [n + gap for n, gap in enumerate(np.cumsum(self.gaps).tolist())]

    @property
    def is_done(self) -> bool:
        return self.fed == len(self.times)

    def next(self, count: int) -> pa.RecordBatch:
        low, self.fed = self.fed, min(self.fed + count, len(self.times))
        return rows_at(self.tp, self.offsets[low : self.fed], self.times[low : self.fed])

    def all(self) -> list[Row]:
        return [
            (time, self.tp.topic, self.tp.partition, offset)
            for time, offset in zip(self.times, self.offsets, strict=True)
        ]

    def keyed(self) -> list[tuple[int, str, int, int]]:
        """Each record with its partition's greatest timestamp so far."""
        keys = np.maximum.accumulate(np.array(self.times, dtype=np.int64)).tolist()
        return [(key, *row[1:]) for key, row in zip(keys, self.all(), strict=True)]


TIMES = st.one_of(
    st.integers(0, 8), st.integers(-5, 300), st.sampled_from([-1, INT64_MIN, INT64_MAX])
)


@st.composite
def some_logs(draw: st.DrawFn) -> list[Log]:
    """Logs of a few partitions, in which times rise or do not."""
    names = draw(
        st.lists(
            st.builds(TopicPartition, st.sampled_from("ab"), st.integers(0, 2)),
            min_size=1,
            max_size=5,
            unique=True,
        )
    )
    logs = []
    for tp in names:
        times = draw(st.lists(TIMES, max_size=40))
        if draw(st.booleans()):
            times.sort()
        gaps = draw(st.lists(st.integers(0, 3), min_size=len(times), max_size=len(times)))
        logs.append(Log(tp, times, gaps))
    return logs


def taken(release: OrderedRelease) -> Iterator[tuple[Row, bool]]:
    """Everything that is ready, and whether it is late."""
    for batch, is_late in release.ready():
        rows = batch.rows()
        assert rows.num_rows == batch.num_rows > 0
        for one in rows_of(rows):
            yield one, is_late


def rows_of(rows: pa.RecordBatch) -> list[Row]:
    """The records of a batch, which is whole."""
    rows.validate(full=True)
    assert rows.schema == SCHEMA
    names: list[Any] = rows.column("topic").to_pylist()
    numbers: list[Any] = rows.column("partition").to_pylist()
    times: list[Any] = rows.column("timestamp").view(pa.int64()).to_pylist()
    offsets: list[Any] = rows.column("offset").to_pylist()
    values = [b"%d" % offset if offset % 3 else None for offset in offsets]
    assert rows.column("value").to_pylist() == values
    return list(zip(times, names, numbers, offsets, strict=True))


def walk(
    draw: st.DataObject, logs: list[Log], release: OrderedRelease
) -> Iterator[tuple[Row, bool]]:
    """Feed everything in random turns; yield what comes out, each time all of it."""
    for log in logs:
        release.add(log.tp)
    unfinished = list(logs)
    while unfinished:
        log = draw.draw(st.sampled_from(unfinished))
        release.feed(log.tp, log.next(draw.draw(st.integers(1, 12))))
        if log.is_done and draw.draw(st.booleans()):
            unfinished.remove(log)
            release.finish(log.tp)
        elif log.is_done and len(unfinished) == sum(one.is_done for one in unfinished):
            for one in unfinished:
                release.finish(one.tp)
            unfinished.clear()
        yield from taken(release)
        release.relieve()
        held = sum(release.held_of(one.tp) for one in logs)
        assert held == release.held.records
    assert release.held.records == 0
