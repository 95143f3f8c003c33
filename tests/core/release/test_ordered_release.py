"""Ordered release against sorting everything, on random logs fed in random turns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops.core.release import held as held_module
from kafka_ordered_ops.core.release.ordered_release import Limits, Order, OrderedRelease
from tests.support.release_support import (
    SCHEMA,
    Log,
    MemorySpill,
    Row,
    rows_of,
    some_logs,
    taken,
    walk,
)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_module, "SPILLED_RUNS_MAX", 3)
    monkeypatch.setattr(held_module, "RUNS_MERGED", 2)
    monkeypatch.setattr(held_module, "SPILL_BATCH_BYTES", 150)
    monkeypatch.setattr(held_module, "STEP_RECORDS", 6)
    monkeypatch.setattr(held_module, "STEP_EVERY", 2)


@given(logs=some_logs(), draw=st.data(), limit=st.integers(1, 60))
def test_exact_order_is_that_of_sorting_everything(
    logs: list[Log], draw: st.DataObject, limit: int
) -> None:
    """Whatever the timestamps, and however much of it waits on disk."""
    spill = MemorySpill()
    release = OrderedRelease(SCHEMA, limits=Limits(records=limit), spill=spill)
    found = list(walk(draw, logs, release))
    assert [row for row, _ in found] == sorted(row for log in logs for row in log.all())
    assert not any(is_late for _, is_late in found)
    assert spill.written == spill.removed


@given(logs=some_logs(), draw=st.data(), limit=st.integers(1, 60))
def test_a_partition_is_never_reordered(logs: list[Log], draw: st.DataObject, limit: int) -> None:
    """In the order of partitions each record counts with its partition's greatest timestamp so far."""
    release = OrderedRelease(
        SCHEMA, order=Order.PARTITION, limits=Limits(records=limit), spill=MemorySpill()
    )
    found = list(walk(draw, logs, release))
    keyed = {row[1:]: key for log in logs for key, *_, row in _with_rows(log)}
    wanted = sorted((keyed[row[1:]], *row[1:], row) for log in logs for row in log.all())
    assert [row for row, _ in found] == [one[-1] for one in wanted]
    assert not any(is_late for _, is_late in found)


def _with_rows(log: Log) -> list[tuple[int, Row]]:
    return [(key[0], row) for key, row in zip(log.keyed(), log.all(), strict=True)]


@given(
    logs=some_logs(),
    draw=st.data(),
    limit=st.integers(1, 60),
    slack=st.sampled_from([0, 1, 5, 100]),
)
def test_within_the_bound_nothing_is_late_and_beyond_it_nothing_is_lost(
    logs: list[Log], draw: st.DataObject, limit: int, slack: int
) -> None:
    """What is not late is in order; what is late is further behind than the bound."""
    release = OrderedRelease(
        SCHEMA, max_out_of_orderness_ms=slack, limits=Limits(records=limit), spill=MemorySpill()
    )
    found = list(walk(draw, logs, release))
    assert sorted(row for row, _ in found) == sorted(row for log in logs for row in log.all())
    in_order = [row for row, is_late in found if not is_late]
    assert in_order == sorted(in_order)
    late = {row for row, is_late in found if is_late}
    for log in logs:
        rows = log.all()
        assert release.source(log.tp).late == len(late & set(rows))
        for row, (key, *_) in zip(rows, log.keyed(), strict=True):
            assert row not in late or row[0] < key - slack


@given(logs=some_logs(), draw=st.data(), limit=st.integers(1, 60))
def test_what_is_held_begins_at_or_above_what_is_told(
    logs: list[Log], draw: st.DataObject, limit: int
) -> None:
    """A commit at that offset delivers every record that has not been released again."""
    release = OrderedRelease(
        SCHEMA, max_out_of_orderness_ms=10, limits=Limits(records=limit), spill=MemorySpill()
    )
    out: set[Row] = set()
    for log in logs:
        release.add(log.tp)
    for _ in range(draw.draw(st.integers(1, 8))):
        log = draw.draw(st.sampled_from(logs))
        release.feed(log.tp, log.next(10))
        out |= {row for row, _ in taken(release)}
        release.relieve()
        for one in logs:
            missing = [row[3] for row in one.all()[: one.fed] if row not in out]
            told = release.held_from(one.tp)
            assert (told is None) == (not missing)
            assert told is None or told <= min(missing)


@given(logs=some_logs(), draw=st.data(), limit=st.integers(1, 60))
def test_a_dropped_partition_is_forgotten_and_the_others_are_not(
    logs: list[Log], draw: st.DataObject, limit: int
) -> None:
    """Wherever its records wait; added again, it begins anew."""
    spill = MemorySpill()
    release = OrderedRelease(SCHEMA, limits=Limits(records=limit), spill=spill)
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
    found = [row for row, _ in taken(release)]
    wanted = [row for log in logs if again or log is not dropped for row in log.all()]
    assert found == sorted(wanted)
    assert spill.written == spill.removed


@given(logs=some_logs(), draw=st.data(), limit=st.integers(1, 60))
def test_between_two_batches_all_is_known(logs: list[Log], draw: st.DataObject, limit: int) -> None:
    """What was not yielded yet is told as held; a partition that is dropped there comes no more, all others do."""
    release = OrderedRelease(
        SCHEMA, max_out_of_orderness_ms=3, limits=Limits(records=limit), spill=MemorySpill()
    )
    for log in logs:
        release.add(log.tp)
    out: set[Row] = set()
    for log in logs:
        while not log.is_done:
            release.feed(log.tp, log.next(7))
            if draw.draw(st.booleans()):
                release.relieve()
        release.finish(log.tp)
    dropped: Log | None = None
    gone: set[Row] = set()
    for batch, _ in release.ready(bytes_max=100):
        out |= set(rows_of(batch.rows()))
        for log in logs:
            told = release.held_from(log.tp)
            missing = [row[3] for row in log.all() if row not in out]
            if log is dropped:
                assert told is None
            else:
                assert (told is None) == (not missing)
                assert told is None or told <= min(missing)
        if dropped is None and draw.draw(st.booleans()):
            dropped = draw.draw(st.sampled_from(logs))
            release.drop(dropped.tp)
            gone = set(dropped.all()) - out
    wanted = {row for log in logs for row in log.all()}
    assert out == (wanted if dropped is None else wanted - gone)


@given(logs=some_logs())
def test_what_memory_holds_is_told_exactly(logs: list[Log]) -> None:
    """A commit there reads nothing again that was released, however small the batches were."""
    release = OrderedRelease(SCHEMA, max_out_of_orderness_ms=0)
    out: set[Row] = set()
    for log in logs:
        release.add(log.tp)
    for log in logs:
        while not log.is_done:
            release.feed(log.tp, log.next(1))
            out |= {row for row, _ in taken(release)}
        for one in logs:
            missing = [row[3] for row in one.all()[: one.fed] if row not in out]
            assert release.held_from(one.tp) == min(missing, default=None)
