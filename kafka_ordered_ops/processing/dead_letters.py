"""Records that failed for good: written to a topic of their own, with what went wrong."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from kafka_ordered_ops.core.errors import ConfigError, KafkaOrderedOpsError
from kafka_ordered_ops.core.processing.new_record import NewRecord, as_records
from kafka_ordered_ops.core.processing.scheduling import Lane
from kafka_ordered_ops.kafka.ports import WriterDoor, open_lookup, open_writer
from kafka_ordered_ops.kafka.rights import check_may_write
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.processing.work_queue import Result

#: Before the names of headers that are added.
PREFIX: Final = "koo."
#: The client itself refuses records above 1 MB: a long message must not keep a record from being written.
TEXT_BYTES_MAX: Final = 4_000
#: Before a record that was not stored is written again; doubled each time.
FIRST_PAUSE_S: Final = 0.2
PAUSE_MAX_S: Final = 5.0

Buried = Callable[[Lane, Result], None]


def dead_letter(topic: str, result: Result) -> NewRecord:
    """Return the record for the dead-letter topic: key, value and headers as they were, and more headers.

    These are ``koo.topic``, ``koo.partition``, ``koo.offset``, ``koo.timestamp_ms``, ``koo.attempts``, ``koo.error_type`` and
    ``koo.error``, all as text.
    """
    record, error = result.record, result.error
    facts = {
        "topic": record.topic,
        "partition": str(record.partition),
        "offset": str(record.offset),
        "timestamp_ms": str(record.timestamp_ms),
        "attempts": str(record.attempt),
        "error_type": type(error).__qualname__,
        "error": _text_of(error),
    }
    added = tuple((PREFIX + name, _encoded(text)) for name, text in facts.items())
    return NewRecord(topic, record.key, record.value, (*record.headers, *added))


def outputs_with_dead_letters(topic: str | None) -> Callable[[Result], Sequence[NewRecord]]:
    """Return what a record that is done writes: what its function returned, or if it failed, a dead letter.

    Without a topic, a record that failed writes nothing.
    """

    def outputs_of(result: Result) -> Sequence[NewRecord]:
        if result.error is None:
            return as_records(result.value)
        return () if topic is None else (dead_letter(topic, result),)

    return outputs_of


def check_dead_letter_topic(
    settings: ClientSettings, topic: str, read: Collection[str], *, timeout_s: float
) -> None:
    """Check the topic before any record is processed.

    Raises:
        ConfigError: it is one of the topics that are read.
        UnknownTopicError: it does not exist. It is not created.
        AuthorizationError: this principal may not write to it.
        BrokerError: the cluster refuses, or cannot be reached.
    """
    if topic in read:
        raise ConfigError(
            f"dead_letter_topic {topic!r} is one of the topics that are processed: a failed record would be processed "
            "again and again. Name another topic"
        )
    # First: who has no right at all is told which one is needed.
    check_may_write(settings, topic, timeout_s=timeout_s)
    with open_lookup(settings, timeout_s=timeout_s) as lookup:
        lookup.topics([topic])


@dataclass(slots=True)
class _Letter:
    lane: Lane
    result: Result
    record: NewRecord
    #: When it was first sent, and is to be sent again; of `time.monotonic`.
    since_s: float
    due_s: float
    pause_s: float = FIRST_PAUSE_S


class DeadLetters:
    """Writes records to the dead-letter topic until each is stored. For one thread; `turn` never waits.

    Args:
        topic: the dead-letter topic.
        buried: called inside `turn` when a record is stored.
        give_up_s: a record that cannot be stored for so long ends processing.
    """

    def __init__(
        self, settings: ClientSettings, topic: str, buried: Buried, *, give_up_s: float
    ) -> None:
        self._settings, self._topic = settings, topic
        self._buried = buried
        self._give_up_s = give_up_s
        self._writer: WriterDoor
        self._letters: deque[_Letter] = deque()
        self._failure: KafkaOrderedOpsError | None = None

    def open(self, stack: ExitStack) -> None:
        """Begin."""
        self._writer = stack.enter_context(
            open_writer(self._settings, doing="writing dead letters")
        )

    @property
    def waiting(self) -> int:
        """How many records are not stored yet."""
        return len(self._letters) + self._writer.waiting

    def add(self, lane: Lane, result: Result) -> None:
        """Take a failed record."""
        now = time.monotonic()
        record = dead_letter(self._topic, result)
        self._letters.append(_Letter(lane, result, record, now, now))

    def turn(self, wait_s: float = 0.0) -> None:
        """Write what is due, and take note of what is stored.

        Raises:
            UnknownTopicError, AuthorizationError, RecordTooLargeError, BrokerError: a record could not be stored for
                too long. It is not done.
        """
        now = time.monotonic()
        for _ in range(len(self._letters)):
            letter = self._letters.popleft()
            if letter.lane.is_dropped:
                continue
            if letter.due_s > now or not self._writer.send(letter.record, self._report(letter)):
                self._letters.append(letter)
        self._writer.poll(wait_s)
        if self._failure is not None:
            raise self._failure

    def finish(self, timeout_s: float) -> None:
        """Write what is left, for some time at most; records that are not stored stay undone."""
        ends_at = time.monotonic() + timeout_s
        while self.waiting and time.monotonic() < ends_at:
            self.turn(0.05)
            time.sleep(0.0 if self._writer.waiting else 0.01)

    def _report(self, letter: _Letter) -> Callable[[KafkaOrderedOpsError | None], None]:
        def report(error: KafkaOrderedOpsError | None) -> None:
            if error is None:
                self._buried(letter.lane, letter.result)
                return
            now = time.monotonic()
            if now - letter.since_s >= self._give_up_s:
                error.add_note(f"{letter.result.record} failed, and is not done")
                error.__cause__ = letter.result.error
                self._failure = self._failure or error
            letter.due_s = now + letter.pause_s
            letter.pause_s = min(2 * letter.pause_s, PAUSE_MAX_S)
            self._letters.append(letter)

        return report


def _text_of(error: BaseException | None) -> str:
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - the user's class; its name is in another header
        return ""


def _encoded(text: str) -> bytes:
    """Return UTF-8, cut between characters."""
    cut = text.encode(errors="replace")[:TEXT_BYTES_MAX]
    return cut.decode(errors="ignore").encode()
