"""Ordered release step by step."""

from __future__ import annotations

from typing import Any

import pytest

from kafka_ordered_ops import ConfigError, HeldLimitError
from kafka_ordered_ops.core.release.ordered_release import Limits, Order, OrderedRelease
from kafka_ordered_ops.core.types import TopicPartition
from tests.support.release_support import (
    SCHEMA,
    A,
    B,
    MemorySpill,
    Row,
    rows_at,
    taken,
)


def _fed(release: OrderedRelease, tp: TopicPartition, *times: int, at: int = 0) -> list[Row]:
    release.feed(tp, rows_at(tp, list(range(at, at + len(times))), list(times)))
    return [row for row, _ in taken(release)]


def _two(**given: Any) -> OrderedRelease:
    release = OrderedRelease(SCHEMA, max_out_of_orderness_ms=0, **given)
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


@pytest.mark.parametrize("order", list(Order))
def test_topic_and_partition_need_not_be_fed(order: Order) -> None:
    """They come out all the same: the partition tells them, here those of several topics."""
    release = OrderedRelease(SCHEMA, order=order)
    other = TopicPartition("other", 7)
    for tp in (A, other):
        release.add(tp)
        rows = rows_at(tp, [0, 1], [10, 20])
        release.feed(tp, rows.drop_columns(["topic", "partition"]))
        release.finish(tp)
    assert [row for row, _ in taken(release)] == [
        (10, "other", 7, 0),
        (10, "t", 0, 0),
        (20, "other", 7, 1),
        (20, "t", 0, 1),
    ]


def test_of_equal_times_the_lower_partition_waits_for_no_other() -> None:
    """The higher one does: the lower may bring one more of the same time."""
    release = _two()
    assert _fed(release, B, 10) == []
    assert _fed(release, A, 10) == [(10, "t", 0, 0)]
    release.finish(A)
    assert [row for row, _ in taken(release)] == [(10, "t", 1, 0)]


def test_a_partition_without_news_moves_on_by_its_time() -> None:
    """And no further."""
    release = _two()
    _fed(release, A, 10, 20)
    release.advance(B, 15)
    assert [row for row, _ in taken(release)] == [(10, "t", 0, 0)]
    release.finish(B)
    assert [row for row, _ in taken(release)] == [(20, "t", 0, 1)]


def test_a_record_whose_place_has_passed_comes_at_once() -> None:
    """Marked, counted, and before the others."""
    release = _two()
    _fed(release, A, 10, 20)
    release.advance(B, 21)
    assert len(list(taken(release))) == 2
    release.feed(B, rows_at(B, [0, 1], [20, 19]))
    assert [(row[0], is_late) for row, is_late in taken(release)] == [(19, True)]
    release.finish(A)
    release.finish(B)
    assert [(row[0], is_late) for row, is_late in taken(release)] == [(20, False)]
    assert release.source(B).late == 1


def test_a_clock_s_error_holds_nothing_back() -> None:
    """A record stamped in a far future is released at once, and moves nothing on."""
    release = _two()
    release.feed(A, rows_at(A, [0, 1], [10, 10**12]), newest_ms=1_000)
    assert [(row[0], is_late) for row, is_late in taken(release)] == [(10**12, True)]
    assert _fed(release, B, 30) == [(10, "t", 0, 0)]
    release = OrderedRelease(SCHEMA, order=Order.PARTITION)
    release.add(A)
    release.feed(A, rows_at(A, [0, 1, 2], [10, 10**12, 11]), newest_ms=1_000)
    assert [row[3] for row, _ in taken(release)] == [0, 1, 2]
    assert release.source(A).greatest_ms == 11


def test_late_records_are_in_order_among_one_another() -> None:
    """However they lay in their log, and of one partition or several."""
    release = _two()
    _fed(release, A, 100)
    _fed(release, B, 100)
    rows = rows_at(A, [1, 2, 3, 4], [30, 10, 20, 10])
    release.feed(A, rows)
    wanted = [(10, "t", 0, 2), (10, "t", 0, 4), (20, "t", 0, 3), (30, "t", 0, 1)]
    assert list(taken(release)) == [(row, True) for row in wanted]
    release.feed(B, rows_at(B, [1, 2], [25, 15]))
    release.feed(A, rows_at(A, [5, 6], [20, 15]))
    wanted = [(15, "t", 0, 6), (15, "t", 1, 2), (20, "t", 0, 5), (25, "t", 1, 1)]
    assert list(taken(release)) == [(row, True) for row in wanted]


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
    for spill, more in ((None, 100), (MemorySpill(), 0)):
        release = _two(limits=Limits(records=2, spilled_bytes=more), spill=spill)
        release.feed(A, rows_at(A, [0, 1], [1, 2]))
        release.relieve()
        release.feed(A, rows_at(A, [2], [3]))
        with pytest.raises(HeldLimitError, match=r"3 records .* t\[1\] holds them back") as raised:
            release.relieve()
        assert raised.value.facts["partition"] == "t[1]"


def test_bytes_are_limited_too() -> None:
    """By their Arrow data; what was released does not count."""
    spill = MemorySpill()
    release = _two(limits=Limits(nbytes=400), spill=spill)
    for n in range(20):
        release.feed(A, rows_at(A, [n], [n]))
        release.feed(B, rows_at(B, [n], [n]))
        list(taken(release))
        release.relieve()
    assert spill.written == 0
    for n in range(20, 60):
        release.feed(A, rows_at(A, [n], [n]))
        release.relieve()
    assert spill.written > 0
    assert release.held.nbytes_in_memory <= 400


def test_other_columns_are_refused() -> None:
    """Before anything is held."""
    release = _two()
    with pytest.raises(ConfigError, match=r"t\[0\]"):
        release.feed(A, rows_at(A, [0], [1]).drop_columns(["value"]))
    assert release.held_of(A) == 0


def test_small_batches_are_joined_while_they_are_held() -> None:
    """Thousands of batches of one record would need a hundred times the memory of their data."""
    release = _two()
    for n in range(5_000):
        release.feed(A, rows_at(A, [n], [n // 3]))
    [run] = release.held._lanes[0]._runs
    assert len(run.chunks) < 50
    assert release.held.nbytes_in_memory == sum(chunk.nbytes for chunk in run.chunks)
    assert release.held_from(A) == 0
    release.finish(B)
    release.finish(A)
    assert [row[3] for row, _ in taken(release)] == list(range(5_000))
    assert release.held.nbytes_in_memory == 0


def test_without_any_partition_the_order_begins_anew() -> None:
    """What is read again after all were given up is in order, and not late."""
    release = _two()
    _fed(release, A, 10, 20)
    assert len(_fed(release, B, 15, 25)) == 3
    release.drop(A)
    release.add(A)
    release.feed(A, rows_at(A, [0], [10]))
    assert [is_late for _, is_late in taken(release)] == [True]
    release.drop(A)
    release.drop(B)
    release.add(A)
    release.feed(A, rows_at(A, [0, 1], [10, 20]))
    assert [is_late for _, is_late in taken(release)] == [False, False]


def test_partitions_that_were_never_added_are_none() -> None:
    """Finishing or dropping them is nothing."""
    release = _two()
    release.finish(TopicPartition("u", 1))
    release.drop(TopicPartition("u", 1))
    assert release.holding_back() == A
