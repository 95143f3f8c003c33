"""Write records to an embedded broker, fast and counted, and read its state with a plain client.

For demos, trials and tests. It uses the plain client, so its results are an independent check of the package.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ordered_ops.core.errors import BrokerError

#: ``(topic, key, value, timestamp in ms)``
Record = tuple[str, bytes | None, bytes | None, int]

#: Called with the number of records passed to the client so far.
Progress = Callable[[int], None]

REQUEST_TIMEOUT_S: Final = 30.0

#: The time for delivering queued records after the last record.
FLUSH_TIMEOUT_S: Final = 60.0

#: Records between two polls of delivery reports: each poll costs as much as some hundred records.
_RECORDS_PER_POLL: Final = 5_000

_PRODUCER: Final[Mapping[str, str | int | bool]] = {
    # Records of a partition keep their order, even with retries.
    "enable.idempotence": True,
    # The same partition for a key as the Java clients choose.
    "partitioner": "murmur2_random",
    "compression.type": "lz4",
    "linger.ms": 20,
    # A new broker assigns no producer ids for a second: the client's warnings are not useful.
    "log_level": 3,
    "queue.buffering.max.messages": 200_000,
    # Only failures need a call: successes are counted by the log's end offsets.
    "delivery.report.only.error": True,
}


def create_topic(
    bootstrap: str, topic: str, *, partitions: int, config: Mapping[str, str] | None = None
) -> None:
    """Create a topic and wait until it can be written to.

    Raises:
        BrokerError: the broker refused, or did not answer.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(
        topic, num_partitions=partitions, replication_factor=1, config=dict(config or {})
    )
    try:
        admin.create_topics([new], operation_timeout=REQUEST_TIMEOUT_S)[topic].result(
            REQUEST_TIMEOUT_S
        )
    except KafkaException as error:
        raise _broker_error(f"topic {topic} cannot be created", error.args[0]) from error
    _wait_for_leaders(admin, topic, partitions)


def produce(bootstrap: str, records: Iterable[Record], *, progress: Progress | None = None) -> int:
    """Write the records, in their order within each partition; return how many.

    Raises:
        BrokerError: a record was not stored.
    """
    failed: list[tuple[KafkaError, Message]] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append((error, message))

    producer = Producer({**_PRODUCER, "bootstrap.servers": bootstrap})
    count = 0
    for topic, key, value, timestamp_ms in records:
        _hand_over(producer, topic, key, value, timestamp_ms, on_delivery)
        count += 1
        if count % _RECORDS_PER_POLL == 0:
            producer.poll(0)
            _check(failed)
            if progress is not None:
                progress(count)
    if queued := producer.flush(FLUSH_TIMEOUT_S):
        raise BrokerError(
            f"{queued:,} of {count:,} records were not confirmed within {FLUSH_TIMEOUT_S:g} s",
            code="flush",
        )
    _check(failed)
    if progress is not None:
        progress(count)
    return count


def end_offsets(bootstrap: str, topic: str) -> dict[int, int]:
    """Return the end offset of every partition of a topic."""
    consumer = _reader(bootstrap, "end-offsets")
    try:
        partitions = consumer.list_topics(topic, REQUEST_TIMEOUT_S).topics[topic].partitions
        return {
            number: consumer.get_watermark_offsets(
                TopicPartition(topic, number), REQUEST_TIMEOUT_S
            )[1]
            for number in sorted(partitions)
        }
    except KafkaException as error:
        raise _broker_error(f"end offsets of {topic} cannot be read", error.args[0]) from error
    finally:
        consumer.close()


def committed_offsets(bootstrap: str, group_id: str, topic: str) -> dict[int, int]:
    """Return the offsets that a group has committed on a topic; partitions without one are absent."""
    # A consumer that never subscribes is not a member. The admin client's call kills the process if the
    # broker answers that it is not the group's coordinator, or that there is none yet (librdkafka 2.16).
    consumer = _reader(bootstrap, group_id)
    try:
        partitions = consumer.list_topics(topic, REQUEST_TIMEOUT_S).topics[topic].partitions
        topic_partitions = [TopicPartition(topic, number) for number in sorted(partitions)]
        committed = consumer.committed(topic_partitions, REQUEST_TIMEOUT_S)
    except KafkaException as error:
        raise _broker_error(f"offsets of group {group_id} cannot be read", error.args[0]) from error
    finally:
        consumer.close()
    return {tp.partition: tp.offset for tp in committed if tp.offset >= 0}


def _hand_over(
    producer: Producer,
    topic: str,
    key: bytes | None,
    value: bytes | None,
    timestamp_ms: int,
    on_delivery: Callable[[KafkaError | None, Message], None],
) -> None:
    while True:
        try:
            producer.produce(
                topic, value=value, key=key, timestamp=timestamp_ms, on_delivery=on_delivery
            )
            return
        except BufferError:
            # The queue is full: the broker is slower. The wait for a broker that never answers is limited, because
            # records expire and free the queue.
            producer.poll(0.1)
        except KafkaException as error:
            raise _broker_error(f"a record cannot be sent to {topic}", error.args[0]) from error


def _check(failed: list[tuple[KafkaError, Message]]) -> None:
    if failed:
        error, message = failed[0]
        raise _broker_error(
            f"{len(failed):,} records were not stored, first in {message.topic()}[{message.partition()}]",
            error,
        )


def _wait_for_leaders(admin: AdminClient, topic: str, partitions: int) -> None:
    deadline = time.monotonic() + REQUEST_TIMEOUT_S
    while True:
        # Metadata of all topics: a request by name could create the topic with the broker's default of partitions.
        answer = admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics.get(topic)
        by_number = {} if answer is None else answer.partitions
        if len(by_number) == partitions and all(part.leader >= 0 for part in by_number.values()):
            return
        if time.monotonic() > deadline:
            raise BrokerError(
                f"topic {topic} was created, but it did not have {partitions} partitions with leaders "
                f"within {REQUEST_TIMEOUT_S:g} s: it has {len(by_number)} partitions",
                code="leaders",
            )
        time.sleep(0.05)


def _reader(bootstrap: str, group_id: str) -> Consumer:
    return Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group_id, "enable.auto.commit": False}
    )


def _broker_error(what: str, error: Any) -> BrokerError:
    code = error.name() if isinstance(error, KafkaError) else str(error)
    return BrokerError(f"{what}: {error}", code=code)
