"""The ceiling of an ordered read: the client's records as Arrow batches, as they come."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import confluent_kafka as ck
import numpy as np
import pyarrow as pa

from benchmarks.backlog import PARTITIONS
from benchmarks.order_breaks import OrderBreaks
from benchmarks.usage import peak_memory_bytes
from benchmarks.values import Outcome, Place, Work
from kafka_ordered_ops.core.record_schema import RECORD_SCHEMA
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.embedded.produce import REQUEST_TIMEOUT_S
from kafka_ordered_ops.kafka.read.arrow import no_collection, to_arrow
from kafka_ordered_ops.kafka.settings import ClientSettings

_AT_ONCE: Final = 2_000
_WAIT_S: Final = 0.1


@dataclass(frozen=True)
class ConsumeToArrow:
    """Consumes a topic to its end with the package's client settings, all columns, and lets go of them."""

    topic: str

    def start(self, place: Place) -> Work:
        """Needs nothing: connecting is part of each run, as it is for all readers."""

        def run(_: int) -> Outcome:
            breaks = OrderBreaks()
            started = time.perf_counter()
            for batch in consumed_batches(place, self.topic):
                breaks.look(batch)
            return Outcome(
                seconds=time.perf_counter() - started,
                records=breaks.records,
                memory_bytes=peak_memory_bytes(),
                order_breaks=breaks.count,
            )

        return Work(run)


def consumed_batches(place: Place, topic: str) -> Iterator[pa.RecordBatch]:
    """The records of a topic up to the end of its log, each batch of one partition."""
    settings = ClientSettings.of(place.bootstrap)
    consumer = ck.Consumer(
        settings.consumer(group_id="bench-consume", isolation=Isolation.READ_COMMITTED)
    )
    try:
        # Asked first: to begin at `OFFSET_BEGINNING` takes the client half a second.
        bounds = {n: _bounds(consumer, topic, n) for n in range(PARTITIONS)}
        unfinished = {n: end for n, (start, end) in bounds.items() if start < end}
        consumer.assign([ck.TopicPartition(topic, n, bounds[n][0]) for n in unfinished])
        while unfinished:
            with no_collection():
                batches = list(_to_arrow(topic, _consume(consumer)))
            for partition, reached, batch in batches:
                yield batch
                if reached >= unfinished[partition]:
                    del unfinished[partition]
    finally:
        consumer.close()


def _bounds(consumer: ck.Consumer, topic: str, partition: int) -> tuple[int, int]:
    tp = ck.TopicPartition(topic, partition)
    start, end = consumer.get_watermark_offsets(tp, REQUEST_TIMEOUT_S)
    return start, end


def _consume(consumer: ck.Consumer) -> list[ck.Message]:
    # With a time-out it would wait for as many as asked for, at the end of each partition.
    messages = consumer.consume(_AT_ONCE, 0) or consumer.consume(1, _WAIT_S)
    if not any(map(ck.Message.error, messages)):
        return messages
    for error in filter(None, map(ck.Message.error, messages)):
        if error.code() != ck.KafkaError._PARTITION_EOF:
            raise ck.KafkaException(error)
    return [one for one in messages if not one.error()]


def _to_arrow(
    topic: str, records: Sequence[ck.Message]
) -> Iterator[tuple[int, int, pa.RecordBatch]]:
    """Runs of one partition: which, the offset after it, and its records."""
    if not records:
        return
    partitions = np.fromiter(map(ck.Message.partition, records), np.int64, len(records))
    offsets = np.fromiter(map(ck.Message.offset, records), np.int64, len(records))
    starts = [0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist()]
    for start, end in zip(starts, [*starts[1:], len(records)], strict=True):
        tp = TopicPartition(topic, int(partitions[start]))
        batch = to_arrow(RECORD_SCHEMA, tp, records[start:end], offsets[start:end])
        yield tp.partition, int(offsets[end - 1]) + 1, batch
