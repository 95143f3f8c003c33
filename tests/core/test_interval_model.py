"""Intervals, sweeps, passes over several windows and moved offsets over logs in memory, by brute force."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_ordered_ops.core.group.gaps import gaps_of
from kafka_ordered_ops.core.planning import scan_fold
from kafka_ordered_ops.core.time_ranges import TimeRange
from kafka_ordered_ops.core.types import INT64_MIN, PlanContent, TopicPartition
from kafka_ordered_ops.core.window.bounds import Earliest
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.window import Window
from tests.support.examples import examples
from tests.support.model import ModelGroup, ModelLog

Key = tuple[TopicPartition, int]
TP = TopicPartition("orders", 0)

#: Whom a record went to that a moved offset counts as done.
OTHERS = "others"


def moment(time_ms: int) -> datetime:
    """A time of the model."""
    return datetime.fromtimestamp(time_ms / 1000, UTC)


def interval(since_ms: int, cutoff_ms: int) -> Window:
    """The records of an interval."""
    return Window(
        ["orders"], moment(cutoff_ms), starting_offsets=Earliest(), since=moment(since_ms)
    )


def sweep(cutoff_ms: int) -> Window:
    """What no interval covered."""
    return Window(["orders"], moment(cutoff_ms), starting_offsets=Earliest(), sweep=True)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of two records, so that short logs have many."""
    monkeypatch.setattr(scan_fold, "CHUNK_RECORDS", 2)


@dataclass
class Frozen:
    """A window that covers its times on one partition: those of records below its end were its own."""

    times: TimeRange
    end: int


