"""Commits of a group: their content, and commits in the background."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffset
from kafka_ordered_ops.core.offset_map.fitting import fitted_map
from kafka_ordered_ops.core.offset_map.reading import DecodePolicy, read_committed_progress
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.processing.outputs import Pending
from kafka_ordered_ops.core.processing.progress import Snapshot
from kafka_ordered_ops.core.types import INT64_MAX, TopicPartition

_log = logging.getLogger(__name__)

Store = Callable[[Mapping[TopicPartition, CommittedOffset]], None]


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """The outcome of a commit."""

    #: The offsets of the partitions that were not lost meanwhile.
    offsets: dict[TopicPartition, CommittedOffset]
    took_s: float
    #: `None` if the offsets are stored.
    error: BaseException | None


class BackgroundCommit:
    """Makes one commit at a time in its own thread. Only one other thread uses it, and takes the outcomes.

    Args:
        store: makes a commit. Its deadline bounds `join`.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread: threading.Thread | None = None
        self._offsets: dict[TopicPartition, CommittedOffset] = {}
        self._took_s = 0.0
        self._error: BaseException | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a commit is in progress, or its outcome was not taken yet."""
        return self._thread is not None

    def begin(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Start a commit. The outcome of the previous commit must have been taken."""
        self._offsets = dict(offsets)
        self._error = None
        self._thread = threading.Thread(
            target=self._run, args=(dict(offsets),), name="process-commit", daemon=True
        )
        self._thread.start()

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Ignore the commit in progress for partitions that were lost."""
        for tp in partitions:
            self._offsets.pop(tp, None)

    def take(self) -> CommitOutcome | None:
        """Return the outcome of a commit that ended since the last call."""
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread = None
        return CommitOutcome(self._offsets, self._took_s, self._error)

    def join(self) -> None:
        """Wait for the commit in progress."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        began = time.monotonic()
        try:
            self._store(offsets)
        except BaseException as error:  # noqa: BLE001 - the owner takes it
            self._error = error
        self._took_s = time.monotonic() - began


class Commit(NamedTuple):
    """The commit of one partition."""

    committed: CommittedOffset
    #: The commit leaves out done offsets from here on: they do not fit into its map.
    below: int


class OffsetMaps:
    """Fits the done offsets beyond the committed ones into the metadata of commits."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        #: Partitions whose maps did not fit, and for which a warning was logged.
        self._reported: set[TopicPartition] = set()

    def forget(self, tp: TopicPartition) -> None:
        """Forget a partition that was lost."""
        self._reported.discard(tp)

    def commit_of(
        self, tp: TopicPartition, snapshot: Snapshot, before: CommittedOffset | None
    ) -> Commit:
        """Return the next commit of a partition; `before` is its last commit."""
        metadata, left_out = fitted_map(snapshot.base, snapshot.beyond)
        if left_out:
            committed = self._committed_beyond(tp, snapshot, before)
            metadata, left_out = fitted_map(snapshot.base, snapshot.beyond, committed=committed)
        if left_out and tp not in self._reported:
            self._reported.add(tp)
            _log.warning(
                "group %s, %s: the offset map beyond offset %d has %d done ranges, and the highest %d do not fit into "
                "the commit's metadata. After a crash, their records would be processed again. Find out why "
                "records below them take so long",
                *(self._group_id, tp, snapshot.base, len(snapshot.beyond), left_out),
            )
        below = INT64_MAX
        if left_out:
            lowest = snapshot.beyond.ranges[:-left_out]
            below = lowest[-1][1] if lowest else snapshot.base
        return Commit(CommittedOffset(snapshot.base, metadata), below)

    def _committed_beyond(
        self, tp: TopicPartition, snapshot: Snapshot, before: CommittedOffset | None
    ) -> OffsetSet:
        """Return the done offsets above the base that the last commit contains: their outputs are written."""
        if before is None:
            return EMPTY_SET
        progress = read_committed_progress(
            before.offset,
            before.metadata,
            end=None,
            policy=DecodePolicy.IGNORE,
            where=f"group {self._group_id}, {tp}",
        )
        return (progress.done or EMPTY_SET) & snapshot.beyond


def outputs_below(offset: int, outputs: Pending | None) -> Pending:
    """Return the outputs of records below an offset."""
    return {at: records for at, records in (outputs or {}).items() if at < offset}
