"""What workers take from and give back to: the scheduler behind a lock, and the results."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Condition, RLock
from typing import Final

import numpy as np

from kafka_ordered_ops.core.errors import KafkaOrderedOpsError, ProcessingError, RecordFailedError
from kafka_ordered_ops.core.offset_set import Int64Array
from kafka_ordered_ops.core.processing.failures import FailurePolicy, WhenExhausted
from kafka_ordered_ops.core.processing.outputs import Outputs, Pending
from kafka_ordered_ops.core.processing.progress import Progress, Snapshot
from kafka_ordered_ops.core.processing.record import Record
from kafka_ordered_ops.core.processing.record import Result as Result
from kafka_ordered_ops.core.processing.scheduling import Lane, Ordering, Scheduler
from kafka_ordered_ops.core.types import INT64_MAX, TopicPartition

#: A worker takes as many records at once as it works through in about this time: each turn at the lock has its price.
TURN_S: Final = 0.002
TURN_RECORDS_MAX: Final = 256
#: How much a new measurement counts.
_NEWEST: Final = 0.2

#: Of an error's text, in a message.
_TEXT_MAX: Final = 500

_NO_OFFSETS: Final = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Counts:
    """How far processing is, in records."""

    succeeded: int = 0
    #: Failed in their last attempt: skipped, or in the dead-letter topic.
    failed: int = 0
    #: Attempts that failed and were followed by another.
    retried: int = 0
    #: Being processed now.
    in_flight: int = 0
    #: Read, and not done; those in flight included.
    held: int = 0


class WorkQueue:
    """Records for workers, and their results. Safe for threads.

    Args:
        ordering: which records keep their order.
        policy: what happens to failed records.
        results_max: results that wait to be taken; with more, no record is begun.
        results_bytes_max: the same for the keys and values of their records.
        batch_size: how many records a function gets at once, at most.
        outputs: keeps what done records write in transactions, dead letters included; None: they write nothing.
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
    ) -> None:
        self._scheduler = Scheduler(ordering)
        self._progress: dict[TopicPartition, Progress] = {}
        self._policy = policy
        self._results: deque[Result] = deque()
        self._results_bytes = 0
        self._results_max, self._results_bytes_max = results_max, results_bytes_max
        self._outputs = outputs
        #: Failed for the last time, to be written to the dead-letter topic.
        self._dead: list[tuple[Lane, Result]] = []
        self._failure: BaseException | None = None
        self._is_stopped = self._is_over = self._is_paused = False
        self._counts = Counts()
        self._batch_size = batch_size
        #: A signal's handler may ask for something while its own thread is inside.
        self._lock = RLock()
        #: Something is ready, or there is nothing more to do.
        self._work = Condition(self._lock)
        #: There are results, or somebody waits for the last record of a partition.
        self._news = Condition(self._lock)
        #: There is room for records; notified only when fewer are held than somebody waits for.
        self._room = Condition(self._lock)
        self._room_below = self._room_below_bytes = 0
        self._idle = 0
        #: Called instead of waking threads.
        self._on_change: Callable[[], None] | None = None
        self._seconds_each = TURN_S

    # --- whoever reads ---------------------------------------------------------------------------

    def begin(self, tp: TopicPartition, progress: Progress) -> None:
        """Take a partition on."""
        with self._lock:
            self._progress[tp] = progress
            self._scheduler.lane(tp)

    def add(
        self, tp: TopicPartition, records: Iterable[Record], offsets: Int64Array, position: int
    ) -> None:
        """Take a partition's next records, by offset, and the position after them."""
        found = list(records)
        with self._lock:
            self._progress[tp].read(offsets, position)
            self._scheduler.add(tp, found)
            self._wake_workers()

    def moved(self, tp: TopicPartition, position: int) -> None:
        """Reading is at a position, and found no records on the way."""
        with self._lock:
            self._progress[tp].read(_NO_OFFSETS, position)

    def drop(self, tp: TopicPartition) -> None:
        """Give a partition up: what is being processed of it changes nothing any more."""
        with self._lock:
            self._scheduler.drop(tp)
            self._progress.pop(tp, None)
            if self._outputs is not None:
                self._outputs.drop(tp)
                self._wake_workers()

    def limit(self, tp: TopicPartition, below: int) -> None:
        """Begin only those records of a partition that are below an offset; `INT64_MAX`: all."""
        with self._lock:
            self._scheduler.limit(tp, below)
            self._wake_workers()

    def settle(self, partitions: Iterable[TopicPartition], timeout_s: float) -> None:
        """Begin no more records of partitions, and wait until none is being processed, for some time at most."""
        with self._lock:
            known = [tp for tp in partitions if tp in self._progress]
            lanes = [self._scheduler.lane(tp) for tp in known]
            for tp in known:
                self._scheduler.limit(tp, 0)
            self._news.wait_for(
                lambda: self._is_over or not any(map(self._being_processed, lanes)), timeout_s
            )

    def snapshots(self) -> dict[TopicPartition, Snapshot]:
        """Return what is done of each partition, at one moment."""
        with self._lock:
            return self._snapshots()

    def snapshots_with_outputs(
        self,
    ) -> tuple[dict[TopicPartition, Snapshot], dict[TopicPartition, Pending]]:
        """Return what is done of each partition, and the outputs of it that are not stored, at one moment."""
        with self._lock:
            outputs = {} if self._outputs is None else self._outputs.pending()
            return self._snapshots(), outputs

    def stored(self, written: Mapping[TopicPartition, Collection[int]]) -> None:
        """Outputs of these records are stored."""
        with self._lock:
            if self._outputs is not None:
                for tp, offsets in written.items():
                    self._outputs.stored(tp, offsets)
                self._wake_workers()

    @property
    def has_outputs(self) -> bool:
        """Whether records write to Kafka."""
        return self._outputs is not None

    @property
    def is_full_of_outputs(self) -> bool:
        """Whether so many outputs are held that they should be stored now."""
        with self._lock:
            return self._outputs is not None and self._outputs.is_full

    @property
    def records(self) -> int:
        """How many records are held."""
        with self._lock:
            return self._scheduler.records

    def wait_below(self, records: int, timeout_s: float, *, held_bytes: int = INT64_MAX) -> bool:
        """Wait until fewer records and bytes are held, for some time at most; return whether they are."""
        with self._lock:
            self._room_below, self._room_below_bytes = records, held_bytes
            try:
                self._room.wait_for(
                    lambda: self._has_room() or self._dead or self._is_stopped, timeout_s
                )
                return self._has_room()
            finally:
                self._room_below = 0

    def take_dead(self) -> list[tuple[Lane, Result]]:
        """Return records that go to the dead-letter topic; `buried` when they are there."""
        with self._lock:
            dead, self._dead = self._dead, []
            return dead

    def buried(self, lane: Lane, results: Sequence[Result]) -> None:
        """Records are in the dead-letter topic."""
        with self._lock:
            self._count(failed=len(results))
            self._done(lane, results)

    def pause(self) -> None:
        """Begin no more records until `resume`."""
        with self._lock:
            self._is_paused = True

    def resume(self) -> None:
        """Begin records again."""
        with self._lock:
            self._is_paused = False
            self._wake_workers()

    @property
    def counts(self) -> Counts:
        """How far it is."""
        with self._lock:
            held, in_flight = self._scheduler.records, self._scheduler.in_flight
            return replace(self._counts, held=held, in_flight=in_flight)

    def stop(self, failure: BaseException | None = None) -> None:
        """Begin no more records; what is being processed is finished."""
        with self._lock:
            self._stop(failure)

    def end(self) -> None:
        """There will be no more results."""
        with self._lock:
            self._is_over = self._is_stopped = True
            self._notify_all()

    @property
    def is_stopped(self) -> bool:
        """Whether no more records are begun."""
        return self._is_stopped

    @property
    def failure(self) -> BaseException | None:
        """What stopped it."""
        return self._failure

    # --- workers ------------------------------------------------------------------------------------

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call a function, which must be quick, whenever there may be work, or will be no more."""
        self._on_change = callback

    def turns_ready(self) -> int:
        """Return how many workers have something to take now, at least."""
        with self._lock:
            if not self._may_begin():
                return 0
            self._scheduler.wake(time.monotonic())
            return -(-self._scheduler.ready // self._turn_records())

    def look(self) -> None:
        """Wake workers for what is due to be tried again; called some fifty times a second."""
        with self._lock:
            self._scheduler.wake(time.monotonic())
            self._wake_workers()

    def take(self, *, wait: bool = True) -> tuple[Lane, Sequence[Record]] | None:
        """Take records of one partition, to be begun one after the other; None: there will be none, or none now."""
        with self._lock:
            while not self._is_stopped:
                if self._may_begin():
                    self._scheduler.wake(time.monotonic())
                    if (taken := self._scheduler.take(self._turn_records())) is not None:
                        if self._idle and self._scheduler.ready:
                            # Whoever woke this worker may have counted on longer turns.
                            self._work.notify()
                        return taken
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
        """Give back what came of records that were taken, and those that were not begun.

        Args:
            lane: where they are from.
            results: what came of them.
            left: not begun.
            seconds_each: how long the function took for each; None: not known.
        """
        succeeded = [one for one in results if one.error is None]
        # Without the lock: the user's back-off function may ask for what needs it.
        failed = [
            (one, self._after_failure(one.record, one.error))
            for one in (results if len(succeeded) < len(results) else ())
            if one.error is not None
        ]
        with self._lock:
            if seconds_each is not None:
                self._seconds_each += (seconds_each - self._seconds_each) * _NEWEST
            for one, after in failed:
                self._failed(lane, one, after)
            self._scheduler.give_back(lane, left)
            self._count(succeeded=len(succeeded))
            self._done(lane, succeeded)
            if left:
                self._wake_workers()
            if not lane.below:
                # Somebody waits for the last one, whatever came of it.
                self._news.notify_all()

    # --- whoever takes the results -----------------------------------------------------------------

    def take_results(self, timeout_s: float) -> list[Result] | None:
        """Return results, waiting for the first one for some time at most; None: there will be no more."""
        with self._lock:
            if not self._results and not self._is_over:
                self._news.wait_for(lambda: self._results or self._is_over, timeout_s)
            if not self._results:
                return None if self._is_over else []
            found = list(self._results)
            self._results.clear()
            self._results_bytes = 0
            self._wake_workers()
            return found

    # --- inside, with the lock ------------------------------------------------------------------------

    def _count(self, *, succeeded: int = 0, failed: int = 0, retried: int = 0) -> None:
        one = self._counts
        self._counts = Counts(one.succeeded + succeeded, one.failed + failed, one.retried + retried)

    def _snapshots(self) -> dict[TopicPartition, Snapshot]:
        return {tp: one.snapshot() for tp, one in self._progress.items()}

    def _has_room(self) -> bool:
        """Whether there is the room that somebody waits for."""
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
        self._results_bytes += self._scheduler.done(lane, [one.record for one in results])
        self._progress[lane.tp].done([one.record.offset for one in results])
        if self._outputs is not None:
            self._outputs.add(lane.tp, results)
        self._wake_workers()
        self._results.extend(results)
        self._news.notify_all()
        if self._has_room():
            self._room.notify_all()

    def _after_failure(
        self, record: Record, error: BaseException
    ) -> float | KafkaOrderedOpsError | None:
        """Return after how many seconds to try again, or None, or what ends processing; called without the lock."""
        try:
            after_s = self._policy.retry_after_s(record, error)
        except BaseException as wrong:  # noqa: BLE001 - the user's function; the record is not lost
            failure = ProcessingError(
                f"the back-off function raised {type(wrong).__name__} for {record} after attempt {record.attempt}: "
                f"{_text(wrong)}. Processing stopped; the record is not done"
            )
            failure.__cause__ = wrong
            return failure
        if after_s is None and self._policy.when_exhausted is WhenExhausted.STOP:
            return _stopped_by(record, error)
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
            self._dead.append((lane, result))
            self._room.notify_all()
            self._news.notify_all()

    def _stop(self, failure: BaseException | None) -> None:
        self._failure, self._is_stopped = self._failure or failure, True
        self._notify_all()

    def _being_processed(self, lane: Lane) -> int:
        return lane.in_flight - sum(dead is lane for dead, _ in self._dead)

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


def _stopped_by(record: Record, error: BaseException) -> RecordFailedError:
    failure = RecordFailedError(
        f"{record} failed in attempt {record.attempt}, its last one: {type(error).__name__}: {_text(error)}. Processing "
        "stopped, and the record is not done. To go on without such records, give a dead_letter_topic, or "
        "when_exhausted='skip'",
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        attempts=record.attempt,
    )
    failure.__cause__ = error
    return failure


def _text(error: BaseException) -> str:
    try:
        return error.message if isinstance(error, KafkaOrderedOpsError) else str(error)[:_TEXT_MAX]
    except BaseException:  # noqa: BLE001 - the user's class
        return "without a text"
