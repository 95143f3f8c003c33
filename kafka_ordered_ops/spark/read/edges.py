"""The edges of the tasks' shares of a total order: records sampled from Kafka, before any job.

Edges affect only the balance: with any edges, each record has one place among them, so shares that are sorted one by
one are sorted together. They are derived from *runs*, some neighbouring offsets at even steps over all offsets to
read. Each run's records represent those up to the next run. Where markers, aborted records or compaction left few
records, a run has few as well, and weighs less. All shares therefore have about the same number of records, whether
times in the log are even, out of order, or equal.

The broker's index (offsets-for-times) has times without reading records, but does not suffice: all older records are
below its offset for a time only if no record is out of order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from kafka_ordered_ops.core.offset_set import Int64Array
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.ports import open_reader
from kafka_ordered_ops.ordered.records.columns import SPARK_TIMESTAMP_MS_MAX
from kafka_ordered_ops.ordered.records.pieces import Piece
from kafka_ordered_ops.ordered.records.slices import sample_of
from kafka_ordered_ops.spark.read.reading import Reading

#: Runs for each share: with 32 of them a share is rarely off by more than a quarter of its size.
RUNS_PER_BUCKET: Final = 8

#: A run costs one fetch, and a fetch brings some hundred records anyway.
RUN_OFFSETS: Final = 32

#: Runs closer to each other than this are not jumped to but read through.
RUN_STEP_OFFSETS: Final = 20_000

#: A fetch brings at least one batch of records, and of each partition no more than this; nothing is fetched
#: ahead, because records after a run are discarded.
_CLIENT_SETTINGS: Final = {"max.partition.fetch.bytes": "16384", "queued.min.messages": "1"}


class Edge(NamedTuple):
    """A record's place in the order; the share that begins here begins with it."""

    #: Its window's number.
    window: int
    timestamp_ms: int
    topic: str
    partition: int
    offset: int


def edges_of(reading: Reading, buckets: int) -> list[Edge]:
    """Return at most ``buckets - 1`` places, rising, that divide the records into shares of about equal size.

    Read by this process. Fewer than asked for where too few records are visible.

    Raises:
        ReadError, RecordsLostError, BrokerError: as the reader raises them.
    """
    runs = min(reading.offsets // RUN_STEP_OFFSETS, buckets * RUNS_PER_BUCKET)
    pieces = sample_of(reading.pieces, runs=max(1, runs), run_offsets=RUN_OFFSETS)
    by_partition = {piece.tp: piece for piece in pieces}
    reader = open_reader(
        reading.settings.merged(_CLIENT_SETTINGS),
        reading.group_id,
        reading.isolation,
        {piece.tp: piece.wanted for piece in pieces},
        stall_timeout_s=reading.stall_timeout_s,
    )
    columns: list[Int64Array] = []
    topics = sorted({tp.topic for tp in by_partition})
    with reader:
        for batch in reader.timestamps():
            if batch.offsets.size:
                columns.append(
                    _places(by_partition[batch.tp], topics, batch.offsets, batch.timestamps_ms)
                )
    if not columns:
        return []
    return _quantiles(np.concatenate(columns, axis=1), topics, buckets)


def _places(
    piece: Piece, topics: Sequence[str], offsets: Int64Array, timestamps_ms: Int64Array
) -> Int64Array:
    """Return the columns of `Edge`, with the topic's number among all topics, sorted."""
    tp: TopicPartition = piece.tp
    return np.stack(
        (
            piece.windows_of(piece.owners_of(offsets)),
            # A record beyond it stops the following job, with a better message.
            np.clip(timestamps_ms, -SPARK_TIMESTAMP_MS_MAX, SPARK_TIMESTAMP_MS_MAX),
            np.full(offsets.size, topics.index(tp.topic)),
            np.full(offsets.size, tp.partition),
            offsets,
        )
    )


def _quantiles(places: Int64Array, topics: Sequence[str], buckets: int) -> list[Edge]:
    """Return the places at equal distances among all of them, in order."""
    in_order = places[:, np.lexsort(places[::-1])]
    count = in_order.shape[1]
    picked = sorted({count * n // buckets for n in range(1, buckets)} - {0})
    return [
        Edge(window, timestamp_ms, topics[topic], partition, offset)
        for window, timestamp_ms, topic, partition, offset in in_order[:, picked].T.tolist()
    ]
