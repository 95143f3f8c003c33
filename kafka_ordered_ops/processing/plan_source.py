"""The records of a plan, and where its progress goes: to the window's record of what is processed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from typing import Final, Protocol

from kafka_ordered_ops.core.arguments import check_timeout_s
from kafka_ordered_ops.core.errors import (
    KafkaOrderedOpsError,
    LedgerRecordError,
    ProcessingStoppedError,
)
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.processing.progress import Progress
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.kafka.client.calls import call
from kafka_ordered_ops.processing.sources import Changes, Share
from kafka_ordered_ops.processing.work_queue import WorkQueue

#: Between two transactions that keep what is done. Each takes some 0.2 s, in which nothing is read.
COMMIT_INTERVAL_S: Final = 10.0
#: With nothing new to keep, the claim is renewed this often: records may take long, or wait to be tried again.
_RENEW_EVERY_S: Final = 30.0

_log = logging.getLogger(__name__)


class ProgressKeeper(Protocol):
    """Keeps which offsets of a window are processed; see `OrderedWindows`."""

    def processed(self, plan: WindowPlan) -> Mapping[TopicPartition, OffsetSet]:
        """Return the offsets of an open window that this attempt and earlier ones have processed."""

    def mark_processed(self, plan: WindowPlan, done: Mapping[TopicPartition, OffsetSet]) -> None:
        """Add offsets to those that are processed, and keep the window's claim young, also without offsets.

        Raise `WindowSupersededError` if another attempt has taken over.
        """


class PlanSource:
    """The records of a plan.

    Args:
        plan: what to read.
        keep: keeps what is done, and knows what an earlier attempt has done. None: nothing is kept.
        commit_interval_s: how often it is kept.
        progress: called with (offsets done, offsets in all).
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
        self.group_id = plan.group_id
        self.isolation = plan.isolation
        self.topic_ids: Mapping[str, str] = plan.topic_ids
        self.topics: Collection[str] = self.topic_ids.keys()
        self._plan = plan
        self._keep = keep
        self._commit_interval_s = check_timeout_s(commit_interval_s, what="commit_interval_s")
        self._progress = progress
        self._queue: WorkQueue | None = None
        self.on_commit: Callable[[float], None] | None = None
        self._due_at = self._renew_at = 0.0
        #: Known to the keeper.
        self._kept: dict[TopicPartition, OffsetSet] = {}
        #: Offsets that earlier attempts have processed.
        self.kept_before = 0

    def open(self, stack: ExitStack, queue: WorkQueue) -> Mapping[TopicPartition, Share]:
        """Return the plan's offsets that are not processed."""
        self._queue = queue
        if self._keep is not None:
            before = self._keep.processed(self._plan)
            self._kept = {tp: taken & before.get(tp, EMPTY_SET) for tp, taken in self._taken()}
            self.kept_before = sum(one.count for one in self._kept.values())
        now = time.monotonic()
        self._due_at = now + min(self._commit_interval_s, _RENEW_EVERY_S)
        self._renew_at = now + _RENEW_EVERY_S
        return {
            tp: Share(Progress(taken.first, kept), taken - kept)
            for tp, taken in self._taken()
            if taken - (kept := self._kept.get(tp, EMPTY_SET))
        }

    def poll(self) -> Changes | None:
        """Return nothing: a plan does not change."""
        return None

    def commit_if_due(self) -> None:
        """Keep what is done, if the time has come; a missing answer waits for the next time."""
        if self._keep is None or time.monotonic() < self._due_at:
            return
        self._try_to_keep(self._keep, "what is processed is kept later: %s")
        self._due_at = time.monotonic() + min(self._commit_interval_s, _RENEW_EVERY_S)

    def commit_at_end(self, timeout_s: float) -> None:
        """Keep what is done, for the last time."""
        if self._keep is not None:
            with call("keeping what is processed", timeout_s):
                self._try_to_keep(
                    self._keep,
                    "what was processed last is not kept, and another attempt processes it again: %s",
                )

    def report(self) -> None:
        """Report the progress to whoever asked for it."""
        if self._progress is not None:
            self._progress(self.done_offsets(), self._plan.offsets)

    def done_offsets(self) -> int:
        """Return how many of the plan's offsets are done now, those without a record included."""
        return sum(one.count for one in self._done().values())

    def check_whole(self) -> None:
        """Raise `ProcessingStoppedError` unless all records are done."""
        plan, done = self._plan, self.done_offsets()
        if done < plan.offsets:
            raise ProcessingStoppedError(
                f"window {plan.window_id} of group {plan.group_id}: processing was stopped when {done:,} of "
                f"{plan.offsets:,} offsets were done. Do not commit the window: process it again. "
                + (
                    "What is done is kept, and only the rest is processed"
                    if self._keep is not None
                    else "Nothing is kept of what is done"
                ),
                left=plan.offsets - done,
            )

    def _taken(self) -> list[tuple[TopicPartition, OffsetSet]]:
        return [(part.tp, part.taken) for part in self._plan if part.taken]

    def _done(self) -> dict[TopicPartition, OffsetSet]:
        snapshots = {} if self._queue is None else self._queue.snapshots()
        done = dict(self._kept)
        for tp, taken in self._taken():
            if (one := snapshots.get(tp)) is not None:
                done[tp] = taken & (OffsetSet.of((0, one.base)) | one.beyond)
        return done

    def _try_to_keep(self, keep: ProgressKeeper, warning: str) -> None:
        """Keep what is done; warn of an error that may pass."""
        try:
            self._keep_done(keep)
        except KafkaOrderedOpsError as error:
            if not _may_pass(error):
                raise
            _log.warning(warning, error)

    def _keep_done(self, keep: ProgressKeeper) -> None:
        done = self._done()
        fresh = {
            tp: new for tp, one in done.items() if (new := one - self._kept.get(tp, EMPTY_SET))
        }
        began = time.monotonic()
        if fresh or began >= self._renew_at:
            keep.mark_processed(self._plan, fresh)
            self._kept, self._renew_at = done, began + _RENEW_EVERY_S
            if self.on_commit is not None:
                self.on_commit(time.monotonic() - began)


def _may_pass(error: KafkaOrderedOpsError) -> bool:
    """Return whether processing goes on although what is done is not kept."""
    # Done offsets in too many ranges for a record become fewer when what lies between them is done.
    return error.retriable or isinstance(error, LedgerRecordError)
