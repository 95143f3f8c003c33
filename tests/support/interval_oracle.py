"""A group of intervals on a real broker, kept by brute force over all records beside the service."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place

from kafka_ordered_ops import Earliest, Window, WindowPlan
from kafka_ordered_ops.core.group.decisions.adoption import Adoption
from kafka_ordered_ops.core.time_ranges import TimeRange
from kafka_ordered_ops.core.types import INT64_MIN, Isolation, PlanContent, TopicPartition
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.logs import Records, read_plan, visible_records
from tests.support.out_of_order import checked_out_of_order
from tests.support.windows_support import BASE_MS, TIMEOUT_S, at

Key = tuple[str, int, int]
Stamped = tuple[str, int, None, bytes, int, tuple[()]]


def stamped(topic: str, *seconds: float, partition: int = 0) -> list[Stamped]:
    """Plain records for `produce`, stamped at seconds of the tests' time."""
    return [(topic, partition, None, b"x", BASE_MS + round(s * 1000), ()) for s in seconds]


def interval(topic: str, since: float, cutoff: float) -> Window:
    """The records of a topic from one second up to another."""
    return Window([topic], at(cutoff), since=at(since), starting_offsets=Earliest())


def sweep(topic: str, cutoff: float) -> Window:
    """What no interval covered."""
    return Window([topic], at(cutoff), starting_offsets=Earliest(), sweep=True)


def taken_of(plan: WindowPlan, records: Records) -> Records:
    """Those of the records that a plan takes, by its offsets alone."""
    taken = plan.taken
    return {
        (topic, partition, offset): time_ms
        for (topic, partition, offset), time_ms in records.items()
        if (offsets := taken.get(TopicPartition(topic, partition))) is not None
        and offset in offsets
    }


def late_of(plan: WindowPlan, records: Records) -> set[Key]:
    """Those of the records that a plan's readers flag as late."""
    found = set()
    for part in plan:
        mine = [key for key in records if key[:2] == (part.tp.topic, part.tp.partition)]
        offsets = np.array([key[2] for key in mine], dtype=np.int64)
        times_ms = np.array([records[key] for key in mine], dtype=np.int64)
        mask = part.late.mask(offsets, times_ms)
        found |= {key for key, late in zip(mine, mask.tolist(), strict=True) if late}
    return found


@dataclass(frozen=True)
class Frozen:
    """A planned window on one partition: records of its times, written below its end, were its own."""

    times: TimeRange
    end: int


