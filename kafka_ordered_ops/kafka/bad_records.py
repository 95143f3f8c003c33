"""The records that a job has left out of a window, read again: as they are in Kafka."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from kafka_ordered_ops.core.errors import RecordsLostError
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.record_schema import RECORD_SCHEMA
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.core.window.dead_letters import DeadLetters
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.kafka.ports import open_reader
from kafka_ordered_ops.kafka.settings import ClientSettings

_PLACE = ("topic", "partition", "offset")


def read_bad_records(
    settings: ClientSettings, plan: WindowPlan, letters: DeadLetters, *, stall_timeout_s: float
) -> pa.Table:
    """Return the records that a job has left out, with `RECORD_SCHEMA`, in the order of `letters`.

    Raises:
        RecordsLostError: some of them are gone.
        ReadError, BrokerError: Kafka cannot be read.
    """
    places = [record[:3] for record in letters.records]
    if not places:
        return RECORD_SCHEMA.empty_table()
    offsets: dict[TopicPartition, list[tuple[int, int]]] = {}
    for topic, partition, offset in sorted(places):
        offsets.setdefault(TopicPartition(topic, partition), []).append((offset, offset + 1))
    reader = open_reader(
        settings,
        plan.group_id,
        plan.isolation,
        {tp: OffsetSet.of(*ranges) for tp, ranges in offsets.items()},
        stall_timeout_s=stall_timeout_s,
        topic_ids=plan.topic_ids,
    )
    with reader:
        rows = pa.Table.from_batches(reader.batches(), RECORD_SCHEMA)
    columns: list[list[Any]] = [rows.column(name).to_pylist() for name in _PLACE]
    found = {place: row for row, place in enumerate(zip(*columns, strict=True))}
    if missing := sorted(set(places) - found.keys()):
        raise _lost(plan, letters, missing)
    return rows.take(pa.array([found[place] for place in places], pa.int64()))


def _lost(
    plan: WindowPlan, letters: DeadLetters, missing: list[tuple[str, int, int]]
) -> RecordsLostError:
    lost: dict[str, list[tuple[int, int]]] = {}
    for topic, partition, offset in missing:
        lost.setdefault(f"{topic}[{partition}]", []).append((offset, offset + 1))
    place = "a place beside its output" if letters.topic is None else letters.topic
    return RecordsLostError(
        f"window {plan.window_id} of group {plan.group_id} has left out {len(letters.records):,} records for {place}, and "
        f"{len(missing):,} of them are gone from Kafka, {next(iter(lost))} at offset {missing[0][2]} among them. Nothing was "
        "committed. Abandon the window, and plan it again: it then reports the records that are lost",
        lost=lost,
    )
