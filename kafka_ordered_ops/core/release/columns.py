"""The held columns of records: the others are derived from a record's partition and its place in the order."""

from __future__ import annotations

from typing import Any, Final, cast

import numpy as np
import pyarrow as pa

from kafka_ordered_ops.core.offset_set import Int64Array
from kafka_ordered_ops.core.types import TopicPartition

#: Columns with the same value for all records of a partition.
_OF_PARTITION: Final = frozenset({"topic", "partition"})


class Columns:
    """The columns of records that are fed, held and released.

    Args:
        schema: the schema of released records.
        keys_are_times: whether the keys of the order are the timestamps.
    """

    def __init__(self, schema: pa.Schema, *, keys_are_times: bool) -> None:
        follow = _OF_PARTITION | {"timestamp"} if keys_are_times else _OF_PARTITION
        self.schema = schema
        #: The schema that may be fed instead of `schema`.
        self.fed = pa.schema([field for field in schema if field.name not in _OF_PARTITION])
        self._held = [field.name for field in schema if field.name not in follow]
        self._topics: list[str] = []
        self._partitions = np.empty(0, dtype=np.int32)
        self._one_topic: pa.Array[Any] | None = None

    def add(self, tp: TopicPartition) -> None:
        """Add the partition of the next lane."""
        self._topics.append(tp.topic)
        self._partitions = np.append(self._partitions, np.int32(tp.partition))

    def to_hold(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns that are held."""
        return rows.select(self._held)

    def whole(self, rows: pa.RecordBatch, keys: Int64Array, lanes: Int64Array) -> pa.RecordBatch:
        """Return held records with all of their columns; thread-safe."""
        columns = [
            rows.column(field.name)
            if field.name in self._held
            else self._make_column(field, keys, lanes)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _make_column(self, field: pa.Field[Any], keys: Int64Array, lanes: Int64Array) -> Any:
        if field.name == "topic":
            return self._topic_of(lanes)
        if field.name == "partition":
            return pa.array(self._partitions[lanes])
        return pa.array(keys).view(field.type)

    def _topic_of(self, lanes: Int64Array) -> Any:
        if len(set(self._topics)) > 1:
            return pa.array(self._topics).take(cast("pa.Array[pa.Int64Scalar]", pa.array(lanes)))
        known = self._one_topic
        if known is None or len(known) < lanes.size:
            # Created once and reused. The length doubles each time: a window may have four records, or millions.
            rows = max(lanes.size, 2 * len(known or ()))
            known = self._one_topic = pa.repeat(self._topics[0], rows)
        return known.slice(0, lanes.size)
