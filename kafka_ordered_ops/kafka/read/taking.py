"""Take records from the client: many small ones at once, and few large ones.

The client unpacks a whole batch of records, and hands out copies. Records of a kilobyte cost least when thousands are
taken at once; of records of megabytes, that many would not fit into memory. So the number follows their size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import confluent_kafka as ck
from confluent_kafka import Message

from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import INT64_MAX, TopicPartition
from kafka_ordered_ops.kafka.settings import FETCH_WAIT_MAX_MS

#: Keys and values taken from the client at once, before they become columns: one larger record is taken alone.
TAKEN_BYTES_MAX: Final = 8 * 1024 * 1024
#: The client ignores signals while it waits: a Ctrl-C is felt this late.
WAIT_SLICE_S: Final = 0.1
#: Records taken in one call at first, and by how much more each further call takes.
_FIRST: Final = 4
_GROWTH: Final = 8

#: A few chunks of a plan's scan.
FEW_OFFSETS: Final = 4_096
#: Of a read of few offsets, one fetch of a partition asks for this many bytes for each of them: of records of half a
#: kilobyte an eighth of all. Brokers cut the last batch of a fetch off, which is fetched again, and what is fetched beyond
#: the last wanted offset is for nothing: this is where both together are least.
FETCH_BYTES_PER_OFFSET: Final = 64
FETCH_BYTES_MIN: Final = 65_536
#: The client fetches on while fewer of them wait than one of so many: what waits behind the last wanted one is for nothing.
QUEUED_ONE_OF: Final = 8
#: How long a broker may hold a fetch of very many quiet partitions, a millisecond for each, without an end to be felt.
ENDLESS_FETCH_WAIT_MS: Final = 1_000


class Taking:
    """Takes records from one client after the other, at most so many at once."""

    def __init__(self, records_max: int, *, wait_s: float = WAIT_SLICE_S) -> None:
        self._records_max = records_max
        self._wait_s = wait_s
        #: How many records of the size seen last fit.
        self._at_once = min(_FIRST, records_max)

    def take(self, consumer: ck.Consumer) -> list[Message]:
        """Return fetched messages; wait a moment if there are none."""
        # Asking for many with a time-out would wait for all of them, at the end of every partition.
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
    """Return the size of the largest record, and of all; of headers nothing is known without a copy."""
    values = list(map(len, messages))
    keys = list(map(len, filter(None, map(Message.key, messages))))
    return max(values) + max(keys, default=0), sum(values) + sum(keys)


def fetch_settings(wanted: Mapping[TopicPartition, OffsetSet]) -> dict[str, str]:
    """Return the client's settings for a read of few offsets, or for one without an end; none for any other.

    Of partitions that are added later nothing is known.
    """
    if not wanted:
        return {}
    if all(offsets and offsets.end == INT64_MAX for offsets in wanted.values()):
        # Every fetch names all partitions that it waits for. A new record ends the wait.
        wait_ms = min(max(FETCH_WAIT_MAX_MS, len(wanted)), ENDLESS_FETCH_WAIT_MS)
        return {"fetch.wait.max.ms": str(wait_ms)}
    most = max(offsets.count for offsets in wanted.values())
    if not 0 < most <= FEW_OFFSETS:
        return {}
    fetch_bytes = max(FETCH_BYTES_PER_OFFSET * most, FETCH_BYTES_MIN)
    queued = max(most // QUEUED_ONE_OF, 1)
    return {"fetch.message.max.bytes": str(fetch_bytes), "queued.min.messages": str(queued)}
