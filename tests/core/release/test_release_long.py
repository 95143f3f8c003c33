"""Ordered release over very many records: random logs, fed in random turns, against one sort of everything."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from kafka_ordered_ops.core.offset_set import Int64Array
from kafka_ordered_ops.core.release.ordered_release import Limits, Order, OrderedRelease
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.ordered.spill import SpillFiles

_FIELDS: list[pa.Field[Any]] = [
    pa.field("partition", pa.int32(), nullable=False),
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
]
_SCHEMA = pa.schema(_FIELDS)

#: A night's work, and its time on two slow cores.
_RECORDS, _SECONDS = 100_000_000, 600.0


@dataclass
class _Case:
    """One release over random logs."""

    random: np.random.Generator
    #: The timestamps of each partition, by offset.
    logs: list[Int64Array]
    order: Order
    slack_ms: int | None
    limits: Limits

    @classmethod
    def of(cls, seed: int, records: int) -> _Case:
        random = np.random.default_rng(seed)
        partitions = int(random.integers(1, 40))
        shares = random.dirichlet(np.full(partitions, 0.5)) * records
        disorder = int(random.choice([0, 0, 3, 1_000]))
        logs = [_times(random, int(share), disorder) for share in shares]
        order = Order(str(random.choice(list(Order))))
        # Exact, within the disorder, or less: then some are late.
        slack_ms = [None, 2 * disorder, disorder // 2][int(random.integers(0, 3))]
        limit = int(random.choice([records // 50 + 1, records // 5 + 1, 2 * records]))
        return cls(random, logs, order, slack_ms, Limits(records=limit))

    @property
    def is_exact(self) -> bool:
        """Whether nothing may be late."""
        if self.order is Order.PARTITION or self.slack_ms is None:
            return True
        falls = [np.maximum.accumulate(log) - log for log in self.logs if log.size]
        return max(int(fall.max()) for fall in falls) <= self.slack_ms

    def turns(self) -> Iterator[tuple[int, int, int]]:
        """Partitions and ranges of offsets, all of them, in some order."""
        fed = np.zeros(len(self.logs), dtype=np.int64)
        sizes = np.array([log.size for log in self.logs])
        most = int(self.random.choice([40, 2_000, 20_000]))
        left = [number for number, size in enumerate(sizes) if size]
        while left:
            number = left[int(self.random.integers(0, len(left)))]
            low = int(fed[number])
            fed[number] = high = min(low + int(self.random.integers(1, most)), int(sizes[number]))
            yield number, low, high
            if high == sizes[number]:
                left.remove(number)

    def released(self, folder: Path) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Partition, offset, and whether it is late, of everything in the order in which it came."""
        found: list[tuple[Any, Any, Any]] = []
        release = OrderedRelease(
            _SCHEMA,
            order=self.order,
            max_out_of_orderness_ms=self.slack_ms,
            limits=self.limits,
            spill=SpillFiles(lambda: str(folder)),
        )
        tps = [TopicPartition("t", number) for number in range(len(self.logs))]
        for tp, log in zip(tps, self.logs, strict=True):
            release.add(tp)
            if not log.size:
                release.finish(tp)
        for number, low, high in self.turns():
            release.feed(tps[number], _rows(number, low, self.logs[number][low:high]))
            if high == self.logs[number].size:
                release.finish(tps[number])
            if self.random.random() < 0.3 or high == self.logs[number].size:
                found += _taken(release)
            release.relieve()
        found += _taken(release)
        assert release.held.records == 0
        release.close()
        assert list(folder.iterdir()) == []
        partitions, offsets, late = (np.concatenate(one) for one in zip(*found, strict=True))
        return partitions, offsets, late

    def check(self, folder: Path) -> None:
        """Everything came once, in order; what is late is so for a reason."""
        partitions, offsets, late = self.released(folder)
        sizes = np.array([log.size for log in self.logs])
        all_partitions = np.repeat(np.arange(len(self.logs)), sizes)
        all_offsets = np.concatenate([np.arange(size) for size in sizes])
        starts = np.concatenate(([0], np.cumsum(sizes)))[:-1]
        by_partition = np.lexsort((offsets, partitions))
        assert np.array_equal(partitions[by_partition], all_partitions)
        assert np.array_equal(offsets[by_partition], all_offsets)
        keys = np.concatenate([self._keys(log) for log in self.logs])
        if self.is_exact:
            assert not late.any()
            wanted = np.lexsort((all_offsets, all_partitions, keys))
            assert np.array_equal(partitions, all_partitions[wanted])
            assert np.array_equal(offsets, all_offsets[wanted])
            return
        places = starts[partitions] + offsets
        in_time = places[~late]
        assert np.array_equal(
            in_time, in_time[np.lexsort((offsets[~late], partitions[~late], keys[in_time]))]
        )
        greatest = np.concatenate([np.maximum.accumulate(log) for log in self.logs if log.size])
        assert self.slack_ms is not None
        assert (keys[places[late]] < greatest[places[late]] - self.slack_ms).all()

    def _keys(self, log: Int64Array) -> Int64Array:
        if self.order is Order.TIMESTAMP or not log.size:
            return log
        return cast(Int64Array, np.maximum.accumulate(log))


def _times(random: np.random.Generator, count: int, disorder: int) -> Int64Array:
    kind = random.integers(0, 4)
    if kind == 0:
        times = np.full(count, 7)
    elif kind == 1:
        times = np.sort(random.integers(0, max(1, count // 10), count))
    else:
        times = np.cumsum(random.integers(0, 5, count))
    return cast(Int64Array, times + random.integers(0, disorder + 1, count))


def _rows(number: int, low: int, times: Int64Array) -> pa.RecordBatch:
    columns = (
        np.full(times.size, number),
        np.arange(low, low + times.size),
        times,
    )
    arrays: list[Any] = [
        pa.array(column, pa.int64()).cast(field.type)
        for column, field in zip(columns, _SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _taken(release: OrderedRelease) -> list[tuple[Any, Any, Any]]:
    found = []
    for batch, is_late in release.ready():
        rows = batch.rows()
        found.append(
            (
                rows.column("partition").to_numpy(),
                rows.column("offset").to_numpy(),
                np.full(rows.num_rows, is_late),
            )
        )
    return found


def _run(folder: Path, *, records: int, seconds: float, each: int, seed: int) -> int:
    """Case after case, until there were so many records or the time is over; how many there were."""
    deadline = time.monotonic() + seconds
    done = 0
    while done < records and time.monotonic() < deadline:
        case = _Case.of(seed, each)
        try:
            case.check(folder)
        except BaseException:
            print(f"failed: _Case.of({seed}, {each})")
            raise
        done += sum(log.size for log in case.logs)
        seed += 1
    return done


def test_some_records(tmp_path: Path) -> None:
    """The same ones each time."""
    assert _run(tmp_path, records=100_000, seconds=60, each=10_000, seed=1) >= 95_000


@pytest.mark.long
@pytest.mark.timeout(1_500)
@pytest.mark.skipif(
    os.environ.get("HYPOTHESIS_PROFILE") != "nightly", reason="ten minutes; run by `make nightly`"
)
def test_very_many_records(tmp_path: Path) -> None:
    """Others each night: a failure prints its seed."""
    seed = int(time.time())
    done = _run(tmp_path, records=_RECORDS, seconds=_SECONDS, each=1_000_000, seed=seed)
    print(f"{done:,} records from seed {seed}")
    assert done > 1_000_000
