"""What keeps a group in order over the years: adopting what others did to it, and pruning old windows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta

from kafka_ordered_ops.core.arguments import check_span
from kafka_ordered_ops.core.group import adoption
from kafka_ordered_ops.core.group.adoption import Adoption, LogNow
from kafka_ordered_ops.core.group.checks import known_state
from kafka_ordered_ops.core.group.group_state import GroupView, WindowRecord
from kafka_ordered_ops.core.group.pruning import PRUNED_AT_ONCE_MAX, is_pruned, may_be_pruned, prune
from kafka_ordered_ops.core.group.transitions import Outcome
from kafka_ordered_ops.core.group.truncation import known_logs, seen_epochs
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.facts.log_spans import log_spans
from kafka_ordered_ops.kafka.facts.window_facts import find_cuts, partitions_of
from kafka_ordered_ops.kafka.ports import LedgerDoor, LookupDoor
from kafka_ordered_ops.windows.checks import Committed, commits_of_others, present

_log = logging.getLogger("kafka_ordered_ops.windows")


class Keeper:
    """Adopts and prunes for one group."""

    def __init__(
        self,
        group: str,
        lookup: LookupDoor,
        ledger: LedgerDoor,
        *,
        lookup_timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._group = group
        self._lookup = lookup
        self._ledger = ledger
        self._lookup_timeout_s = lookup_timeout_s
        self._clock = clock

    def adopt(self, *, dry_run: bool) -> Adoption:
        """See `OrderedWindows.adopt`."""
        if dry_run:
            view = self._ledger.read(self._group, everything=True)
            logs = self._logs(view)
            # After the group: offsets that are older than it were put back.
            committed = self._ledger.committed_offsets(
                self._group, sorted(logs), timeout_s=self._lookup_timeout_s
            )
            return adoption.adopt(view, commits_of_others(committed, view.state), logs)[1]
        known_state(self._ledger.read(self._group))
        self._lookup.check_no_members(self._group)
        adopted = Adoption()

        def decide(view: GroupView, committed: Committed) -> Outcome:
            nonlocal adopted
            # The logs as of now: others may have come further since they were last looked at.
            logs = self._logs(view)
            others = commits_of_others(committed, view.state)
            change, found = adoption.adopt(view, others, logs)
            # A change that came through unheard leaves nothing to do on the next look.
            adopted = found or adopted
            return () if change is None else change

        self._ledger.update(self._group, decide, everything=True)
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

    def prune(self, older_than: timedelta, *, forget: bool) -> list[str]:
        """See `OrderedWindows.prune`."""
        check_span(older_than, what="older_than")
        before_ms = int(self._clock() * 1000) - older_than // timedelta(milliseconds=1)
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
            after = self._ledger.update(
                self._group, _pruning(some, before_ms=before_ms, forget=forget), wanted=some
            )
            # Some may have been planned again since they were looked at.
            pruned += [name for name in some if is_pruned(present(after), name, forget=forget)]
        return pruned

    def _logs(self, view: GroupView) -> dict[TopicPartition, LogNow]:
        state = known_state(view)
        topics = self._ledger.existing(state.topics)
        partitions = partitions_of(topics)
        known = {
            tp: one
            for tp, one in known_logs(view).items()
            if tp.topic in topics and topics[tp.topic].topic_id == state.topics[tp.topic].topic_id
        }
        spans = log_spans(self._lookup, partitions, state.definition.isolation, seen_epochs(known))
        ends = {tp: one.log_end for tp, one in spans.items()}
        cuts = find_cuts(self._lookup, self._group, known, ends)
        return {
            tp: LogNow(
                topics[tp.topic].topic_id,
                one.start,
                one.end,
                cut=cuts.get(tp),
                leader_epoch=one.log_end.leader_epoch,
            )
            for tp, one in spans.items()
        }


def _pruning(
    names: list[str], *, before_ms: int, forget: bool
) -> Callable[[GroupView, Committed], Outcome]:
    def decide(view: GroupView, _: Committed) -> Outcome:
        change = prune(view, names, before_ms=before_ms, forget=forget)
        return () if change is None else change

    return decide
