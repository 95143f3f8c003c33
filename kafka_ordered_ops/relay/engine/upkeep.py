"""Periodic work of a server: committed offsets of groups, snapshots of the log, changed topics, status."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffset
from kafka_ordered_ops.core.errors import KafkaOrderedOpsError, UnknownTopicError
from kafka_ordered_ops.core.offset_map.fitting import fitted_map
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.relay.group_progress import GroupProgress
from kafka_ordered_ops.core.types import INT64_MAX, TopicPartition
from kafka_ordered_ops.relay.engine.burying import refusal
from kafka_ordered_ops.relay.engine.requests import Topics
from kafka_ordered_ops.relay.engine.server import Server, now_ms
from kafka_ordered_ops.relay.leases.handout import Handout
from kafka_ordered_ops.relay.leases.partition import Partition
from kafka_ordered_ops.relay.log import log_tp
from kafka_ordered_ops.relay.ports import PartitionStatus

_STATUS_EVERY_S: Final = 0.5
#: How long the status is built at a time: 10 ms and more for all partitions delayed every call.
_STATUS_SLICE_S: Final = 0.002
_FINISH_EVERY_S: Final = 1.0
TOPICS_EVERY_S: Final = 10.0
#: The interval between two looks at the ends of the topics: what waits is a figure for people and monitors.
ENDS_EVERY_S: Final = 5.0
#: The number of ended windows in the status of each partition: 10,000 would take a second each time.
FINISHED_SHOWN: Final = 100
#: A snapshot that was not stored is retried after this many more records.
_SNAPSHOT_AGAIN: Final = 1_000

_log = logging.getLogger(__name__)


class _Done(NamedTuple):
    """The progress of a group in a partition."""

    base: int
    beyond: OffsetSet

    @property
    def commit(self) -> CommittedOffset:
        """The offset and metadata to commit."""
        return CommittedOffset(self.base, fitted_map(self.base, self.beyond).metadata)


class Upkeep:
    """Keep the log short, and the status and committed offsets up to date.

    Args:
        server: the server.
        know: called with the current topics.
    """

    def __init__(self, server: Server, know: Callable[[Topics], None]) -> None:
        self._server, self._know = server, know
        self._commit_at = time.monotonic() + server.options.commit_interval_s
        self._topics_at = time.monotonic() + TOPICS_EVERY_S
        self._status_at = self._finish_at = self._ends_at = 0.0
        self._is_looking_at_ends = False
        #: Windows whose end is being written.
        self._finishing: set[tuple[TopicPartition, str]] = set()
        self._committed: dict[tuple[str, TopicPartition], _Done] = {}
        self._is_committing: set[str] = set()
        self._refused: set[str] = set()
        #: The status that the service returns: replaced as a whole, for other threads.
        self.status: list[PartitionStatus] = []
        #: The next status so far, and the partitions that are left.
        self._next_status: list[PartitionStatus] = []
        self._status_left: deque[TopicPartition] = deque()

    @property
    def due_at(self) -> float:
        """The `time.monotonic` time when `turn` is due if nothing happens before."""
        if self._status_left:
            return 0.0
        return min(
            self._finish_at, self._commit_at, self._topics_at, self._ends_at, self._status_at
        )

    def turn(self) -> None:
        """Do the work that is due."""
        now = time.monotonic()
        for partition in self._server.partitions.values():
            if partition.is_mine:
                self._snapshot_if_due(partition)
        if now >= self._finish_at:
            self._finish_at = now + _FINISH_EVERY_S
            self._finish_windows()
        if now >= self._commit_at:
            self._commit_at = now + self._server.options.commit_interval_s
            self._commit()
        if now >= self._topics_at:
            self._topics_at = now + TOPICS_EVERY_S
            self._look_at_topics()
        if now >= self._ends_at:
            self._ends_at = now + ENDS_EVERY_S
            self._look_at_ends()
        if now >= self._status_at:
            self._status_at = now + _STATUS_EVERY_S
            if not self._status_left:
                self._status_left.extend(sorted(self._server.partitions))
        self._make_status(now + _STATUS_SLICE_S)

    # --- committed offsets ---------------------------------------------------------------------------

    def _commit(self) -> None:
        """Commit the groups' offsets so that their lag can be monitored; only the log counts."""
        by_group: dict[str, dict[TopicPartition, _Done]] = {}
        for partition in self._server.partitions.values():
            if not partition.is_mine:
                continue
            for group, progress in partition.state.groups.items():
                if not progress.is_opened or progress.is_window:
                    continue
                if group in self._is_committing:
                    continue
                base = progress.base or 0
                done = _Done(base, progress.acked.within(base, INT64_MAX))
                if self._committed.get((group, partition.tp)) != done:
                    by_group.setdefault(group, {})[partition.tp] = done
        for group, offsets in by_group.items():
            self._commit_group(group, offsets)

    def _commit_group(self, group: str, offsets: dict[TopicPartition, _Done]) -> None:
        requests = self._server.requests
        self._is_committing.add(group)

        def done(_: None) -> None:
            self._is_committing.discard(group)
            self._refused.discard(group)
            self._committed.update({(group, tp): progress for tp, progress in offsets.items()})

        def failed(error: KafkaOrderedOpsError) -> None:
            self._is_committing.discard(group)
            if group not in self._refused:
                self._refused.add(group)
                _log.warning("the committed offsets of group %s are not updated: %s", group, error)

        def commit() -> None:
            # In the thread of the request: encoding maps is slow, and would delay calls.
            commits = {tp: progress.commit for tp, progress in offsets.items()}
            requests.commit(group, commits)

        requests.ask(commit, done, failed)

    # --- ends of windows -----------------------------------------------------------------------------

    def _finish_windows(self) -> None:
        """Write the ends of windows that are done: their offsets and acknowledgements are not needed any more."""
        for partition in self._server.partitions.values():
            if not partition.is_mine:
                continue
            for group, progress in partition.state.groups.items():
                key = partition.tp, group
                if key not in self._finishing and (record := progress.finish()) is not None:
                    self._finishing.add(key)
                    self._server.log.append(partition.tp, record, self._finish_written(key))

    def _finish_written(
        self, key: tuple[TopicPartition, str]
    ) -> Callable[[KafkaOrderedOpsError | None], None]:
        def report(error: KafkaOrderedOpsError | None) -> None:
            # If it has not been read back by then, it is written again, which changes nothing.
            self._finishing.discard(key)
            if error is not None:
                _log.warning(
                    "the end of window %s in %s is written later: %s", key[1], key[0], error
                )

        return report

    # --- snapshots -----------------------------------------------------------------------------------

    def _snapshot_if_due(self, partition: Partition) -> None:
        options = self._server.options
        start = max(partition.snapshot_at, partition.replay_from or 0)
        if partition.is_trimming or partition.position - start < options.snapshot_records:
            return
        before = partition.position
        partition.is_trimming = True

        def failed(error: KafkaOrderedOpsError) -> None:
            partition.is_trimming = False
            partition.snapshot_at = before - options.snapshot_records + _SNAPSHOT_AGAIN
            _log.warning("the log of %s is cut later: %s", partition.tp, error)

        def trimmed(_: None) -> None:
            partition.is_trimming = False
            partition.snapshot_at = before
            _log.info("the log of %s begins at offset %d now", partition.tp, before)

        # Otherwise the leases of records that nobody acknowledges would grow with every attempt.
        partition.state.forget_replaced()
        parts = partition.state.snapshot()
        left = len(parts)

        def stored(error: KafkaOrderedOpsError | None) -> None:
            nonlocal left
            left -= 1
            if error is not None:
                failed(error)
            elif not left and partition.is_trimming:
                trim()

        def trim() -> None:
            requests = self._server.requests
            requests.ask(lambda: requests.trim({log_tp(partition.tp): before}), trimmed, failed)

        for part in parts:
            self._server.log.append(partition.tp, part, stored)

    # --- topics --------------------------------------------------------------------------------------

    def _look_at_topics(self) -> None:
        server = self._server

        def failed(error: KafkaOrderedOpsError) -> None:
            _log.warning("the topics of the relay: %s", error)
            if isinstance(error, UnknownTopicError):
                for partition in server.partitions.values():
                    if partition.tp.topic in error.topics and partition.problem is None:
                        partition.problem = error
                        server.stop_serving(partition)

        server.requests.ask(
            lambda: server.requests.topics(server.options.topics), self._know, failed
        )

    # --- status --------------------------------------------------------------------------------------

    def _look_at_ends(self) -> None:
        server = self._server
        partitions = [
            partition.tp for partition in server.partitions.values() if partition.problem is None
        ]
        if self._is_looking_at_ends or not partitions:
            return
        self._is_looking_at_ends = True

        def answered(ends: dict[TopicPartition, int]) -> None:
            self._is_looking_at_ends = False
            for tp, end in ends.items():
                server.partitions[tp].topic_end = end

        def failed(error: KafkaOrderedOpsError) -> None:
            # The last known ends stay: a cluster that is away is reported by what reads and writes.
            self._is_looking_at_ends = False
            _log.info("the ends of the topics are looked up later: %s", error)

        requests, isolation = server.requests, server.options.isolation
        requests.ask(lambda: requests.ends(partitions, isolation), answered, failed)

    def _make_status(self, ends_at: float) -> None:
        """Continue building the next status until `ends_at`; replace the status when it is complete."""
        while self._status_left:
            partition = self._server.partitions[self._status_left.popleft()]
            self._next_status += _status_of(partition)
            if not self._status_left:
                self.status, self._next_status = self._next_status, []
            if time.monotonic() >= ends_at:
                return


