"""Series of windows over logs in memory: every visible record in exactly one window, the right one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_ordered_ops import Earliest, RecordsLostError, Window, WindowPlan
from kafka_ordered_ops.core.planning import scan_fold
from kafka_ordered_ops.core.types import OnDataLoss, PlanContent, TopicPartition
from tests.support.examples import examples
from tests.support.model import ModelGroup, ModelLog
from tests.support.strategies import members

TP = TopicPartition("orders", 0)


def window(cutoff_ms: int, *, out_of_orderness_ms: int | None = None) -> Window:
    """A window over everything before a cutoff."""
    return Window(
        ["orders"],
        datetime.fromtimestamp(cutoff_ms / 1000, UTC),
        starting_offsets=Earliest(),
        max_out_of_orderness=None
        if out_of_orderness_ms is None
        else timedelta(milliseconds=out_of_orderness_ms),
    )


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of two records, so that short logs have many."""
    monkeypatch.setattr(scan_fold, "CHUNK_RECORDS", 2)


@dataclass
class Oracle:
    """What must be, kept by brute force beside the group."""

    group: ModelGroup
    delivered: dict[tuple[TopicPartition, int], str] = field(default_factory=dict)
    open: dict[str, WindowPlan] = field(default_factory=dict)
    #: Windows not abandoned: (cutoff, end of every log when it was planned).
    frozen: dict[str, tuple[int, dict[TopicPartition, int]]] = field(default_factory=dict)

    def plan(self, window_id: str, cutoff_ms: int) -> WindowPlan:
        """Plans, and checks the plan against every record of every log."""
        claimed = {key for plan in self.open.values() for key in self.group.records(plan)}
        expected = {
            (tp, offset): time
            for tp, log in self.group.logs.items()
            for offset, (time, visible) in log.records.items()
            if visible
            and time < cutoff_ms
            and (tp, offset) not in self.delivered
            and (tp, offset) not in claimed
        }
        plan = self.group.plan(window(cutoff_ms), window_id)
        assert self.group.records(plan) == expected
        self._check_late(plan, expected)
        self.group.out_of_order(plan)
        if not plan.offsets:
            asked_before = any(cutoff >= cutoff_ms for cutoff, _ in self.frozen.values())
            assert (plan.content is PlanContent.COVERED) == asked_before
        self.open[window_id] = plan
        self.frozen[window_id] = cutoff_ms, {tp: log.end for tp, log in self.group.logs.items()}
        return plan

    def _check_late(self, plan: WindowPlan, records: dict[tuple[TopicPartition, int], int]) -> None:
        import numpy as np

        for part in plan:
            for (tp, offset), time in records.items():
                if tp != part.tp:
                    continue
                late = any(
                    time < cutoff and ends[tp] <= offset for cutoff, ends in self.frozen.values()
                )
                assert part.late.mask(np.array([offset]), np.array([time])).tolist() == [late]

    def commit(self, window_id: str) -> None:
        """Commits, and checks that progress is exactly what was delivered."""
        plan = self.open.pop(window_id)
        for key in self.group.records(plan):
            assert key not in self.delivered, "delivered twice"
            self.delivered[key] = window_id
        self.group.commit(plan)
        self.group.commit(plan)  # again: nothing changes
        state = self.group.view.state
        assert state is not None
        for tp, log in self.group.logs.items():
            partition = state.partition(tp)
            if partition is None:
                continue
            for offset in log.visible(partition.done):
                assert (tp, offset) in self.delivered

    def abandon(self, window_id: str) -> None:
        """Gives a window free."""
        del self.open[window_id], self.frozen[window_id]
        self.group.abandon(window_id)


record = st.tuples(
    st.sampled_from(["record"] * 4 + ["marker"]),
    st.integers(0, 2),
    st.integers(-2, 30),
    st.sampled_from([0, 0, 0, 1, 3]),
)
action = st.one_of(
    st.tuples(st.just("append"), st.lists(record, max_size=8)),
    st.tuples(st.just("plan"), st.integers(-1, 32)),
    st.tuples(st.sampled_from(["commit", "abandon"]), st.integers(0, 5)),
)


@settings(max_examples=examples(150, by_day=40))
@given(st.lists(action, max_size=25), st.integers(1, 3))
def test_every_record_is_in_exactly_one_window(
    actions: list[tuple[str, object]], partitions: int
) -> None:
    """Out-of-order times, ties, holes, markers, windows in any order, abandoned and taken again."""
    oracle = Oracle(
        ModelGroup({TopicPartition("orders", n): ModelLog() for n in range(partitions)})
    )
    for number, (verb, argument) in enumerate(actions):
        if verb == "append":
            assert isinstance(argument, list)
            for kind, partition, time, hole in argument:
                log = oracle.group.logs[TopicPartition("orders", partition % partitions)]
                log.append(time, visible=kind == "record", hole=hole)
        elif verb == "plan":
            assert isinstance(argument, int)
            oracle.plan(f"w{number}", argument)
        elif oracle.open:
            assert isinstance(argument, int)
            window_id = sorted(oracle.open)[argument % len(oracle.open)]
            getattr(oracle, verb)(window_id)
    oracle.plan("last", 1_000)
    for window_id in list(oracle.open):
        oracle.commit(window_id)
    oracle.group.check_all_done(set(oracle.delivered))


