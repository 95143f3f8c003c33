"""What the owner hands out: never a record that is held, and again every record that is not acknowledged."""

from __future__ import annotations

import numpy as np
import pytest

from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.relay.log_records import (
    Acknowledged,
    Extended,
    Leased,
    LogRecord,
    Opened,
    Owned,
    Released,
)
from kafka_ordered_ops.core.relay.serving import Serving
from kafka_ordered_ops.core.relay.state import PartitionState


class Log:
    """A state, and the records that were applied to it."""

    def __init__(self) -> None:
        self.state = PartitionState()
        self.add(Owned(1, "a", "t"))
        self.add(Opened("g", 0))

    def add(self, record: LogRecord) -> None:
        """Store a record, and read it."""
        self.state.apply(record, self.state.position)

    def serving(self, records: int = 10, **options: int | None) -> Serving:
        """Return an owner that has read the first records."""
        serving = Serving(self.state, "g", **options)
        serving.arrived(np.arange(records, dtype=np.int64), records)
        return serving

    def lease(
        self, lease_id: str, offsets: OffsetSet, until_ms: int, attempt: int = 1, epoch: int = 1
    ) -> None:
        """Store a lease."""
        self.add(Leased("g", lease_id, epoch, offsets, until_ms, attempt))

    def acknowledge(self, *ranges: tuple[int, int]) -> None:
        """Store an acknowledgement."""
        self.add(Acknowledged("g", OffsetSet.of(*ranges)))


def span(start: int, end: int) -> OffsetSet:
    """One range."""
    return OffsetSet.of((start, end))


@pytest.fixture
def log() -> Log:
    """An empty log with an owner and a group."""
    return Log()


def test_new_records_are_handed_out_once_and_lowest_first(log: Log) -> None:
    """Until they are put back."""
    serving = log.serving()
    assert serving.take(3, 0) == [(1, span(0, 3))]
    assert serving.take(100, 0) == [(1, span(3, 10))]
    assert serving.take(100, 0) == []
    serving.untake(span(4, 6))
    assert serving.take(100, 10**9) == [(1, span(4, 6))]
    assert serving.take(0, 0) == []


def test_a_lease_that_ends_frees_its_records_before_new_ones(log: Log) -> None:
    """The lowest first, and in their next attempt."""
    serving = log.serving()
    assert serving.take(4, 0) == [(1, span(0, 4))]
    log.lease("x", span(0, 4), 100)
    assert serving.next_change_ms(0) == 100
    log.acknowledge((1, 2))
    assert serving.take(2, 99) == [(1, span(4, 6))]
    assert serving.take(5, 100) == [(2, OffsetSet.of((0, 1), (2, 4))), (1, span(6, 8))]
    assert serving.held == 9


def test_released_records_are_free_at_once(log: Log) -> None:
    """The others of the lease are not."""
    serving = log.serving(4)
    serving.take(4, 0)
    log.lease("x", span(0, 4), 100)
    log.add(Released("g", "x", span(2, 3)))
    assert serving.take(9, 1) == [(2, span(2, 3))]
    log.lease("y", span(2, 3), 50, attempt=2)
    assert serving.take(9, 49) == []
    assert serving.take(9, 50) == [(3, span(2, 3))]
    assert serving.take(9, 100) == [(2, OffsetSet.of((0, 2), (3, 4)))]


def test_an_extended_lease_holds_its_records_longer(log: Log) -> None:
    """Also if the extension is read after the lease has ended, and nobody has taken the records since."""
    serving = log.serving(4)
    serving.take(2, 0)
    log.lease("x", span(0, 2), 100)
    log.add(Extended("g", "x", 200, span(0, 2)))
    assert serving.next_change_ms(0) == 200
    assert serving.take(2, 199) == [(1, span(2, 4))]
    assert serving.next_change_ms(300) is None
    log.add(Extended("g", "x", 400, span(0, 2)))
    assert serving.take(9, 399) == []
    assert serving.next_change_ms(399) == 400
    assert serving.take(9, 400) == [(2, span(0, 2))]


def test_a_clock_that_goes_back_loses_nothing(log: Log) -> None:
    """What was free once stays so."""
    serving = log.serving(2)
    serving.take(2, 0)
    log.lease("x", span(0, 2), 100)
    assert serving.take(1, 100) == [(2, span(0, 1))]
    assert serving.take(1, 5) == [(2, span(1, 2))]


