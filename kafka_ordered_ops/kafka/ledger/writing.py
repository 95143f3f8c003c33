"""Prepare a transaction's producer, and pass records to it."""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer

from kafka_ordered_ops.core.group.ledger.messages import LedgerMessage
from kafka_ordered_ops.core.types import TopicPartition

#: The interval between two checks for room in the client's queue.
_ROOM_LOOK_S: Final = 0.01


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