@settings(max_examples=examples(50))
@given(
    st.lists(st.lists(st.integers(0, 40), max_size=12), min_size=1, max_size=6),
    st.lists(st.integers(0, 45), min_size=1, max_size=6),
    st.randoms(use_true_random=False),
)
def test_drafts_made_at_once_never_overlap(
    batches: list[list[int]], cutoffs: list[int], rng: object
) -> None:
    """Several workers draft from the same view; whoever claims later takes only what is left."""
    import random

    assert isinstance(rng, random.Random)
    group = ModelGroup({TP: ModelLog()})
    for times in batches:
        for time in times:
            group.logs[TP].append(time)
    wishes = [group.draft((f"w{n}", window(cutoff))) for n, cutoff in enumerate(cutoffs)]
    rng.shuffle(wishes)
    seen: set[tuple[TopicPartition, int]] = set()
    for wish in wishes:
        plans = group.claim(wish)
        assert plans is not None
        taken = set(group.records(plans[0]))
        assert not taken & seen
        seen |= taken
    highest = max(cutoffs)
    assert seen == {
        (TP, offset) for offset, (time, _) in group.logs[TP].records.items() if time < highest
    }


def test_a_draft_is_stale_when_a_claim_was_abandoned_meanwhile() -> None:
    """What became open after the draft must be looked at: start over."""
    group = ModelGroup({TP: ModelLog()})
    group.logs[TP].append(0)
    # Something is committed, so that the topic's origin stays when a window is abandoned.
    group.commit(group.plan(window(1), "settled"))
    for time in [1, 5, 2]:
        group.logs[TP].append(time)
    group.plan(window(3), "first")
    wish = group.draft(("second", window(6)))
    group.abandon("first")
    assert group.claim(wish) is None
    assert set(group.records(group.plan(window(6), "second"))) == {(TP, 1), (TP, 2), (TP, 3)}


def test_an_origin_that_nothing_was_committed_from_is_forgotten() -> None:
    """Unless another open window stands on it."""
    group = ModelGroup({TP: ModelLog()})
    for time in [1, 5, 2]:
        group.logs[TP].append(time)
    group.plan(window(3), "first")
    group.plan(window(6), "second")
    for window_id, topics in (("first", {"orders"}), ("second", set())):
        group.abandon(window_id)
        assert group.view.state is not None
        assert set(group.view.state.topics) == topics


@settings(max_examples=examples(50))
@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=20),
    st.integers(0, 21),
    st.integers(0, 20),
    st.integers(0, 21),
)
def test_what_retention_took_is_lost_once_and_never_taken(
    times: list[int], first_cutoff: int, log_start: int, cutoff: int
) -> None:
    """Lost are the offsets that were neither done nor claimed, to the window of their time where it is known."""
    group = ModelGroup({TP: ModelLog()})
    for time in times:
        group.logs[TP].append(time)
    group.commit(group.plan(window(first_cutoff), "first"))
    done = {offset for offset, time in enumerate(times) if time < first_cutoff}
    log_start = min(log_start, len(times))
    group.logs[TP].log_start = log_start
    lost = set(range(log_start)) - done
    strict, tolerant = (replace(window(cutoff), on_data_loss=policy) for policy in OnDataLoss)
    if lost and min(times[n] for n in lost) < cutoff:
        with pytest.raises(RecordsLostError):
            group.plan(strict, "strict")
    plan = group.plan(tolerant, "tolerant")
    now = members(plan.partitions[0].lost)
    # Bounds of a chunk hold for two records: one of them may be lost too soon, never too late.
    assert {n for n in lost if times[n] < cutoff} <= now <= lost
    expected = {n for n, time in enumerate(times) if time < cutoff and n >= log_start} - done
    assert {offset for _, offset in group.records(plan)} == expected
    group.commit(plan)
    rest = group.plan(replace(window(1_000), on_data_loss=OnDataLoss.WARN), "rest")
    assert members(rest.partitions[0].lost) == lost - now
    group.commit(rest)
    assert not group.plan(window(2_000), "after").lost


@settings(max_examples=examples(50))
@given(st.lists(st.integers(0, 99), min_size=1, max_size=120), st.integers(2, 25))
def test_a_backlog_is_scanned_once(times: list[int], step: int) -> None:
    """Over a series of windows, rising cutoffs: besides straddling chunks no timestamp is read twice."""
    group = ModelGroup({TP: ModelLog()})
    for time in sorted(times):
        group.logs[TP].append(time)
    for number, cutoff in enumerate(range(0, 100 + step, step)):
        group.commit(group.plan(window(cutoff), f"w{number}"))
    counts = Counter(group.scanned)
    # A chunk of two records straddles one cutoff, and its records are read again then.
    assert max(counts.values(), default=0) <= 3
    assert len(group.scanned) <= len(times) + 2 * (100 // step + 2)


@pytest.mark.parametrize(
    ("times", "cutoff", "lateness", "expected"),
    [
        # 30 ends the scan: 4 behind it goes to the next window.
        ([1, 12, 3, 30, 4], 10, 10, {0, 2}),
        # Nothing is past cutoff + lateness: the whole tail is read.
        ([1, 12, 3, 19, 4], 10, 10, {0, 2, 4}),
        # A record of the year 2100 says nothing about the time.
        ([1, 10**17, 3, 30, 4], 10, 10, {0, 2}),
        ([1, 12, 3, 30, 4], 10, None, {0, 2, 4}),
    ],
)
def test_allowed_lateness_ends_the_scan(
    times: list[int], cutoff: int, lateness: int | None, expected: set[int]
) -> None:
    """At the first record past cutoff + lateness, unless it is from the future; nothing is lost by it."""
    group = ModelGroup({TP: ModelLog()})
    for time in times:
        group.logs[TP].append(time)
    plan = group.plan(window(cutoff, out_of_orderness_ms=lateness), "one")
    assert {offset for _, offset in group.records(plan)} == expected
    group.commit(plan)
    rest = group.plan(window(20), "two")
    left = {n for n, time in enumerate(times) if time < 20} - expected
    assert {offset for _, offset in group.records(rest)} == left
