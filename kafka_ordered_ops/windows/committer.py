"""Commit windows: read facts from the cluster before the fence, decide inside it, and store all or nothing.

A plan goes through three states, with one transaction each: its output is written, its offsets are committed, its
output is published. If the output is known at the commit, one transaction does the first two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffsets, check_group_empty
from kafka_ordered_ops.core.errors import ForeignCommitError, KafkaOrderedOpsError
from kafka_ordered_ops.core.group import transitions
from kafka_ordered_ops.core.group.checks import known_window
from kafka_ordered_ops.core.group.decisions import splitting
from kafka_ordered_ops.core.group.group_state import Change, GroupView, WindowRecord
from kafka_ordered_ops.core.group.ledger_rules import Decision, Prepare, commits_of_others
from kafka_ordered_ops.core.group.transitions import Outcome, in_turn
from kafka_ordered_ops.core.group.unreadable import stand_in
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.kafka.client.calls import outside
from kafka_ordered_ops.kafka.facts.plan_facts import PlanFacts
from kafka_ordered_ops.kafka.ledger.queue import COMMITTING
from kafka_ordered_ops.kafka.ports import LedgerDoor, LookupDoor
from kafka_ordered_ops.windows.checks import (
    Accept,
    check_claims,
    check_committable,
    check_plans,
    check_processed,
    kept_result,
    present,
    until_decided,
)
from kafka_ordered_ops.windows.sink import Staged, check_outputs, check_results, publish_each
from kafka_ordered_ops.windows.values.dead_letters import CommitLetters, ReadLetters, check_reported

#: A decision about one window.
_Step = Callable[[GroupView], Outcome]


@dataclass(frozen=True, slots=True)
class _Facts:
    """The cluster's answers before the fence."""

    plans: PlanFacts
    members: Sequence[str]