@dataclass
class Oracle:
    """What must be, kept by brute force beside the group."""

    group: ModelGroup
    delivered: dict[Key, str] = field(default_factory=dict)
    open: dict[str, WindowPlan] = field(default_factory=dict)
    done: dict[str, WindowPlan] = field(default_factory=dict)
    frozen: dict[TopicPartition, dict[str, Frozen]] = field(default_factory=dict)

    def late(self, key: Key, time: int) -> bool:
        """Whether the window of a record had been planned before the record was written."""
        tp, offset = key
        frozen = self.frozen.get(tp, {}).values()
        return any(one.times[0] <= time < one.times[1] and offset >= one.end for one in frozen)

    def wanted(self, window: Window) -> dict[Key, int]:
        """The records that a window planned now takes."""
        claimed = {key for plan in self.open.values() for key in self.group.records(plan)}
        since_ms, cutoff_ms = window.times
        found: dict[Key, int] = {}
        for tp, log in self.group.logs.items():
            times = [one.times for one in self.frozen.get(tp, {}).values()]
            for offset, (time, visible) in log.records.items():
                key = tp, offset
                own = since_ms <= time < cutoff_ms
                late = time < since_ms and any(low <= time < high for low, high in times)
                if visible and (own or late) and key not in self.delivered and key not in claimed:
                    found[key] = time
        return found

    def plan(self, *asked: tuple[str, Window]) -> None:
        """Plans together, and checks each plan against every record of every log."""
        plans = self.group.plan_many(*asked)
        late = {
            key: self.late(key, time)
            for _, window in asked
            for key, time in self.wanted(window).items()
        }
        for (name, window), plan in zip(asked, plans, strict=True):
            expected = self.wanted(window)
            assert self.group.records(plan) == expected
            self.group.out_of_order(plan)
            for part in plan:
                for (tp, offset), time in expected.items():
                    if tp == part.tp:
                        mask = part.late.mask(np.array([offset]), np.array([time]))
                        assert mask.tolist() == [late[tp, offset]]
            if not plan.offsets:
                covered = all(self._covered(tp, window.times) for tp in self.group.logs)
                assert (plan.content is PlanContent.COVERED) == covered
            self.open[name] = plan
            for tp, log in self.group.logs.items():
                self.frozen.setdefault(tp, {})[name] = Frozen(window.times, log.end)

    def _covered(self, tp: TopicPartition, times: TimeRange) -> bool:
        frozen = [one.times for one in self.frozen.get(tp, {}).values()]
        # No record of the model is older than this: such times stand for all before them.
        return all(
            any(since <= time < before for since, before in frozen)
            for time in range(max(times.since_ms, -10), times.before_ms)
        )

    def commit(self, *names: str) -> None:
        """Commits in one transaction."""
        plans = [self.open.pop(name) for name in names]
        for name, plan in zip(names, plans, strict=True):
            for key in self.group.records(plan):
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

    def move(self, tp: TopicPartition, offset: int) -> None:
        """Somebody commits an offset, and the group takes it for its progress."""
        state = self.group.view.state
        known = None if state is None else state.partition(tp)
        if state is None or known is None or offset == known.committed:
            return
        base = known.base
        adopted = self.group.move({tp: offset})
        rewound = set()
        if offset < base:
            for key in [key for key in self.delivered if key[0] == tp and key[1] >= offset]:
                del self.delivered[key]
            for name, plan in list(self.done.items()):
                taken = plan.taken.get(tp)
                if taken and taken.end > offset:
                    rewound.add(name)
                    # It can never be told again which of the others were its own.
                    del self.done[name]
            # What covers the partition's times is what was not rewound.
            kept = {*self.done, *self.open}
            self.frozen[tp] = {n: one for n, one in self.frozen[tp].items() if n in kept}
        else:
            for below in self.group.logs[tp].visible_below(offset):
                self.delivered.setdefault((tp, below), OTHERS)
        assert set(adopted.rewound) == rewound
        self.check_progress()

    def check_progress(self) -> None:
        """Done is exactly what was delivered."""
        state = self.group.view.state
        assert state is not None
        for tp, partition in state:
            done = {(tp, offset) for offset in self.group.logs[tp].visible(partition.done)}
            assert done == {key for key in self.delivered if key[0] == tp}

    def check_gaps(self) -> None:
        """Every record that was looked at and waits between windows stands in the row of its gap."""
        claimed = {key for plan in self.open.values() for key in self.group.records(plan)}
        waiting: Counter[TimeRange] = Counter()
        for tp, log in self.group.logs.items():
            frozen = [one.times for one in self.frozen.get(tp, {}).values()]
            looked_at = self.group.view.time_map(tp).covered
            for offset, (time, visible) in log.records.items():
                gone = (tp, offset) in self.delivered or (tp, offset) in claimed
                if not visible or gone or offset not in looked_at:
                    continue
                later = [since for since, _ in frozen if since > time]
                if later and not any(since <= time < before for since, before in frozen):
                    earlier = [before for _, before in frozen if before <= time]
                    waiting[TimeRange(max(earlier, default=INT64_MIN), min(later))] += 1
        named = {gap.times: gap for gap in gaps_of(self.group.view)}
        for times, count in waiting.items():
            assert named[times].offsets_at_most >= count
        for gap in named.values():
            assert gap.offsets <= gap.offsets_at_most


record = st.tuples(
    st.sampled_from(["record"] * 4 + ["marker"]),
    st.integers(0, 1),
    st.integers(-2, 30),
    st.sampled_from([0, 0, 0, 1, 3]),
)
action = st.one_of(
    st.tuples(st.just("append"), st.lists(record, max_size=8)),
    st.tuples(st.just("append"), st.lists(record, max_size=8)),
    st.tuples(st.just("interval"), st.tuples(st.integers(0, 28), st.integers(1, 6))),
    st.tuples(st.just("interval"), st.tuples(st.integers(0, 28), st.integers(1, 6))),
    st.tuples(st.just("many"), st.lists(st.integers(0, 30), min_size=2, max_size=5, unique=True)),
    st.tuples(st.just("sweep"), st.integers(0, 31)),
    st.tuples(st.sampled_from(["commit", "commit_many", "abandon"]), st.integers(0, 5)),
    st.tuples(st.just("move"), st.tuples(st.integers(0, 1), st.integers(0, 40))),
)


