"""The records of a plan; their progress is stored in the window's record of processed offsets."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Final, Protocol

from kafka_ordered_ops.core.arguments import check_timeout_s
from kafka_ordered_ops.core.errors import (
    KafkaOrderedOpsError,
    LedgerRecordError,
    ProcessingStoppedError,
    UnknownTopicError,
)
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.processing.progress import Progress
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.kafka.client.calls import call
from kafka_ordered_ops.processing.source import Changes, Share
from kafka_ordered_ops.processing.work_queue import WorkQueue

#: The interval between two transactions that store the progress. Each takes about 0.2 s, in which nothing is read.
COMMIT_INTERVAL_S: Final = 10.0
#: Without new progress, the claim is renewed this often: records may take long, or wait for a retry.
_RENEW_EVERY_S: Final = 30.0

_log = logging.getLogger(__name__)


class ProgressKeeper(Protocol):
    """Stores the processed offsets of a window; see `OrderedWindows`."""

    def processed(self, plan: WindowPlan) -> Mapping[TopicPartition, OffsetSet]:
        """Return the offsets of an open window that this attempt and earlier attempts processed."""

    def mark_processed(self, plan: WindowPlan, done: Mapping[TopicPartition, OffsetSet]) -> None:
        """Add processed offsets, and renew the window's claim, also without new offsets.

        Raises `WindowSupersededError` if another attempt has taken over.
        """


class PlanSource:
    """The records of a plan.

    Args:
        plan: the plan to read.
        keep: stores the progress, and has that of earlier attempts. `None` means that no progress is stored.
        commit_interval_s: how often the progress is stored.
        progress: called with (offsets done, all offsets).
    """

    is_endless = False

    def __init__(
        self,
        plan: WindowPlan,
        keep: ProgressKeeper | None = None,
        *,
        commit_interval_s: float = COMMIT_INTERVAL_S,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.window: Window | None = plan.window
        self.group_id = plan.group_id
        self.isolation = plan.isolation
        self.topic_ids: Mapping[str, str] = plan.topic_ids
        self._plan = plan
        self._keep = keep
        self._commit_interval_s = check_timeout_s(commit_interval_s, what="commit_interval_s")
        self._progress = progress
        self._queue: WorkQueue | None = None
        self.on_commit: Callable[[float, BaseException | None], None] | None = None
        self.commit_error: BaseException | None = None
        self._due_at = self._renew_at = 0.0
        #: The offsets that the keeper has stored.
        self._processed: dict[TopicPartition, OffsetSet] = {}
        #: The number of offsets that earlier attempts processed.
        self.processed_before = 0

    def reads(self, topic: str) -> bool:
        """Return whether the plan reads a topic."""
        return topic in self.topic_ids

    def leave_deleted(self, error: UnknownTopicError) -> frozenset[TopicPartition]:
        """Raise the error: a plan is read completely."""
        raise error

    def open(self, stack: ExitStack, queue: WorkQueue) -> Mapping[TopicPartition, Share]:
        """Return the unprocessed offsets of the plan."""
        self._queue = queue
        if self._keep is not None:
            before = self._keep.processed(self._plan)
            self._processed = {
                tp: offsets & before.get(tp, EMPTY_SET) for tp, offsets in self._wanted_offsets()
            }
            self.processed_before = sum(offsets.count for offsets in self._processed.values())
        now = time.monotonic()
        self._due_at = now + min(self._commit_interval_s, _RENEW_EVERY_S)
        self._renew_at = now + _RENEW_EVERY_S
        return {
            tp: Share(Progress(offsets.first, processed), offsets - processed)
            for tp, offsets in self._wanted_offsets()
            if offsets - (processed := self._processed.get(tp, EMPTY_SET))
        }

    def poll(self) -> Changes | None:
        """Return `None`: a plan does not change."""
        return None

    def commit_if_due(self) -> None:
        """Store the progress if a commit is due; an unanswered commit is retried at the next interval."""
        if self._keep is None or time.monotonic() < self._due_at:
            return
        self._try_to_keep(self._keep, "the progress is stored later: %s")
        self._due_at = time.monotonic() + min(self._commit_interval_s, _RENEW_EVERY_S)

    def commit_at_end(self, timeout_s: float) -> None:
        """Store the progress for the last time."""
        if self._keep is not None:
            with call("storing the progress", timeout_s):
                self._try_to_keep(
                    self._keep,
                    "the last progress is not stored, and another attempt processes its records again: %s",
                )

    def report(self) -> None:
        """Call the user's progress callback, if there is one."""
        if self._progress is not None:
            self._progress(self.done_offsets(), self._plan.offsets)

    def done_offsets(self) -> int:
        """Return how many of the plan's offsets are done now, including offsets without a record."""
        return sum(offsets.count for offsets in self._done().values())

    def check_whole(self) -> None:
        """Raise `ProcessingStoppedError` unless all records are done."""
        plan, done = self._plan, self.done_offsets()
        if done < plan.offsets:
            raise ProcessingStoppedError(
                f"window {plan.window_id} of group {plan.group_id}: processing was stopped when {done:,} of "
                f"{plan.offsets:,} offsets were done. Do not commit the window: process it again. "
                + (
                    "The progress is stored: only the remaining records are processed"
                    if self._keep is not None
                    else "The progress is not stored"
                ),
                left=plan.offsets - done,
            )

    def _wanted_offsets(self) -> list[tuple[TopicPartition, OffsetSet]]:
        return [(part.tp, part.taken) for part in self._plan if part.taken]

    def _done(self) -> dict[TopicPartition, OffsetSet]:
        snapshots = {} if self._queue is None else self._queue.snapshots()
        done = dict(self._processed)
        for tp, offsets in self._wanted_offsets():
            if (snapshot := snapshots.get(tp)) is not None:
                done[tp] = offsets & (OffsetSet.of((0, snapshot.base)) | snapshot.beyond)
        return done

    def _try_to_keep(self, keep: ProgressKeeper, warning: str) -> None:
        """Store the progress; log a warning for a temporary error."""
        try:
            self._keep_done(keep)
            self.commit_error = None
        except KafkaOrderedOpsError as error:
            self.commit_error = error
            if not _may_pass(error):
                raise
            _log.warning(warning, error)

    def _keep_done(self, keep: ProgressKeeper) -> None:
        done = self._done()
        fresh = {
            tp: new
            for tp, offsets in done.items()
            if (new := offsets - self._processed.get(tp, EMPTY_SET))
        }
        began = time.monotonic()
        if fresh or began >= self._renew_at:
            keep.mark_processed(self._plan, fresh)
            self._processed, self._renew_at = done, began + _RENEW_EVERY_S
            if self.on_commit is not None:
                self.on_commit(time.monotonic() - began, None)


def _may_pass(error: KafkaOrderedOpsError) -> bool:
    """Return whether processing continues although the progress could not be stored."""
    # Too many ranges for a record become fewer once the offsets between them are done.
    return error.retriable or isinstance(error, LedgerRecordError)
