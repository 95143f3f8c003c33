"""What is read, and where its progress goes: a group's partitions. `plan_source` has the same for a plan."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from kafka_ordered_ops.core.cluster_facts import CommittedOffset
from kafka_ordered_ops.core.errors import KafkaOrderedOpsError, TopicRecreatedError, invariant
from kafka_ordered_ops.core.membership import check_not_of_windows
from kafka_ordered_ops.core.offset_map.fitting import fitted_map, is_nearly_full
from kafka_ordered_ops.core.offset_map.reading import DecodePolicy, read_committed_progress
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.processing.outputs import Pending
from kafka_ordered_ops.core.processing.progress import Progress, Snapshot
from kafka_ordered_ops.core.types import INT64_MAX, GroupProtocol, Isolation, TopicPartition
from kafka_ordered_ops.core.window.bounds import Bound
from kafka_ordered_ops.kafka.lookup import TIMEOUT_S
from kafka_ordered_ops.kafka.ports import (
    LookupDoor,
    MembershipDoor,
    open_lookup,
    open_member,
    open_transactions,
)
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.ordered.commits import commit_after_rebalance
from kafka_ordered_ops.ordered.starts import starts_of_new
from kafka_ordered_ops.processing.transactions import GroupTransactions
from kafka_ordered_ops.processing.work_queue import WorkQueue

#: Between two commits of what is done.
COMMIT_INTERVAL_S: Final = 1.0
#: Not longer: while a group rebalances, a commit waits for its answer, and nothing is read.
_COMMIT_TIMEOUT_S: Final = 5.0
#: For the question before a commit whether its topics are still the same.
_LOOK_TIMEOUT_S: Final = 2.0
#: How long partitions that are given up wait for their records in flight, which their next owner would process again.
#: All members wait for it.
REVOKE_WAIT_S: Final = 3.0
#: Between two attempts to begin new partitions while the cluster is away.
_BEGIN_AGAIN_S: Final = 0.5
#: How often the sizes of offset maps are looked at.
_LOOK_EVERY_S: Final = 0.1

_log = logging.getLogger(__name__)


class Share(NamedTuple):
    """A partition to read."""

    progress: Progress
    wanted: OffsetSet


class Changes(NamedTuple):
    """Partitions that are read no more, then those to read from now on, then those that are held back or no longer."""

    lost: frozenset[TopicPartition]
    gained: Mapping[TopicPartition, Share]
    #: The offset from which on no record is to be begun; None: no limit any more.
    limits: Mapping[TopicPartition, int | None]


class Source(Protocol):
    """What is read."""

    group_id: str
    isolation: Isolation
    #: Their names.
    topics: Collection[str]
    #: Their ids, once it is open.
    topic_ids: Mapping[str, str]
    #: Whether it has no end.
    is_endless: bool
    #: Called after each commit with the seconds that it took.
    on_commit: Callable[[float], None] | None

    def open(self, stack: ExitStack, queue: WorkQueue) -> Mapping[TopicPartition, Share]:
        """Return what to read first; the queue knows what is done."""

    def poll(self) -> Changes | None:
        """Return what changed since the last call."""

    def commit_if_due(self) -> None:
        """Keep what is done."""

    def commit_at_end(self, timeout_s: float) -> None:
        """Keep what is done, for the last time; wait for so long, at most, for others that hold it up."""

    def report(self) -> None:
        """Report the progress to whoever asked for it; called several times a second, and at the end."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member of a group is to process; see `Processor.subscribe` for the meaning of each."""

    group_id: str
    topics: Sequence[str]
    starting_offsets: Bound
    isolation: Isolation
    on_invalid_metadata: DecodePolicy
    commit_interval_s: float
    session_timeout_s: float
    protocol: GroupProtocol
    produce: bool = False


class _Commit(NamedTuple):
    """What is to be committed of a partition."""

    committed: CommittedOffset
    #: Done offsets from here on are not in it: its map has no room for them.
    below: int


