"""Take records from the client: many small records at once, or a few large ones.

The client unpacks a whole batch of records, and returns copies. Records of a kilobyte cost least when thousands are
taken at once. Thousands of records of megabytes would not fit into memory. So the number depends on the size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import confluent_kafka as ck
from confluent_kafka import Message

from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import INT64_MAX, TopicPartition
from kafka_ordered_ops.kafka.settings import FETCH_WAIT_MAX_MS

#: The limit of keys and values taken from the client at once, before they become columns. A larger record is taken alone.
TAKEN_BYTES_MAX: Final = 8 * 1024 * 1024
#: The client ignores signals while it waits: a Ctrl-C has an effect after this time.
WAIT_SLICE_S: Final = 0.1
#: The number of records in the first call, and the factor for each further call.
_FIRST: Final = 4
_GROWTH: Final = 8

#: The size of a small read: a few chunks of a plan's scan.
FEW_OFFSETS: Final = 4_096
#: In a small read, one fetch of a partition requests this many bytes for each offset: an eighth of all, for records of half
#: a kilobyte. Brokers truncate the last batch of a fetch, which is fetched again; and bytes beyond the last wanted offset
#: are wasted. This value minimizes both together.
FETCH_BYTES_PER_OFFSET: Final = 64
FETCH_BYTES_MIN: Final = 65_536
#: The client prefetches only this part of the offsets: records beyond the last wanted one are wasted.
QUEUED_ONE_OF: Final = 8
#: How long a broker may hold a fetch of very many quiet partitions, with a millisecond for each.
ENDLESS_FETCH_WAIT_MS: Final = 1_000


class Taking:
    """Takes records from a client, with a limit of records and bytes for each call."""

    def __init__(self, records_max: int, *, wait_s: float = WAIT_SLICE_S) -> None:
        self._records_max = records_max
        self._wait_s = wait_s
        #: The number of records for the next call, by the size of the last ones.
        self._at_once = min(_FIRST, records_max)

    def take(self, consumer: ck.Consumer) -> list[Message]:
        """Return fetched messages; wait a moment if there are none."""
        # A request for many records with a timeout would wait for all of them, at the end of every partition.
        messages = consumer.consume(self._at_once, 0) or consumer.consume(1, self._wait_s)
        size, newest = 0, messages
        while newest:
            largest, all_of_them = _sizes(newest)
            size += all_of_them
            fitting = TAKEN_BYTES_MAX // max(largest, 1)
            self._at_once = max(1, min(self._at_once * _GROWTH, self._records_max, fitting))
            room = (TAKEN_BYTES_MAX - size) // max(largest, 1)
            left = min(self._records_max - len(messages), room, self._at_once)
            if left <= 0:
                break
            newest = consumer.consume(left, 0)
            messages += newest
        return messages


def _sizes(messages: list[Message]) -> tuple[int, int]:
    """Return the size of the largest record, and of all of them, without headers, whose size would need a copy."""
    values = list(map(len, messages))
    keys = list(map(len, filter(None, map(Message.key, messages))))
    return max(values) + max(keys, default=0), sum(values) + sum(keys)


def fetch_settings(wanted: Mapping[TopicPartition, OffsetSet]) -> dict[str, str]:
    """Return the client's settings for a small read, or for a read without an end; no settings for other reads.

    Partitions that are added later are not considered.
    """
    if not wanted:
        return {}
    if all(offsets and offsets.end == INT64_MAX for offsets in wanted.values()):
        # Every fetch lists all partitions that it waits for. A new record ends the wait.
        wait_ms = min(max(FETCH_WAIT_MAX_MS, len(wanted)), ENDLESS_FETCH_WAIT_MS)
        return {"fetch.wait.max.ms": str(wait_ms)}
    most = max(offsets.count for offsets in wanted.values())
    if not 0 < most <= FEW_OFFSETS:
        return {}
    fetch_bytes = max(FETCH_BYTES_PER_OFFSET * most, FETCH_BYTES_MIN)
    queued = max(most // QUEUED_ONE_OF, 1)
    return {"fetch.message.max.bytes": str(fetch_bytes), "queued.min.messages": str(queued)}
