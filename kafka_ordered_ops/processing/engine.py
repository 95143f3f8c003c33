"""The loop of per-record processing: read while there is room, and store the progress.

It runs in its own thread, so that neither the user's function nor the consumer of the results delays the group.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from contextlib import ExitStack
from typing import Final

from kafka_ordered_ops.core.cluster.reading import BATCH_RECORDS
from kafka_ordered_ops.core.errors import RecordsLostError, UnknownTopicError, say_how_to_go_on
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.processing.partition_counts import PartitionCounts
from kafka_ordered_ops.core.processing.record import records_of
from kafka_ordered_ops.core.processing.state import ProcessorState, key_states
from kafka_ordered_ops.core.types import INT64_MAX, TopicPartition
from kafka_ordered_ops.kafka.client.lifetime import Home
from kafka_ordered_ops.kafka.ports import ReaderDoor, open_reader
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.ordered.records.columns import offsets_of
from kafka_ordered_ops.processing.dead_letters import (
    check_dead_letter_topic,
    outputs_with_dead_letters,
)
from kafka_ordered_ops.processing.metrics import RunMetrics
from kafka_ordered_ops.processing.outbox import Outbox
from kafka_ordered_ops.processing.source import Source
from kafka_ordered_ops.processing.work_queue import Counts, WorkQueue
from kafka_ordered_ops.processing.workers.workers import Workers

#: There is room for at least this many turns of the reader, so that workers have records while it reads.
_TURNS_HELD: Final = 4
#: The interval between two reports of progress.
REPORT_EVERY_S: Final = 0.2
#: The interval between two measurements: exporters read them less often.
_MEASURE_EVERY_S: Final = 1.0
#: How long to wait for room, or for the last records, before the group is polled again.
_WAIT_S: Final = 0.05
#: How long running calls of the function may continue once processing ends.
STOP_TIMEOUT_S: Final = 30.0
#: The same after Ctrl-C.
_HURRY_S: Final = 0.2
#: The time to store results at the end, after the function: half of it for dead letters, and half for the progress.
_CLOSE_S: Final = 5.0
#: How long to wait for a request that is in progress when processing stops, if there is no group to leave.
_UNHEARD_S: Final = 2.0
#: Leaving a group takes this long only if other members delay it.
_LEAVE_S: Final = 15.0
#: The same after Ctrl-C.
_HURRY_CLOSE_S: Final = 0.5


class Engine:
    """One run of processing."""

    def __init__(
        self,
        settings: ClientSettings,
        source: Source,
        queue: WorkQueue,
        workers: Workers,
        *,
        records_max: int,
        bytes_max: int,
        dead_letter_topic: str | None,
        produces: bool,
        stall_timeout_s: float,
        stop_timeout_s: float,
    ) -> None:
        self._settings = settings
        self._source, self._queue, self._workers = source, queue, workers
        self._records_max, self._bytes_max = records_max, bytes_max
        self._turn_records = max(1, min(BATCH_RECORDS, records_max // _TURNS_HELD))
        self._dead_letter_topic = dead_letter_topic
        self._produces = produces
        self._stall_timeout_s = stall_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._reader: ReaderDoor
        self._outbox: Outbox | None = None
        #: For a plan: the ends of partitions that are not read completely.
        self._unread: dict[TopicPartition, int] = {}
        #: The wanted offsets of each partition; for a group, also the remaining ones of partitions whose reading pauses.
        self._wanted: dict[TopicPartition, OffsetSet] = {}
        self._left: dict[TopicPartition, OffsetSet] = {}
        #: For a group: the ends of the logs.
        self._ends: dict[TopicPartition, int] = {}
        self._metrics = RunMetrics(source.group_id, self)
        self._report_at = self._measure_at = 0.0
        self._is_finite = not source.is_endless
        self._is_draining = False
        self._drained_by = float("inf")
        self._close_s, self._leave_s = _CLOSE_S, _LEAVE_S
        #: Whether processing has started; whether the loop has seen that the queue is stopped, and by when it should have.
        self._is_open = self._is_ending = False
        self._unheard_by: float | None = None
        self._home = Home()
        self._thread = threading.Thread(target=self._run, name="process-records", daemon=True)

    @property
    def is_here(self) -> bool:
        """Whether the engine runs in this process, and not in one that this process was forked from."""
        return self._home.is_here

    def check_here(self) -> None:
        """Raise `NotShareableError` in a forked process, which has no workers."""
        self._home.check("an iterator over results")

    def start(self) -> None:
        """Start processing."""
        self._thread.start()

    def wait(self) -> None:
        """Wait for the end, once the queue is stopped."""
        if self._thread is threading.current_thread():
            # An iterator that was not closed may be garbage-collected in any thread.
            return
        ends_at = time.monotonic() + self._stop_timeout_s + self._close_s + self._leave_s
        while self._thread.is_alive() and time.monotonic() < ends_at and not self.is_given_up:
            self._thread.join(_WAIT_S)

    @property
    def is_given_up(self) -> bool:
        """Whether the queue is stopped, no call is running, and only a request to an unresponsive cluster delays the end.

        The thread ends with the request. If the program ended before, a member of a group would stay in it.
        """
        if self._is_ending or not self._queue.is_stopped or (self._is_open and not self._is_finite):
            return False
        if self._unheard_by is None:
            self._unheard_by = time.monotonic() + _UNHEARD_S
        return time.monotonic() >= self._unheard_by and not self._queue.counts.in_flight

    def drain(self, timeout_s: float | None = None) -> None:
        """Stop reading, and end once all records that were read are done, or when the time is over."""
        if timeout_s is not None:
            self._drained_by = time.monotonic() + timeout_s
        self._is_draining = True

    def hurry(self) -> None:
        """Give up running calls soon, after Ctrl-C; their records are not done."""
        self._stop_timeout_s = min(self._stop_timeout_s, _HURRY_S)
        self._close_s, self._leave_s = _HURRY_CLOSE_S, 0.0

    def end_within(self, timeout_s: float) -> None:
        """Limit how long running calls may continue once processing ends."""
        self._stop_timeout_s = min(self._stop_timeout_s, timeout_s)

    @property
    def counts(self) -> Counts:
        """The counts of records."""
        return self._queue.counts

    @property
    def partitions(self) -> tuple[PartitionCounts, ...]:
        """The progress of each partition; for any thread."""
        wanted, ends = dict(self._wanted), dict(self._ends)
        return tuple(
            PartitionCounts.of(
                tp, snapshot, wanted[tp], wanted[tp].end if self._is_finite else ends.get(tp)
            )
            for tp, snapshot in sorted(self._queue.snapshots().items())
            if tp in wanted
        )

    @property
    def state(self) -> ProcessorState:
        """The state, which takes a visit to all held records; for any thread."""
        # First, so that a record that ends meanwhile is counted once, or not at all.
        in_flight = self._workers.in_flight()
        queued, retrying = self._queue.waiting()
        counts = self._queue.counts
        return ProcessorState(
            is_paused=self._queue.is_paused,
            held=counts.held,
            in_flight=counts.in_flight,
            waiting_for_retry=len(retrying),
            keys=key_states(queued, retrying, in_flight),
            commit_error=self._source.commit_error,
        )

    def _run(self) -> None:
        """Process until the end of a plan, or until the queue is stopped."""
        try:
            with ExitStack() as stack:
                self._open(stack)
                try:
                    while not self._queue.is_stopped and not self._is_done():
                        self._turn()
                except BaseException as error:  # noqa: BLE001 - raised as below, after the progress was stored
                    self._queue.stop(error)
                self._is_ending = True
                self._queue.stop()
                self._workers.join(self._stop_timeout_s)
                if self._outbox is not None:
                    self._outbox.finish(min(self._stop_timeout_s, self._close_s / 2))
                self._source.commit_at_end(self._close_s / 2)
                self._source.report()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that takes the results
            self._queue.stop(error)
        finally:
            self._queue.end()

    def _open(self, stack: ExitStack) -> None:
        topic = self._dead_letter_topic
        if topic is not None:
            check_dead_letter_topic(
                self._settings, topic, self._source.reads, timeout_s=self._stall_timeout_s
            )
        # Transactions contain the dead letters as well.
        if not self._queue.has_outputs and (topic is not None or self._produces):
            self._outbox = Outbox(
                self._settings,
                self._queue,
                outputs_with_dead_letters(topic, produces=self._produces),
                give_up_s=self._stall_timeout_s,
            )
            self._outbox.open(stack)
        shares = self._source.open(stack, self._queue)
        for tp, share in shares.items():
            self._queue.begin(tp, share.progress)
            self._unread[tp] = share.wanted.end
            self._wanted[tp] = share.wanted
        self._reader = stack.enter_context(
            open_reader(
                self._settings,
                self._source.group_id,
                self._source.isolation,
                {tp: share.wanted for tp, share in shares.items()},
                batch_records=self._turn_records,
                stall_timeout_s=self._stall_timeout_s,
                topic_ids=self._source.topic_ids,
            )
        )
        self._metrics.begin()
        stack.callback(self._metrics.end)
        self._source.on_commit = self._metrics.committed
        self._workers.on_turn = self._metrics.turn
        self._workers.start()
        self._is_open = True

    def _is_done(self) -> bool:
        if self._is_draining and time.monotonic() >= self._drained_by:
            self.end_within(0.0)
            return True
        reads_on = not self._is_draining and (self._unread or not self._is_finite)
        return not (reads_on or self._queue.records)

    def _turn(self) -> None:
        self._follow_group()
        self._source.commit_if_due()
        self._look()
        if self._is_draining or (self._is_finite and not self._unread):
            self._queue.wait_below(1, _WAIT_S)
        else:
            # Room for what one turn of the reader may bring.
            records = self._records_max - self._turn_records + 1
            if self._queue.wait_below(records, _WAIT_S, held_bytes=self._bytes_max):
                self._read()

    def _read(self) -> None:
        try:
            turns = self._reader.turn()
        except UnknownTopicError as error:
            self._lose(self._source.leave_deleted(error))
            return
        except RecordsLostError as error:
            if not self._is_finite:
                say_how_to_go_on(error, self._source.group_id)
            raise
        for tp, rows, position in turns:
            if rows is not None and rows.num_rows:
                self._queue.add(tp, records_of(tp, rows), offsets_of(rows), position)
            else:
                self._queue.moved(tp, position)
            if self._is_finite and position >= self._unread.get(tp, position + 1):
                del self._unread[tp]
        if self._is_finite and self._unread:
            self._reader.check_not_stalled()

    def _look(self) -> None:
        """Report the progress and update the metrics, if they are due."""
        now = time.monotonic()
        if now >= self._report_at:
            self._report_at = now + REPORT_EVERY_S
            self._source.report()
        if now >= self._measure_at:
            self._measure_at = now + _MEASURE_EVERY_S
            self._metrics.count()
            if not self._is_finite:
                self._ends |= self._reader.log_ends

    def _follow_group(self) -> None:
        changes = self._source.poll()
        if changes is None:
            return
        self._lose(changes.lost)
        for tp, share in changes.gained.items():
            self._queue.begin(tp, share.progress)
            self._reader.add(tp, share.wanted)
            self._wanted[tp] = share.wanted
        for tp, below in changes.limits.items():
            self._limit(tp, below)

    def _lose(self, partitions: Collection[TopicPartition]) -> None:
        for tp in partitions:
            self._reader.stop(tp)
            self._queue.drop(tp)
            self._left.pop(tp, None)
            self._wanted.pop(tp, None)
            self._ends.pop(tp, None)

    def _limit(self, tp: TopicPartition, below: int | None) -> None:
        """Start no record of a partition from an offset on. Reading pauses too: other partitions need the room."""
        self._queue.limit(tp, INT64_MAX if below is None else below)
        if below is None:
            self._reader.add(tp, self._left.pop(tp))
        elif tp not in self._left:
            self._left[tp] = self._wanted[tp].within(self._reader.positions[tp], INT64_MAX)
            self._reader.stop(tp)
