"""The scheduler against a model: plain lists, searched from the beginning each time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kafka_ordered_ops.core.processing.scheduling import Lane, Ordering, Scheduler
from kafka_ordered_ops.core.types import INT64_MAX, TopicPartition
from kafka_ordered_ops.processing import Record

PARTITIONS = [TopicPartition("t", number) for number in range(4)]
keys = st.sampled_from([None, b"a", b"b", b"c"])
partitions = st.sampled_from(PARTITIONS)


def record(tp: TopicPartition, offset: int, key: bytes | None = None) -> Record:
    """A record with a value."""
    return Record(tp.topic, tp.partition, offset, 0, key, b"v")


class SchedulerMachine(RuleBasedStateMachine):
    """Every call in any order; the model knows each held record's state, and works out what is ready."""

    @initialize(ordering=st.sampled_from(Ordering))
    def begin(self, ordering: Ordering) -> None:
        self.ordering = ordering
        self.scheduler = Scheduler(ordering)
        self.now = 0.0
        self.next_offset = dict.fromkeys(PARTITIONS, 0)
        #: By partition and offset: the record.
        self.held: dict[TopicPartition, dict[int, Record]] = {}
        self.below = dict.fromkeys(PARTITIONS, INT64_MAX)
        self.taken: list[tuple[Lane, Record]] = []
        self.later: dict[tuple[TopicPartition, int], float] = {}
        #: Takes by others since a lane with ready records had its last turn.
        self.passed_over: dict[TopicPartition, set[TopicPartition]] = {}

    def shard(self, one: Record) -> object:
        if self.ordering is Ordering.UNORDERED or (
            self.ordering is Ordering.KEY and one.key is None
        ):
            return one.offset
        return one.key if self.ordering is Ordering.KEY else "all"

    def in_flight(self, tp: TopicPartition) -> list[int]:
        return [one.offset for lane, one in self.taken if lane.tp == tp and not lane.is_dropped]

    def is_ready(self, tp: TopicPartition, offset: int) -> bool:
        """The first of its shard, below the limit, not being processed, and not to be tried later."""
        held = self.held[tp]
        shard = self.shard(held[offset])
        return (
            offset < self.below[tp]
            and not any(
                before < offset and self.shard(one) == shard for before, one in held.items()
            )
            and offset not in self.in_flight(tp)
            and (tp, offset) not in self.later
        )

    def ready(self, tp: TopicPartition) -> set[int]:
        return {one for one in self.held.get(tp, {}) if self.is_ready(tp, one)}

    @rule(tp=partitions, added=st.lists(st.tuples(st.integers(1, 3), keys), max_size=6))
    def add(self, tp: TopicPartition, added: list[tuple[int, bytes | None]]) -> None:
        found = []
        for step, key in added:
            self.next_offset[tp] += step
            found.append(record(tp, self.next_offset[tp], key))
        self.held.setdefault(tp, {}).update({one.offset: one for one in found})
        self.scheduler.add(tp, found)

    @rule(most=st.integers(1, 4))
    def take(self, most: int) -> None:
        waiting = {tp for tp in self.held if self.ready(tp)}
        got = self.scheduler.take(most)
        if not waiting:
            assert got is None
            return
        assert got is not None, "a wake-up was lost: something is ready, and nothing was given"
        lane, records = got
        offsets = [one.offset for one in records]
        assert offsets, "a turn without records"
        assert len(set(offsets)) == len(offsets) == min(most, len(self.ready(lane.tp)))
        assert set(offsets) <= self.ready(lane.tp), "taken although it was not ready"
        assert all(one == self.held[lane.tp][one.offset] for one in records)
        self.taken += [(lane, one) for one in records]
        self.passed_over = {tp: self.passed_over.get(tp, set()) for tp in waiting - {lane.tp}}
        for tp, others in self.passed_over.items():
            assert lane.tp not in others, f"{tp} was passed over twice by {lane.tp}"
            others.add(lane.tp)

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), how=st.sampled_from(["done", "give back", "retry"]))
    def end(self, data: st.DataObject, how: str) -> None:
        lane, one = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        if how == "done":
            self.scheduler.done(lane, [one])
            if not lane.is_dropped:
                del self.held[lane.tp][one.offset]
        elif how == "give back":
            self.scheduler.give_back(lane, [one])
        else:
            due = self.now + data.draw(st.integers(0, 3))
            self.scheduler.retry(lane, one, due)
            if not lane.is_dropped:
                self.held[lane.tp][one.offset] = one._replace(attempt=one.attempt + 1)
                self.later[lane.tp, one.offset] = due

    @rule(seconds=st.integers(0, 2))
    def wake(self, seconds: int) -> None:
        self.now += seconds
        self.scheduler.wake(self.now)
        self.later = {one: due for one, due in self.later.items() if due > self.now}

    @rule(tp=partitions, below=st.integers(0, 12) | st.just(INT64_MAX))
    def limit(self, tp: TopicPartition, below: int) -> None:
        if tp in self.held:
            self.scheduler.limit(tp, below)
            self.below[tp] = below

    @rule(tp=partitions)
    def drop(self, tp: TopicPartition) -> None:
        self.scheduler.drop(tp)
        self.held.pop(tp, None)
        self.passed_over.pop(tp, None)
        self.below[tp] = INT64_MAX
        self.later = {one: due for one, due in self.later.items() if one[0] != tp}

    @invariant()
    def counts_are_right(self) -> None:
        if not hasattr(self, "held"):
            return
        # Who has nothing ready any more has lost its place in the round.
        self.passed_over = {tp: one for tp, one in self.passed_over.items() if self.ready(tp)}
        assert self.scheduler.records == sum(map(len, self.held.values()))
        assert self.scheduler.ready == sum(len(self.ready(tp)) for tp in self.held)
        assert self.scheduler.in_flight == sum(len(self.in_flight(tp)) for tp in PARTITIONS)

    def teardown(self) -> None:
        """Whatever happened: what is held is all given out in the end, each shard in order."""
        if not hasattr(self, "held"):
            return
        for lane, one in self.taken:
            self.scheduler.give_back(lane, [one])
        for tp in self.held:
            self.scheduler.limit(tp, INT64_MAX)
        self.scheduler.wake(self.now + 100)
        out: dict[tuple[TopicPartition, object], list[int]] = {}
        while (got := self.scheduler.take(3)) is not None:
            lane, records = got
            for one in records:
                out.setdefault((lane.tp, self.shard(one)), []).append(one.offset)
            self.scheduler.done(lane, records)
        assert all(offsets == sorted(offsets) for offsets in out.values())
        assert sum(map(len, out.values())) == sum(map(len, self.held.values()))
        assert (self.scheduler.records, self.scheduler.in_flight) == (0, 0)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(stateful_step_count=40)


