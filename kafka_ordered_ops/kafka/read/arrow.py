"""The client's records as columns."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Message

from kafka_ordered_ops.core.errors import CorruptRecordError
from kafka_ordered_ops.core.offset_set import Int64Array
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.read.header_names import first_cut, logged_sizes


@contextmanager
def no_collection() -> Iterator[None]:
    """Hold Python's search for reference cycles off, for the milliseconds in which records become columns.

    It would start after every 700 new ones, and scan all existing ones, for nothing:
    a record is in no cycle. That is a quarter of the time that reading takes.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def stamps(records: Sequence[Message]) -> Int64Array:
    """Return the timestamps with shape (records, 2): the client's type (0: none), and milliseconds."""
    pairs = chain.from_iterable(map(Message.timestamp, records))
    return np.fromiter(pairs, np.int64, 2 * len(records)).reshape(-1, 2)


def to_arrow(
    schema: pa.Schema, tp: TopicPartition, records: Sequence[Message], offsets: Int64Array
) -> pa.RecordBatch:
    """Build only the requested columns: each costs a pass over the records."""
    count = len(records)
    stamped = (
        stamps(records)
        if {"timestamp", "timestamp_type"} & set(schema.names)
        else np.empty((0, 2), dtype=np.int64)
    )
    make: dict[str, Callable[[Any], Any]] = {
        "topic": lambda kind: pa.repeat(pa.scalar(tp.topic, kind), count),
        "partition": lambda kind: pa.repeat(pa.scalar(tp.partition, kind), count),
        "offset": lambda kind: pa.array(offsets, kind),
        "timestamp": lambda kind: pa.array(np.ascontiguousarray(stamped[:, 1])).view(kind),
        # The client counts from 1, for 0 is its "none".
        "timestamp_type": lambda kind: pa.array(stamped[:, 0] - 1, kind, mask=stamped[:, 0] == 0),
        "key": lambda kind: pa.array(list(map(Message.key, records)), kind),
        "value": lambda kind: pa.array(list(map(Message.value, records)), kind),
        "headers": lambda kind: _headers(tp, records, offsets.tolist(), kind),
    }
    columns = [make[field.name](field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _headers(
    tp: TopicPartition, records: Sequence[Message], offsets: Sequence[int], kind: Any
) -> Any:
    logged = logged_sizes(records)
    found: list[Any] = []
    try:
        # What is there when it fails tells which record it was. Never ask a record again: the client keeps a list that is
        # half made, and whoever looks into it crashes the process.
        found.extend(map(Message.headers, records))
    except (SystemError, UnicodeDecodeError) as error:  # The client raises either, by its version.
        raise _unreadable(tp, offsets[len(found)], "is not UTF-8") from error
    if not any(found):
        return pa.nulls(len(found), kind)
    made = pa.array(
        [
            [{"key": key, "value": value} for key, value in headers] if headers else None
            for headers in found
        ],
        kind,
    )
    if logged is not None and (cut := first_cut(logged, made)) is not None:
        raise _unreadable(
            tp, offsets[cut], "has a NUL, at which the Kafka client of Python cuts it"
        )
    return made


def _unreadable(tp: TopicPartition, offset: int, why: str) -> CorruptRecordError:
    return CorruptRecordError(
        f"a header key of {tp}@{offset} {why}: read without the headers column",
        unreadable={str(tp): [(offset, offset + 1)]},
    )
