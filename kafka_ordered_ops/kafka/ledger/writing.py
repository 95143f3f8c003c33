"""Prepare a transaction's producer, and pass records to it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from kafka_ordered_ops.core.errors import AuthorizationError, UnknownTopicError
from kafka_ordered_ops.core.group.ledger.messages import LedgerMessage
from kafka_ordered_ops.core.processing.new_record import NewRecord
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.client.errors import FaultReasons
from kafka_ordered_ops.kafka.record_writer import is_of_records, unwritten
from kafka_ordered_ops.kafka.record_writer import produce as produce_record

#: The interval between two checks for room in the client's queue.
_ROOM_LOOK_S: Final = 0.01
#: A broker refuses a batch that exceeds its topic's limit, though no record does: so many bytes are sent together.
_TOGETHER_BYTES: Final = 64 * 1024
#: Refusals that another attempt meets again.
_OF_TOPICS: Final = (AuthorizationError, UnknownTopicError)


def warm_up(producer: Producer, topic: str, *, timeout_s: float) -> None:
    """Let the client connect to a broker under the broker's own name before it looks up the coordinator.

    The client learns that name from a bootstrap connection, which it then closes. A look-up of the coordinator in
    between finds no broker, and the client repeats it only after half a second. The second answer can only arrive over
    the new connection.
    """
    for _ in range(2):
        producer.list_topics(topic, timeout=timeout_s)


def produce(
    producer: Producer, where: TopicPartition, message: LedgerMessage, *, deadline: float
) -> None:
    """Pass a record to the client, which may have to send earlier ones before it has room."""
    key, value, headers = message
    while True:
        try:
            producer.produce(
                where.topic,
                key=key,
                value=value,
                headers=list(headers.items()),
                partition=where.partition,
            )
            return
        except BufferError as error:
            if time.monotonic() > deadline:
                raise KafkaException(KafkaError(KafkaError._QUEUE_FULL)) from error
            producer.poll(_ROOM_LOOK_S)


def write_all(
    producer: Producer, records: Sequence[NewRecord], reasons: FaultReasons, *, timeout_s: float
) -> None:
    """Write records of other topics in the open transaction; return when brokers have them.

    Raises:
        RecordTooLargeError, AuthorizationError, UnknownTopicError, BrokerError: a record is refused.
        KafkaException: there was no answer in time, or another producer fenced this one.
    """
    deadline = time.monotonic() + timeout_s
    refused: list[tuple[NewRecord, KafkaError]] = []

    def sent() -> None:
        while producer.flush(_ROOM_LOOK_S) and not refused:
            if time.monotonic() > deadline:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        if refused:
            record, fault = refused[0]
            error = unwritten(fault, record, doing="writing dead letters", reasons=reasons)
            if is_of_records(fault) or isinstance(error, _OF_TOPICS):
                raise error
            raise KafkaException(fault)

    together = 0
    for record in records:
        if together and together + record.content_bytes > _TOGETHER_BYTES:
            sent()
            together = 0
        together += record.content_bytes
        try:
            produce_record(producer, record, partial(_note_refusal, refused, record))
        except KafkaException as error:
            refused.append((record, error.args[0]))
    if records:
        sent()


def _note_refusal(
    refused: list[tuple[NewRecord, KafkaError]],
    record: NewRecord,
    error: KafkaError | None,
    _: Message,
) -> None:
    if error is not None:
        refused.append((record, error))
