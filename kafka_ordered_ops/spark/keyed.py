"""Process records key by key: each key's records together and in order, however many there are.

Spark's own grouped ``applyInArrow`` holds a whole group in memory, and costs each group a call. Here a task gets the
records of all its keys as one stream, sorted by key and then by time, and cuts it where the key changes.
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

#: A key, and its records in order: batches with all columns, to be taken before the next key is.
KeyGroup = tuple[Any, Iterator[pa.RecordBatch]]

#: The function that `map_by_key` calls once in each task.
KeyFunction = Callable[[Iterator[KeyGroup]], Iterable[pa.RecordBatch]]

#: Equal keys of these types have equal bytes. Others (floating point, collated text) do not.
_KEY_TYPES: Final = frozenset(
    {"bigint", "binary", "boolean", "date", "int", "smallint", "string", "timestamp", "tinyint"}
)

#: A function that yields a row for each key makes small batches, and each batch is one transfer to the JVM.
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
    whole. As with ``itertools.groupby``, taking the next group ends the previous one, whose rest is skipped. Keys
    have no particular order. The function's batches form one DataFrame, in no
    order.

    The function is pickled for the executors, with the objects that it refers to.

    Args:
        df: records with the columns of `read_window` that make the order, and the key. Kafka is read once.
        function: ``function(groups)``, yielding Arrow batches of `schema`; rarely called without groups.
        schema: the columns of the result, as a type or as DDL.
        key: the column; binary, text, whole numbers, dates, times or booleans.
        partitions: how many tasks; Spark's ``spark.sql.shuffle.partitions`` when left out, which Spark makes
            fewer where they would be small.

    Raises:
        ConfigError: `df` lacks a column, or the key has a type that cannot be grouped by.
        EnvironmentConflictError: pyspark and pyspark-client are both installed.

    When the result is computed, an error of the function reaches the driver as `JobFailedError` (by
    `kafka_ordered_ops.spark.failures.named_error`) that names the place of the first record of the key that it
    was at, and not the key.
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
    """One key. Compared by identity: whether a record is of another one is known where it is made."""

    def __init__(self, value: Any, first: pa.RecordBatch) -> None:
        self.value = value
        #: For people: where the key's first record is.
        self.place = "{topic}[{partition}] offset {offset}".format(
            **first.slice(0, 1).to_pylist()[0]
        )


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbouring records of one key in one batch."""

    key: _Key
    records: pa.RecordBatch


class _Groups:
    """The groups of a task's records; knows how far the function has got."""

    def __init__(self, batches: Iterator[pa.RecordBatch], key: str) -> None:
        self._batches = batches
        self._name = key
        self._current: _Key | None = None

    @property
    def place(self) -> str:
        """The place of the key that was returned last, for messages."""
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
    """Return the rows at which another key begins, the first one among them; null is a key like others."""
    numbers = column.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist()]


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches that are alike."""
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
