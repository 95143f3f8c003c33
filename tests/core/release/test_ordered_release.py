"""Ordered release against sorting everything, on random logs fed in random turns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops.core.errors import ConfigError, HeldLimitError
from kafka_ordered_ops.core.release import held as held_module
from kafka_ordered_ops.core.release.ordered_release import Limits, Order, OrderedRelease
from kafka_ordered_ops.core.types import INT64_MAX, INT64_MIN, TopicPartition

_FIELDS: list[pa.Field[Any]] = [
    pa.field("topic", pa.string(), nullable=False),
    pa.field("partition", pa.int32(), nullable=False),
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
    pa.field("value", pa.binary()),
]
_SCHEMA = pa.schema(_FIELDS)

#: A record: timestamp, topic, partition, offset.
_Row = tuple[int, str, int, int]


class _MemorySpill:
    """Runs in memory: what a disk does, without one."""

    def __init__(self) -> None:
        self.written = self.removed = 0

    def write(self, batches: Iterator[pa.RecordBatch]) -> _MemoryRun:
        self.written += 1
        return _MemoryRun(self, list(batches))


@dataclass
class _MemoryRun:
    spill: _MemorySpill
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


def _rows(tp: TopicPartition, offsets: list[int], times: list[int]) -> pa.RecordBatch:
    values: dict[str, Any] = {
        "topic": [tp.topic] * len(offsets),
        "partition": [tp.partition] * len(offsets),
        "offset": offsets,
        "timestamp": times,
        "value": [b"%d" % offset if offset % 3 else None for offset in offsets],
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(values[one.name], one.type) for one in _SCHEMA], schema=_SCHEMA
    )


@dataclass
class _Log:
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
        return _rows(self.tp, self.offsets[low : self.fed], self.times[low : self.fed])

    def all(self) -> list[_Row]:
        return [
            (time, self.tp.topic, self.tp.partition, offset)
            for time, offset in zip(self.times, self.offsets, strict=True)
        ]

    def keyed(self) -> list[tuple[int, str, int, int]]:
        """Each record with its partition's greatest timestamp so far."""
        keys = np.maximum.accumulate(np.array(self.times, dtype=np.int64)).tolist()
        return [(key, *row[1:]) for key, row in zip(keys, self.all(), strict=True)]


_TIMES = st.one_of(
    st.integers(0, 8), st.integers(-5, 300), st.sampled_from([-1, INT64_MIN, INT64_MAX])
)


@st.composite
def _logs(draw: st.DrawFn) -> list[_Log]:
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
        times = draw(st.lists(_TIMES, max_size=40))
        if draw(st.booleans()):
            times.sort()
        gaps = draw(st.lists(st.integers(0, 3), min_size=len(times), max_size=len(times)))
        logs.append(_Log(tp, times, gaps))
    return logs


def _taken(release: OrderedRelease) -> Iterator[tuple[_Row, bool]]:
    for batch, is_late in release.ready():
        rows = batch.rows()
        rows.validate(full=True)
        assert rows.schema == _SCHEMA
        assert rows.num_rows == batch.num_rows > 0
        names: list[Any] = rows.column("topic").to_pylist()
        numbers: list[Any] = rows.column("partition").to_pylist()
        times: list[Any] = rows.column("timestamp").view(pa.int64()).to_pylist()
        offsets: list[Any] = rows.column("offset").to_pylist()
        values = [b"%d" % offset if offset % 3 else None for offset in offsets]
        assert rows.column("value").to_pylist() == values
        for one in zip(times, names, numbers, offsets, strict=True):
            yield one, is_late


def _walk(
    draw: st.DataObject, logs: list[_Log], release: OrderedRelease
) -> Iterator[tuple[_Row, bool]]:
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
        yield from _taken(release)
        release.relieve()
        held = sum(release.held_of(one.tp) for one in logs)
        assert held == release.held.records
    assert release.held.records == 0


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_module, "SPILLED_RUNS_MAX", 3)
    monkeypatch.setattr(held_module, "RUNS_MERGED", 2)
    monkeypatch.setattr(held_module, "SPILL_BATCH_BYTES", 150)


@given(logs=_logs(), draw=st.data(), limit=st.integers(1, 60))
def test_exact_order_is_that_of_sorting_everything(
    logs: list[_Log], draw: st.DataObject, limit: int
) -> None:
    """Whatever the timestamps, and however much of it waits on disk."""
    spill = _MemorySpill()
    release = OrderedRelease(_SCHEMA, limits=Limits(records=limit), spill=spill)
    found = list(_walk(draw, logs, release))
    assert [row for row, _ in found] == sorted(row for log in logs for row in log.all())
    assert not any(is_late for _, is_late in found)
    assert spill.written == spill.removed