def _status_of(partition: Partition) -> Iterator[PartitionStatus]:
    """Yield the status of a partition, by group."""
    tp, owner, now = partition.tp, partition.state.owner(), now_ms()
    groups: list[str | None] = [*partition.state.latest_groups(FINISHED_SHOWN)]
    for group in groups or [None]:
        progress = None if group is None else partition.state.groups[group]
        done = EMPTY_SET if progress is None else progress.acked
        base = None if progress is None else progress.base
        handout = None if group is None else partition.handouts.get(group)
        pending = EMPTY_SET if progress is None else progress.pending(now)
        yield PartitionStatus(
            topic=tp.topic,
            partition=tp.partition,
            group=group,
            owner=None if owner is None else owner.server_id,
            is_mine=partition.is_mine,
            is_replayed=partition.is_replayed,
            waiting=None if progress is None else _waiting(progress, partition.topic_end, pending),
            pending=pending.count,
            acknowledged=done.within(base or 0, INT64_MAX).count,
            base=base,
            oldest_lease_ms=None if progress is None else progress.oldest_until_ms(now),
            refused_dead_letters=0 if handout is None else len(handout.refused),
            problem=_problem(partition, handout),
            replayed=partition.replayed,
            replayed_of=partition.replayed_of,
        )


def _waiting(progress: GroupProgress, end: int | None, pending: OffsetSet) -> int | None:
    """Return how many offsets of a group are neither acknowledged nor leased; None if that is not known yet."""
    wanted = progress.offsets
    if wanted is None and not progress.is_window:
        if end is None or progress.start is None:
            return None
        wanted = OffsetSet.of((progress.start, end)) if progress.start < end else EMPTY_SET
    return 0 if wanted is None else (progress.left(wanted) - pending).count


def _problem(partition: Partition, handout: Handout | None) -> str | None:
    """Return the problem that keeps records of a partition from being handed out, or dead letters from being written."""
    problem = partition.problem or (None if handout is None else handout.problem)
    if problem is not None:
        return problem.message
    if handout is None or not handout.refused:
        return None
    offset = min(handout.refused)
    return refusal(handout, offset, handout.refused[offset])
