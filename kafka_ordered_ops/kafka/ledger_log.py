"""The ledger as it is read from Kafka: one group's records, up to the end of its partition as of now."""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from kafka_ordered_ops.core import types as core
from kafka_ordered_ops.core.errors import LedgerUnavailableError
from kafka_ordered_ops.core.ledger_records import LedgerFold
from kafka_ordered_ops.kafka.faults import FaultReasons, translate
from kafka_ordered_ops.kafka.turns import Line

_CONSUME_RECORDS: Final = 1_000
# `consume` waits for a full batch or this long: the end of the ledger is never a full batch.
_CONSUME_TIMEOUT_S: Final = 0.01


class LedgerLog(LedgerFold):
    """One group's records, folded from its ledger partition up to a position; read on from there."""

    def __init__(self, where: core.TopicPartition, group: str) -> None:
        super().__init__(where, group)
        self.line = Line(group)
        self._position: int | None = None

    @property
    def position(self) -> int:
        """Everything below this offset of the ledger's partition is folded."""
        return self._position or 0

    def read_to(
        self,
        end: int,
        *,
        log_start: int,
        consumer: Consumer,
        reasons: FaultReasons,
        deadline: float,
    ) -> None:
        """Folds everything below `end`; `deadline` is a `time.monotonic` moment.

        Raises:
            LedgerUnavailableError: the position does not reach the end in time. Under read_committed that
                is so while a transaction of any group is open in the partition.
        """
        position = log_start if self._position is None else self._position
        if position >= end:
            return
        tp = TopicPartition(self.where.topic, self.where.partition, position)
        consumer.assign([tp])
        try:
            while position < end:
                messages = consumer.consume(_CONSUME_RECORDS, _CONSUME_TIMEOUT_S)
                if not messages:
                    reasons.raise_if_hopeless(doing="reading the ledger", where=str(self.where))
                for message in messages:
                    position = max(position, self._take(message, reasons))
                [now] = consumer.position([tp])
                position = max(position, now.offset)
                # What is folded stays folded, even if the rest does not come.
                self._position = position
                if position < end and time.monotonic() > deadline:
                    raise LedgerUnavailableError(
                        f"group {self.group}: the ledger {self.where} could be read up to offset {position} of "
                        f"{end}: a transaction of another process is open there, or the broker does not "
                        "answer. It ends by itself after its time-out; try again. If it does not, a broker died before it "
                        "had marked the transaction's end: see kafka-transactions.sh find-hanging and abort"
                    )
        except KafkaException as error:
            raise translate(
                error, doing="reading the ledger", where=str(self.where), reasons=reasons
            ) from error
        finally:
            consumer.unassign()

    def _take(self, message: Message, reasons: FaultReasons) -> int:
        """Folds one message; the position behind it."""
        error = message.error()
        offset = message.offset()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                return offset if offset is not None else 0
            if (message.topic(), message.partition()) != (self.where.topic, self.where.partition):
                # What the client says about brokers and the group's coordinator is no answer to this read,
                # and may be older than it.
                reasons.add(error)
                return 0
            raise translate(
                error, doing="reading the ledger", where=str(self.where), reasons=reasons
            )
        if offset is None:
            return 0
        key, value = message.key(), message.value()
        if not self.line.take(offset, key or b"", value, message.timestamp()[1]):
            self.take(offset, key, value, message.headers)
        return offset + 1
