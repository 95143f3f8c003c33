"""Process records key by key: each key's records together and in order, however many there are.

Spark's own grouped ``applyInArrow`` holds a whole group in memory, and makes a call for each group. Here a task gets the
records of all its keys as one stream, sorted by key and then by time, and splits it where the key changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from kafka_ordered_ops.core.errors import ConfigError, JobFailedError, KafkaOrderedOpsError
from kafka_ordered_ops.ordered.records.columns import ORDER
from kafka_ordered_ops.spark.environment import check_pyspark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

#: A key, and its records in order: batches with all columns, to be consumed before the next key.
KeyGroup = tuple[Any, Iterator[pa.RecordBatch]]

#: The user's function, which `map_by_key` calls once in each task.
KeyFunction = Callable[[Iterator[KeyGroup]], Iterable[pa.RecordBatch]]

#: Types whose equal keys have equal bytes, unlike floating point or collated text.
_KEY_TYPES: Final = frozenset(
    {"bigint", "binary", "boolean", "date", "int", "smallint", "string", "timestamp", "tinyint"}
)

#: A function that yields a row per key produces small batches, and each batch is one transfer to the JVM.
_OUTPUT_ROWS: Final = 10_000
_OUTPUT_BYTES: Final = 4 * 1024**2


def map_by_key(
    df: DataFrame,
    function: KeyFunction,
    schema: StructType | str,
    *,
    key: str = "key",
    partitions: int | None = None,
) -> DataFrame:
    """Apply a function to records key by key, each key's records in time order.

    All records of a key go to one task, sorted by (key, timestamp, topic, partition, offset). The function is called
    once in each task with an iterator of groups, ``(key, batches)``. The key is a Python value, None for records
    without one. The batches are the key's records as Arrow batches with all columns of `df`. No key is held as a
    whole. As with ``itertools.groupby``, taking the next group ends the previous one, whose rest is skipped. Keys have
    no particular order. The function's batches form one unordered DataFrame.

    The function is pickled for the executors, with the objects that it refers to.

    Args:
        df: records with the columns of `read_window` that determine the order, and the key. Kafka is read once.
        function: ``function(groups)``, yielding Arrow batches of `schema`; it may be called without groups.
        schema: the columns of the result, as a type or as DDL.
        key: the column; binary, text, whole numbers, dates, times or booleans.
        partitions: the number of tasks; by default Spark's ``spark.sql.shuffle.partitions``, which Spark reduces if
            they would be small.

    Raises:
        ConfigError: `df` lacks a column, or the key's type does not support grouping.
        EnvironmentConflictError: pyspark and pyspark-client are both installed.

    When the result is computed, an error of the function reaches the driver as a `JobFailedError` (by
    `kafka_ordered_ops.spark.failures.named_error`). It names the position of the current key's first record, but not
    the key.
    """
    check_pyspark()
    types = dict(df.dtypes)
    if missing := sorted({key, *ORDER} - types.keys()):
        raise ConfigError(
            f"records are sorted by {', '.join(ORDER)} within their key {key!r}, but these columns are missing: "
            f"{', '.join(missing)}. Keep them from the result of read_window"
        )
    if types[key] not in _KEY_TYPES and not types[key].startswith("decimal"):
        raise ConfigError(
            f"the key {key!r} is of type {types[key]}, whose equal values may have different bytes: cast it to "
            "binary, string or a whole number first"
        )
    dealt = df.repartition(key) if partitions is None else df.repartition(partitions, key)
    return dealt.sortWithinPartitions(key, *ORDER).mapInArrow(_ByKey(function, key), schema)


@dataclass(frozen=True)
class _ByKey:
    """The function that ``mapInArrow`` calls with a task's records."""

    function: KeyFunction
    key: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        groups = _Groups(batches, self.key)
        try:
            yield from _gathered(self.function(iter(groups)))
        except KafkaOrderedOpsError:
            raise
        except Exception as error:
            raise JobFailedError(
                f"the function for map_by_key failed {groups.place}: {type(error).__name__}: {error}"
            ) from error


class _Key:
    """One key. Compared by identity: a new object is only created where the key changes."""

    def __init__(self, value: Any, first: pa.RecordBatch) -> None:
        self.value = value
        #: The position of the key's first record, for people.
        self.place = "{topic}[{partition}] offset {offset}".format(
            **first.slice(0, 1).to_pylist()[0]
        )


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive records of one key in one batch."""

    key: _Key
    records: pa.RecordBatch


class _Groups:
    """The groups of a task's records, with the function's progress."""

    def __init__(self, batches: Iterator[pa.RecordBatch], key: str) -> None:
        self._batches = batches
        self._name = key
        self._current: _Key | None = None

    @property
    def place(self) -> str:
        """The position of the last returned key, for messages."""
        if self._current is None:
            return "before its first key"
        return f"at the key whose first record is {self._current.place}"

    def __iter__(self) -> Iterator[KeyGroup]:
        for key, runs in groupby(self._runs(), key=attrgetter("key")):
            self._current = key
            yield key.value, (run.records for run in runs)

    def _runs(self) -> Iterator[_Run]:
        key: _Key | None = None
        for batch in self._batches:
            if not batch.num_rows:
                continue
            column = batch.column(self._name)
            starts = _starts(column)
            for start, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
                records, value = batch.slice(start, end - start), column[start].as_py()
                if key is None or value != key.value:
                    key = _Key(value, records)
                yield _Run(key, records)


def _starts(column: Any) -> list[int]:
    """Return the rows at which a new key begins, including the first row; null is a key like others."""
    numbers = column.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist()]


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches with the same schema."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        full = rows >= _OUTPUT_ROWS or size >= _OUTPUT_BYTES
        if waiting and (full or batch.schema != waiting[0].schema):
            yield from _joined(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
    if waiting:
        yield from _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return pa.Table.from_batches(batches).combine_chunks().to_batches()
