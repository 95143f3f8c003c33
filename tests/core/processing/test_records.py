"""Records from Arrow, and the bytes of those that are held."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops.core.processing.record import content_bytes, records_of
from kafka_ordered_ops.core.processing.scheduling import Ordering, Scheduler
from kafka_ordered_ops.core.record_schema import RECORD_SCHEMA
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.processing import Record

TP = TopicPartition("t", 3)

HEADERS = st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2)
RECORDS = st.lists(
    st.builds(
        Record,
        topic=st.just(TP.topic),
        partition=st.just(TP.partition),
        offset=st.integers(0, 2**60),
        timestamp_ms=st.integers(0, 2**40),
        key=st.none() | st.binary(max_size=2),
        value=st.none() | st.binary(max_size=5),
        headers=st.just(()) | HEADERS.map(tuple),
        attempt=st.just(1),
    ),
    max_size=8,
    unique_by=lambda one: one.offset,
).map(lambda records: sorted(records, key=lambda one: one.offset))


@given(records=RECORDS)
def test_records_are_what_arrow_has(records: list[Record]) -> None:
    """With and without headers, keys and values; each is in its first attempt."""
    values: dict[str, list[Any]] = {
        "topic": [TP.topic] * len(records),
        "partition": [TP.partition] * len(records),
        "offset": [one.offset for one in records],
        "timestamp": [one.timestamp_ms for one in records],
        "timestamp_type": [0] * len(records),
        "key": [one.key for one in records],
        "value": [one.value for one in records],
        "headers": [
            [{"key": key, "value": value} for key, value in one.headers] or None for one in records
        ],
    }
    columns = [pa.array(values[field.name], field.type) for field in RECORD_SCHEMA]
    found = list(records_of(TP, pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)))
    assert found == records
    assert all(type(one) is Record and one.attempt == 1 for one in found)


@given(records=RECORDS, ordering=st.sampled_from(Ordering), done=st.integers(0, 8))
def test_held_bytes_are_those_of_held_records(
    records: list[Record], ordering: Ordering, done: int
) -> None:
    """Those that are done, or whose partition is dropped, are not held."""
    scheduler = Scheduler(ordering)
    scheduler.add(TP, records)
    left = content_bytes(records)
    for _ in range(done):
        if (taken := scheduler.take(1)) is not None:
            scheduler.done(*taken)
            left -= content_bytes(taken[1])
        assert scheduler.held_bytes == left
    scheduler.drop(TP)
    assert (scheduler.held_bytes, scheduler.records) == (0, 0)