def test_leases_of_an_earlier_owner_are_waited_for(log: Log) -> None:
    """Their records are read by the new owner before, or after, they end."""
    log.lease("x", span(0, 2), 100)
    log.lease("y", span(2, 4), 50)
    log.acknowledge((3, 4))
    log.add(Owned(2, "b", "t"))
    log.lease("late", span(4, 6), 10**6)
    serving = log.serving(3)
    assert not log.state.counts("late")
    assert serving.take(9, 0) == []
    assert serving.next_change_ms(0) == 50
    assert serving.take(9, 60) == [(2, span(2, 3))]
    serving.arrived(np.arange(3, 6, dtype=np.int64), 6)
    assert serving.held == 5
    assert serving.take(9, 60) == [(1, span(4, 6))]
    assert serving.take(9, 100) == [(2, span(0, 2))]


def test_acknowledged_records_are_gone(log: Log) -> None:
    """Whoever acknowledged them: before they were read, while they waited, after their lease, all at once."""
    log.acknowledge((2, 4))
    serving = log.serving()
    assert serving.held == 8
    log.acknowledge((0, 1))
    assert serving.take(3, 0) == [(1, OffsetSet.of((1, 2), (4, 6)))]
    log.acknowledge((1, 2))
    serving.untake(OffsetSet.of((1, 2), (4, 5)))
    assert serving.take(1, 0) == [(1, span(4, 5))]
    log.acknowledge((0, 10**15))
    assert (serving.held, serving.take(9, 0)) == (0, [])
    serving.arrived(np.arange(3, dtype=np.int64), 20)
    assert serving.held == 0


def test_a_record_without_attempts_left_is_set_aside(log: Log) -> None:
    """It is free, but not handed out, until it is acknowledged."""
    serving = log.serving(2, attempts_max=2)
    for attempt in (1, 2):
        assert serving.take(1, 100 * attempt) == [(attempt, span(0, 1))]
        assert not serving.exhausted(100 * attempt)
        log.lease(f"x{attempt}", span(0, 1), 100 * attempt + 100, attempt)
    assert not serving.exhausted(299)
    assert serving.exhausted(300) == serving.exhausted(301) == span(0, 1)
    assert serving.take(9, 301) == [(1, span(1, 2))]
    new_owner = log.serving(2, attempts_max=2)
    assert new_owner.exhausted(301) == span(0, 1)
    log.acknowledge((0, 1))
    assert not new_owner.exhausted(302)


def test_a_record_that_is_spared_is_handed_out_once_more(log: Log) -> None:
    """Until its next lease has ended; then it is set aside again."""
    serving = log.serving(2, attempts_max=1)
    for attempt in (1, 2, 3):
        assert serving.take(1, 100 * attempt) == [(attempt, span(0, 1))]
        log.lease(f"x{attempt}", span(0, 1), 100 * attempt + 100, attempt)
        assert not serving.exhausted(100 * attempt + 99)
        assert serving.exhausted(100 * attempt + 100) == span(0, 1)
        assert serving.attempts(0) == attempt
        serving.spare(0)
        assert not serving.exhausted(100 * attempt + 100)
    serving.spare(1)
    log.acknowledge((0, 1))
    assert serving.take(9, 400) == [(1, span(1, 2))]


def test_leases_that_do_not_count_use_up_no_attempt(log: Log) -> None:
    """Each has the attempt of before, the last one is the newest, and the log keeps no more of them than that."""
    serving = log.serving(1, attempts_max=2)
    for at in range(40):
        assert serving.take(1, 10 * at) == [(1, span(0, 1))]
        log.lease(f"no {at}", span(0, 1), 10 * at + 10, attempt=0)
        assert serving.take(9, 10 * at + 9) == []
    log.state.forget_replaced()
    assert list(log.state.groups["g"].leases) == ["no 39"]
    assert serving.take(1, 400) == [(1, span(0, 1))]
    log.lease("one", span(0, 1), 500, attempt=1)
    assert serving.take(1, 500) == [(2, span(0, 1))]
    log.lease("no 40", span(0, 1), 600, attempt=1)
    assert not serving.exhausted(600)
    new_owner = log.serving(1, attempts_max=2)
    assert new_owner.take(1, 599) == []
    assert new_owner.take(1, 600) == [(2, span(0, 1))]
    log.lease("two", span(0, 1), 700, attempt=2)
    assert new_owner.exhausted(700) == span(0, 1)