@given(logs=_logs(), draw=st.data(), limit=st.integers(1, 60))
def test_a_partition_is_never_reordered(logs: list[_Log], draw: st.DataObject, limit: int) -> None:
    """In the order of partitions each record counts with its partition's greatest timestamp so far."""
    release = OrderedRelease(
        _SCHEMA, order=Order.PARTITION, limits=Limits(records=limit), spill=_MemorySpill()
    )
    found = list(_walk(draw, logs, release))
    keyed = {row[1:]: key for log in logs for key, *_, row in _with_rows(log)}
    wanted = sorted((keyed[row[1:]], *row[1:], row) for log in logs for row in log.all())
    assert [row for row, _ in found] == [one[-1] for one in wanted]
    assert not any(is_late for _, is_late in found)


def _with_rows(log: _Log) -> list[tuple[int, _Row]]:
    return [(key[0], row) for key, row in zip(log.keyed(), log.all(), strict=True)]


@given(
    logs=_logs(), draw=st.data(), limit=st.integers(1, 60), slack=st.sampled_from([0, 1, 5, 100])
)
def test_within_the_bound_nothing_is_late_and_beyond_it_nothing_is_lost(
    logs: list[_Log], draw: st.DataObject, limit: int, slack: int
) -> None:
    """What is not late is in order; what is late is further behind than the bound."""
    release = OrderedRelease(
        _SCHEMA, max_out_of_orderness_ms=slack, limits=Limits(records=limit), spill=_MemorySpill()
    )
    found = list(_walk(draw, logs, release))
    assert sorted(row for row, _ in found) == sorted(row for log in logs for row in log.all())
    in_order = [row for row, is_late in found if not is_late]
    assert in_order == sorted(in_order)
    late = {row for row, is_late in found if is_late}
    for log in logs:
        rows = log.all()
        assert release.source(log.tp).late == len(late & set(rows))
        for row, (key, *_) in zip(rows, log.keyed(), strict=True):
            assert row not in late or row[0] < key - slack


@given(logs=_logs(), draw=st.data(), limit=st.integers(1, 60))
def test_what_is_held_begins_at_or_above_what_is_told(
    logs: list[_Log], draw: st.DataObject, limit: int
) -> None:
    """A commit at that offset delivers every record that has not been released again."""
    release = OrderedRelease(
        _SCHEMA, max_out_of_orderness_ms=10, limits=Limits(records=limit), spill=_MemorySpill()
    )
    out: set[_Row] = set()
    for log in logs:
        release.add(log.tp)
    for _ in range(draw.draw(st.integers(1, 8))):
        log = draw.draw(st.sampled_from(logs))
        release.feed(log.tp, log.next(10))
        out |= {row for row, _ in _taken(release)}
        release.relieve()
        for one in logs:
            missing = [row[3] for row in one.all()[: one.fed] if row not in out]
            told = release.held_from(one.tp)
            assert (told is None) == (not missing)
            assert told is None or told <= min(missing)


@given(logs=_logs(), draw=st.data(), limit=st.integers(1, 60))
def test_a_dropped_partition_is_forgotten_and_the_others_are_not(
    logs: list[_Log], draw: st.DataObject, limit: int
) -> None:
    """Wherever its records wait; added again, it begins anew."""
    spill = _MemorySpill()
    release = OrderedRelease(_SCHEMA, limits=Limits(records=limit), spill=spill)
    for log in logs:
        release.add(log.tp)
        while not log.is_done:
            release.feed(log.tp, log.next(7))
            release.relieve()
    dropped = draw.draw(st.sampled_from(logs))
    release.drop(dropped.tp)
    assert release.held_of(dropped.tp) == 0
    again = draw.draw(st.booleans())
    if again:
        dropped.fed = 0
        release.add(dropped.tp)
        while not dropped.is_done:
            release.feed(dropped.tp, dropped.next(7))
            release.relieve()
    for log in logs:
        release.finish(log.tp)
    found = [row for row, _ in _taken(release)]
    wanted = [row for log in logs if again or log is not dropped for row in log.all()]
    assert found == sorted(wanted)
    assert spill.written == spill.removed


A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def _fed(release: OrderedRelease, tp: TopicPartition, *times: int, at: int = 0) -> list[_Row]:
    release.feed(tp, _rows(tp, list(range(at, at + len(times))), list(times)))
    return [row for row, _ in _taken(release)]


def _two(**given: Any) -> OrderedRelease:
    release = OrderedRelease(_SCHEMA, max_out_of_orderness_ms=0, **given)
    release.add(A)
    release.add(B)
    return release


