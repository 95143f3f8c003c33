"""Logs and a group in memory, driven by the same decisions as on a real broker.

The model keeps what Kafka keeps: offsets with gaps, records that are not visible (markers, aborted ones)
whose timestamps the index counts all the same, a log start, and the group's view as the ledger would hold
it after each transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from kafka_ordered_ops.core import decisions, strict_json
from kafka_ordered_ops.core.bounds import Earliest
from kafka_ordered_ops.core.decisions import ClaimWish
from kafka_ordered_ops.core.group_state import (
    Change,
    GroupState,
    GroupView,
    PartitionState,
    TopicState,
    WindowRecord,
)
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.plan import WindowPlan
from kafka_ordered_ops.core.planning import (
    PartitionDraft,
    PartitionFacts,
    ask,
    draft,
    head_end,
    lookup_time_ms,
    resolve_start,
)
from kafka_ordered_ops.core.strict_json import Fields
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.core.window import Window


@dataclass
class ModelLog:
    """One partition: (timestamp, visible) by offset; holes are offsets that are missing."""

    records: dict[int, tuple[int, bool]] = field(default_factory=dict)
    log_start: int = 0
    end: int = 0

    def append(self, timestamp_ms: int, *, visible: bool = True, hole: int = 0) -> int:
        """Writes a record behind `hole` missing offsets; its offset."""
        offset = self.end + hole
        self.records[offset] = (timestamp_ms, visible)
        self.end = offset + 1
        return offset

    def first_at_or_after(self, timestamp_ms: int) -> int | None:
        """The index's answer: it counts what is not visible."""
        hits = [
            offset
            for offset, (time, _) in self.records.items()
            if time >= timestamp_ms and offset >= self.log_start
        ]
        return min(hits, default=None)

    def visible(self, within: OffsetSet) -> dict[int, int]:
        """Offsets and timestamps of visible records that are still there."""
        return {
            offset: time
            for offset, (time, visible) in sorted(self.records.items())
            if visible and offset >= self.log_start and offset in within
        }


class ModelGroup:
    """A group over model logs, with its windows."""

    def __init__(self, logs: dict[TopicPartition, ModelLog]) -> None:
        self.logs = logs
        self.view = GroupView("group")
        self.scanned: list[tuple[TopicPartition, int]] = []

    def draft(self, window: Window, window_id: str, *, now_ms: int = 10**15) -> ClaimWish:
        """What `OrderedWindows` does outside the fence."""
        newcomers: dict[str, dict[int, PartitionState]] = {}
        drafts: list[PartitionDraft] = []
        for tp, log in self.logs.items():
            known = self.view.state.partition(tp) if self.view.state else None
            if known is None:
                bound = Earliest() if self.view.state or window.start is None else window.start
                origin = resolve_start(
                    bound, log_start=log.log_start, end=log.end, committed=None, found=None
                )
                assert origin is not None
                known = PartitionState(origin, OffsetSet.of((0, origin)), None)
                newcomers.setdefault(tp.topic, {})[tp.partition] = known
            drafts.append(self._draft(tp, log, known, window, now_ms))
        return ClaimWish(
            window_id=window_id,
            claim_id=f"{window_id}-{self.view.state.sequence if self.view.state else 0}",
            window=window,
            drafts=drafts,
            newcomers={
                name: TopicState(f"id of {name}", settled=False, partitions=partitions)
                for name, partitions in newcomers.items()
            },
            patterns=(),
            now_ms=0,
        )

    def _draft(
        self, tp: TopicPartition, log: ModelLog, known: PartitionState, window: Window, now_ms: int
    ) -> PartitionDraft:
        time_ms = lookup_time_ms(window.cutoff_ms)
        found = None if time_ms is None else log.first_at_or_after(time_ms)
        facts = PartitionFacts(
            tp=tp,
            topic_id=f"id of {tp.topic}",
            log_start=log.log_start,
            end=log.end,
            head_end=head_end(window.cutoff_ms, log_start=log.log_start, end=log.end, found=found),
        )
        question = ask(
            facts,
            done=known.done,
            claimed=self.view.claims().offsets(tp),
            time_map=self.view.time_map(tp),
            cutoff_ms=window.cutoff_ms,
            lateness_ms=window.lateness_ms,
            now_ms=now_ms,
        )
        if not question.to_scan:
            return draft(question, None)
        fold = question.fold(window.cutoff_ms)
        records = log.visible(question.to_scan)
        self.scanned += [(tp, offset) for offset in records]
        # Batches as a broker might cut them: neither the fold nor the plan may depend on it.
        offsets = np.array(list(records), dtype=np.int64)
        times = np.array(list(records.values()), dtype=np.int64)
        for at in range(0, len(offsets), 3):
            fold.feed(offsets[at : at + 3], times[at : at + 3])
        return draft(question, fold.finish())

    def claim(self, wish: ClaimWish) -> WindowPlan | None:
        """The fenced part of planning."""
        outcome = decisions.claim(self.view, wish)
        return None if outcome is None else self.apply(outcome).plan

    def plan(self, window: Window, window_id: str) -> WindowPlan:
        """Drafts and claims at once."""
        plan = self.claim(self.draft(window, window_id))
        assert plan is not None, "nothing changed in between"
        return plan

    def commit(self, plan: WindowPlan) -> WindowRecord:
        """Commits; nobody else uses the group."""
        return self.apply(decisions.commit(self.view, plan, now_ms=1, others={}))

    def abandon(self, window_id: str) -> WindowRecord:
        """Gives a window's offsets free."""
        return self.apply(decisions.abandon(self.view, window_id))

    def apply(self, outcome: Change | WindowRecord) -> WindowRecord:
        """Writes a change as the ledger would: through its JSON and back."""
        if isinstance(outcome, WindowRecord):
            return outcome
        state = GroupState.from_json(_through_json(outcome.state.to_json(), "state"))
        record = WindowRecord.from_json(_through_json(outcome.record.to_json(), "window"))
        assert state == outcome.state
        assert record == outcome.record
        self.view = replace(outcome, state=state, record=record).applied_to(self.view)
        self.view.check()
        return record

    def records(self, plan: WindowPlan) -> dict[tuple[TopicPartition, int], int]:
        """The visible records of a plan, with their timestamps."""
        return {
            (part.tp, offset): time
            for part in plan
            for offset, time in self.logs[part.tp].visible(part.taken).items()
        }


def _through_json(value: object, where: str) -> Fields:
    return Fields(strict_json.loads(strict_json.dumps(value), limit_bytes=10**8), where)