class IntervalOracle:
    """Plans, commits and abandons intervals of one topic, and knows what each must hold."""

    def __init__(self, windows: OrderedWindows, bootstrap: str, topic: str) -> None:
        self.windows = windows
        self.topic = topic
        self.delivered: Records = {}
        self.open: dict[str, WindowPlan] = {}
        self.rewound: dict[str, WindowPlan] = {}
        self._done: dict[str, WindowPlan] = {}
        self._claimed: dict[str, Records] = {}
        #: What a moved offset counts as done, whoever holds it.
        self._skipped: set[Key] = set()
        self._frozen: dict[TopicPartition, dict[str, Frozen]] = {}
        self._moves = 0
        self._bootstrap = bootstrap
        self.visible: Records = {}
        self.ends: dict[TopicPartition, int] = {}

    def look(self) -> None:
        """Reads all that a plain consumer sees now; to be called after each writing."""
        with Lookup(self.windows.settings) as lookup:
            numbers = lookup.topics([self.topic])[self.topic].partitions
            every = [TopicPartition(self.topic, number) for number in numbers]
            deadline = time.monotonic() + TIMEOUT_S
            # A producer is told of its commit before the markers are written.
            while (ends := lookup.end_offsets(every, Isolation.READ_COMMITTED)) != (
                lookup.end_offsets(every, Isolation.READ_UNCOMMITTED)
            ):
                assert time.monotonic() < deadline, f"a transaction stays open below {ends}"
                time.sleep(0.05)
        self.ends = ends
        self.visible = visible_records(self._bootstrap, self.ends)

    def wanted(self, window: Window) -> Records:
        """The records that a window planned now must take."""
        gone = {key for records in self._claimed.values() for key in records} | set(self.delivered)
        since_ms, cutoff_ms = window.times
        found = {}
        for key, time_ms in self.visible.items():
            own = since_ms <= time_ms < cutoff_ms
            late = time_ms < since_ms and self._is_frozen(key, time_ms)
            if key not in gone and (own or late):
                found[key] = time_ms
        return found

    def plan(self, window_id: str, window: Window) -> WindowPlan:
        """Plans one window, and compares its records and their flags with all that there are."""
        return self.plan_many([(window_id, window)])[0]

    def plan_many(self, named: Sequence[tuple[str, Window]]) -> list[WindowPlan]:
        """Plans several windows in one pass; a record that several ask for is the first one's."""
        # What is late for one of them was so before all of them.
        late = self._late()
        covered = []
        for window_id, window in named:
            covered.append(self._covers(window.times))
            self._claimed[window_id] = self.wanted(window)
            for tp, end in self.ends.items():
                self._frozen.setdefault(tp, {})[window_id] = Frozen(window.times, end)
        plans = self.windows.plan_many(
            [window for _, window in named], [window_id for window_id, _ in named]
        )
        for plan, is_covered in zip(plans, covered, strict=True):
            expected = self._claimed[plan.window_id]
            assert {part.tp: part.decided_end for part in plan} == self.ends
            assert taken_of(plan, self.visible) == expected
            since_ms, _ = plan.window.times
            earlier = {key for key, time_ms in expected.items() if time_ms < since_ms}
            assert late_of(plan, expected) == earlier | (late & set(expected))
            checked_out_of_order(plan, self.visible)
            if not plan.offsets:
                assert (plan.content is PlanContent.COVERED) == is_covered
            self.open[plan.window_id] = plan
        return plans

    def commit(self, *window_ids: str, read: bool = False) -> None:
        """Commits in one transaction; with `read`, a reader must get exactly what was planned."""
        plans = [self.open.pop(window_id) for window_id in window_ids]
        for plan in plans:
            records = self._claimed.pop(plan.window_id)
            if read:
                assert read_plan(self.windows.settings, plan) == records
            for key in records:
                assert key not in self.delivered or key in self._skipped, "delivered twice"
            self.delivered |= records
            self._done[plan.window_id] = plan
        self.windows.commit_many(plans)

    def move(self, tp: TopicPartition, offset: int) -> Adoption:
        """Somebody else commits an offset, and the group takes it for its progress."""
        self._moves += 1
        base = self.base(tp)
        commit_as_another(self._bootstrap, self.windows.group_id, tp, offset)
        foreseen = self.windows.adopt(dry_run=True)
        adopted = self.windows.adopt()
        assert adopted == foreseen
        rewound = set()
        if offset < base:
            for key in [key for key in self.delivered if _at_or_behind(key, tp, offset)]:
                del self.delivered[key]
            for window_id, plan in list(self._done.items()):
                taken = plan.taken.get(tp)
                if taken is not None and taken.end > offset:
                    rewound.add(window_id)
                    self.rewound[window_id] = self._done.pop(window_id)
            # On the partition that was moved, what was rewound covers no times any more; on others it does.
            self._frozen[tp] = {
                name: one
                for name, one in self._frozen[tp].items()
                if name in self._done or name in self.open
            }
            for frozen in self._frozen.values():
                for window_id in rewound & frozen.keys():
                    frozen[f"{window_id} before move {self._moves}"] = frozen.pop(window_id)
        else:
            below = {
                key: time_ms
                for key, time_ms in self.visible.items()
                if key[:2] == (tp.topic, tp.partition) and key[2] < offset
            }
            self.delivered |= below
            self._skipped |= set(below)
        assert set(adopted.rewound) == rewound
        return adopted

    def base(self, tp: TopicPartition) -> int:
        """Where the group's progress on a partition begins to have holes."""
        state = self.windows.state()
        assert state is not None
        partition = state.partition(tp)
        assert partition is not None
        return partition.base

    def abandon(self, window_id: str) -> None:
        """Gives a window free."""
        del self.open[window_id], self._claimed[window_id]
        for frozen in self._frozen.values():
            frozen.pop(window_id, None)
        self.windows.abandon(window_id)

    def check_gaps(self) -> None:
        """Each record that waits before or between the intervals stands in the row of its gap.

        The rows of one time bracket what waits there: at most so many offsets, and no more known ones than
        there are records and offsets without one.
        """
        at_most: Counter[TimeRange | None] = Counter()
        known: Counter[TimeRange | None] = Counter()
        for row in self.windows.gaps():
            at_most[row.times] += row.offsets_at_most
            known[row.times] += row.offsets
            assert 0 < row.offsets_at_most >= row.offsets
        waiting = self._waiting()
        invisible = sum(self.ends.values()) - len(self.visible)
        for times, count in waiting.items():
            assert at_most[times] + at_most[None] >= count, f"{times} of {at_most}"
        for row_times, count in known.items():
            assert row_times is not None or not count
            assert count <= waiting.get(row_times, 0) + invisible if row_times else True

    def _waiting(self) -> Counter[TimeRange]:
        gone = {key for records in self._claimed.values() for key in records} | set(self.delivered)
        waiting: Counter[TimeRange] = Counter()
        for key, time_ms in self.visible.items():
            frozen = self._frozen.get(TopicPartition(*key[:2]), {}).values()
            looked_at = max((one.end for one in frozen), default=0)
            if key in gone or key[2] >= looked_at or self._is_frozen(key, time_ms):
                continue
            later = [one.times.since_ms for one in frozen if one.times.since_ms > time_ms]
            earlier = [one.times.before_ms for one in frozen if one.times.before_ms <= time_ms]
            if later:
                waiting[TimeRange(max(earlier, default=INT64_MIN), min(later))] += 1
        return waiting

    def _is_frozen(self, key: Key, time_ms: int) -> bool:
        frozen = self._frozen.get(TopicPartition(*key[:2]), {}).values()
        return any(one.times.since_ms <= time_ms < one.times.before_ms for one in frozen)

    def _late(self) -> set[Key]:
        found = set()
        for key, time_ms in self.visible.items():
            frozen = self._frozen.get(TopicPartition(*key[:2]), {}).values()
            if any(
                one.times.since_ms <= time_ms < one.times.before_ms and key[2] >= one.end
                for one in frozen
            ):
                found.add(key)
        return found

    def _covers(self, times: TimeRange) -> bool:
        """Whether planned windows cover all of these times, on every partition."""
        return bool(self.ends) and all(
            _joined_hold([one.times for one in self._frozen.get(tp, {}).values()], times)
            for tp in self.ends
        )


def commit_as_another(bootstrap: str, group_id: str, tp: TopicPartition, offset: int) -> None:
    """Moves a group's committed offset, as a tool or another program does."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group_id})
    consumer.commit(offsets=[Place(tp.topic, tp.partition, offset)], asynchronous=False)
    consumer.close()


def foresee_and_adopt(windows: OrderedWindows) -> Adoption:
    """Adopts; a dry run before it says the same and changes nothing."""
    state, records = windows.state(), windows.list()
    foreseen = windows.adopt(dry_run=True)
    assert (windows.state(), windows.list()) == (state, records)
    adopted = windows.adopt()
    assert adopted == foreseen
    assert not windows.adopt(), "a second look finds nothing left"
    return adopted


def _at_or_behind(key: Key, tp: TopicPartition, offset: int) -> bool:
    return key[:2] == (tp.topic, tp.partition) and key[2] >= offset


def _joined_hold(ranges: Sequence[TimeRange], times: TimeRange) -> bool:
    reached = times.since_ms
    for one in sorted(ranges):
        if one.since_ms <= reached:
            reached = max(reached, one.before_ms)
    return reached >= times.before_ms
