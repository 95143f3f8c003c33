"""Convert the client's records to columns."""

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
    """Disable Python's search for reference cycles, for the milliseconds in which records become columns.

    Otherwise it would start after every 700 new objects and scan all existing ones, in vain: no record is part of a
    cycle. That would take a quarter of the reading time.
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
        # The client counts from 1: its 0 means "none".
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
    all_headers: list[Any] = []
    try:
        # The length after a failure identifies the record. Never request its headers again: the client keeps an incomplete
        # list, and an access to it crashes the process.
        all_headers.extend(map(Message.headers, records))
    except (SystemError, UnicodeDecodeError) as error:  # The client raises either, by its version.
        raise _unreadable(tp, offsets[len(all_headers)], "is not UTF-8") from error
    if not any(all_headers):
        return pa.nulls(len(all_headers), kind)
    column = pa.array(
        [
            [{"key": key, "value": value} for key, value in headers] if headers else None
            for headers in all_headers
        ],
        kind,
    )
    if logged is not None and (cut := first_cut(logged, column)) is not None:
        raise _unreadable(
            tp, offsets[cut], "has a NUL, at which the Kafka client of Python cuts it"
        )
    return column


def _unreadable(tp: TopicPartition, offset: int, why: str) -> CorruptRecordError:
    return CorruptRecordError(
        f"a header key of {tp}@{offset} {why}: read without the headers column",
        unreadable={str(tp): [(offset, offset + 1)]},
    )
