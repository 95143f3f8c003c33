"""A group of intervals over logs in memory, kept by brute force over all records beside the package's decisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np

from kafka_ordered_ops import Earliest, Window, WindowPlan
from kafka_ordered_ops.core.group.gaps import gaps_of
from kafka_ordered_ops.core.offset_set import OffsetSet, union_of
from kafka_ordered_ops.core.time_ranges import TimeRange
from kafka_ordered_ops.core.types import INT64_MIN, OnDataLoss, PlanContent, TopicPartition
from tests.support.model import ModelGroup
from tests.support.strategies import members

Key = tuple[TopicPartition, int]

#: Whom a record went to that a moved offset counts as done.
OTHERS = "others"
#: The timestamp of a record without one: no interval takes it.
NO_TIME = -1


def moment(time_ms: int) -> datetime:
    """A time of the model."""
    return datetime.fromtimestamp(time_ms / 1000, UTC)


def interval(since_ms: int, cutoff_ms: int) -> Window:
    """The records of an interval."""
    return Window(
        ["orders"],
        moment(cutoff_ms),
        starting_offsets=Earliest(),
        since=moment(since_ms),
        on_data_loss=OnDataLoss.WARN,
    )


def sweep(cutoff_ms: int) -> Window:
    """What no interval covered."""
    return Window(
        ["orders"],
        moment(cutoff_ms),
        starting_offsets=Earliest(),
        sweep=True,
        on_data_loss=OnDataLoss.WARN,
    )


@dataclass
class Frozen:
    """A window that covers its times on one partition: those of records below its end were its own."""

    times: TimeRange
    end: int


@dataclass
class IntervalModel:
    """What must be."""

    group: ModelGroup
    delivered: dict[Key, str] = field(default_factory=dict)
    open: dict[str, WindowPlan] = field(default_factory=dict)
    done: dict[str, WindowPlan] = field(default_factory=dict)
    frozen: dict[TopicPartition, dict[str, Frozen]] = field(default_factory=dict)
    #: All that were ever asked for, in order.
    asked: list[Window] = field(default_factory=list)
    #: Windows all of whose parts have reported.
    written: set[str] = field(default_factory=set)

    # --- what is known ------------------------------------------------------------------------------

    def claimed(self, tp: TopicPartition) -> OffsetSet:
        """Offsets that open windows hold."""
        return union_of(_held(plan, tp) for plan in self.open.values())

    def undone(self, tp: TopicPartition) -> OffsetSet:
        """Offsets that no window holds."""
        state = self.group.view.state
        known = None if state is None else state.partition(tp)
        done = OffsetSet() if known is None else known.done
        return OffsetSet.of((0, self.group.logs[tp].end)) - done - self.claimed(tp)

    def waiting(self) -> dict[Key, int]:
        """The visible records that no window holds, also those that retention has taken."""
        return {
            (tp, offset): time
            for tp, log in self.group.logs.items()
            for offset, time in log.ever(self.undone(tp)).items()
        }

    def is_late(self, window: Window, key: Key, time: int) -> bool:
        """Whether a window flags a record: of another time than an interval's, or written after a window of its time."""
        if window.since_ms is not None and time < window.since_ms:
            return True
        tp, offset = key
        return any(_in(time, one.times) and offset >= one.end for one in self._frozen(tp))

    def _frozen(self, tp: TopicPartition) -> list[Frozen]:
        return list(self.frozen.get(tp, {}).values())

    def _asks(self, window: Window, tp: TopicPartition, time: int) -> bool:
        if window.since_ms is None:
            return time < window.cutoff_ms
        covered = any(_in(time, one.times) for one in self._frozen(tp))
        return time != NO_TIME and (_in(time, window.times) or (time < window.since_ms and covered))

    def _is_gone(self, key: Key) -> bool:
        return key[1] < self.group.logs[key[0]].log_start

    # --- what happens ---------------------------------------------------------------------------------

    def plan(
        self, *asked: tuple[str, Window], meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        """Plans together, and checks each plan against every record of every log; others act before the claim."""
        wish = self.group.draft(*asked)
        meanwhile()
        free = {tp: self.undone(tp) for tp in self.group.logs}
        waiting = self.waiting()
        plans = self.group.claim(wish) or self.group.plan_many(*asked)
        before = {tp: dict(one) for tp, one in self.frozen.items()}
        told: set[Key] = set()
        for (name, window), plan in zip(asked, plans, strict=True):
            own = {key: time for key, time in waiting.items() if self._asks(window, key[0], time)}
            gone = {key for key in own if self._is_gone(key)}
            here = {key: time for key, time in own.items() if key not in gone}
            assert self.group.records(plan) == here
            self.group.out_of_order(plan)
            self._check_flags(window, plan, here, before)
            self._check_shares(plan, free)
            for part in plan:
                free[part.tp] = free[part.tp] - part.taken - part.lost
                told |= {(part.tp, offset) for offset in members(part.lost)}
            assert gone <= told, "records are lost, and nobody is told"
            if not plan.offsets and not plan.lost:
                covered = all(self._covered(tp, window.times) for tp in self.group.logs)
                assert (plan.content is PlanContent.COVERED) == covered
            for key in [*here, *(key for key in waiting if key in told)]:
                waiting.pop(key, None)
            self.open[name] = plan
            self.asked.append(window)
            for tp, log in self.group.logs.items():
                self.frozen.setdefault(tp, {})[name] = Frozen(window.times, log.end)

    def _check_flags(
        self,
        window: Window,
        plan: WindowPlan,
        records: dict[Key, int],
        before: dict[TopicPartition, dict[str, Frozen]],
    ) -> None:
        """What is late for one of several windows was so before all of them."""
        now, self.frozen = self.frozen, before
        shares = {part.tp: part for part in plan}
        for key, time in records.items():
            mask = shares[key[0]].late.mask(np.array([key[1]]), np.array([time]))
            assert mask.tolist() == [self.is_late(window, key, time)]
        self.frozen = now

    def _check_shares(self, plan: WindowPlan, free: dict[TopicPartition, OffsetSet]) -> None:
        """No offset is in two windows, be there a record or not."""
        for part in plan:
            assert not part.taken & part.lost
            assert part.taken | part.lost <= free[part.tp], "an offset is in two windows"
            log_start = self.group.logs[part.tp].log_start
            assert part.lost <= OffsetSet.of((0, log_start)), "lost, and still there"

    def _covered(self, tp: TopicPartition, times: TimeRange) -> bool:
        # No record of the model is older than this: such times stand for all before them.
        return all(
            any(_in(time, one.times) for one in self._frozen(tp))
            for time in range(max(times.since_ms, -10), times.before_ms)
        )

    def take_up(self, name: str) -> None:
        """Takes up an open window: what is gone of it is lost, and the rest is as it was."""
        before = self.open[name]
        plan = self.open[name] = self.group.resume(before, before.window)
        for old, new in zip(before, plan, strict=True):
            assert old.taken | old.lost == new.taken | new.lost
            log_start = self.group.logs[old.tp].log_start
            assert name in self.written or not new.taken.within(0, log_start)

    def split(self, name: str) -> None:
        """Splits a window into parts that report at once."""
        if name not in self.written:
            self.group.split(self.open[name], 2)
            self.written.add(name)

    def commit(self, *names: str) -> None:
        """Commits in one transaction."""
        plans = [self.open.pop(name) for name in names]
        for name, plan in zip(names, plans, strict=True):
            for part in plan:
                for offset in self.group.logs[part.tp].ever(part.taken | part.lost):
                    key = part.tp, offset
                    assert self.delivered.get(key, OTHERS) == OTHERS, "delivered twice"
                    self.delivered[key] = name
            self.done[name] = plan
        self.group.commit(*plans)
        self.group.commit(*plans)  # again: nothing changes
        self.check_progress()

    def abandon(self, name: str) -> None:
        """Gives a window free."""
        del self.open[name]
        for frozen in self.frozen.values():
            frozen.pop(name, None)
        self.group.abandon(name)

    def expire(self, tp: TopicPartition, offset: int) -> None:
        """Retention takes what lies below an offset, of a group that has begun."""
        state = self.group.view.state
        if state is not None and tp.topic in state.topics and state.topics[tp.topic].settled:
            log = self.group.logs[tp]
            log.log_start = max(log.log_start, min(offset, log.end))

    def move(self, tp: TopicPartition, offset: int) -> None:
        """Somebody commits an offset, and the group takes it for its progress."""
        state = self.group.view.state
        known = None if state is None else state.partition(tp)
        if state is None or known is None or offset == known.committed:
            return
        base = known.base
        adopted = self.group.move({tp: offset})
        if offset < base:
            assert set(adopted.rewound) == self._cut(tp, offset)
        else:
            assert not adopted.rewound
            self._skip(tp, offset)
        self.check_progress()

    def reset(self, tp: TopicPartition, offset: int) -> None:
        """A person sets the progress of a partition, in a group without open windows."""
        state = self.group.view.state
        if self.open or state is None or state.partition(tp) is None:
            return
        told = self.group.reset({tp: offset})
        if told is not None:
            assert set(told.rewound) == self._cut(tp, offset)
            self._skip(tp, offset)
        self.check_progress()

    def _cut(self, tp: TopicPartition, offset: int) -> set[str]:
        """Nothing at or above an offset is done any more; the windows that are rewound by it."""
        for key in [key for key in self.delivered if key[0] == tp and key[1] >= offset]:
            del self.delivered[key]
        # It can never be told again which of the others were a rewound window's own.
        rewound = {
            name
            for name, plan in self.done.items()
            if (held := _held(plan, tp)) and held.end > offset
        }
        self.done = {name: plan for name, plan in self.done.items() if name not in rewound}
        # What covers the partition's times is what was not rewound.
        kept = {*self.done, *self.open}
        self.frozen[tp] = {n: one for n, one in self.frozen.get(tp, {}).items() if n in kept}
        return rewound

    def _skip(self, tp: TopicPartition, offset: int) -> None:
        for below in self.group.logs[tp].ever(OffsetSet.of((0, offset))):
            self.delivered.setdefault((tp, below), OTHERS)

    def check_all_done(self) -> None:
        """Every visible record was delivered or told as lost, and nothing else is remembered."""
        self.group.check_all_done({key for key in self.delivered if not self._is_gone(key)})

    # --- what must hold at every moment ---------------------------------------------------------------

    def check_progress(self) -> None:
        """Done is exactly what was delivered."""
        state = self.group.view.state
        assert state is not None
        for tp, partition in state:
            done = {(tp, offset) for offset in self.group.logs[tp].ever(partition.done)}
            assert done == {key for key in self.delivered if key[0] == tp}

    def check_bounds(self) -> None:
        """Where the group knows bounds of the time of a record that waits, the record's time lies within them."""
        for (tp, offset), time in self.waiting().items():
            told = self.group.view.time_map(tp).within(OffsetSet.of((offset, offset + 1)))
            for _, _, least_ms, greatest_ms in told.rows.tolist():
                assert least_ms <= time <= greatest_ms, f"{tp} {offset} is stamped {time}"

    def check_gaps(self) -> None:
        """Every record that was looked at and waits between windows stands in the row of its gap."""
        waiting: Counter[TimeRange] = Counter()
        for (tp, offset), time in self.waiting().items():
            is_read = offset in self.group.view.time_map(tp).covered
            if is_read and (gap := self._gap_of(tp, time)) is not None:
                waiting[gap] += 1
        named = {gap.times: gap for gap in gaps_of(self.group.view)}
        for times, count in waiting.items():
            assert named[times].offsets_at_most >= count
        for row in named.values():
            assert row.offsets <= row.offsets_at_most

    def _gap_of(self, tp: TopicPartition, time: int) -> TimeRange | None:
        """The times around one that no interval takes; None if a window covers it, or it lies after all of them."""
        state = self.group.view.state
        assert state is not None
        ranges = [one.times for one in self._frozen(tp)]
        if state.definition.mode is not None:
            # Of a record without a time only sweeps ask.
            ranges = [piece for one in ranges for piece in _around_no_time(one)]
        later = [since for since, _ in ranges if since > time]
        if not later or any(_in(time, one) for one in ranges):
            return None
        earlier = [before for _, before in ranges if before <= time]
        return TimeRange(max(earlier, default=INT64_MIN), min(later))


def _in(time: int, times: TimeRange) -> bool:
    return times.since_ms <= time < times.before_ms


def _held(plan: WindowPlan, tp: TopicPartition) -> OffsetSet:
    return union_of(part.taken | part.lost for part in plan if part.tp == tp)


def _around_no_time(times: TimeRange) -> list[TimeRange]:
    if not _in(NO_TIME, times):
        return [times]
    pieces = TimeRange(times.since_ms, NO_TIME), TimeRange(NO_TIME + 1, times.before_ms)
    return [one for one in pieces if one.since_ms < one.before_ms]