@settings(max_examples=examples(150))
@given(st.lists(action, max_size=25), st.integers(1, 2))
def test_every_record_is_in_exactly_one_window(
    actions: list[tuple[str, object]], partitions: int
) -> None:
    """Intervals in any order and several at once, sweeps, abandoned windows, offsets moved by others."""
    oracle = Oracle(
        ModelGroup({TopicPartition("orders", n): ModelLog() for n in range(partitions)})
    )
    for number, (verb, argument) in enumerate(actions):
        match verb, argument:
            case "append", list(records):
                for kind, partition, time, hole in records:
                    log = oracle.group.logs[TopicPartition("orders", partition % partitions)]
                    log.append(time, visible=kind == "record", hole=hole)
            case "interval", (int(since), int(length)):
                oracle.plan((f"w{number}", interval(since, since + length)))
            case "many", list(edges):
                pairs = pairwise(sorted(edges))
                oracle.plan(*((f"w{number}-{n}", interval(*pair)) for n, pair in enumerate(pairs)))
            case "sweep", int(cutoff):
                oracle.plan((f"w{number}", sweep(cutoff)))
            case "commit_many", int(_) if oracle.open:
                oracle.commit(*oracle.open)
            case (("commit" | "abandon"), int(which)) if oracle.open:
                getattr(oracle, verb)(sorted(oracle.open)[which % len(oracle.open)])
            case "move", (int(partition), int(offset)):
                tp = TopicPartition("orders", partition % partitions)
                oracle.move(tp, min(offset, oracle.group.logs[tp].end))
        oracle.check_gaps()
    oracle.plan(("last", sweep(1_000)))
    oracle.commit(*oracle.open)
    oracle.group.check_all_done(set(oracle.delivered))
    assert not gaps_of(oracle.group.view)


@settings(max_examples=examples(50))
@given(
    st.lists(st.integers(0, 99), min_size=1, max_size=120),
    st.integers(5, 30),
    st.sampled_from(["forward", "backward", "at once"]),
)
def test_a_backlog_of_intervals_is_scanned_once(times: list[int], step: int, order: str) -> None:
    """Whichever way it is planned: besides straddling chunks no timestamp is read twice."""
    group = ModelGroup({TP: ModelLog()})
    for time in sorted(times):
        group.logs[TP].append(time)
    edges = list(range(0, 100 + step, step))
    asked = [(f"w{low}", interval(low, high)) for low, high in pairwise(edges)]
    if order == "at once":
        group.commit(*group.plan_many(*asked))
    else:
        for name, window in asked if order == "forward" else reversed(asked):
            group.commit(group.plan(window, name))
    counts = Counter(group.scanned)
    # A chunk of two records straddles one cutoff, and its records are read again then.
    assert max(counts.values(), default=0) <= (1 if order == "at once" else 3)
    assert len(group.scanned) <= len(times) + 4 * len(edges)
    state = group.view.state
    assert state is not None
    assert state.topics["orders"].partitions[0].base == len(times)


def test_a_late_record_comes_with_the_next_interval_whatever_its_order() -> None:
    """Newest first: a record of a planned interval goes to the next one planned behind it in time."""
    group = ModelGroup({TP: ModelLog()})
    for time in [5, 15, 25]:
        group.logs[TP].append(time)
    group.plan(interval(10, 20), "middle")
    group.logs[TP].append(12)
    assert set(group.records(group.plan(interval(0, 10), "first"))) == {(TP, 0)}
    last = group.plan(interval(20, 30), "last")
    assert set(group.records(last)) == {(TP, 2), (TP, 3)}
    late = last.partitions[0].late.mask(np.array([2, 3]), np.array([25, 12]))
    assert late.tolist() == [False, True]