def test_a_partition_that_has_delivered_nothing_holds_the_others_back() -> None:
    """Its first record may be the earliest of all."""
    release = _two()
    assert _fed(release, A, 10, 20, 30) == []
    assert release.holding_back() == B
    assert _fed(release, B, 5, 20) == [
        (5, "t", 1, 0),
        (10, "t", 0, 0),
        (20, "t", 0, 1),
        (20, "t", 1, 1),
    ]


def test_of_equal_times_the_lower_partition_waits_for_no_other() -> None:
    """The higher one does: the lower may bring one more of the same time."""
    release = _two()
    assert _fed(release, B, 10) == []
    assert _fed(release, A, 10) == [(10, "t", 0, 0)]
    release.finish(A)
    assert [row for row, _ in _taken(release)] == [(10, "t", 1, 0)]


def test_a_partition_without_news_moves_on_by_its_time() -> None:
    """And no further."""
    release = _two()
    _fed(release, A, 10, 20)
    release.advance(B, 15)
    assert [row for row, _ in _taken(release)] == [(10, "t", 0, 0)]
    release.finish(B)
    assert [row for row, _ in _taken(release)] == [(20, "t", 0, 1)]


def test_a_record_whose_place_has_passed_comes_at_once() -> None:
    """Marked, counted, and before the others."""
    release = _two()
    _fed(release, A, 10, 20)
    release.advance(B, 21)
    assert len(list(_taken(release))) == 2
    release.feed(B, _rows(B, [0, 1], [20, 19]))
    assert [(row[0], is_late) for row, is_late in _taken(release)] == [(19, True)]
    release.finish(A)
    release.finish(B)
    assert [(row[0], is_late) for row, is_late in _taken(release)] == [(20, False)]
    assert release.source(B).late == 1


def test_a_clock_s_error_holds_nothing_back() -> None:
    """A record stamped in a far future is released at once, and moves nothing on."""
    release = _two()
    release.feed(A, _rows(A, [0, 1], [10, 10**12]), newest_ms=1_000)
    assert [(row[0], is_late) for row, is_late in _taken(release)] == [(10**12, True)]
    assert _fed(release, B, 30) == [(10, "t", 0, 0)]
    release = OrderedRelease(_SCHEMA, order=Order.PARTITION)
    release.add(A)
    release.feed(A, _rows(A, [0, 1, 2], [10, 10**12, 11]), newest_ms=1_000)
    assert [row[3] for row, _ in _taken(release)] == [0, 1, 2]
    assert release.source(A).greatest_ms == 11


def test_a_partition_that_is_added_later_is_waited_for() -> None:
    """Its records come in order from then on."""
    release = _two()
    _fed(release, A, 10, 20)
    assert len(_fed(release, B, 20)) == 2
    release.add(TopicPartition("a", 7))
    assert _fed(release, A, 30, at=2) == []
    assert _fed(release, B, 30, at=1) == []
    early = TopicPartition("a", 7)
    wanted = [(20, "t", 1, 0), (25, "a", 7, 0), (30, "a", 7, 1)]
    assert _fed(release, early, 25, 30) == wanted


def test_beyond_the_limits_the_error_names_who_holds_back() -> None:
    """Without a disk, and with one that is at its own limit."""
    for spill, more in ((None, 100), (_MemorySpill(), 0)):
        release = _two(limits=Limits(records=2, spilled_bytes=more), spill=spill)
        release.feed(A, _rows(A, [0, 1], [1, 2]))
        release.relieve()
        release.feed(A, _rows(A, [2], [3]))
        with pytest.raises(HeldLimitError, match=r"3 records .* t\[1\] holds them back") as raised:
            release.relieve()
        assert raised.value.facts["partition"] == "t[1]"


def test_bytes_are_limited_too() -> None:
    """By their Arrow data; what was released does not count."""
    spill = _MemorySpill()
    release = _two(limits=Limits(nbytes=400), spill=spill)
    for n in range(20):
        release.feed(A, _rows(A, [n], [n]))
        release.feed(B, _rows(B, [n], [n]))
        list(_taken(release))
        release.relieve()
    assert spill.written == 0
    for n in range(20, 60):
        release.feed(A, _rows(A, [n], [n]))
        release.relieve()
    assert spill.written > 0
    assert release.held.nbytes_in_memory <= 400


def test_other_columns_are_refused() -> None:
    """Before anything is held."""
    release = _two()
    with pytest.raises(ConfigError, match=r"t\[0\]"):
        release.feed(A, _rows(A, [0], [1]).drop_columns(["value"]))
    assert release.held_of(A) == 0