class Committer:
    """Commit windows of one group; the part of the service that moves its progress."""

    def __init__(
        self,
        group_id: str,
        lookup: LookupDoor,
        ledger: LedgerDoor,
        *,
        read_letters: ReadLetters,
        clock: Callable[[], float],
    ) -> None:
        self._group = group_id
        self._lookup = lookup
        self._ledger = ledger
        self._read_letters = read_letters
        self._clock = clock
        #: The group's topics at the last commit: each commit repeats the offsets of all of them.
        self._topics: frozenset[str] = frozenset()

    def mark_processed(self, plan: WindowPlan, done: Mapping[TopicPartition, OffsetSet]) -> None:
        """See `OrderedWindows.mark_processed`."""
        check_claims(self._group, plan)
        check_processed(plan, done)
        if plan.status.is_done:
            return
        now_ms = self._now_ms()
        self._change(
            [plan],
            lambda view, _: transitions.mark_processed(view, plan, done, now_ms=now_ms),
            processed=[plan.window_id],
        )

    def mark_written(
        self, plans: Sequence[WindowPlan], results: Sequence[Mapping[str, Any]]
    ) -> list[WindowPlan]:
        """See `OrderedWindows.mark_written_many`."""
        self._check(plans)
        check_results(plans, results)
        steps = self._writing(plans, results)
        if not steps:
            return list(plans)
        return _plans(self._change(plans, lambda view, _: in_turn(view, steps)))

    def commit(
        self,
        plans: Sequence[WindowPlan],
        staged: Sequence[Staged] | None,
        accept: Accept,
    ) -> list[WindowPlan]:
        """Commit windows and their staged outputs in one transaction; see `OrderedWindows.commit_many`.

        `accept` adopts other programs' commits as the group's progress, or raises the error about them.
        """
        # 1. The outputs must belong to these plans, and be complete.
        self._check(plans)
        steps: list[_Step] = []
        if staged is not None:
            check_outputs(plans, staged, partial(self._ledger.read, self._group))
            steps = self._writing(plans, [dict(output.to_json()) for output in staged])
        # 2. Record windows as written and committed, all or nothing. If the commit is refused, only as written.
        try:
            return self._committed(plans, steps)
        except ForeignCommitError as error:
            # 3. Adopt offsets that another program committed, and commit the windows after them.
            accept(error, any(plan.adopts_commits for plan in plans))
        return self._committed(plans, steps)

    def _committed(self, plans: Sequence[WindowPlan], steps: Sequence[_Step]) -> list[WindowPlan]:
        now_ms = self._now_ms()
        # A committed window stays committed, whatever happened to its topics since: it needs no facts.
        asks = any(plan.status.is_open for plan in plans)
        refusal: KafkaOrderedOpsError | None = None
        letters = CommitLetters(plans, self._read_letters)

        def prepare() -> Decision:
            # 2a. Before the fence: topics, logs and members, and records that become dead letters.
            letters.prepare()
            return partial(decide, facts=self._look(plans) if asks else None)

        def decide(view: GroupView, committed: CommittedOffsets, facts: _Facts | None) -> Outcome:
            nonlocal asks, refusal
            asks, refusal = True, None
            others = commits_of_others(committed, view.state)

            def commit(view: GroupView) -> Outcome:
                # 2c. Then the offsets become part of the progress.
                topics = facts.plans.topics if facts else {}
                outcome = transitions.commit(
                    view,
                    plans,
                    now_ms=now_ms,
                    others=others,
                    present=topics,
                    # Only outputs that were passed are recorded here, and then published.
                    publishes=bool(steps),
                )
                return self._checked(outcome, plans, facts)

            # 2b. Inside it: the outputs are recorded.
            written = in_turn(view, steps)
            try:
                outcome = in_turn(view, [*steps, commit])
                return letters.with_records(outcome) if isinstance(outcome, Change) else outcome
            except KafkaOrderedOpsError as error:
                if not isinstance(written, Change):
                    raise
                # 2d. Refused: record the outputs, so that the next attempt does not run the job again.
                refusal = error
                return written

        records = until_decided(lambda: self._try(plans, prepare), f"group {self._group}: a commit")
        if refusal is not None:
            raise refusal
        return _plans(records)

    def _look(self, plans: Sequence[WindowPlan]) -> _Facts:
        return _Facts(
            PlanFacts.ask(self._lookup, self._group, plans, self._topics),
            self._lookup.group_members(self._group),
        )

    def _checked(
        self, outcome: Outcome, plans: Sequence[WindowPlan], facts: _Facts | None
    ) -> Outcome:
        """Return a commit, checked against the cluster's answers; None if the answers do not cover all of its topics."""
        if not isinstance(outcome, Change):
            return outcome
        self._topics = frozenset(outcome.state.topics)
        if facts is None or not facts.plans.requested >= self._topics:
            return None
        facts.plans.check(plans)
        check_group_empty(self._group, facts.members)
        return outcome

    def publish(self, plans: Sequence[WindowPlan], staged: Sequence[Staged]) -> list[WindowPlan]:
        """See `OrderedWindows.publish_many`."""
        # 1. The windows must be committed: checked before anything becomes visible, and again inside the fence.
        check_plans(plans)
        check_outputs(plans, staged)
        view = self._ledger.read(self._group, [plan.window_id for plan in plans])
        for plan in plans:
            check_committable(self._group, plan)
            transitions.publishable(view, plan)
        # 2. The outputs become visible.
        with outside():
            publish_each(staged)
        # 3. The windows are recorded as published.
        steps = [
            partial(transitions.publish, plan=plan, result=kept_result(plan, output.to_json()))
            for plan, output in zip(plans, staged, strict=True)
        ]
        return _plans(self._change(plans, lambda view, _: in_turn(view, steps)))

    def split(self, plan: WindowPlan, count: int) -> tuple[WindowPlan, ...]:
        """See `OrderedWindows.split`."""
        check_committable(self._group, plan)
        plan.window.check_no_dead_letters("a job on a part of a window")
        parts = splitting.shares(plan, count)
        now_ms = self._now_ms()
        self._change([plan], lambda view, _: splitting.split(view, plan, count, now_ms=now_ms))
        return parts

    def report(self, part: WindowPlan, result: Mapping[str, Any]) -> WindowRecord:
        """See `OrderedWindows.report`."""
        stored, now_ms = kept_result(part, result), self._now_ms()
        [record] = self._change(
            [part], lambda view, _: splitting.report(view, part, stored, now_ms=now_ms)
        )
        return record

    def abandon(self, window_id: str, owner: WindowPlan | None) -> WindowRecord:
        """See `OrderedWindows.abandon`; with `owner`, only if that attempt may still commit the window."""
        removed: WindowRecord | None = None

        def decide(view: GroupView, _: CommittedOffsets) -> Outcome:
            nonlocal removed
            if owner is None and window_id in view.unreadable:
                removed = stand_in(view, window_id)
            elif removed is not None and window_id not in view.windows:
                # An earlier attempt of this change, with an unknown outcome, removed the window.
                return ()
            else:
                removed = None
            return transitions.abandon(view, window_id, owner=owner)

        after = self._ledger.update(
            self._group, lambda: decide, wanted=[window_id], pace=COMMITTING
        )
        return removed or known_window(present(after), window_id)

    # --- internals -------------------------------------------------------------------------------

    def _check(self, plans: Sequence[WindowPlan]) -> None:
        check_plans(plans)
        for plan in plans:
            check_committable(self._group, plan)

    def _writing(
        self, plans: Sequence[WindowPlan], results: Sequence[Mapping[str, Any]]
    ) -> list[_Step]:
        """Return the decisions that record the results of open windows; other windows stay unchanged."""
        now_ms = self._now_ms()
        return [
            partial(_mark_written, plan=plan, result=kept_result(plan, result), now_ms=now_ms)
            for plan, result in zip(plans, results, strict=True)
            if plan.status.is_open
        ]

    def _change(
        self, plans: Sequence[WindowPlan], decide: Decision, *, processed: Sequence[str] = ()
    ) -> list[WindowRecord]:
        """Return the windows' records after a decision that always finds or creates them."""
        return present(self._try(plans, lambda: decide, processed))

    def _try(
        self, plans: Sequence[WindowPlan], prepare: Prepare, processed: Sequence[str] = ()
    ) -> list[WindowRecord] | None:
        names = [plan.window_id for plan in plans]
        after = self._ledger.update(
            self._group,
            prepare,
            wanted=names,
            processed=processed,
            # The offsets distinguish a lost ledger from one that never existed.
            partitions=[part.tp for plan in plans for part in plan],
            pace=COMMITTING,
        )
        return None if after is None else [known_window(after, name) for name in names]

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


def _mark_written(
    view: GroupView, *, plan: WindowPlan, result: Mapping[str, Any], now_ms: int
) -> Outcome:
    known = view.windows.get(plan.window_id)
    if known is None or known.result != result:
        check_reported(plan, result)
    return transitions.mark_written(view, plan, result, now_ms=now_ms)


def _plans(records: Sequence[WindowRecord]) -> list[WindowPlan]:
    return [record.plan for record in records]
