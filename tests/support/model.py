"""Logs and a group in memory, driven by the same decisions as on a real broker.

The model keeps what Kafka keeps: offsets with gaps, records that are not visible (markers, aborted ones)
whose timestamps the index counts all the same, a log start, and the group's view as the ledger would hold
it after each transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kafka_ordered_ops import Earliest, Policy, Window, WindowPlan
from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.cluster.cluster_facts import TopicFacts
from kafka_ordered_ops.core.group import transitions
from kafka_ordered_ops.core.group.decisions import claiming, splitting
from kafka_ordered_ops.core.group.decisions.adoption import Adoption, LogNow, adopt
from kafka_ordered_ops.core.group.decisions.claiming import ClaimWish, WindowWish
from kafka_ordered_ops.core.group.decisions.resetting import OffsetReset, reset
from kafka_ordered_ops.core.group.group_state import (
    GroupState,
    GroupView,
    PartitionState,
    TopicState,
    WindowRecord,
)
from kafka_ordered_ops.core.group.others import OthersCommit
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.planning.planning import (
    PartitionDecision,
    PartitionFacts,
    WindowsRequest,
    ask,
    draft,
    floor_ms,
    head_end,
    lookup_time_ms,
    resolve_start,
)
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.core.window.bounds import bound_of
from tests.support.out_of_order import checked_out_of_order


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
            offset: time for offset, time in self.ever(within).items() if offset >= self.log_start
        }

    def ever(self, within: OffsetSet) -> dict[int, int]:
        """The same with those that retention has removed."""
        return {
            offset: time
            for offset, (time, visible) in sorted(self.records.items())
            if visible and offset in within
        }

    def visible_below(self, end: int) -> dict[int, int]:
        """Offsets and timestamps of visible records below an offset."""
        return self.visible(OffsetSet.of((0, end)))


class ModelGroup:
    """A group over model logs, with its windows."""

    def __init__(self, logs: dict[TopicPartition, ModelLog]) -> None:
        self.logs = logs
        self.view = GroupView("group")
        self.scanned: list[tuple[TopicPartition, int]] = []

    def draft(
        self, *asked: tuple[str, Window], now_ms: int = 10**15, redefine: bool = False
    ) -> ClaimWish:
        """What `OrderedWindows` does outside the fence."""
        windows = [window for _, window in asked]
        newcomers: dict[str, dict[int, PartitionState]] = {}
        drafts: list[PartitionDecision] = []
        for tp, log in self.logs.items():
            known = self.view.state.partition(tp) if self.view.state else None
            if known is None:
                wanted = bound_of(windows[0].starting_offsets, tp.topic)
                bound = Earliest() if self.view.state or wanted is None else wanted
                origin = resolve_start(
                    bound, log_start=log.log_start, end=log.end, committed=None, index_offset=None
                )
                assert origin is not None
                known = PartitionState(origin, OffsetSet.of((0, origin)), None)
                newcomers.setdefault(tp.topic, {})[tp.partition] = known
            drafts.append(self._draft(tp, log, known, windows, now_ms))
        sequence = self.view.state.sequence if self.view.state else 0
        return ClaimWish(
            windows=[WindowWish(name, f"{name}-{sequence}", window) for name, window in asked],
            drafts=drafts,
            newcomers={
                name: TopicState(f"id of {name}", settled=False, partitions=partitions)
                for name, partitions in newcomers.items()
            },
            patterns=(),
            now_ms=0,
            looked_at=self.view.state,
            policy=Policy(redefine=redefine),
        )

    def _draft(
        self,
        tp: TopicPartition,
        log: ModelLog,
        known: PartitionState,
        windows: list[Window],
        now_ms: int,
    ) -> PartitionDecision:
        def head(time_ms: int) -> int:
            asked_ms = lookup_time_ms(time_ms)
            found = None if asked_ms is None else log.first_at_or_after(asked_ms)
            return head_end(time_ms, log_start=log.log_start, end=log.end, index_offset=found)

        claims = self.view.claims()
        question = ask(
            PartitionFacts(
                tp=tp,
                topic_id=f"id of {tp.topic}",
                log_start=log.log_start,
                end=log.end,
                high_watermark=log.end,
                floor=head(floor_ms(windows)),
                head_ends=tuple(head(window.cutoff_ms) for window in windows),
            ),
            WindowsRequest.of(windows, claims.late(tp, known.late).times),
            origin=known.origin,
            done=known.done,
            claimed=claims.offsets(tp),
            time_map=self.view.time_map(tp),
            now_ms=now_ms,
        )
        if not question.to_scan:
            return draft(question, None)
        fold = question.fold()
        records = log.visible(question.to_scan)
        self.scanned += [(tp, offset) for offset in records]
        # Batches as a broker might cut them: neither the fold nor the plan may depend on it.
        offsets = np.array(list(records), dtype=np.int64)
        times = np.array(list(records.values()), dtype=np.int64)
        for at in range(0, len(offsets), 3):
            fold.feed(offsets[at : at + 3], times[at : at + 3])
        return draft(question, fold.finish())

    def claim(self, wish: ClaimWish) -> list[WindowPlan] | None:
        """The fenced part of planning."""
        outcome = claiming.claim(self.view, wish)
        return None if outcome is None else [record.plan for record in self.apply(outcome)]

    def plan(self, window: Window, window_id: str) -> WindowPlan:
        """Drafts and claims at once."""
        return self.plan_many((window_id, window))[0]

    def plan_many(self, *asked: tuple[str, Window]) -> list[WindowPlan]:
        """Drafts and claims several windows in one pass."""
        plans = self.claim(self.draft(*asked))
        assert plans is not None, "nothing changed in between"
        return plans

    def commit(self, *plans: WindowPlan) -> list[WindowRecord]:
        """Commits in one transaction; nobody else uses the group."""
        return self.apply(transitions.commit(self.view, plans, now_ms=1, others={}, present={}))

    def abandon(self, window_id: str) -> None:
        """Gives a window's offsets free."""
        self.apply(transitions.abandon(self.view, window_id))

    def resume(self, plan: WindowPlan, window: Window) -> WindowPlan:
        """Takes up a window: what retention has removed of it is lost."""
        outcome = claiming.resume(
            self.view,
            looked_at=self.view.windows[plan.window_id],
            window=window,
            log_starts={tp: log.log_start for tp, log in self.logs.items()},
            unreadable={},
            now_ms=0,
        )
        return self.apply(outcome)[0].plan

    def split(self, plan: WindowPlan, count: int) -> None:
        """Splits a window, and all of its parts report."""
        self.apply(splitting.split(self.view, plan, count, now_ms=0))
        for part in splitting.shares(plan, count):
            self.apply(splitting.report(self.view, part, {}, now_ms=0))

    def move(self, others: dict[TopicPartition, int]) -> Adoption:
        """Somebody commits these offsets, and the group adopts them."""
        commits = {tp: OthersCommit(offset) for tp, offset in others.items()}
        change, adopted = adopt(self.view, commits, self._logs_now(), {})
        if change is not None:
            self.apply(change)
        return adopted

    def reset(self, wanted: dict[TopicPartition, int]) -> OffsetReset | None:
        """Sets the group's progress; None if it is there already."""
        present = {
            tp.topic: TopicFacts(tp.topic, f"id of {tp.topic}", tuple(range(len(self.logs))))
            for tp in wanted
        }
        change, told = reset(self.view, wanted, {}, self._logs_now(), present)
        if change is None:
            return None
        self.apply(change)
        return told

    def _logs_now(self) -> dict[TopicPartition, LogNow]:
        return {
            tp: LogNow(f"id of {tp.topic}", log.log_start, log.end) for tp, log in self.logs.items()
        }

    def apply(self, outcome: transitions.Outcome) -> list[WindowRecord]:
        """Writes a change as the ledger would: through its JSON and back."""
        assert outcome is not None
        if isinstance(outcome, WindowRecord):
            return [outcome]
        if isinstance(outcome, tuple):
            return list(outcome)
        state = GroupState.from_json(_through_json(outcome.state.to_json()))
        records = tuple(
            WindowRecord.from_json(_through_json(record.to_json())) for record in outcome.records
        )
        assert state == outcome.state
        assert records == outcome.records
        self.view = replace(outcome, state=state, records=records).applied_to(self.view)
        assert not self.view.disagreements()
        return list(records)

    def out_of_order(self, plan: WindowPlan) -> int | None:
        """How many out-of-order records a plan has, if it says so: checked against all records there are."""
        return checked_out_of_order(
            plan,
            {
                (tp.topic, tp.partition, offset): time
                for tp, log in self.logs.items()
                for offset, time in log.visible_below(log.end).items()
            },
        )

    def records(self, plan: WindowPlan) -> dict[tuple[TopicPartition, int], int]:
        """The visible records of a plan, with their timestamps."""
        return {
            (part.tp, offset): time
            for part in plan
            for offset, time in self.logs[part.tp].visible(part.taken).items()
        }

    def check_all_done(self, delivered: set[tuple[TopicPartition, int]]) -> None:
        """Every visible record was delivered, progress is at the ends, and nothing else is remembered."""
        assert delivered == {
            (tp, offset) for tp, log in self.logs.items() for offset in log.visible_below(log.end)
        }
        assert self.view.state is not None
        bases = {tp: one.base for tp, one in self.view.state}
        assert bases == {tp: log.end for tp, log in self.logs.items()}
        assert not any(self.view.time_maps.values()), "a time map outlives its records"


def _through_json(value: object) -> Any:
    return strict_json.loads(strict_json.dumps(value), limit_bytes=10**8)
