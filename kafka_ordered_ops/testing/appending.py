"""Write one record to a model as a broker does."""

from __future__ import annotations

from typing import Final

from kafka_ordered_ops.core.errors import BrokerError, RecordTooLargeError
from kafka_ordered_ops.core.processing.new_record import NewRecord
from kafka_ordered_ops.core.processing.record import RecordMetadata
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.testing.cluster import Cluster, partition_of_key
from kafka_ordered_ops.testing.log import TransactionFate

#: Kafka's default for ``max.message.bytes``, and the approximate overhead of a batch of one record.
_MESSAGE_BYTES_MAX: Final = 1_048_588
_FRAME_BYTES: Final = 70


def append_record(
    cluster: Cluster, record: NewRecord, transaction: TransactionFate | None = None
) -> RecordMetadata:
    """Write a record; raise the error of one that a broker refuses."""
    with cluster.changed:
        topic = cluster.topic(record.topic)
        limit = int(topic.config.get("max.message.bytes", _MESSAGE_BYTES_MAX))
        headers = sum(len(name) + len(value or b"") + 2 for name, value in record.headers)
        size = _FRAME_BYTES + len(record.key or b"") + len(record.value or b"") + headers
        if size > limit:
            raise RecordTooLargeError(
                f"a record is too large ({record}): {size} bytes, and {record.topic} takes {limit} (max.message.bytes)"
            )
        if record.key is None and "compact" in topic.config.get("cleanup.policy", ""):
            raise BrokerError(
                f"Kafka refuses a record ({record}): a compacted topic takes no record without a key",
                code="INVALID_RECORD",
            )
        partition = record.partition
        if partition is None:
            partition = partition_of_key(record.key, len(topic.logs))
        offset = cluster.append(
            TopicPartition(record.topic, partition),
            key=record.key,
            value=record.value,
            timestamp_ms=record.timestamp_ms,
            headers=record.headers,
            transaction=transaction,
        )
    return RecordMetadata(record.topic, partition, offset)
