"""Maintain a group: adopt changes of other programs, and prune old windows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from kafka_ordered_ops.core.arguments import as_span
from kafka_ordered_ops.core.cluster_facts import CommittedOffsets, TopicFacts
from kafka_ordered_ops.core.group import adoption
from kafka_ordered_ops.core.group.adoption import Adoption, LogNow
from kafka_ordered_ops.core.group.checks import known_state
from kafka_ordered_ops.core.group.group_state import Change, GroupView, WindowRecord
from kafka_ordered_ops.core.group.pruning import PRUNED_AT_ONCE_MAX, is_pruned, may_be_pruned, prune
from kafka_ordered_ops.core.group.transitions import Outcome
from kafka_ordered_ops.core.group.truncation import KnownLogs, known_logs, seen_epochs
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.facts.log_spans import log_spans
from kafka_ordered_ops.kafka.facts.plan_facts import find_cuts
from kafka_ordered_ops.kafka.facts.window_facts import partitions_of
from kafka_ordered_ops.kafka.ports import LedgerDoor, LookupDoor
from kafka_ordered_ops.windows.checks import commits_of_others, present, until_decided

_log = logging.getLogger("kafka_ordered_ops.windows")


@dataclass(frozen=True, slots=True)
class _Facts:
    """A group and its logs as they were before the fence."""

    view: GroupView
    known: KnownLogs
    committed: CommittedOffsets
    topics: Mapping[str, TopicFacts]
    logs: Mapping[TopicPartition, LogNow]

    def adopted(self) -> tuple[Change | None, Adoption]:
        """Return the change that adopts other programs' changes, and its summary."""
        others = commits_of_others(self.committed, self.view.state)
        return adoption.adopt(self.view, others, self.logs, self.topics)

    def are_about(self, view: GroupView, committed: CommittedOffsets) -> bool:
        """Return whether the logs were read for this very state, and no offset was committed beyond their ends since."""
        then, now = known_state(self.view).topics, known_state(view).topics
        return (
            known_logs(view) == self.known
            and all(now[name].topic_id == then[name].topic_id for name in now)
            and all(
                found is None
                or found == self.committed.get(tp)
                or found.offset <= self.logs[tp].end
                for tp, found in committed.items()
                if tp in self.logs
            )
        )


class Maintenance:
    """Adopts and prunes for one group."""

    def __init__(
        self,
        group_id: str,
        lookup: LookupDoor,
        ledger: LedgerDoor,
        *,
        lookup_timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._group = group_id
        self._lookup = lookup
        self._ledger = ledger
        self._lookup_timeout_s = lookup_timeout_s
        self._clock = clock

    def adopt(self, *, dry_run: bool) -> Adoption:
        """See `OrderedWindows.adopt`."""
        if dry_run:
            return self._look(settle=False).adopted()[1]
        adopted = Adoption()

        def attempt() -> GroupView | None:
            # 1. Before the fence: the group, its committed offsets, its logs. Usually there is nothing to adopt.
            facts = self._look(settle=True)
            self._lookup.check_no_members(self._group)
            if not facts.adopted()[1]:
                return facts.view

            def decide(view: GroupView, committed: CommittedOffsets) -> Outcome:
                nonlocal adopted
                # 2. Inside: they must be unchanged.
                if not facts.are_about(view, committed):
                    return None
                # 3. Other programs' changes become progress.
                change, found = replace(facts, view=view, committed=committed).adopted()
                # After a change with an unknown outcome, the next read finds nothing to do.
                adopted = found or adopted
                return () if change is None else change

            return self._ledger.update(self._group, lambda: decide, everything=True)

        until_decided(attempt, f"group {self._group}: an adoption")
        for one in adopted.moved:
            _log.warning(
                "group %s: adopted %s: %s, progress moved from %d to %d",
                self._group,
                one.tp,
                one.cause,
                one.base_before,
                one.base_after,
            )
        return adopted

    def prune(self, older_than: timedelta | str, *, forget: bool) -> list[str]:
        """See `OrderedWindows.prune`."""
        age = as_span(older_than, what="older_than")
        before_ms = int(self._clock() * 1000) - age // timedelta(milliseconds=1)
        old: dict[str, int] = {}

        def keep(record: WindowRecord) -> bool:
            # Of a hundred thousand windows no more is kept than this.
            if may_be_pruned(record, before_ms=before_ms, forget=forget):
                old[record.plan.window_id] = record.touched_at_ms
            return False

        self._ledger.read(self._group, keep=keep)
        names = sorted(old, key=lambda name: (old[name], name))
        pruned: list[str] = []
        for at in range(0, len(names), PRUNED_AT_ONCE_MAX):
            some = names[at : at + PRUNED_AT_ONCE_MAX]
            pruning = partial(_pruning, some, before_ms=before_ms, forget=forget)
            after = self._ledger.update(self._group, pruning, wanted=some)
            # Some may have been planned again since they were read.
            pruned += [name for name in some if is_pruned(present(after), name, forget=forget)]
        return pruned

    def _look(self, *, settle: bool) -> _Facts:
        """Read the group first (older offsets were restored), then the offsets (no log ends below them)."""
        view = self._ledger.read(self._group, everything=True, settle=settle)
        state, known = known_state(view), known_logs(view)
        topics = self._lookup.existing(state.topics)
        partitions = partitions_of(topics)
        committed = self._ledger.committed_offsets(
            self._group, partitions, timeout_s=self._lookup_timeout_s
        )
        same = {
            tp: one
            for tp, one in known.items()
            if tp.topic in topics and topics[tp.topic].topic_id == state.topics[tp.topic].topic_id
        }
        spans = log_spans(self._lookup, partitions, state.definition.isolation, seen_epochs(same))
        cuts = find_cuts(
            self._lookup, self._group, same, {tp: one.log_end for tp, one in spans.items()}
        )
        logs = {
            tp: LogNow(
                topics[tp.topic].topic_id,
                one.start,
                one.end,
                cut=cuts.get(tp),
                leader_epoch=one.log_end.leader_epoch,
            )
            for tp, one in spans.items()
        }
        return _Facts(view, known, committed, topics, logs)


def _pruning(
    names: list[str], *, before_ms: int, forget: bool
) -> Callable[[GroupView, CommittedOffsets], Outcome]:
    def decide(view: GroupView, _: CommittedOffsets) -> Outcome:
        change = prune(view, names, before_ms=before_ms, forget=forget)
        return () if change is None else change

    return decide
