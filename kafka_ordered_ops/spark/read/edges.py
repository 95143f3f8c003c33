"""The edges between the tasks' shares of a total order, from records sampled from Kafka before any job.

Edges affect only the balance: with any edges, each record has one place among them, so shares that are sorted one by one
are sorted together. Edges are derived from *runs*: a few neighbouring offsets at even steps over all offsets to read.
Each run's records represent those up to the next run. Where markers, aborted records or compaction left few records, a run
has few too, and weighs less. So all shares have about the same number of records, whether times in the log are even, out
of order, or equal.

The broker's index (offsets-for-times) has times without reading records, but is not enough: all older records are below its
offset for a time only if no record is out of order.
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

#: Runs for each share: with 32 of them, a share is rarely off by more than a quarter of its size.
RUNS_PER_BUCKET: Final = 8

#: Offsets of a run: a run costs one fetch, which returns hundreds of records anyway.
RUN_OFFSETS: Final = 32

#: The gap between closer runs is read through instead of skipped.
RUN_STEP_OFFSETS: Final = 20_000

#: A fetch returns at least one batch of records, and no more than this from each partition. Nothing is fetched ahead,
#: because records after a run are discarded.
_CLIENT_SETTINGS: Final = {"max.partition.fetch.bytes": "16384", "queued.min.messages": "1"}


class Edge(NamedTuple):
    """A record's place in the order, at which a share begins."""

    #: The number of the record's window.
    window: int
    timestamp_ms: int
    topic: str
    partition: int
    offset: int


def edges_of(reading: Reading, buckets: int) -> list[Edge]:
    """Return up to ``buckets - 1`` rising places that divide the records into shares of about equal size.

    This process reads them. There are fewer if too few records are visible.

    Raises:
        ReadError, RecordsLostError, BrokerError: raised by the reader.
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
            # A record beyond this limit fails the following job, with a better message.
            np.clip(timestamps_ms, -SPARK_TIMESTAMP_MS_MAX, SPARK_TIMESTAMP_MS_MAX),
            np.full(offsets.size, topics.index(tp.topic)),
            np.full(offsets.size, tp.partition),
            offsets,
        )
    )


def _quantiles(places: Int64Array, topics: Sequence[str], buckets: int) -> list[Edge]:
    """Return the places at equal distances among all places, in order."""
    in_order = places[:, np.lexsort(places[::-1])]
    count = in_order.shape[1]
    picked = sorted({count * n // buckets for n in range(1, buckets)} - {0})
    return [
        Edge(window, timestamp_ms, topics[topic], partition, offset)
        for window, timestamp_ms, topic, partition, offset in in_order[:, picked].T.tolist()
    ]