def test_without_a_limit_there_is_always_another_attempt(log: Log) -> None:
    """And nothing is set aside."""
    serving = log.serving(1, attempts_max=None)
    for attempt in range(1, 40):
        assert serving.take(1, attempt) == [(attempt, span(0, 1))]
        assert not serving.exhausted(attempt)
        log.lease(f"x{attempt}", span(0, 1), attempt + 1, attempt)
    log.state.forget_replaced()
    assert len(log.state.groups["g"].leases) == 1
    assert serving.take(1, 50) == [(40, span(0, 1))]


def test_ends_of_leases_do_not_pile_up(log: Log) -> None:
    """A lease that was acknowledged long before its end leaves nothing."""
    serving = log.serving(20_000)
    for at in range(20_000):
        ((_, offsets),) = serving.take(1, 0)
        log.lease(str(at), offsets, 10**9)
        log.acknowledge((at, at + 1))
    assert len(serving._ends) < 3_000
    assert serving.next_change_ms(0) is None
    assert serving.held == 0


def test_a_claim_that_is_read_late_makes_its_leases_void(log: Log) -> None:
    """A reading in order never sees this; the owner is right nevertheless."""
    log.state.position = 9
    log.lease("void", span(0, 2), 10**6)
    serving = log.serving(4)
    assert serving.take(9, 0) == [(1, span(2, 4))]
    log.state.apply(Owned(2, "b", "t"), 5)
    assert serving.take(9, 0) == [(1, span(0, 2))]


def test_a_dropped_owner_follows_no_more(log: Log) -> None:
    """Only the newest one does."""
    first = log.serving(2)
    second = log.serving(2)
    log.acknowledge((0, 1))
    assert (first.held, second.held) == (2, 1)
    del second
    log.acknowledge((1, 2))
    assert log.state.groups["g"].base == 2


def test_a_group_is_opened_before_it_is_served(log: Log) -> None:
    """A bug elsewhere would hand out records that are not the group's."""
    log.add(Acknowledged("other", span(0, 1)))
    with pytest.raises(AssertionError, match="other"):
        Serving(log.state, "other")


def test_an_extension_before_the_next_lease_counts(log: Log) -> None:
    """Its owner reads it after it took the records again: the next lease gives way, and its client keeps them."""
    serving = log.serving(2)
    log.lease("one", span(0, 2), until_ms=100)
    assert serving.take(9, 100) == [(2, span(0, 2))]
    log.add(Extended("g", "one", 300, span(0, 2)))
    log.lease("two", span(0, 2), until_ms=200, attempt=2)
    assert serving.outrun(span(0, 2)) == span(0, 2)
    log.add(Released("g", "two", span(0, 2)))
    assert serving.next_change_ms(200) == 300
    assert serving.take(9, 299) == []
    again = Serving(log.state, "g")
    again.arrived(np.arange(2, dtype=np.int64), 2)
    log.state.forget_replaced()
    for one in (serving, again):
        assert one.take(9, 299) == []
        assert one.take(9, 300) == [(3, span(0, 2))]


def test_an_extension_after_the_next_lease_changes_nothing_for_its_client(log: Log) -> None:
    """The records are the next client's; when that one gives them back, they are nobody's before both leases end."""
    serving = log.serving(1)
    log.lease("one", span(0, 1), until_ms=100)
    assert serving.take(9, 100) == [(2, span(0, 1))]
    log.lease("two", span(0, 1), until_ms=200, attempt=2)
    assert not serving.outrun(span(0, 1))
    log.add(Extended("g", "one", 150, span(0, 1)))
    assert serving.take(9, 199) == []
    assert serving.take(9, 200) == [(3, span(0, 1))]
    log.lease("three", span(0, 1), until_ms=400, attempt=3)
    log.add(Extended("g", "one", 300, span(0, 1)))
    log.add(Released("g", "three", span(0, 1)))
    assert serving.take(9, 250) == []
    log.add(Released("g", "one", span(0, 1)))
    assert serving.take(9, 250) == [(4, span(0, 1))]
