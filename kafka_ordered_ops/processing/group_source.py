"""The partitions that a group assigns to this member, and the commits of its progress."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from typing import Final

from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffset, TopicFacts, is_selected
from kafka_ordered_ops.core.cluster.membership import check_not_of_windows
from kafka_ordered_ops.core.errors import (
    KafkaOrderedOpsError,
    TopicRecreatedError,
    UnknownTopicError,
    invariant,
)
from kafka_ordered_ops.core.offset_map.fitting import is_nearly_full
from kafka_ordered_ops.core.offset_map.reading import read_committed_progress
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.processing.commits import CommitMode
from kafka_ordered_ops.core.processing.outputs import Pending
from kafka_ordered_ops.core.processing.progress import Progress
from kafka_ordered_ops.core.types import INT64_MAX, Isolation, TopicPartition
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
from kafka_ordered_ops.ordered.partitions.starts import Starts
from kafka_ordered_ops.processing.committing import BackgroundCommit, OffsetMaps, outputs_below
from kafka_ordered_ops.processing.source import Changes, Share, Subscription
from kafka_ordered_ops.processing.topics import SelectedTopics
from kafka_ordered_ops.processing.transactions import GroupTransactions
from kafka_ordered_ops.processing.work_queue import WorkQueue

#: The interval between two commits.
COMMIT_INTERVAL_S: Final = 1.0
#: No longer than this: while a group rebalances, a commit waits for its answer, and nothing is read.
_COMMIT_TIMEOUT_S: Final = 5.0
#: The timeout of the check before a commit that its topics are still the same.
_LOOK_TIMEOUT_S: Final = 2.0
#: How long revoked partitions wait for their records in flight, which their next owner would process again. All members
#: wait for it.
REVOKE_WAIT_S: Final = 3.0
#: The pause between two attempts to start new partitions while the cluster is unavailable.
_BEGIN_AGAIN_S: Final = 0.5
#: How often the sizes of offset maps are checked.
_LOOK_EVERY_S: Final = 0.1

_log = logging.getLogger(__name__)


class GroupSource:
    """The partitions that a group assigns to this member. Progress is committed with its offset map.

    A transactional commit contains the outputs of the records that it marks as done.
    """

    is_endless = True

    def __init__(
        self,
        settings: ClientSettings,
        subscription: Subscription,
        *,
        revoke_wait_s: float = REVOKE_WAIT_S,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.group_id = subscription.group_id
        self.isolation = subscription.isolation
        decoding = subscription.decoding
        self.window = None if decoding is None else decoding.window(subscription.topics)
        self._topics = SelectedTopics(subscription.topics, subscription.exclude)
        #: The cluster's error about a topic that may be deleted; not checked yet.
        self._unknown: UnknownTopicError | None = None
        self._settings = settings
        self._subscription = subscription
        self._revoke_wait_s = revoke_wait_s
        self._timeout_s = timeout_s
        self._member: MembershipDoor
        self._queue: WorkQueue
        #: `None` if commits are not transactions.
        self._transactions: GroupTransactions | None = None
        #: `None` if reading waits for each commit.
        self._background: BackgroundCommit | None = None
        if subscription.commit is CommitMode.PERIODIC_ASYNC:
            self._background = BackgroundCommit(self._store)
        self.commit_error: BaseException | None = None
        #: The partitions that existed at the start: later ones are read from their beginning.
        self._at_open: frozenset[TopicPartition]
        #: Partitions that are assigned, and not started yet.
        self._new: set[TopicPartition] = set()
        self._committed: dict[TopicPartition, CommittedOffset] = {}
        self._limits: dict[TopicPartition, int] = {}
        self._maps = OffsetMaps(subscription.group_id)
        #: Used before each commit to check that its topics are still the same.
        self._lookup: LookupDoor
        self._topic_ids: dict[str, str] = {}
        self.topic_ids: Mapping[str, str] = self._topic_ids
        self._due_at = self._begin_at = self._look_at = time.monotonic()
        self.on_commit: Callable[[float, BaseException | None], None] | None = None

    def open(self, stack: ExitStack, queue: WorkQueue) -> Mapping[TopicPartition, Share]:
        """Join the group; `poll` returns what the group assigns."""
        subscription, self._queue = self._subscription, queue
        with open_lookup(self._settings, timeout_s=self._timeout_s) as lookup:
            topics = self._topics.first(lookup)
        self._topic_ids.update({name: facts.topic_id for name, facts in topics.items()})
        self._lookup = stack.enter_context(open_lookup(self._settings, timeout_s=_LOOK_TIMEOUT_S))
        self._at_open = frozenset(
            TopicPartition(name, number) for name in topics for number in topics[name].partitions
        )
        self._member = stack.enter_context(
            open_member(
                self._settings,
                self.group_id,
                self._topics.names,
                on_revoke=self._revoked,
                timeout_s=self._timeout_s,
                session_timeout_s=subscription.session_timeout_s,
                protocol=subscription.protocol,
                keeps_maps=True,
            )
        )
        if self._background is not None:
            # The member's client must outlive the background commit.
            stack.callback(self._background.join)
        if subscription.commit is CommitMode.TRANSACTIONAL:
            door = stack.enter_context(open_transactions(self._settings, self._member))
            self._transactions = GroupTransactions(door, queue)
        return {}

    def reads(self, topic: str) -> bool:
        """Return whether the names and patterns select a topic."""
        return is_selected(topic, self._subscription.topics, self._subscription.exclude)

    # --- the group -----------------------------------------------------------------------------------

    def poll(self) -> Changes | None:
        """Poll the group, start the partitions that it assigns, and check the sizes of offset maps."""
        change = None
        try:
            change = self._member.poll()
        except UnknownTopicError as error:
            if not self._is_of_deleted(error):
                raise
        lost: frozenset[TopicPartition] = frozenset()
        if change is not None:
            lost = change.lost
            self._forget_lost(lost)
            self._new |= change.gained
        lost |= self._follow_topics()
        gained = self._begin_new()
        # A partition that this call starts is limited by the next call at the earliest.
        limits = {} if lost or gained else self._changed_limits()
        return Changes(lost, gained, limits) if lost or gained or limits else None

    def _follow_topics(self) -> frozenset[TopicPartition]:
        """Subscribe to the topics that the patterns match now; return the partitions of deleted topics."""
        lost: frozenset[TopicPartition] = frozenset()
        if (error := self._unknown) is not None:
            self._unknown, lost = None, self.leave_deleted(error)
        topics = self._topics.changed(self._lookup)
        if topics is not None:
            self._check_ids(topics)
            self._member.subscribe(topics)
            _log.info("group %s: %d topics match now", self.group_id, len(topics))
        return lost

    def leave_deleted(self, error: UnknownTopicError) -> frozenset[TopicPartition]:
        """Unsubscribe from deleted topics that matched patterns; raise the error if it has another cause."""
        gone = self._topics.deleted(self._lookup, error)
        if not gone:
            return frozenset()
        _log.info("deleted topics are no longer processed: %s", ", ".join(sorted(gone)))
        lost = frozenset(tp for tp in self._member.assignment | self._new if tp.topic in gone)
        self._forget_lost(lost)
        for name in gone:
            self._topic_ids.pop(name, None)
        if self._topics.names:
            self._member.subscribe(self._topics.names)
        return lost

    def _begin_new(self) -> dict[TopicPartition, Share]:
        """Return the shares of new partitions; nothing while the cluster is unavailable."""
        new = sorted(self._new)
        if not new or time.monotonic() < self._begin_at:
            return {}
        if self._background is not None and self._background.is_busy:
            # The background commit may be reading the committed offsets over the same connection.
            return {}
        try:
            shares = self._shares(new)
        except KafkaOrderedOpsError as error:
            if not (error.retriable or self._is_of_deleted(error)):
                raise
            _log.info("partitions of group %s are started later: %s", self.group_id, error)
            self._begin_at = time.monotonic() + _BEGIN_AGAIN_S
            return {}
        self._new.clear()
        # Commit looked-up starts at once: the next owner would look up different ones.
        self._due_at = time.monotonic()
        return shares

    def _shares(self, partitions: list[TopicPartition]) -> dict[TopicPartition, Share]:
        subscription = self._subscription
        committed = self._member.committed(partitions)
        check_not_of_windows(self.group_id, committed, keeps_maps=True)
        with open_lookup(self._settings, timeout_s=self._timeout_s) as lookup:
            starts = Starts(lambda _: subscription.starting_offsets, self.isolation).of_new(
                lookup,
                partitions,
                self._at_open,
                now_ms=int(time.time() * 1_000),
                committed=committed,
            )
            own_commits = {tp: commit for tp, commit in committed.items() if commit is not None}
            done = self._done_before(lookup, own_commits)
        self._committed |= own_commits
        shares = {}
        for tp, (start, _) in starts.items():
            before = done.get(tp, EMPTY_SET)
            wanted = OffsetSet.of((start, INT64_MAX)) - before
            shares[tp] = Share(Progress(start, before), wanted)
        return shares

    def _done_before(
        self, lookup: LookupDoor, committed: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[TopicPartition, OffsetSet]:
        """Return the done offsets above the committed ones; raise `OffsetMapDecodeError`."""
        mapped = {tp: commit for tp, commit in committed.items() if commit.metadata}
        # The program that wrote the map may have read further than this isolation level allows.
        ends = lookup.end_offsets(list(mapped), Isolation.READ_UNCOMMITTED) if mapped else {}
        done = {}
        for tp, commit in mapped.items():
            progress = read_committed_progress(
                commit.offset,
                commit.metadata,
                end=ends[tp],
                policy=self._subscription.on_invalid_metadata,
                where=f"group {self.group_id}, {tp}",
            )
            if progress.problem is not None:
                _log.warning(
                    "group %s, %s: records above offset %d may be processed again: %s",
                    *(self.group_id, tp, commit.offset, progress.problem),
                )
            done[tp] = progress.done or EMPTY_SET
        return done

    def _revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Commit the progress of revoked partitions, after a short wait for their records in flight."""
        self._queue.settle(partitions, self._revoke_wait_s)
        try:
            self._await_commit()
            self._commit(partitions)
        except KafkaOrderedOpsError as error:
            if not error.retriable:
                raise
            _log.warning("the progress of revoked partitions is not committed: %s", error)
        finally:
            # Records that are still in flight belong to the partitions' next owner.
            self._forget_lost(partitions)

    def _forget_lost(self, partitions: frozenset[TopicPartition]) -> None:
        if self._background is not None:
            self._background.forget(partitions)
        for tp in partitions:
            # Now, so that no old progress is committed if this member gets the partition again.
            self._queue.drop(tp)
            if self._transactions is not None:
                self._transactions.forget(tp)
            self._new.discard(tp)
            self._maps.forget(tp)
            self._committed.pop(tp, None)
            self._limits.pop(tp, None)

    # --- progress ------------------------------------------------------------------------------------

    def commit_if_due(self) -> None:
        """Commit if a commit is due; a refused or unanswered commit is retried at the next interval."""
        self._take_outcome()
        if self._background is not None and self._background.is_busy:
            return
        began = time.monotonic()
        # After a failure, wait for the interval even if the queue is full: the cluster may be unavailable.
        is_full = self.commit_error is None and self._queue.is_full_of_outputs
        if began < self._due_at and not is_full:
            return
        if self._background is not None:
            if moved := self._moved()[0]:
                self._background.begin(moved)
        else:
            self._try_to_commit()
        # While the group rebalances, spend at most half of the time waiting for answers.
        now = time.monotonic()
        self._due_at = now + max(self._subscription.commit_interval_s, now - began)

    def _try_to_commit(self) -> None:
        began = time.monotonic()
        try:
            self._commit()
        except KafkaOrderedOpsError as error:
            self._failed(error, time.monotonic() - began)

    def _take_outcome(self) -> None:
        """Handle the outcome of a background commit; raise an error that another attempt does not fix."""
        if self._background is None or (outcome := self._background.take()) is None:
            return
        if outcome.error is not None:
            self._failed(outcome.error, outcome.took_s)
            return
        self._stored(outcome.offsets, outcome.took_s)

    def _failed(self, error: BaseException, took_s: float) -> None:
        is_first, self.commit_error = self.commit_error is None, error
        if self.on_commit is not None:
            self.on_commit(took_s, error)
        if self._is_of_deleted(error):
            return
        if not isinstance(error, KafkaOrderedOpsError) or not error.retriable:
            raise error
        level = logging.WARNING if is_first else logging.INFO
        _log.log(level, "a commit of group %s failed, and is retried: %s", self.group_id, error)

    def _is_of_deleted(self, error: BaseException) -> bool:
        """Return whether an error may be about deleted topics that matched patterns; `poll` then checks them."""
        if isinstance(error, UnknownTopicError) and self._topics.has_patterns:
            self._unknown = error
            return True
        return False

    def _stored(self, offsets: Mapping[TopicPartition, CommittedOffset], took_s: float) -> None:
        self._committed |= offsets
        self.commit_error = None
        if self.on_commit is not None:
            self.on_commit(took_s, None)

    def _await_commit(self) -> None:
        """Wait for the commit in progress, which has its own deadline."""
        if self._background is not None:
            self._background.join()
            self._take_outcome()

    def commit_at_end(self, timeout_s: float) -> None:
        """Make the last commit, once the group has rebalanced."""
        try:
            self._await_commit()
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
        """Do nothing: a group's share has no end."""

    def _commit(self, only: frozenset[TopicPartition] | None = None) -> None:
        """Commit the progress of all partitions, or of some, and wait for the answer."""
        if self._transactions is not None:
            # First, so that outputs that an earlier transaction stored are not written again.
            self._committed |= self._transactions.settle()
        moved, outputs = self._moved(only)
        if not moved:
            # Nothing is left of the commit that failed before.
            self.commit_error = None
            return
        began = time.monotonic()
        if self._transactions is None:
            self._store(moved)
        else:
            self._check_same_topics({tp.topic for tp in moved})
            self._transactions.commit(moved, outputs)
        self._stored(moved, time.monotonic() - began)

    def _moved(
        self, only: frozenset[TopicPartition] | None = None
    ) -> tuple[dict[TopicPartition, CommittedOffset], dict[TopicPartition, Pending]]:
        """Return the uncommitted progress of all partitions, or of some, and its outputs."""
        snapshots, outputs = self._queue.snapshots_with_outputs()
        assigned = self._member.assignment - self._new
        wanted = assigned if only is None else assigned & only
        commits = {
            tp: self._maps.commit_of(tp, snapshot, self._committed.get(tp))
            for tp, snapshot in snapshots.items()
            if tp in wanted
        }
        moved = {
            tp: commit.committed
            for tp, commit in commits.items()
            if self._committed.get(tp) != commit.committed
        }
        # Outputs of records that do not fit into the maps wait: after a crash they would be written again.
        fitting = {
            tp: pending
            for tp, commit in commits.items()
            if (pending := outputs_below(commit.below, outputs.get(tp)))
        }
        invariant(fitting.keys() <= moved.keys(), "outputs are of records that are not committed")
        return moved, fitting

    def _store(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        self._check_same_topics({tp.topic for tp in offsets})
        self._member.commit(offsets, timeout_s=_COMMIT_TIMEOUT_S)

    def _check_same_topics(self, names: Collection[str]) -> None:
        """Raise `TopicRecreatedError` for a recreated topic: a commit would skip its first records for ever."""
        self._check_ids(self._lookup.topics(names))

    def _check_ids(self, topics: Mapping[str, TopicFacts]) -> None:
        for name, facts in topics.items():
            if facts.topic_id != (expected_id := self._topic_ids.setdefault(name, facts.topic_id)):
                raise TopicRecreatedError(
                    f"group {self.group_id}: topic {name} was deleted and created again while it was processed, and its "
                    "offsets start over. Nothing is committed for it. Subscribe again",
                    topic=name,
                    expected_id=expected_id,
                    found_id=facts.topic_id,
                )

    def _changed_limits(self) -> dict[TopicPartition, int | None]:
        """Return the new limits of partitions whose maps have become nearly full, or are no longer nearly full."""
        if (now := time.monotonic()) < self._look_at:
            return {}
        self._look_at = now + _LOOK_EVERY_S
        changed: dict[TopicPartition, int | None] = {}
        for tp, snapshot in self._queue.snapshots().items():
            before = self._limits.get(tp)
            if is_nearly_full(snapshot.base, snapshot.beyond, was_full=before is not None):
                # Records below the highest done offset never make the map larger.
                below = self._limits[tp] = snapshot.beyond.end
                if below != before:
                    changed[tp] = below
            elif before is not None:
                del self._limits[tp]
                changed[tp] = None
        return changed
