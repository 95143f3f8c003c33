"""Facts about a group, its commits and its logs, read before its progress is moved."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Self, TypeAlias, TypeVar

from kafka_ordered_ops.core.cluster.cluster_facts import (
    CommittedOffset,
    CommittedOffsets,
    TopicFacts,
    partitions_of,
)
from kafka_ordered_ops.core.errors import TopicRecreatedError
from kafka_ordered_ops.core.group.checks import known_state
from kafka_ordered_ops.core.group.decisions.adoption import LogNow
from kafka_ordered_ops.core.group.decisions.truncation import KnownLogs, known_logs, seen_epochs
from kafka_ordered_ops.core.group.group_state import Change, GroupView
from kafka_ordered_ops.core.group.ledger_rules import commits_of_others
from kafka_ordered_ops.core.group.others import OthersCommit, others_commit, unknown_commit
from kafka_ordered_ops.core.group.transitions import Outcome
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.facts.log_spans import log_spans
from kafka_ordered_ops.kafka.facts.plan_facts import find_cuts
from kafka_ordered_ops.kafka.ports import LedgerDoor, LookupDoor
from kafka_ordered_ops.windows.checks import until_decided

_Summary = TypeVar("_Summary")


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A group in the ledger, with all its windows, and its logs as they were before the fence."""

    view: GroupView
    known: KnownLogs
    committed: CommittedOffsets
    #: The group's topics that still exist, their partitions, and the high watermarks.
    topics: Mapping[str, TopicFacts]
    logs: Mapping[TopicPartition, LogNow]
    log_ends: Mapping[TopicPartition, int]
    #: Partitions whose commits refer to a state that the ledger does not have, if these commits are not refused.
    unknown: Collection[TopicPartition] = ()

    @property
    def others(self) -> dict[TopicPartition, OthersCommit]:
        """The commits of other programs."""
        unknown = {
            tp: unknown_commit(commit, end=self.log_ends.get(tp))
            for tp in self.unknown
            if (commit := self.committed.get(tp)) is not None
        }
        return {**commits_of_others(self.committed, self.view.state, self.log_ends), **unknown}

    def inside(
        self,
        view: GroupView,
        committed: CommittedOffsets,
        unknown: Collection[TopicPartition],
    ) -> Self | None:
        """Return the facts with the values read inside the fence; None if the logs must be read again.

        The logs must have been read for the same state, and no offset may have been committed past their ends since.
        """
        then, now = known_state(self.view).topics, known_state(view).topics
        if known_logs(view) != self.known or any(
            now[name].topic_id != then[name].topic_id for name in now
        ):
            return None
        if any(
            commit is not None and commit != self.committed.get(tp) and not self._reach(tp, commit)
            for tp, commit in committed.items()
            if tp in self.logs
        ):
            return None
        return replace(self, view=view, committed=committed, unknown=unknown)

    def _reach(self, tp: TopicPartition, commit: CommittedOffset) -> bool:
        return (
            commit.offset <= self.logs[tp].end
            and others_commit(commit, where=str(tp)).end <= self.log_ends[tp]
        )


#: Returns a change, or None if there is nothing to change, and its summary. It may run several times.
Decide: TypeAlias = Callable[[GroupFacts], tuple[Change | None, _Summary]]


class GroupMover:
    """Move the progress of one group, other than by windows."""

    def __init__(
        self, group_id: str, lookup: LookupDoor, ledger: LedgerDoor, *, lookup_timeout_s: float
    ) -> None:
        self.group_id = group_id
        self.lookup = lookup
        self.ledger = ledger
        self.lookup_timeout_s = lookup_timeout_s

    def move(
        self,
        doing: str,
        decide: Decide[_Summary],
        *,
        dry_run: bool,
        takes_unknown: bool = False,
    ) -> _Summary:
        """Change the group's progress by a decision on its facts, and return the decision's summary.

        With `dry_run`, nothing is changed, and the group may have live members. With `takes_unknown`, commits about a
        state that the ledger does not have count as commits of other programs.

        Raises:
            UnknownWindowError: the ledger has no state of the group.
            LedgerLostError: a commit refers to a state that the ledger does not have.
            GroupInUseError: the group has live members.
            WindowFencedError: the group changed during each attempt.
        """
        if dry_run:
            self.lookup.check_kind(self.group_id)
            return decide(self.look(settle=False, takes_unknown=takes_unknown))[1]
        stored: list[_Summary] = []

        def attempt() -> _Summary | None:
            # 1. Before the fence: the group, its committed offsets, its logs. Usually there is nothing to change.
            facts = self.look(settle=True, takes_unknown=takes_unknown)
            self.lookup.check_no_members(self.group_id)
            change, summary = decide(facts)
            if change is None:
                return stored[-1] if stored else summary

            def inside(view: GroupView, committed: CommittedOffsets) -> Outcome:
                # 2. Inside: they must be unchanged.
                unknown = self._unknown(view, committed) if takes_unknown else ()
                now = facts.inside(view, committed, unknown)
                if now is None:
                    return None
                # 3. The change. If a change with an unknown outcome was stored, the next attempt finds nothing to change.
                change, summary = decide(now)
                if change is None:
                    return ()
                stored.append(summary)
                return change

            after = self.ledger.update(
                self.group_id, lambda: inside, everything=True, takes_unknown=takes_unknown
            )
            return None if after is None else stored[-1] if stored else summary

        return until_decided(attempt, f"group {self.group_id}: {doing}")

    def _unknown(self, view: GroupView, committed: CommittedOffsets) -> Collection[TopicPartition]:
        return self.ledger.unknown_commits(view, committed)

    def look(self, *, settle: bool, takes_unknown: bool = False) -> GroupFacts:
        """Read the group first, as older offsets may be restored, then its offsets, and the logs last."""
        view = self.ledger.read(self.group_id, everything=True, settle=settle)
        state, known = known_state(view), known_logs(view)
        topics = self.lookup.existing(state.topics)
        partitions = partitions_of(topics)
        committed = self.ledger.committed_offsets(
            self.group_id, partitions, timeout_s=self.lookup_timeout_s
        )
        same = {
            tp: log
            for tp, log in known.items()
            if tp.topic in topics and topics[tp.topic].topic_id == state.topics[tp.topic].topic_id
        }
        spans = log_spans(self.lookup, partitions, state.definition.isolation, seen_epochs(same))
        ends = {tp: span.log_end for tp, span in spans.items()}
        try:
            cuts = find_cuts(self.lookup, self.group_id, same, ends, topics)
        except TopicRecreatedError:
            # Since it was looked up: these are not the facts of one topic. Once for each topic at most, as from then on
            # it is not the one that the group knows.
            return self.look(settle=settle, takes_unknown=takes_unknown)
        logs = {
            tp: LogNow(
                topics[tp.topic].topic_id,
                span.start,
                span.end,
                cut=cuts.get(tp),
                leader_epoch=span.log_end.leader_epoch,
            )
            for tp, span in spans.items()
        }
        log_ends = {tp: end.offset for tp, end in ends.items()}
        unknown = self._unknown(view, committed) if takes_unknown else ()
        return GroupFacts(view, known, committed, topics, logs, log_ends, unknown)