def offsets(taken: tuple[Lane, Sequence[Record]] | None) -> list[int]:
    """The offsets of a turn."""
    assert taken is not None
    return [one.offset for one in taken[1]]


@pytest.mark.parametrize(
    ("ordering", "first"),
    [
        (Ordering.KEY, [0, 2, 3, 4]),
        (Ordering.PARTITION, [0]),
        (Ordering.UNORDERED, [0, 1, 2, 3, 4]),
    ],
)
def test_what_may_run_together(ordering: Ordering, first: list[int]) -> None:
    """The first record of each key, or of the partition, or all; records without a key have no order."""
    scheduler, tp = Scheduler(ordering), PARTITIONS[0]
    names = [b"a", b"a", b"b", None, None]
    scheduler.add(tp, [record(tp, offset, key) for offset, key in enumerate(names)])
    assert offsets(scheduler.take(10)) == first


def test_partitions_take_turns() -> None:
    """However many records one partition has, the next turn is another's."""
    scheduler = Scheduler(Ordering.UNORDERED)
    for tp, count in zip(PARTITIONS, (1_000, 2, 1, 1), strict=True):
        scheduler.add(tp, [record(tp, offset) for offset in range(count)])
    turns: deque[int] = deque()
    for _ in range(6):
        taken = scheduler.take(1)
        assert taken is not None
        turns.append(taken[0].tp.partition)
    assert list(turns) == [0, 1, 2, 3, 0, 1]


def test_a_dropped_partition_leaves_nothing_behind() -> None:
    """Records that wait to be tried again are given up as well, and a partition that comes back begins anew."""
    scheduler, tp = Scheduler(Ordering.KEY), PARTITIONS[0]
    scheduler.add(tp, [record(tp, 0, b"a"), record(tp, 1, b"b")])
    taken = scheduler.take(2)
    assert taken is not None
    lane, (first, second) = taken
    scheduler.retry(lane, first, 5.0)
    scheduler.drop(tp)
    scheduler.add(tp, [record(tp, 0, b"a")])
    scheduler.wake(10.0)
    scheduler.done(lane, [second])
    assert offsets(scheduler.take(10)) == [0]
    assert (scheduler.records, scheduler.in_flight, scheduler.ready) == (1, 1, 0)
