"""Write outputs of functions and dead letters to Kafka, outside of transactions."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from kafka_ordered_ops.core.errors import KafkaOrderedOpsError
from kafka_ordered_ops.core.processing.new_record import NewRecord
from kafka_ordered_ops.core.processing.record import RecordMetadata
from kafka_ordered_ops.core.processing.scheduling import Lane
from kafka_ordered_ops.kafka.ports import WriterDoor, open_writer
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.processing.work_queue import Result, WorkQueue

#: The pause before a record that was not stored is written again; doubled each time.
FIRST_PAUSE_S: Final = 0.2
PAUSE_MAX_S: Final = 5.0

#: The limit of a client's batch, and how long the client waits for more records.
_BATCH_RECORDS: Final = 10_000
_LINGER_MS: Final = 2
#: The interval between two polls while records are being written; and while none are.
_POLL_S: Final = 0.005
_IDLE_S: Final = 0.5
_CLOSE_S: Final = 2.0


@dataclass(slots=True)
class _Letter:
    """The records of one result."""

    lane: Lane
    result: Result
    records: Sequence[NewRecord]
    #: When they were first sent, and when the unstored ones are sent again; of `time.monotonic`.
    since_s: float
    due_s: float
    pause_s: float = FIRST_PAUSE_S
    #: The positions of stored records, by number.
    stored: dict[int, RecordMetadata] = field(default_factory=dict)
    #: The number of sent records without a delivery report.
    waiting: int = 0


class Outbox:
    """Writes the records of results in its own thread until all are stored; then the queue counts them as done.

    Args:
        settings: how to reach the cluster.
        queue: holds the results.
        records_of: returns the records of a result.
        give_up_s: a dead letter that cannot be stored within this time ends processing. An output that brokers refuse ends
            it at once.
    """

    def __init__(
        self,
        settings: ClientSettings,
        queue: WorkQueue,
        records_of: Callable[[Result], Sequence[NewRecord]],
        *,
        give_up_s: float,
    ) -> None:
        self._settings, self._queue, self._records_of = settings, queue, records_of
        self._give_up_s = give_up_s
        self._letters: deque[_Letter] = deque()
        self._writer: WriterDoor | None = None
        #: A broker refuses a batch as a whole, without the record that caused it. After that, each record is sent alone.
        self._is_batched = self._writes_batches = True
        self._failure: KafkaOrderedOpsError | None = None
        self._is_closing = threading.Event()
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._thread = threading.Thread(target=self._run, name="process-outbox", daemon=True)

    def open(self, stack: ExitStack) -> None:
        """Start writing."""
        stack.callback(self._close)
        self._thread.start()

    def finish(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` until all records are stored; the other results stay undone."""
        ends_at = time.monotonic() + timeout_s
        while self._queue.has_unwritten or not self._is_idle.is_set():
            if time.monotonic() >= ends_at or not self._thread.is_alive():
                return
            time.sleep(_POLL_S)

    def _close(self) -> None:
        self._is_closing.set()
        self._queue.wake_writer()
        # A client that is being opened cannot be interrupted.
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        try:
            while not self._is_closing.is_set():
                self._turn()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that takes the results
            self._queue.stop(error)
        finally:
            self._is_idle.set()
            if self._writer is not None:
                self._writer.close()

    def _turn(self) -> None:
        is_busy = bool(self._letters) or (self._writer is not None and self._writer.waiting > 0)
        now = time.monotonic()
        for lane, result in self._queue.take_unwritten(
            0.0 if is_busy else _IDLE_S, self._is_idle.clear
        ):
            self._letters.append(_Letter(lane, result, self._records_of(result), now, now))
        writer = self._open_writer()
        for _ in range(len(self._letters)):
            self._send(writer, self._letters.popleft())
        writer.poll(_POLL_S if writer.waiting or self._letters else 0.0)
        if self._failure is not None:
            raise self._failure
        if not self._letters and not writer.waiting:
            self._is_idle.set()

    def _open_writer(self) -> WriterDoor:
        if self._writer is not None and self._writes_batches != self._is_batched:
            if self._writer.waiting:
                return self._writer
            self._writer.close()
            self._writer = None
        if self._writer is None:
            self._writes_batches = self._is_batched
            more = {"batch_records": _BATCH_RECORDS, "linger_ms": _LINGER_MS}
            self._writer = open_writer(
                self._settings, doing="writing outputs", **(more if self._is_batched else {})
            )
        return self._writer

    def _send(self, writer: WriterDoor, letter: _Letter) -> None:
        """Send the unstored records of a letter; wait while the client has no room."""
        if letter.lane.is_dropped or letter.waiting:
            return
        if letter.due_s > time.monotonic() or self._writes_batches != self._is_batched:
            self._letters.append(letter)
            return
        for number, record in enumerate(letter.records):
            if number in letter.stored:
                continue
            letter.waiting += 1
            while not writer.send(
                record,
                partial(self._reported, letter),
                partial(letter.stored.__setitem__, number),
            ):
                writer.poll(_POLL_S)
                if self._is_closing.is_set():
                    return

    def _reported(self, letter: _Letter, error: KafkaOrderedOpsError | None) -> None:
        letter.waiting -= 1
        if error is not None:
            self._failed(letter, error)
        if letter.waiting:
            return
        if len(letter.stored) == len(letter.records):
            places = tuple(letter.stored[number] for number in range(len(letter.records)))
            self._queue.written(letter.lane, letter.result._replace(produced=places))
        else:
            self._letters.append(letter)

    def _failed(self, letter: _Letter, error: KafkaOrderedOpsError) -> None:
        now = time.monotonic()
        letter.due_s = now + letter.pause_s
        letter.pause_s = min(2 * letter.pause_s, PAUSE_MAX_S)
        if self._is_batched and not error.retriable:
            self._is_batched, letter.due_s = False, now
            return
        is_output = letter.result.error is None
        if now - letter.since_s >= self._give_up_s or (is_output and not error.retriable):
            error.add_note(
                f"{letter.result.record} is not done: its output is not stored"
                if is_output
                else f"{letter.result.record} failed, and is not done"
            )
            error.__cause__ = letter.result.error
            self._failure = self._failure or error
