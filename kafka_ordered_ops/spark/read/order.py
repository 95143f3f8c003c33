"""Sort records in total order: assign them to tasks by known edges, and sort each task.

A plain ``orderBy`` runs its input twice, the first time to find such edges, so Kafka would be read twice. The order is
across the partitions of the DataFrame, one after the other, and so also across the names of files written from it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from kafka_ordered_ops.ordered.records.columns import MANY_ORDER, ORDER, WINDOW_NUMBER
from kafka_ordered_ops.spark.read.edges import Edge, edges_of
from kafka_ordered_ops.spark.read.reading import Reading

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Up to this many offsets are sorted by one task, without a sample from Kafka.
ONE_TASK_OFFSETS_MAX: Final = 200_000

#: The largest number of records that one task sorts, which should fit its share of the memory. The number of tasks is a
#: multiple of the cores, so that no core waits for the last task.
BUCKET_OFFSETS: Final = 1_000_000

_BUCKET: Final = "_koo_bucket"
_PLACE: Final = "_koo_place"

#: The columns of the order, with times as integers.
_PLACE_TYPES: Final = {
    WINDOW_NUMBER: "int",
    "timestamp": "bigint",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
}

#: Sorted results. DataFrames derived from them may not be sorted.
_IN_ORDER: WeakKeyDictionary[DataFrame, InOrder] = WeakKeyDictionary()


@dataclass(frozen=True)
class InOrder:
    """The known order of a sorted DataFrame."""

    #: The windows in their order in the DataFrame.
    window_ids: tuple[str, ...]
    #: The same records with `WINDOW_NUMBER`, assigned to their tasks and still to be sorted there by `MANY_ORDER`; None for
    #: records from files, and for a single window.
    dealt: DataFrame | None


def order_of(frame: DataFrame) -> InOrder | None:
    """Return the known order of this DataFrame; None unless it is an ordered result of a read."""
    return _IN_ORDER.get(frame)


def mark_in_order(frame: DataFrame, known: InOrder) -> None:
    """Record a DataFrame's order."""
    _IN_ORDER[frame] = known


def in_order(reading: Reading, frame: DataFrame) -> DataFrame:
    """Return an engine's records in total order, without the column `WINDOW_NUMBER`."""
    if len(reading.plans) == 1:
        return _one_in_order(reading, frame)
    dealt = _deal(reading, frame, MANY_ORDER)
    ordered = dealt.sortWithinPartitions(*MANY_ORDER).drop(WINDOW_NUMBER)
    mark_in_order(ordered, InOrder(reading.window_ids, dealt))
    return ordered


def _one_in_order(reading: Reading, frame: DataFrame) -> DataFrame:
    """Sort one window, without the columns that are the same in all of its records.

    Spark compares records by the first column alone if possible, so this should be the time.
    """
    from pyspark.sql import functions as f

    dealt = _deal(reading, frame.drop(WINDOW_NUMBER, "window_id"), ORDER)
    (window_id,) = reading.window_ids
    ordered = dealt.sortWithinPartitions(*ORDER).withColumn("window_id", f.lit(window_id))
    mark_in_order(ordered, InOrder(reading.window_ids, None))
    return ordered


def _deal(reading: Reading, frame: DataFrame, order: Sequence[str]) -> DataFrame:
    """Divide the records into the tasks' shares to sort: one read of Kafka, and one shuffle."""
    if reading.offsets <= ONE_TASK_OFFSETS_MAX:
        return frame.repartition(1)
    rounds = -(-reading.offsets // (BUCKET_OFFSETS * reading.parallelism))
    edges = edges_of(reading, reading.parallelism * rounds)
    buckets = len(edges) + 1
    return _repartition_by_id(_with_bucket(frame, edges, order), buckets).drop(_BUCKET)


def _with_bucket(frame: DataFrame, edges: Sequence[Edge], order: Sequence[str]) -> DataFrame:
    """Add the number of edges at or below each record. All columns count, because otherwise equal times would share a task.

    By bisection: each added column halves the candidates. One expression with all edges would cost more with each edge,
    and Java does not compile large ones.
    """
    from pyspark.sql import functions as f

    micros = f.unix_micros("timestamp").alias("timestamp")
    record = f.struct(*(micros if name == "timestamp" else f.col(name) for name in order))
    fields = ", ".join(f"{name}: {_PLACE_TYPES[name]}" for name in order)
    places = _literal([_place(edge) for edge in edges], f"array<struct<{fields}>>")
    numbered = frame.withColumn(_PLACE, record).withColumn(_BUCKET, f.lit(0))
    step = 1 << len(edges).bit_length() >> 1
    while step:
        bucket = f.col(_BUCKET)
        # Beyond the last edge the value is null, so the comparison fails.
        passed = f.col(_PLACE) >= f.get(places, bucket + (step - 1))
        numbered = numbered.withColumn(_BUCKET, f.when(passed, bucket + step).otherwise(bucket))
        step >>= 1
    return numbered.drop(_PLACE)


def _repartition_by_id(frame: DataFrame, buckets: int) -> DataFrame:
    """Put each bucket into the task of its number."""
    if hasattr(frame, "repartitionById"):
        return frame.repartitionById(buckets, _BUCKET)
    return _repartition_by_hash(frame, buckets)


def _repartition_by_hash(frame: DataFrame, buckets: int) -> DataFrame:
    """Repartition as ``repartitionById`` does, for Spark before 4.1: each bucket's key hashes to its task.

    ``repartitionByRange`` would read everything twice, and hashing the bucket's own number would put several buckets
    into one task.
    """
    from pyspark.sql import functions as f

    keys = _literal(keys_by_partition(buckets), "array<int>")
    return frame.repartition(buckets, f.get(keys, f.col(_BUCKET)))


def keys_by_partition(partitions: int) -> list[int]:
    """Return, for each partition, an integer that Spark's hash partitioning assigns to it."""
    keys = np.arange(32 * partitions, dtype=np.uint32)
    while True:
        places = _murmur3(keys) % partitions
        _, first = np.unique(places, return_index=True)
        if first.size == partitions:
            return [int(key) for key in keys[first]]
        keys = np.arange(2 * keys.size, dtype=np.uint32)


def _murmur3(keys: npt.NDArray[np.uint32]) -> npt.NDArray[np.int32]:
    """Compute Murmur3 (32 bits, seed 42) of single integers: the hash that Spark partitions by."""
    mixed = _rotated(keys * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    mixed = _rotated(np.uint32(42) ^ mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    mixed ^= np.uint32(4)  # the length in bytes
    mixed = (mixed ^ (mixed >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    mixed = (mixed ^ (mixed >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return (mixed ^ (mixed >> np.uint32(16))).view(np.int32)


def _rotated(values: npt.NDArray[np.uint32], bits: int) -> npt.NDArray[np.uint32]:
    return (values << np.uint32(bits)) | (values >> np.uint32(32 - bits))


def _place(edge: Edge) -> dict[str, int | str]:
    return {
        WINDOW_NUMBER: edge.window,
        "timestamp": edge.timestamp_ms * 1000,
        "topic": edge.topic,
        "partition": edge.partition,
        "offset": edge.offset,
    }


def _literal(values: Sequence[object], ddl: str) -> Column:
    """Return a constant of any size as one expression: built from single values, each would be a call to the JVM."""
    from pyspark.sql import functions as f

    return f.from_json(f.lit(json.dumps(values)), ddl)
