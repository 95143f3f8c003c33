"""How a transaction's producer is made ready, and given records."""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer

from kafka_ordered_ops.core.group.ledger.messages import LedgerMessage
from kafka_ordered_ops.core.types import TopicPartition

#: Time between two checks for room in the client's queue.
_ROOM_LOOK_S: Final = 0.01


def warm_up(producer: Producer, topic: str, *, timeout_s: float) -> None:
    """Let the client connect to a broker by its own name before it asks for the coordinator.

    It learns that name from a bootstrap connection, which it then closes. A request for the coordinator in
    between finds no broker, and the client waits half a second before it repeats it. The second answer can only
    arrive over the new connection.
    """
    for _ in range(2):
        producer.list_topics(topic, timeout=timeout_s)


def produce(
    producer: Producer, where: TopicPartition, message: LedgerMessage, *, deadline: float
) -> None:
    """Pass a record to the client, which may have to send some before it has room for more."""
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