class GroupSource:
    """The partitions that a group assigns to this member; what is done is committed with its offset map.

    If records produce, each commit is a transaction with the outputs of the records that it counts as done.
    """

    is_endless = True

    def __init__(
        self,
        settings: ClientSettings,
        asked: Subscription,
        *,
        revoke_wait_s: float = REVOKE_WAIT_S,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.group_id = asked.group_id
        self.isolation = asked.isolation
        self.topics: Collection[str] = asked.topics
        self._settings = settings
        self._asked = asked
        self._revoke_wait_s = revoke_wait_s
        self._timeout_s = timeout_s
        self._member: MembershipDoor
        self._queue: WorkQueue
        #: None: records write nothing.
        self._transactions: GroupTransactions | None = None
        self._last_failed = False
        #: Those that existed when it began: later ones are read whole.
        self._at_open: frozenset[TopicPartition]
        #: Assigned, and not begun.
        self._new: set[TopicPartition] = set()
        self._committed: dict[TopicPartition, CommittedOffset] = {}
        self._limits: dict[TopicPartition, int] = {}
        #: Partitions whose maps did not fit, as the log has it.
        self._reported: set[TopicPartition] = set()
        #: Asked before each commit whether its topics are still the same.
        self._lookup: LookupDoor
        self.topic_ids: Mapping[str, str]
        self._due_at = self._begin_at = self._look_at = time.monotonic()
        self.on_commit: Callable[[float], None] | None = None

    def open(self, stack: ExitStack, queue: WorkQueue) -> Mapping[TopicPartition, Share]:
        """Join the group; what it assigns comes from `poll`."""
        asked, self._queue = self._asked, queue
        with open_lookup(self._settings, timeout_s=self._timeout_s) as lookup:
            topics = lookup.topics(asked.topics)
        self.topic_ids = {name: facts.topic_id for name, facts in topics.items()}
        self._lookup = stack.enter_context(open_lookup(self._settings, timeout_s=_LOOK_TIMEOUT_S))
        self._at_open = frozenset(
            TopicPartition(name, number) for name in topics for number in topics[name].partitions
        )
        self._member = stack.enter_context(
            open_member(
                self._settings,
                self.group_id,
                asked.topics,
                on_revoke=self._revoked,
                timeout_s=self._timeout_s,
                session_timeout_s=asked.session_timeout_s,
                protocol=asked.protocol,
                keeps_maps=True,
            )
        )
        if asked.produce:
            door = stack.enter_context(open_transactions(self._settings, self._member))
            self._transactions = GroupTransactions(door, queue)
        return {}

    # --- the group -----------------------------------------------------------------------------------

    def poll(self) -> Changes | None:
        """Take part in the group, begin what it gives, and look at the sizes of offset maps."""
        change = self._member.poll()
        lost: frozenset[TopicPartition] = frozenset()
        if change is not None:
            lost = change.lost
            self._forget_lost(lost)
            self._new |= change.gained
        gained = self._begin_new()
        # A partition that is begun by this answer is limited by the next one at the earliest.
        limits = {} if lost or gained else self._changed_limits()
        return Changes(lost, gained, limits) if lost or gained or limits else None

    def _begin_new(self) -> dict[TopicPartition, Share]:
        """Return where new partitions begin; nothing while the cluster is away."""
        new = sorted(self._new)
        if not new or time.monotonic() < self._begin_at:
            return {}
        try:
            found = self._shares(new)
        except KafkaOrderedOpsError as error:
            if not error.retriable:
                raise
            _log.info("partitions of group %s are begun later: %s", self.group_id, error)
            self._begin_at = time.monotonic() + _BEGIN_AGAIN_S
            return {}
        self._new.clear()
        # Starts that were looked up are committed at once: the next owner would look up others.
        self._due_at = time.monotonic()
        return found

    def _shares(self, partitions: list[TopicPartition]) -> dict[TopicPartition, Share]:
        asked = self._asked
        committed = self._member.committed(partitions)
        check_not_of_windows(self.group_id, committed, keeps_maps=True)
        with open_lookup(self._settings, timeout_s=self._timeout_s) as lookup:
            starts = starts_of_new(
                lookup,
                partitions,
                self._at_open,
                lambda _: asked.starting_offsets,
                self.isolation,
                now_ms=int(time.time() * 1_000),
                committed=committed,
            )
            mine = {tp: one for tp, one in committed.items() if one is not None}
            done = self._done_before(lookup, mine)
        self._committed |= mine
        found = {}
        for tp, (start, _) in starts.items():
            before = done.get(tp, EMPTY_SET)
            wanted = OffsetSet.of((start, INT64_MAX)) - before
            found[tp] = Share(Progress(start, before), wanted)
        return found

    def _done_before(
        self, lookup: LookupDoor, committed: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[TopicPartition, OffsetSet]:
        """Return the done offsets above the committed ones; raise `OffsetMapDecodeError`."""
        mapped = {tp: one for tp, one in committed.items() if one.metadata}
        # Whoever wrote the map may have read further than this isolation level allows.
        ends = lookup.end_offsets(list(mapped), Isolation.READ_UNCOMMITTED) if mapped else {}
        done = {}
        for tp, one in mapped.items():
            found = read_committed_progress(
                one.offset,
                one.metadata,
                end=ends[tp],
                policy=self._asked.on_invalid_metadata,
                where=f"group {self.group_id}, {tp}",
            )
            if found.problem is not None:
                _log.warning(
                    "group %s, %s: records above offset %d may be processed again: %s",
                    *(self.group_id, tp, one.offset, found.problem),
                )
            done[tp] = found.done or EMPTY_SET
        return done

    def _revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Commit what is done of partitions that are given up, after a short wait for what is in flight."""
        self._queue.settle(partitions, self._revoke_wait_s)
        try:
            self._commit(partitions)
        except KafkaOrderedOpsError as error:
            if not error.retriable:
                raise
            _log.warning("what is done of partitions that are given up is not committed: %s", error)
        finally:
            # What is still in flight belongs to their next owner.
            self._forget_lost(partitions)

    def _forget_lost(self, partitions: frozenset[TopicPartition]) -> None:
        for tp in partitions:
            # Now, so that nothing of it is committed if this member gets it again.
            self._queue.drop(tp)
            if self._transactions is not None:
                self._transactions.forget(tp)
            self._new.discard(tp)
            self._reported.discard(tp)
            self._committed.pop(tp, None)
            self._limits.pop(tp, None)

    # --- progress ------------------------------------------------------------------------------------

    def commit_if_due(self) -> None:
        """Commit if the time has come; a refusal or a missing answer waits for the next time."""
        began = time.monotonic()
        # After a failure, full or not: the cluster may be away.
        is_full = not self._last_failed and self._queue.is_full_of_outputs
        if began < self._due_at and not is_full:
            return
        self._last_failed = True
        try:
            self._commit()
            self._last_failed = False
        except KafkaOrderedOpsError as error:
            if not error.retriable:
                raise
            _log.info("the commit is tried again: %s", error)
        # While the group rebalances, at most half of the time is spent on waiting for answers.
        now = time.monotonic()
        self._due_at = now + max(self._asked.commit_interval_s, now - began)

    def commit_at_end(self, timeout_s: float) -> None:
        """Commit for the last time, after a group that rebalances."""
        try:
            commit_after_rebalance(
                self._member, self._commit, self._forget_lost, timeout_s=timeout_s
            )
        except KafkaOrderedOpsError as error:
            if not error.retriable:
                raise
            _log.warning(
                "the last commit failed, and its records will be processed again: %s", error
            )

    def report(self) -> None:
        """Do nothing: a group has no end that it could be on its way to."""

    def _commit(self, only: frozenset[TopicPartition] | None = None) -> None:
        """Commit what is done of all partitions, or of some."""
        if self._transactions is not None:
            # First: what an earlier transaction has stored is not to be written again.
            self._committed |= self._transactions.settle()
        snapshots, outputs = self._queue.snapshots_with_outputs()
        mine = self._member.assignment - self._new
        wanted = mine if only is None else mine & only
        commits = {tp: self._commit_of(tp, one) for tp, one in snapshots.items() if tp in wanted}
        moved = {
            tp: one.committed
            for tp, one in commits.items()
            if self._committed.get(tp) != one.committed
        }
        # Outputs of records that the maps have no room for wait: they would be written again after a crash.
        fitting = {
            tp: some for tp, one in commits.items() if (some := _below(one.below, outputs.get(tp)))
        }
        invariant(fitting.keys() <= moved.keys(), "outputs are of records that are not committed")
        if not moved:
            return
        began = time.monotonic()
        self._check_same_topics({tp.topic for tp in moved})
        if self._transactions is None:
            self._member.commit(moved, timeout_s=_COMMIT_TIMEOUT_S)
        else:
            self._transactions.commit(moved, fitting)
        self._committed |= moved
        if self.on_commit is not None:
            self.on_commit(time.monotonic() - began)

    def _check_same_topics(self, names: Collection[str]) -> None:
        """Raise `TopicRecreatedError` for a new topic, whose first records would be skipped for ever."""
        for name, facts in self._lookup.topics(names).items():
            if facts.topic_id != (known := self.topic_ids[name]):
                raise TopicRecreatedError(
                    f"group {self.group_id}: topic {name} was deleted and created again while it was processed, and its "
                    "offsets start over. Nothing of it is committed. Subscribe again",
                    topic=name,
                    expected_id=known,
                    found_id=facts.topic_id,
                )

    def _commit_of(self, tp: TopicPartition, snapshot: Snapshot) -> _Commit:
        metadata, left_out = fitted_map(snapshot.base, snapshot.beyond)
        if left_out:
            kept = self._committed_beyond(tp, snapshot)
            metadata, left_out = fitted_map(snapshot.base, snapshot.beyond, kept=kept)
        if left_out and tp not in self._reported:
            self._reported.add(tp)
            _log.warning(
                "group %s, %s: the offset map beyond offset %d has %d done ranges, and the highest %d do not fit into "
                "the commit's metadata. After a crash, their records would be processed again. Find out which "
                "records below them take so long",
                *(self.group_id, tp, snapshot.base, len(snapshot.beyond), left_out),
            )
        below = INT64_MAX
        if left_out:
            lowest = snapshot.beyond.ranges[:-left_out]
            below = lowest[-1][1] if lowest else snapshot.base
        return _Commit(CommittedOffset(snapshot.base, metadata), below)

    def _committed_beyond(self, tp: TopicPartition, snapshot: Snapshot) -> OffsetSet:
        """Return the done offsets above the base that the last commit has: their outputs are written."""
        before = self._committed.get(tp)
        if before is None:
            return EMPTY_SET
        found = read_committed_progress(
            before.offset,
            before.metadata,
            end=None,
            policy=DecodePolicy.IGNORE,
            where=f"group {self.group_id}, {tp}",
        )
        return (found.done or EMPTY_SET) & snapshot.beyond

    def _changed_limits(self) -> dict[TopicPartition, int | None]:
        """Return the partitions whose maps have become nearly full, or are so no longer."""
        if (now := time.monotonic()) < self._look_at:
            return {}
        self._look_at = now + _LOOK_EVERY_S
        changed: dict[TopicPartition, int | None] = {}
        for tp, one in self._queue.snapshots().items():
            before = self._limits.get(tp)
            if is_nearly_full(one.base, one.beyond, was_full=before is not None):
                # Records below the highest done one make the map smaller, or at least not larger.
                below = self._limits[tp] = one.beyond.end
                if below != before:
                    changed[tp] = below
            elif before is not None:
                del self._limits[tp]
                changed[tp] = None
        return changed


def _below(offset: int, outputs: Pending | None) -> Pending:
    return {one: some for one, some in (outputs or {}).items() if one < offset}
