"""Continue a group on a cluster to which MirrorMaker 2 has copied its topics and commits."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np

from kafka_ordered_ops.core.arguments import as_names
from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffsets, partitions_of
from kafka_ordered_ops.core.cluster.names import check_topic_names
from kafka_ordered_ops.core.errors import CommittedOffsetMissingError
from kafka_ordered_ops.core.group.decisions import failing_over
from kafka_ordered_ops.core.group.decisions.adoption import LogNow
from kafka_ordered_ops.core.group.decisions.failing_over import FailOver, MirrorFacts, Starts
from kafka_ordered_ops.core.group.group_state import GroupView
from kafka_ordered_ops.core.group.ledger_rules import mirrored_maps, unknown_commits
from kafka_ordered_ops.core.group.transitions import Outcome
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.facts.log_spans import log_spans
from kafka_ordered_ops.kafka.facts.mirror_syncs import read_syncs
from kafka_ordered_ops.kafka.ports import open_reader
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.windows.checks import until_decided
from kafka_ordered_ops.windows.group_facts import GroupMover

_log = logging.getLogger("kafka_ordered_ops.windows")

#: The default: every topic except internal ones. Those without a mirrored commit are left out.
_ALL_TOPICS = ("^.*",)


class FailOvers:
    """Fail over one group."""

    def __init__(
        self, mover: GroupMover, settings: ClientSettings, *, stall_timeout_s: float
    ) -> None:
        self._group = mover.group_id
        self._lookup = mover.lookup
        self._ledger = mover.ledger
        self._lookup_timeout_s = mover.lookup_timeout_s
        self._settings = settings
        self._stall_timeout_s = stall_timeout_s

    def fail_over(
        self, topics: str | Sequence[str] | None, offset_syncs: str | None, *, dry_run: bool
    ) -> FailOver:
        """See `OrderedWindows.fail_over`."""
        names = _ALL_TOPICS if topics is None else as_names(topics, what="topics")
        if offset_syncs is not None:
            check_topic_names([offset_syncs])
        if dry_run:
            self._lookup.check_kind(self._group)
            return self._decided(self._look(names, offset_syncs, settle=False))[2]
        stored: list[FailOver] = []

        def attempt() -> FailOver | None:
            # 1. Before the fence: the group, its commits, the logs, and the times of the records that may come twice.
            facts = self._look(names, offset_syncs, settle=True)
            self._lookup.check_no_members(self._group)
            starts, early, summary = self._decided(facts)
            if not summary:
                # An attempt with an unknown outcome has written the commits.
                return stored[-1] if stored else summary

            def inside(view: GroupView, committed: CommittedOffsets) -> Outcome:
                # 2. Inside: they must be unchanged.
                if not facts.are_those_of(view, committed):
                    return None
                change, _ = failing_over.fail_over(facts, starts, early)
                stored.append(summary)
                return change

            after = self._ledger.update(
                self._group, lambda: inside, partitions=list(facts.committed), takes_unknown=True
            )
            return None if after is None else summary

        summary = until_decided(attempt, f"group {self._group}: a fail-over")
        if summary:
            _log.warning(
                "group %s: continues on this cluster; %d records may come twice",
                self._group,
                summary.may_repeat,
            )
        return summary

    def _look(self, names: Sequence[str], offset_syncs: str | None, *, settle: bool) -> MirrorFacts:
        """Read the group, its mirrored commits and the logs."""
        view = self._ledger.read(self._group, settle=settle)
        ledger_id = (self._ledger.ledger_id() or "").rpartition("/")[2] or None
        own = self._lookup.existing(view.state.topics if view.state else ())
        topics = {**self._lookup.selected(names), **own}
        committed = self._ledger.committed_offsets(
            self._group, partitions_of(topics), timeout_s=self._lookup_timeout_s
        )
        unknown = unknown_commits(view, committed, ledger_id=ledger_id)
        maps = mirrored_maps(unknown, topics, ledger_id=ledger_id)
        if not maps and view.state is None:
            raise CommittedOffsetMissingError(
                f"group {self._group} has no mirrored commit on this cluster: MirrorMaker 2 copies commits with "
                "sync.group.offsets.enabled=true. Without them, plan the first window with a time as starting_offsets from "
                "which nothing was delivered",
                partitions=[],
            )
        kept = {tp.topic for tp in maps} | own.keys()
        topics = {name: facts for name, facts in topics.items() if name in kept}
        partitions = partitions_of(topics)
        spans = log_spans(self._lookup, partitions, Isolation.READ_COMMITTED)
        logs = {
            tp: LogNow(
                topics[tp.topic].topic_id,
                span.start,
                span.end,
                leader_epoch=span.log_end.leader_epoch,
            )
            for tp, span in spans.items()
        }
        syncs = {}
        if offset_syncs is not None:
            syncs = read_syncs(self._settings, self._group, self._lookup, offset_syncs, list(maps))
        commits = {tp: committed[tp] for tp in partitions}
        return MirrorFacts(view, commits, topics, logs, maps, syncs)

    def _decided(
        self, facts: MirrorFacts
    ) -> tuple[Starts, Mapping[TopicPartition, OffsetSet], FailOver]:
        starts = failing_over.starts_of(facts)
        doubtful = {tp: start.doubtful for tp, start in starts.partitions.items() if start.doubtful}
        early = self._stamped_before(starts.delivered_before_ms, doubtful)
        return starts, early, failing_over.fail_over(facts, starts, early)[1]

    def _stamped_before(
        self, time_ms: int | None, offsets: Mapping[TopicPartition, OffsetSet]
    ) -> dict[TopicPartition, OffsetSet]:
        """Return the offsets of the records stamped before a time; None: of all records."""
        if not offsets:
            return {}
        found: dict[TopicPartition, list[tuple[int, int]]] = {tp: [] for tp in offsets}
        with open_reader(
            self._settings,
            self._group,
            Isolation.READ_COMMITTED,
            offsets,
            stall_timeout_s=self._stall_timeout_s,
        ) as reader:
            for batch in reader.timestamps():
                early = batch.offsets
                if time_ms is not None:
                    early = early[batch.timestamps_ms < time_ms]
                if early.size:
                    found[batch.tp] += OffsetSet.from_offsets(np.unique(early)).ranges
        return {
            tp: OffsetSet.from_ranges(ranges) if ranges else EMPTY_SET
            for tp, ranges in found.items()
        }
