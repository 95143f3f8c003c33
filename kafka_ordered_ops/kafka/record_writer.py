"""Write records, and report whether each is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import confluent_kafka as ck

from kafka_ordered_ops.core.errors import BrokerError, KafkaOrderedOpsError, RecordTooLargeError
from kafka_ordered_ops.core.processing.new_record import NewRecord, OnStored, Report
from kafka_ordered_ops.core.processing.record import RecordMetadata
from kafka_ordered_ops.kafka.client.errors import FaultReasons, open_client, translate
from kafka_ordered_ops.kafka.client.interrupts import interruptible
from kafka_ordered_ops.kafka.client.lifetime import Home
from kafka_ordered_ops.kafka.settings import ClientSettings

#: The time limit of one record, from `send` to its report.
TIMEOUT_S: Final = 10.0
#: How long a topic may be unknown before its records fail: a broker learns of a new topic within this time. The client's own
#: 30 s would outlast every deadline.
PROPAGATION_S: Final = 2.0

_TOO_LARGE: Final = "Raise max.message.bytes of the topic, and message.max.bytes of the client"
#: What to do about a record that brokers refuse. They refuse its whole batch.
_CURES: Final[Mapping[int, str]] = {
    ck.KafkaError.MSG_SIZE_TOO_LARGE: _TOO_LARGE,
    ck.KafkaError.RECORD_LIST_TOO_LARGE: _TOO_LARGE,
    ck.KafkaError.INVALID_RECORD: "A compacted topic takes no record without a key",
    ck.KafkaError._INVALID_DIFFERENT_RECORD: "Another record of the batch is invalid",
    ck.KafkaError.INVALID_TIMESTAMP: (
        "Check its timestamp against the topic's message.timestamp.before.max.ms and message.timestamp.after.max.ms"
    ),
    ck.KafkaError.UNSUPPORTED_COMPRESSION_TYPE: "Use another compression.type",
    ck.KafkaError.POLICY_VIOLATION: "A policy of the brokers forbids it",
}


class RecordWriter:
    """Write records, each acknowledged by all in-sync replicas. A context manager, for one thread.

    Every record that `send` accepts is reported once, inside `poll`. A record that is reported as not stored may still be
    stored, if brokers did not answer in time.

    Args:
        settings: how to reach the cluster.
        doing: the purpose of the records, for messages: ``writing ...``.
        timeout_s: the time limit of one record.
        batch_records: how many records of one partition are sent together. Use more than one only if no record is too large:
            a broker refuses a batch as a whole, without reporting which record was too large.
        linger_ms: how long a batch waits for more records.
    """

    def __init__(
        self,
        settings: ClientSettings,
        *,
        doing: str,
        timeout_s: float = TIMEOUT_S,
        batch_records: int = 1,
        linger_ms: float = 0,
    ) -> None:
        self._doing = doing
        config = settings.producer(
            batch_num_messages=batch_records,
            linger_ms=linger_ms,
            delivery_timeout_ms=round(timeout_s * 1_000),
            topic_metadata_propagation_max_ms=round(min(PROPAGATION_S, timeout_s) * 1_000),
        )
        # The other names of these settings.
        for name in ("message.timeout.ms", "queue.buffering.max.ms"):
            config.pop(name, None)
        self._config = config
        self._reasons = FaultReasons(settings.secret_values())
        self._producer: ck.Producer | None = None
        #: Whether the client has failed permanently; a new one is created once all its records are reported.
        self._is_spent = False
        self._waiting = 0
        self._home = Home()

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop unreported records; may be called twice."""
        producer, self._producer = self._producer, None
        self._waiting, self._is_spent = 0, False
        if producer is not None and self._home.is_here:
            producer.purge()

    @property
    def waiting(self) -> int:
        """How many records are not reported yet."""
        return self._waiting

    def send(self, record: NewRecord, report: Report, on_stored: OnStored | None = None) -> bool:
        """Accept a record to write; return False if there is no room, in which case poll first.

        Raises `ConfigError` if the client refuses its settings.
        """
        self._home.check("a producer")
        if self._is_spent:
            if self._waiting:
                return False
            self._producer, self._is_spent = None, False
        if self._producer is None:
            self._reasons.clear()
            self._producer = open_client(ck.Producer, self._config, self._reasons)
        try:
            produce(self._producer, record, partial(self._reported, record, report, on_stored))
        except BufferError:
            return False
        except ck.KafkaException as error:
            # Refused by the client itself: too large, for example.
            self._waiting += 1
            self._reported(record, report, None, error.args[0], None)
            return True
        self._waiting += 1
        return True

    def poll(self, timeout_s: float) -> None:
        """Call the reports that are due, and wait up to `timeout_s` for the first one."""
        producer = self._producer
        if producer is not None:
            self._home.check("a producer")
            with interruptible():
                producer.poll(timeout_s)

    def _reported(
        self,
        record: NewRecord,
        report: Report,
        on_stored: OnStored | None,
        error: ck.KafkaError | None,
        message: ck.Message | None,
    ) -> None:
        self._waiting -= 1
        if error is None:
            if on_stored is not None and message is not None:
                on_stored(metadata_of(message))
            report(None)
            return
        self._is_spent |= error.fatal() or error.code() == ck.KafkaError._FATAL
        report(unwritten(error, record, doing=self._doing, reasons=self._reasons))


def produce(
    producer: ck.Producer,
    record: NewRecord,
    on_delivery: Callable[[ck.KafkaError | None, ck.Message], None],
) -> None:
    """Pass a record to a client; raise `BufferError` if it has no room, and `KafkaException` if it refuses the record."""
    producer.produce(
        record.topic,
        record.value,
        record.key,
        -1 if record.partition is None else record.partition,
        on_delivery,
        # For the client, 0 means now.
        timestamp=record.timestamp_ms or 0,
        headers=list(record.headers),
    )


def metadata_of(message: ck.Message) -> RecordMetadata:
    """Return where a record is stored, from the report of its storage."""
    return RecordMetadata(message.topic() or "", message.partition() or 0, message.offset() or 0)


def is_of_records(error: ck.KafkaError) -> bool:
    """Return whether brokers refused a batch because of one of its records, or because of its size."""
    return error.code() in _CURES


def unwritten(
    error: ck.KafkaError, record: NewRecord, *, doing: str, reasons: FaultReasons
) -> KafkaOrderedOpsError:
    """Return the error for an unwritten record, with the fault and what to do."""
    cure = _CURES.get(error.code())
    if cure is None:
        return translate(error, doing=doing, where=str(record), reasons=reasons)
    kind = RecordTooLargeError if cure is _TOO_LARGE else BrokerError
    return kind(
        f"Kafka refuses a record while {doing} ({record}): {reasons.scrub(error.str())} ({error.name()}). {cure}",
        code=error.name(),
    )
