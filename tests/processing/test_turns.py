"""A worker's turn, while somebody else takes out of it: no record is lost, and none is begun or reported twice."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops.core.processing.scheduling import Lane, Ordering
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.processing import Record, Result
from kafka_ordered_ops.processing.workers.turns import Turn

TP = TopicPartition("t", 0)
FOREVER = float("inf")


def turn_of(count: int, batch_size: int = 1, *, is_timed: bool = False) -> Turn:
    """A turn of so many records."""
    records = [Record("t", 0, offset, 0, None, None) for offset in range(count)]
    return Turn(Lane(TP, Ordering.UNORDERED), records, batch_size, is_timed=is_timed)


def results_of(records: Sequence[Record]) -> list[Result]:
    """What came of records that were processed."""
    return [Result(record) for record in records]


@given(
    count=st.integers(0, 12),
    batch_size=st.integers(1, 4),
    is_timed=st.booleans(),
    looks=st.sets(st.integers(0, 12)),
    fence_at=st.none() | st.integers(0, 12),
    limit=st.none() | st.integers(0, 12),
)
def test_each_record_is_done_left_or_fenced_off(
    count: int,
    batch_size: int,
    is_timed: bool,
    looks: set[int],
    fence_at: int | None,
    limit: int | None,
) -> None:
    """Whenever somebody looks, fences the worker off, or limits its partition."""
    turn = turn_of(count, batch_size, is_timed=is_timed)
    done: list[Result] = []
    left: list[Record] = []
    fenced: list[Record] = []

    def take_out() -> None:
        results, records = turn.take_out()
        done.extend(results)
        left.extend(records)

    for number, batch in enumerate(turn.batches()):
        assert 1 <= len(batch) <= batch_size
        assert limit is None or number == 0 or batch[-1].offset < limit
        if limit is not None:
            turn.lane.below = limit
        if number in looks:
            take_out()
        if number == fence_at:
            fenced = turn.fence(FOREVER)
            assert fenced == batch
            assert turn.fence(FOREVER) == []
            take_out()
        turn.note(results_of(batch))
    if not turn.is_fenced:
        assert turn.fence(FOREVER) == []
        take_out()
    offsets = [one.record.offset for one in done] + [one.offset for one in (*left, *fenced)]
    assert sorted(offsets) == list(range(count))


@pytest.mark.parametrize("is_timed", [False, True])
def test_nothing_is_lost_between_two_threads(is_timed: bool) -> None:
    """Somebody takes out all the time, while the worker goes on."""
    for _ in range(50):
        turn = turn_of(256, is_timed=is_timed)
        is_over = threading.Event()
        found: Counter[int] = Counter()

        def look(turn: Turn, is_over: threading.Event, found: Counter[int]) -> None:
            while not is_over.is_set():
                results, left = turn.take_out()
                found.update(one.record.offset for one in results)
                found.update(one.offset for one in left)

        watcher = threading.Thread(target=look, args=(turn, is_over, found))
        mine: Counter[int] = Counter()
        watcher.start()
        for batch in turn.batches():
            turn.note(results_of(batch))
        results, left = turn.take_out()
        mine.update(one.record.offset for one in results)
        mine.update(one.offset for one in left)
        is_over.set()
        watcher.join()
        assert found + mine == Counter(range(256))


def test_what_comes_of_a_fenced_call_counts_for_nothing() -> None:
    """A time-out and the end of its call meet: it is one or the other."""
    for _ in range(200):
        turn = turn_of(1, is_timed=True)
        batches = turn.batches()
        batch = next(batches)
        fenced: list[Record] = []
        watcher = threading.Thread(target=lambda t=turn, f=fenced: f.extend(t.fence(FOREVER)))
        watcher.start()
        turn.note(results_of(batch))
        watcher.join()
        results, _ = turn.take_out()
        assert len(fenced) + len(results) == 1
