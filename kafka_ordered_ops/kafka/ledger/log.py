"""Read the ledger from Kafka: one group's records, up to the current end of its partition."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from kafka_ordered_ops.core import types as core
from kafka_ordered_ops.core.cluster.reading import unreadable_in
from kafka_ordered_ops.core.errors import (
    LedgerCorruptError,
    LedgerUnavailableError,
    RecordTooLargeError,
)
from kafka_ordered_ops.core.group.ledger.records import (
    HELD_BYTES_MAX,
    Headers,
    LedgerFold,
    RecordName,
)
from kafka_ordered_ops.core.group.ledger.repair import RecordHistory
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import INT64_MAX
from kafka_ordered_ops.kafka.client.answers import position as offset_known
from kafka_ordered_ops.kafka.client.calls import waits_for, within
from kafka_ordered_ops.kafka.client.errors import FaultReasons, translate
from kafka_ordered_ops.kafka.client.interrupts import interruptible
from kafka_ordered_ops.kafka.client.lifetime import Home
from kafka_ordered_ops.kafka.ledger.queue import Line
from kafka_ordered_ops.kafka.read.taking import Taking
from kafka_ordered_ops.kafka.read.unreadable import is_unreadable, unreadable_error

_log = logging.getLogger("kafka_ordered_ops.ledger")

_CONSUME_RECORDS: Final = 1_000
# How long a read waits for the next record, or for the end event.
_CONSUME_TIMEOUT_S: Final = 0.01

#: Enough for fetching a thousand old windows again.
_FETCH_TIMEOUT_S: Final = 30.0

#: Gaps up to this many offsets are read through, which takes as long as starting another read after the gap.
_READ_THROUGH: Final = 2_000


class LedgerLog(LedgerFold):
    """One group's records, folded from its ledger partition up to a position, from which later reads continue."""

    def __init__(
        self,
        where: core.TopicPartition,
        group_id: str,
        open_consumer: Callable[[], Consumer],
        reasons: FaultReasons,
        *,
        config: Mapping[str, str],
        held_bytes_max: int = HELD_BYTES_MAX,
    ) -> None:
        super().__init__(where, group_id, fetch=self._values_at, held_bytes_max=held_bytes_max)
        self.line = Line(group_id)
        self._config = config
        self._open_consumer = open_consumer
        self._opened: Consumer | None = None
        self._reasons = reasons
        self._taking = Taking(_CONSUME_RECORDS, wait_s=_CONSUME_TIMEOUT_S)
        self._position: int | None = None
        self._home = Home()

    @property
    def position(self) -> int:
        """The offset of the ledger's partition below which all records are folded."""
        return self._position or 0

    def close(self) -> None:
        """Close the reader."""
        if self._opened is not None and self._home.is_here:
            self._opened.close()

    @property
    def _consumer(self) -> Consumer:
        """The reader, opened when there is something to read: a reader that was idle first may fetch 0.6 s late."""
        self._home.check(f"the ledger's reader of group {self.group_id}")
        if self._opened is None:
            self._opened = self._open_consumer()
        return self._opened

    def read_to(self, end: int, *, log_start: int, deadline: float) -> None:
        """Fold all records below `end`; `deadline` is a `time.monotonic` time.

        Raises:
            LedgerUnavailableError: the position does not reach the end in time. Under read_committed this happens
                while a transaction of any group is open in the partition.
        """
        start = log_start if self._position is None else self._position
        for messages, position in self._read(start, end, deadline):
            for message in messages:
                self._take(message)
            # Folded records stay folded, even if the rest is missing.
            self._position = position
        self.has_read_all()

    def history(self, record: RecordName, *, log_start: int, deadline: float) -> RecordHistory:
        """Return the writes of one record that the log still has, up to the folded position."""
        history = RecordHistory(self.group_id, record)
        for messages, _ in self._read(log_start, self.position, deadline):
            for message in messages:
                offset = message.offset()
                if offset is not None and offset < self.position:
                    headers = partial(_headers_of, message)
                    history.take(offset, message.key(), message.value(), headers)
        return history

    def _values_at(self, offsets: Sequence[int]) -> dict[int, bytes]:
        """Return the values of records that were folded before, without those that are gone from the log."""
        requested, values = set(offsets), dict[int, bytes]()
        deadline = within(_FETCH_TIMEOUT_S).at_s
        for start, end in _runs(offsets):
            for messages, _ in self._read(start, end, deadline):
                for message in messages:
                    offset, value = message.offset(), message.value()
                    if offset in requested and value is not None:
                        values[offset] = value
        return values

    def _read(self, start: int, end: int, deadline: float) -> Iterator[tuple[list[Message], int]]:
        """Yield lists of records from `start` on until the position reaches `end`, each with the position after them."""
        if start >= end:
            return
        waits_for(f"the ledger {self.where} to be read up to offset {end}")
        position, began_s = start, time.monotonic()
        moved_s = began_s
        tp = TopicPartition(self.where.topic, self.where.partition, start)
        consumer = self._consumer
        consumer.assign([tp])
        try:
            while position < end:
                with interruptible():
                    messages = self._taking.take(consumer)
                if not messages:
                    self._reasons.raise_if_hopeless(
                        doing="reading the ledger", where=str(self.where)
                    )
                records = []
                for message in messages:
                    if message.error() is None:
                        records.append(message)
                    elif (beyond := self._beyond(message)) is not None:
                        position = beyond
                        consumer.assign([TopicPartition(tp.topic, tp.partition, beyond)])
                    else:
                        position = max(position, self._end_told(message))
                [now] = consumer.position([tp])
                if (reached := offset_known(now.offset) or 0) > position or records:
                    moved_s = time.monotonic()
                position = max(position, reached)
                yield records, position
                if position < end and (now_s := time.monotonic()) > deadline:
                    took_s, quiet_s = now_s - began_s, now_s - moved_s
                    raise self._unread(range(start, end), position, took_s, quiet_s)
        except KafkaException as error:
            raise translate(
                error, doing="reading the ledger", where=str(self.where), reasons=self._reasons
            ) from error
        finally:
            consumer.unassign()

    def _beyond(self, message: Message) -> int | None:
        """Return where to continue after a batch that is too large to be unpacked, which has no record of this package.

        Returns None for any other event. Raises `LedgerCorruptError` for a damaged batch.
        """
        error, at = message.error(), offset_known(message.offset())
        place = (message.topic(), message.partition())
        if (
            error is None
            or at is None
            or not is_unreadable(error.code())
            or place != (self.where.topic, self.where.partition)
        ):
            return None
        fault = unreadable_error(
            self._config,
            self.where,
            at,
            OffsetSet.of((at, INT64_MAX)),
            error,
            self._reasons,
            timeout_s=_FETCH_TIMEOUT_S,
        )
        batch = unreadable_in(fault, [self.where]).get(self.where)
        if isinstance(fault, RecordTooLargeError) and batch is not None:
            _log.warning("passed over, since no record of the ledger is in it: %s", fault)
            return batch.end
        raise LedgerCorruptError(
            f"group {self.group_id}: the ledger cannot be read at offset {at}: {fault.message}. Restore the partition "
            "from a replica"
        ) from fault

    def _end_told(self, message: Message) -> int:
        """Return the end of the partition from an end event, or 0; raise the event's error."""
        error, offset = message.error(), message.offset()
        if error is None or error.code() == KafkaError._PARTITION_EOF:
            return offset_known(offset) or 0
        if (message.topic(), message.partition()) != (self.where.topic, self.where.partition):
            # The client's events about brokers and the group's coordinator are not answers to this read, and may be older
            # than it.
            self._reasons.add(error)
            return 0
        raise translate(
            error, doing="reading the ledger", where=str(self.where), reasons=self._reasons
        )

    def _take(self, message: Message) -> None:
        """Fold one record."""
        offset, key, value = message.offset(), message.key(), message.value()
        if offset is None:
            return
        if not self.line.take(offset, key or b"", value, message.timestamp()[1]):
            self.take(offset, key, value, partial(_headers_of, message))

    def _unread(
        self, range_: range, position: int, took_s: float, quiet_s: float
    ) -> LedgerUnavailableError:
        """Return the error of a read that did not reach its end in time: it was still progressing, or stuck."""
        start, end, read = range_.start, range_.stop, position - range_.start
        if read > 0 and quiet_s < took_s / 10:
            return LedgerUnavailableError(
                f"group {self.group_id}: the ledger {self.where} is too large to be read in {took_s:.0f} s: {read:,} of "
                f"{end - start:,} offsets were read, {read / took_s:,.0f} a second, from {start} up to {position} of {end}. "
                "A retry in this process continues there; a new process begins again and needs a longer time limit. Prune "
                "old windows of the groups of this ledger, or give new groups another ledger"
            )
        return LedgerUnavailableError(
            f"group {self.group_id}: the ledger {self.where} could only be read up to offset {position} of "
            f"{end}: a transaction of another process is open there, or the broker does not "
            "answer. The transaction ends at its timeout: retry. If it does not end, a broker died before it "
            "marked the transaction's end: use kafka-transactions.sh find-hanging and abort"
        )


def _headers_of(message: Message) -> Headers | None:
    """Return a record's headers; None if their keys are not text, on which the client fails: our records' keys are text."""
    try:
        return message.headers()
    except (SystemError, UnicodeDecodeError):  # Depends on the client's version.
        return None


def _runs(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield rising offsets as ranges that are each read at once."""
    start = end = None
    for offset in offsets:
        if start is not None and end is not None and offset - end > _READ_THROUGH:
            yield start, end
            start = None
        start, end = offset if start is None else start, offset + 1
    if start is not None and end is not None:
        yield start, end
