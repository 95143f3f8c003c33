"""The rule of liveness and the search behind it, against brute force: no broker, any log."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops.core.liveness.live_search import (
    NEAR_OFFSETS,
    LivenessRule,
    LogFacts,
    Seen,
    SeenFold,
    Stamp,
    far,
    near,
)
from kafka_ordered_ops.core.liveness.liveness import (
    Idle,
    Live,
    TransactionOpen,
    Undecided,
    Verdict,
    judge,
)
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.planning.planning import FUTURE_TOLERANCE_MS
from kafka_ordered_ops.core.types import TopicPartition
from tests.support.strategies import members, offset_sets

TP = TopicPartition("orders", 0)
TOPIC_ID = "id"

#: Around the clock of the examples, and around what counts as the future then.
stamps = st.integers(-3, 30) | st.integers(FUTURE_TOLERANCE_MS - 5, FUTURE_TOLERANCE_MS + 20)
rules = st.builds(
    LivenessRule,
    cutoff_ms=st.integers(-2, 15),
    out_of_orderness_ms=st.integers(0, 5),
    grace_ms=st.none() | st.integers(0, 10),
)


@dataclass(frozen=True)
class Step:
    """What happens to the log between two looks."""

    #: (offsets before it that hold no visible record, timestamp)
    records: list[tuple[int, int]]
    invisible_tail: int
    pending: int
    deleted: int
    passed_ms: int
    #: How far below the first record at or after the time the index points.
    index_slack: int


steps = st.lists(
    st.builds(
        Step,
        records=st.lists(st.tuples(st.integers(0, 30), stamps), max_size=12),
        invisible_tail=st.integers(0, 3),
        pending=st.sampled_from([0, 0, 2]),
        deleted=st.sampled_from([0, 0, 0, 40, 200]),
        passed_ms=st.integers(0, 12),
        index_slack=st.sampled_from([0, 0, 1, 90]),
    ),
    min_size=1,
    max_size=5,
)


class Log:
    """A partition that everything is known about."""

    def __init__(self) -> None:
        self.visible: dict[int, int] = {}
        self.start = self.end = self.now_ms = self.pending = 0

    def apply(self, step: Step) -> None:
        for gap, stamp in step.records:
            self.visible[self.end + gap] = stamp
            self.end += gap + 1
        self.end += step.invisible_tail
        self.start = min(self.start + step.deleted, self.end)
        self.visible = {o: ms for o, ms in self.visible.items() if o >= self.start}
        self.pending, self.now_ms = step.pending, self.now_ms + step.passed_ms

    def facts(self, rule: LivenessRule, slack: int) -> LogFacts:
        after = [offset for offset, ms in self.visible.items() if ms >= rule.live_from_ms]
        return LogFacts(
            tp=TP,
            topic_id=TOPIC_ID,
            log_start=self.start,
            end_offset=self.end,
            high_watermark=self.end + self.pending,
            index_offset=max(min(after) - slack, 0) if after else None,
        )

    def proofs(self, rule: LivenessRule) -> dict[int, int]:
        """The records that make it live, by brute force."""
        future_ms = self.now_ms + FUTURE_TOLERANCE_MS
        return {o: ms for o, ms in self.visible.items() if rule.live_from_ms <= ms < future_ms}

    def read(self, wanted: OffsetSet, seen: Seen, rule: LivenessRule, batch_size: int) -> Seen:
        """What the reader of `kafka.facts.liveness_facts` does, in batches of this size."""
        fold = SeenFold(seen, rule, now_ms=self.now_ms)
        if fold.decides():
            return seen
        offsets = sorted(members(wanted) & self.visible.keys())
        for at in range(0, len(offsets), batch_size):
            piece = offsets[at : at + batch_size]
            fold.feed(
                np.array(piece, dtype=np.int64),
                np.array([self.visible[offset] for offset in piece], dtype=np.int64),
            )
            if fold.decides():
                return fold.finish(wanted.within(0, piece[-1] + 1))
        return fold.finish(wanted)


@given(rule=rules, steps=steps, offsets_max=st.integers(1, 60), batch_size=st.integers(1, 5))
def test_looks_come_to_what_brute_force_says(
    rule: LivenessRule, steps: list[Step], offsets_max: int, batch_size: int
) -> None:
    """However the log grows, is cut and read: no look is wrong, and looking on decides."""
    log, seen = Log(), Seen(TOPIC_ID)
    for step in steps:
        log.apply(step)
        facts = log.facts(rule, step.index_slack)
        proofs = log.proofs(rule)
        seen = seen.kept_for(facts)
        verdict: Verdict = judge(rule, facts, seen, now_ms=log.now_ms)
        for _ in range(2 + log.end // offsets_max):
            if not isinstance(verdict, Undecided):
                break
            for share in (near, partial(far, offsets_max=offsets_max)):
                wanted = share(facts, seen)
                assert wanted.count <= max(offsets_max, NEAR_OFFSETS)
                assert not wanted & seen.offsets, "read twice"
                assert wanted <= OffsetSet.of((log.start, log.end))
                seen = log.read(wanted, seen, rule, batch_size)
            verdict = judge(rule, facts, seen, now_ms=log.now_ms)
        match verdict:
            case Live(record):
                assert proofs[record.offset] == record.timestamp_ms
            case Undecided():
                pytest.fail("looking on did not decide")
            case _:
                assert not proofs
        idle_from_ms = rule.idle_from_ms
        may_be_idle = idle_from_ms is not None and log.now_ms >= idle_from_ms and not log.pending
        assert isinstance(verdict, Idle) == (not proofs and may_be_idle)
        assert isinstance(verdict, TransactionOpen) == (not proofs and log.pending > 0)


@given(offsets=offset_sets, seen=offset_sets, offsets_max=st.integers(1, 80))
def test_the_newest_offsets_are_read_next(
    offsets: OffsetSet, seen: OffsetSet, offsets_max: int
) -> None:
    """At most so many, and none that is unread lies behind them."""
    end = offsets.end if offsets else 0
    facts = LogFacts(TP, TOPIC_ID, 0, end, end, index_offset=0)
    already = Seen(TOPIC_ID, seen | (OffsetSet.of((0, end)) - offsets))
    expected = sorted(members(offsets) - members(seen))[-offsets_max:]
    assert sorted(members(far(facts, already, offsets_max=offsets_max))) == expected


def test_what_was_seen_counts_for_the_same_log_only() -> None:
    """A topic recreated, a log cut at its end, a proof that retention took: all is read again."""
    seen = Seen(TOPIC_ID, OffsetSet.of((5, 9)), 1, Stamp(5, 7))
    facts = LogFacts(TP, TOPIC_ID, 0, 9, 9, index_offset=5)
    assert seen.kept_for(facts) == seen
    for changed in (
        replace(facts, topic_id="another"),
        replace(facts, end_offset=8),
        replace(facts, log_start=6),
    ):
        assert seen.kept_for(changed) == Seen(changed.topic_id)
