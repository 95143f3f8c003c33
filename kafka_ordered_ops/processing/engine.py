"""The loop behind per-record processing: read while there is room, and keep what is done.

It runs in its own thread, so that neither the user's function nor whoever takes the results keeps a group waiting.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import Final

from kafka_ordered_ops.core.errors import RecordsLostError, say_how_to_go_on
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.processing.partition_counts import PartitionCounts
from kafka_ordered_ops.core.processing.record import records_of
from kafka_ordered_ops.core.types import INT64_MAX, TopicPartition
from kafka_ordered_ops.kafka.client.forks import Home
from kafka_ordered_ops.kafka.ports import ReaderDoor, open_reader
from kafka_ordered_ops.kafka.read.reader import BATCH_RECORDS
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.ordered.records.columns import offsets_of
from kafka_ordered_ops.processing.dead_letters import DeadLetters, check_dead_letter_topic
from kafka_ordered_ops.processing.metrics import RunMetrics
from kafka_ordered_ops.processing.sources import Source
from kafka_ordered_ops.processing.work_queue import Counts, WorkQueue
from kafka_ordered_ops.processing.workers.workers import Workers

#: So many turns of the reader have room, at least, so that workers have records while it reads.
_TURNS_HELD: Final = 4
#: Between two reports of progress.
REPORT_EVERY_S: Final = 0.2
#: Between two measurements: an exporter asks less often.
_MEASURE_EVERY_S: Final = 1.0
#: How long to wait for room, or for the last records, before the group is looked after again.
_WAIT_S: Final = 0.05
#: How long the function may go on with what it has begun, once processing ends.
STOP_TIMEOUT_S: Final = 30.0
#: The same after Ctrl-C.
_HURRY_S: Final = 0.2
#: For what is kept at the end, after the function: half of it for dead letters, and half for what is done.
_CLOSE_S: Final = 5.0
#: A request may be under way when processing is stopped. Without a group to leave, it is not waited for longer.
_UNHEARD_S: Final = 2.0
#: Leaving a group takes so long only if others hold it up.
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
        stall_timeout_s: float,
        stop_timeout_s: float,
    ) -> None:
        self._settings = settings
        self._source, self._queue, self._workers = source, queue, workers
        self._records_max, self._bytes_max = records_max, bytes_max
        self._turn_records = max(1, min(BATCH_RECORDS, records_max // _TURNS_HELD))
        self._dead_letter_topic = dead_letter_topic
        self._stall_timeout_s = stall_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._reader: ReaderDoor
        self._dead_letters: DeadLetters | None = None
        #: Of a plan: partitions that are not read to their ends.
        self._unread: dict[TopicPartition, int] = {}
        #: What is wanted of each partition; and of a group, what is left of it while it is not read.
        self._wanted: dict[TopicPartition, OffsetSet] = {}
        self._left: dict[TopicPartition, OffsetSet] = {}
        #: Of a group, where the logs end.
        self._ends: dict[TopicPartition, int] = {}
        self._metrics = RunMetrics(source.group_id, self)
        self._report_at = self._measure_at = 0.0
        self._is_finite = not source.is_endless
        self._is_draining = False
        self._drained_by = float("inf")
        self._close_s, self._leave_s = _CLOSE_S, _LEAVE_S
        #: Whether it has begun to process; whether it has noticed that the queue is stopped, and when it should have.
        self._is_open = self._is_ending = False
        self._unheard_by: float | None = None
        self._home = Home()
        self._thread = threading.Thread(target=self._run, name="process-records", daemon=True)

    @property
    def is_here(self) -> bool:
        """Whether it runs in this process, which may be forked from its own."""
        return self._home.is_here

    def check_here(self) -> None:
        """Raise `NotShareableError` in a forked process: nobody works there."""
        self._home.check("an iterator over results")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wait(self) -> None:
        """Wait for the end, once the queue is stopped."""
        ends_at = time.monotonic() + self._stop_timeout_s + self._close_s + self._leave_s
        while self._thread.is_alive() and time.monotonic() < ends_at and not self.is_given_up:
            self._thread.join(_WAIT_S)

    @property
    def is_given_up(self) -> bool:
        """Whether the queue is stopped, no call goes on, and a request to a cluster that does not answer holds up the end.

        The thread ends when the request does. A member of a group would stay in it if the program ended before.
        """
        if self._is_ending or not self._queue.is_stopped or (self._is_open and not self._is_finite):
            return False
        if self._unheard_by is None:
            self._unheard_by = time.monotonic() + _UNHEARD_S
        return time.monotonic() >= self._unheard_by and not self._queue.counts.in_flight

    def drain(self, timeout_s: float | None = None) -> None:
        """Read no more, and end when everything that was read is done, or when the time is over."""
        if timeout_s is not None:
            self._drained_by = time.monotonic() + timeout_s
        self._is_draining = True

    def hurry(self) -> None:
        """Somebody waits at a keyboard: give up soon what has begun; it is not done."""
        self._stop_timeout_s = min(self._stop_timeout_s, _HURRY_S)
        self._close_s, self._leave_s = _HURRY_CLOSE_S, 0.0

    def end_within(self, timeout_s: float) -> None:
        """Give up sooner what has begun, once processing ends."""
        self._stop_timeout_s = min(self._stop_timeout_s, timeout_s)

    @property
    def counts(self) -> Counts:
        """How far it is, in records."""
        return self._queue.counts

    @property
    def partitions(self) -> tuple[PartitionCounts, ...]:
        """How far each partition is; for any thread."""
        wanted, ends = dict(self._wanted), dict(self._ends)
        return tuple(
            PartitionCounts.of(
                tp, snapshot, wanted[tp], wanted[tp].end if self._is_finite else ends.get(tp)
            )
            for tp, snapshot in sorted(self._queue.snapshots().items())
            if tp in wanted
        )

    def _run(self) -> None:
        """Process until the end of a plan, or until the queue is stopped."""
        try:
            with ExitStack() as stack:
                self._open(stack)
                try:
                    while not self._queue.is_stopped and not self._is_done():
                        self._turn()
                except BaseException as error:  # noqa: BLE001 - raised as below, after what is done was kept
                    self._queue.stop(error)
                self._is_ending = True
                self._queue.stop()
                self._workers.join(self._stop_timeout_s)
                self._bury_last()
                self._source.commit_at_end(self._close_s / 2)
                self._source.report()
        except BaseException as error:  # noqa: BLE001 - raised by whoever takes the results
            self._queue.stop(error)
        finally:
            self._queue.end()

    def _open(self, stack: ExitStack) -> None:
        if (topic := self._dead_letter_topic) is not None:
            check_dead_letter_topic(
                self._settings, topic, self._source.topics, timeout_s=self._stall_timeout_s
            )
            # Where records produce, their dead letters are in the same transactions.
            if not self._queue.has_outputs:
                self._dead_letters = DeadLetters(
                    self._settings,
                    topic,
                    lambda lane, result: self._queue.buried(lane, [result]),
                    give_up_s=self._stall_timeout_s,
                )
                self._dead_letters.open(stack)
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
        self._bury()
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
        """Report and measure now and then."""
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
        for tp in changes.lost:
            self._reader.stop(tp)
            self._queue.drop(tp)
            self._left.pop(tp, None)
            self._wanted.pop(tp, None)
            self._ends.pop(tp, None)
        for tp, share in changes.gained.items():
            self._queue.begin(tp, share.progress)
            self._reader.add(tp, share.wanted)
            self._wanted[tp] = share.wanted
        for tp, below in changes.limits.items():
            self._limit(tp, below)

    def _limit(self, tp: TopicPartition, below: int | None) -> None:
        """Begin no record of a partition from an offset on, and read none meanwhile: others need the room."""
        self._queue.limit(tp, INT64_MAX if below is None else below)
        if below is None:
            self._reader.add(tp, self._left.pop(tp))
        elif tp not in self._left:
            self._left[tp] = self._wanted[tp].within(self._reader.positions[tp], INT64_MAX)
            self._reader.stop(tp)

    def _bury(self) -> None:
        """Write dead letters; their records are done when they are stored."""
        if self._dead_letters is not None:
            for lane, result in self._queue.take_dead():
                self._dead_letters.add(lane, result)
            self._dead_letters.turn()

    def _bury_last(self) -> None:
        """Write the last dead letters; if that fails, what is done is still kept."""
        try:
            self._bury()
            if self._dead_letters is not None:
                self._dead_letters.finish(min(self._stop_timeout_s, self._close_s / 2))
        except BaseException as error:  # noqa: BLE001 - raised by whoever takes the results
            self._queue.stop(error)
