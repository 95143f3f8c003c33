"""The topics that are read: a day of records in some partitions, and a little of the next day."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from multiprocessing import get_context
from typing import Final

import confluent_kafka as ck
import numpy as np
from confluent_kafka.admin import AdminClient

from kafka_ordered_ops.core.errors import BrokerError
from kafka_ordered_ops.core.times import time_ms
from kafka_ordered_ops.embedded.produce import Record, create_topic, end_offsets, produce

PARTITIONS: Final = 8
VALUE_BYTES: Final = 100

DAY_START: Final = datetime(2026, 3, 1, tzinfo=UTC)
DAY: Final = timedelta(days=1)

#: So many records of a partition change places among one another, which is some minutes of them.
DISORDER_RECORDS: Final = 500

#: One of so many records on top is stamped after the day: what a window has to look at and to leave.
_AFTER_EVERY: Final = 100

#: Values repeat so far apart that no codec notices.
_VALUES: Final = 100_000
_KEYS: Final = 10_007

_FLUSH_TIMEOUT_S: Final = 120.0

_CONFIG: Final = {
    # The records are of the past, and Kafka would delete them within minutes.
    "retention.ms": "-1",
    "message.timestamp.type": "CreateTime",
}


#: The timestamps of a partition's records, in the order of its log. It travels to other processes.
StampsOf = Callable[[int], list[int]]


def topic_of(records: int, value_bytes: int = VALUE_BYTES) -> str:
    """The name of the topic with so many records."""
    size = "" if value_bytes == VALUE_BYTES else f"-{value_bytes}"
    return f"backlog-{records}{size}"


def make_backlog(
    bootstrap: str,
    records: int,
    *,
    partitions: int = PARTITIONS,
    value_bytes: int = VALUE_BYTES,
) -> None:
    """Makes and fills the topic of so many records, unless it is there.

    Each partition has the same number of records of the day, evenly over it but out of order by some
    minutes, and then one in a hundred of the next day. Keys have 6 bytes and values 100 by default, half of them
    random; there are no headers, and batches are not compressed.
    """
    each = shares(records, partitions)
    in_all = sum(count + count // _AFTER_EVERY for count in each)
    topic, stamps_of = topic_of(records, value_bytes), partial(_day_stamps, each)
    make_topic(bootstrap, topic, stamps_of, in_all, partitions, value_bytes)


def shares(records: int, partitions: int) -> list[int]:
    """How many of the records each partition has."""
    return [records * (n + 1) // partitions - records * n // partitions for n in range(partitions)]


def make_topic(
    bootstrap: str,
    topic: str,
    stamps_of: StampsOf,
    records: int,
    partitions: int,
    value_bytes: int = VALUE_BYTES,
) -> None:
    """Makes and fills a topic, unless it is there; `records` is the number that its log must have."""
    if has_topic(bootstrap, topic):
        return
    create_topic(bootstrap, topic, partitions=partitions, config=_CONFIG)
    workers = min(partitions, os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        parts = [range(n, partitions, workers) for n in range(workers)]
        fills = [
            pool.submit(_fill, bootstrap, topic, stamps_of, part, value_bytes) for part in parts
        ]
        for fill in fills:
            fill.result()
    found = sum(end_offsets(bootstrap, topic).values())
    if found != records:
        raise BrokerError(f"{topic} has {found:,} records instead of {records:,}", code="short")


def make_topic_of(bootstrap: str, topic: str, records: Iterable[Record]) -> None:
    """Makes a topic of one partition with these records, unless it is there."""
    if not has_topic(bootstrap, topic):
        create_topic(bootstrap, topic, partitions=1, config=_CONFIG)
        produce(bootstrap, records)


def has_topic(bootstrap: str, topic: str) -> bool:
    """Whether a topic is there."""
    # Not asked by name: that could create it.
    return topic in AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30).topics


def make_empty_topic(bootstrap: str, topic: str, *, partitions: int) -> None:
    """Makes a topic whose records of the past stay."""
    create_topic(bootstrap, topic, partitions=partitions, config=_CONFIG)


def stamps_ms(count: int, *, seed: int) -> list[int]:
    """Timestamps of one partition: the day's, and those after it."""
    day_ms, start_ms = DAY // timedelta(milliseconds=1), time_ms(DAY_START, what="day")
    even = start_ms + np.arange(count, dtype=np.int64) * day_ms // max(1, count)
    random_ = np.random.default_rng(seed)
    for first in range(0, count, DISORDER_RECORDS):
        random_.shuffle(even[first : first + DISORDER_RECORDS])
    after = start_ms + day_ms + np.arange(count // _AFTER_EVERY, dtype=np.int64)
    return [*even.tolist(), *after.tolist()]


def _day_stamps(counts: list[int], partition: int) -> list[int]:
    return stamps_ms(counts[partition], seed=partition)


def _fill(
    bootstrap: str,
    topic: str,
    stamps_of: StampsOf,
    partitions: range,
    value_bytes: int = VALUE_BYTES,
) -> None:
    count = _VALUES * VALUE_BYTES // value_bytes
    text = random.Random(7).randbytes(count * value_bytes // 2).hex().encode()
    values = [text[n * value_bytes : (n + 1) * value_bytes] for n in range(count)]
    keys = [b"%06d" % n for n in range(_KEYS)]
    producer = ck.Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": "none",
            "linger.ms": 20,
            "queue.buffering.max.messages": 500_000,
            "delivery.report.only.error": True,
            "log_level": 3,
        }
    )
    for partition in partitions:
        for n, stamp_ms in enumerate(stamps_of(partition)):
            at = n * PARTITIONS + partition
            value, key = values[at % count], keys[at % _KEYS]
            while True:
                try:
                    producer.produce(
                        topic, value=value, key=key, partition=partition, timestamp=stamp_ms
                    )
                    break
                except BufferError:
                    producer.poll(0.05)
    # What is missing shows in the end offsets.
    producer.flush(_FLUSH_TIMEOUT_S)


def make_quiet_topic(bootstrap: str, topic: str, *, partitions: int, records_each: int) -> None:
    """Makes a topic of many partitions with few records each, evenly over the day, unless it is there."""
    if has_topic(bootstrap, topic):
        return
    create_topic(bootstrap, topic, partitions=partitions, config=_CONFIG)
    _fill(bootstrap, topic, partial(_day_stamps, [records_each] * partitions), range(partitions))
