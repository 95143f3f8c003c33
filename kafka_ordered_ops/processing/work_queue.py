"""The queue between reader and workers: the scheduler behind a lock, and the results."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from threading import Condition, RLock
from typing import Final

import numpy as np

from kafka_ordered_ops.core.errors import (
    KafkaOrderedOpsError,
    ProcessingError,
)
from kafka_ordered_ops.core.offset_set import Int64Array
from kafka_ordered_ops.core.processing.failures import (
    FailurePolicy,
    WhenExhausted,
    error_text,
    stopped_by,
)
from kafka_ordered_ops.core.processing.new_record import NewRecord
from kafka_ordered_ops.core.processing.outputs import Outputs, Pending, Written, call_on_produced
from kafka_ordered_ops.core.processing.progress import Progress, Snapshot
from kafka_ordered_ops.core.processing.record import Record, content_bytes
from kafka_ordered_ops.core.processing.record import Result as Result
from kafka_ordered_ops.core.processing.scheduling import Lane, Ordering, Scheduler
from kafka_ordered_ops.core.processing.state import Counts as Counts
from kafka_ordered_ops.core.types import INT64_MAX, TopicPartition

#: A worker takes as many records at once as it processes in about this time: each acquisition of the lock has a cost.
TURN_S: Final = 0.002
TURN_RECORDS_MAX: Final = 256
#: The weight of a new measurement.
_NEWEST: Final = 0.2

_NO_OFFSETS: Final = np.empty(0, dtype=np.int64)


class WorkQueue:
    """Records for workers, and their results. Safe for threads.

    Args:
        ordering: which records keep their order.
        policy: what happens to failed records.
        results_max: the limit of results that wait to be taken; above it, no record is started.
        results_bytes_max: the same limit for the keys and values of their records, in bytes.
        batch_size: the maximum number of records for one call of the function.
        outputs: holds the outputs of done records, with dead letters, for transactions. `None` without transactions.
        writes: returns the records that a result writes outside of transactions, before its record is done. `None` if
            results write nothing.
        on_produced: called with each result whose records are stored.
    """

    def __init__(
        self,
        ordering: Ordering,
        policy: FailurePolicy,
        *,
        results_max: int,
        results_bytes_max: int = INT64_MAX,
        batch_size: int = 1,
        outputs: Outputs | None = None,
        writes: Callable[[Result], Sequence[NewRecord]] | None = None,
        on_produced: Callable[[Result], object] | None = None,
    ) -> None:
        self._scheduler = Scheduler(ordering, batch_size)
        self._progress: dict[TopicPartition, Progress] = {}
        self._policy = policy
        self._results: deque[Result] = deque()
        self._results_bytes = 0
        self._results_max, self._results_bytes_max = results_max, results_bytes_max
        self._outputs = outputs
        self._writes = writes
        self._on_produced = on_produced
        #: Results whose outputs or dead letters must be written before their records are done.
        self._unwritten: list[tuple[Lane, Result]] = []
        self._failure: BaseException | None = None
        self._is_stopped = self._is_over = self._is_paused = False
        self._counts = Counts()
        self._batch_size = batch_size
        #: Reentrant, because a signal handler may call the queue while its thread holds the lock.
        self._lock = RLock()
        #: Notified when a record is ready, or when there is no more work.
        self._work = Condition(self._lock)
        #: Notified for new results, and for the last running record of a partition.
        self._news = Condition(self._lock)
        #: Notified when fewer records are held than a thread waits for.
        self._room = Condition(self._lock)
        self._room_below = self._room_below_bytes = 0
        #: Notified when there are records to write, or when the writer must end.
        self._to_write = Condition(self._lock)
        self._idle = 0
        #: Called instead of waking threads.
        self._on_change: Callable[[], None] | None = None
        self._seconds_each = TURN_S

    # --- for the reader --------------------------------------------------------------------------

    def begin(self, tp: TopicPartition, progress: Progress) -> None:
        """Add a partition."""
        with self._lock:
            self._progress[tp] = progress
            self._scheduler.lane(tp)

    def add(
        self, tp: TopicPartition, records: Iterable[Record], offsets: Int64Array, position: int
    ) -> None:
        """Add a partition's next records, by offset, and the position after them."""
        batch = list(records)
        with self._lock:
            self._progress[tp].read(offsets, position)
            self._scheduler.add(tp, batch)
            self._wake_workers()

    def moved(self, tp: TopicPartition, position: int) -> None:
        """Move the position of a partition forward without records."""
        with self._lock:
            self._progress[tp].read(_NO_OFFSETS, position)

    def drop(self, tp: TopicPartition) -> None:
        """Drop a partition: the results of its running calls are ignored."""
        with self._lock:
            self._scheduler.drop(tp)
            self._progress.pop(tp, None)
            if self._outputs is not None:
                self._outputs.drop(tp)
                self._wake_workers()

    def limit(self, tp: TopicPartition, below: int) -> None:
        """Start only the records of a partition below an offset; `INT64_MAX` removes the limit."""
        with self._lock:
            self._scheduler.limit(tp, below)
            self._wake_workers()

    def settle(self, partitions: Iterable[TopicPartition], timeout_s: float) -> None:
        """Start no more records of partitions, and wait at most `timeout_s` until none is being processed."""
        with self._lock:
            current = [tp for tp in partitions if tp in self._progress]
            lanes = [self._scheduler.lane(tp) for tp in current]
            for tp in current:
                self._scheduler.limit(tp, 0)
            self._news.wait_for(
                lambda: self._is_over or not any(map(self._being_processed, lanes)), timeout_s
            )

    def snapshots(self) -> dict[TopicPartition, Snapshot]:
        """Return the progress of each partition, at one moment."""
        with self._lock:
            return self._snapshots()

    def snapshots_with_outputs(
        self,
    ) -> tuple[dict[TopicPartition, Snapshot], dict[TopicPartition, Pending]]:
        """Return the progress of each partition, and its outputs that are not stored, at one moment."""
        with self._lock:
            outputs = {} if self._outputs is None else self._outputs.pending()
            return self._snapshots(), outputs

    def stored(self, written: Mapping[TopicPartition, Written]) -> None:
        """Release the results of records whose outputs are stored."""
        stored: list[Result] = []
        with self._lock:
            if self._outputs is not None:
                for tp, places in written.items():
                    stored += self._outputs.stored(tp, places)
        call_on_produced(self._on_produced, stored)
        with self._lock:
            self._add_results(stored, content_bytes(result.record for result in stored))
            self._wake_workers()

    @property
    def has_writes(self) -> bool:
        """Whether results write outside of transactions."""
        return self._writes is not None

    @property
    def has_outputs(self) -> bool:
        """Whether records write to Kafka."""
        return self._outputs is not None

    @property
    def is_full_of_outputs(self) -> bool:
        """Whether enough outputs are held to store them now."""
        with self._lock:
            return self._outputs is not None and self._outputs.is_full

    @property
    def records(self) -> int:
        """The number of held records."""
        with self._lock:
            return self._scheduler.records

    def wait_below(self, records: int, timeout_s: float, *, held_bytes: int = INT64_MAX) -> bool:
        """Wait at most `timeout_s` until fewer records and bytes are held; return whether they are."""
        with self._lock:
            self._room_below, self._room_below_bytes = records, held_bytes
            try:
                self._room.wait_for(lambda: self._has_room() or self._is_stopped, timeout_s)
                return self._has_room()
            finally:
                self._room_below = 0

    def take_unwritten(
        self, timeout_s: float, on_take: Callable[[], None]
    ) -> list[tuple[Lane, Result]]:
        """Return results whose records must be written; wait at most `timeout_s` for the first one.

        `on_take` is called before they are taken, if there are any. Call `written` once they are stored.
        """
        with self._lock:
            if not self._unwritten and timeout_s:
                self._to_write.wait(timeout_s)
            if self._unwritten:
                on_take()
            unwritten, self._unwritten = self._unwritten, []
            return unwritten

    @property
    def has_unwritten(self) -> bool:
        """Whether results wait for the writer."""
        return bool(self._unwritten)

    def wake_writer(self) -> None:
        """Let `take_unwritten` return."""
        with self._lock:
            self._to_write.notify_all()

    def written(self, lane: Lane, result: Result) -> None:
        """Finish a result whose records are stored."""
        if result.error is None:
            call_on_produced(self._on_produced, [result])
        with self._lock:
            is_failed = result.error is not None
            self._count(failed=is_failed, succeeded=not is_failed)
            self._done(lane, [result])

    def pause(self) -> None:
        """Start no more records until `resume`."""
        with self._lock:
            self._is_paused = True

    def resume(self) -> None:
        """Start records again."""
        with self._lock:
            self._is_paused = False
            self._wake_workers()

    @property
    def counts(self) -> Counts:
        """The counts of records."""
        with self._lock:
            held, in_flight = self._scheduler.records, self._scheduler.in_flight
            return replace(self._counts, held=held, in_flight=in_flight)

    def waiting(self) -> tuple[list[Record], list[Record]]:
        """Return the records that are queued, and those that wait for a retry."""
        with self._lock:
            return self._scheduler.queued(), self._scheduler.retrying()

    @property
    def is_paused(self) -> bool:
        """Whether no records are started until `resume`."""
        return self._is_paused

    def stop(self, failure: BaseException | None = None) -> None:
        """Start no more records; running calls finish."""
        with self._lock:
            self._stop(failure)

    def end(self) -> None:
        """Announce that there are no more results."""
        with self._lock:
            self._is_over = self._is_stopped = True
            self._notify_all()

    @property
    def is_stopped(self) -> bool:
        """Whether no more records are started."""
        return self._is_stopped

    @property
    def failure(self) -> BaseException | None:
        """The error that stopped the queue, if there is one."""
        return self._failure

    # --- for workers --------------------------------------------------------------------------------

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call a function, which must be quick, whenever there may be new work, or when there is no more."""
        self._on_change = callback

    def turns_ready(self) -> int:
        """Return for how many workers there is work now, at least."""
        with self._lock:
            if not self._may_begin():
                return 0
            self._scheduler.wake(time.monotonic())
            return -(-self._scheduler.ready // self._turn_records())

    def look(self) -> None:
        """Wake workers for retries that are due; called about fifty times a second."""
        with self._lock:
            self._scheduler.wake(time.monotonic())
            self._wake_workers()

    def take(self, *, wait: bool = True) -> tuple[Lane, Sequence[Record]] | None:
        """Take records of one partition, in the order to start them; `None` at the end, or without `wait` if none is ready."""
        with self._lock:
            while not self._is_stopped:
                if self._may_begin():
                    self._scheduler.wake(time.monotonic())
                    if (batch := self._scheduler.take(self._turn_records())) is not None:
                        if self._idle and self._scheduler.ready:
                            # The thread that woke this worker may have assumed longer turns.
                            self._work.notify()
                        return batch
                if not wait:
                    return None
                self._idle += 1
                try:
                    self._work.wait()
                finally:
                    self._idle -= 1
            return None

    def finish(
        self,
        lane: Lane,
        results: Sequence[Result],
        left: Sequence[Record],
        seconds_each: float | None = None,
    ) -> None:
        """Return the results of records that were taken, and the records that were not started.

        Args:
            lane: the lane of the records.
            results: their results.
            left: the records that were not started.
            seconds_each: how long the function took for each record. `None` means that it is unknown.
        """
        succeeded = [result for result in results if result.error is None]
        writing: list[Result] = []
        if self._writes is not None:
            writing = [result for result in succeeded if self._writes(result)]
            succeeded = (
                [result for result in succeeded if not self._writes(result)]
                if writing
                else succeeded
            )
        # Without the lock: the user's back-off function may make calls that need it.
        failed = [
            (result, self._after_failure(result.record, result.error))
            for result in (results if len(succeeded) + len(writing) < len(results) else ())
            if result.error is not None
        ]
        with self._lock:
            if seconds_each is not None:
                self._seconds_each += (seconds_each - self._seconds_each) * _NEWEST
            for result, after in failed:
                self._failed(lane, result, after)
            self._scheduler.give_back(lane, left)
            self._count(succeeded=len(succeeded))
            self._done(lane, succeeded)
            self._write(lane, writing)
            if left:
                self._wake_workers()
            if not lane.below:
                # A thread waits for the last running record, whatever its result.
                self._news.notify_all()

    # --- for the consumer of the results -----------------------------------------------------------

    def take_results(self, timeout_s: float) -> list[Result] | None:
        """Return results, after waiting at most `timeout_s` for the first one; `None` once there are no more."""
        with self._lock:
            if not self._results and not self._is_over:
                self._news.wait_for(lambda: self._results or self._is_over, timeout_s)
            if not self._results:
                return None if self._is_over else []
            results = list(self._results)
            self._results.clear()
            self._results_bytes = 0
            self._wake_workers()
            return results

    # --- internal, with the lock ----------------------------------------------------------------------

    def _count(self, *, succeeded: int = 0, failed: int = 0, retried: int = 0) -> None:
        counts = self._counts
        self._counts = Counts(
            counts.succeeded + succeeded, counts.failed + failed, counts.retried + retried
        )

    def _snapshots(self) -> dict[TopicPartition, Snapshot]:
        return {tp: progress.snapshot() for tp, progress in self._progress.items()}

    def _has_room(self) -> bool:
        """Whether there is the room that a thread waits for."""
        held = self._scheduler
        return held.records < self._room_below and held.held_bytes < self._room_below_bytes

    def _may_begin(self) -> bool:
        if self._is_paused or len(self._results) >= self._results_max:
            return False
        if self._results_bytes >= self._results_bytes_max:
            return False
        return self._outputs is None or not self._outputs.is_far_above

    def _done(self, lane: Lane, results: Sequence[Result]) -> None:
        if lane.is_dropped or not results:
            return
        done_bytes = self._scheduler.done(lane, [result.record for result in results])
        self._progress[lane.tp].done([result.record.offset for result in results])
        if self._outputs is not None:
            results = self._outputs.add(lane.tp, results)
            done_bytes = content_bytes(result.record for result in results)
        self._wake_workers()
        self._add_results(results, done_bytes)
        if self._has_room():
            self._room.notify_all()

    def _add_results(self, results: Sequence[Result], held_bytes: int) -> None:
        self._results_bytes += held_bytes
        self._results.extend(results)
        self._news.notify_all()

    def _after_failure(
        self, record: Record, error: BaseException
    ) -> float | KafkaOrderedOpsError | None:
        """Return the seconds before the retry, `None` for no retry, or the error that ends processing; without the lock."""
        try:
            after_s = self._policy.retry_after_s(record, error)
        except BaseException as wrong:  # noqa: BLE001 - the user's function; the record is not lost
            failure = ProcessingError(
                f"the back-off function raised {type(wrong).__name__} for {record} after attempt {record.attempt}: "
                f"{error_text(wrong)}. Processing stopped; the record is not done"
            )
            failure.__cause__ = wrong
            return failure
        if after_s is None and self._policy.stops(error):
            return stopped_by(record, error)
        return after_s

    def _failed(
        self, lane: Lane, result: Result, after: float | KafkaOrderedOpsError | None
    ) -> None:
        if lane.is_dropped:
            return
        if isinstance(after, KafkaOrderedOpsError):
            self._stop(after)
        elif after is not None:
            self._count(retried=1)
            self._scheduler.retry(lane, result.record, time.monotonic() + after)
        elif self._policy.when_exhausted is WhenExhausted.SKIP or (
            self._policy.when_exhausted is WhenExhausted.DEAD_LETTER and self._outputs is not None
        ):
            self._count(failed=1)
            self._done(lane, [result])
        else:
            self._write(lane, [result])

    def _write(self, lane: Lane, results: Sequence[Result]) -> None:
        if results and not lane.is_dropped:
            self._unwritten += [(lane, result) for result in results]
            self._to_write.notify_all()
            self._news.notify_all()

    def _stop(self, failure: BaseException | None) -> None:
        self._failure, self._is_stopped = self._failure or failure, True
        self._notify_all()

    def _being_processed(self, lane: Lane) -> int:
        return lane.in_flight - sum(
            waiting is lane and result.error is not None for waiting, result in self._unwritten
        )

    def _notify_all(self) -> None:
        self._work.notify_all()
        self._news.notify_all()
        self._room.notify_all()
        if self._on_change is not None:
            self._on_change()

    def _turn_records(self) -> int:
        records = min(TURN_RECORDS_MAX, int(TURN_S / max(self._seconds_each, 1e-7)))
        return max(1, records // self._batch_size) * self._batch_size

    def _wake_workers(self) -> None:
        if not self._scheduler.ready or not self._may_begin():
            return
        if self._on_change is not None:
            self._on_change()
        elif self._idle:
            self._work.notify(-(-self._scheduler.ready // self._turn_records()))
