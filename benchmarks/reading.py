"""Where reading spends its CPU time: the python engine's steps in one process, each with those before it.

Then what comes after them, in Spark: the rows are read and thrown away.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final

import pyarrow as pa

from benchmarks.one_window import day_window, wake_workers
from benchmarks.sessions import connector_options, spark_session
from benchmarks.values import Outcome, Place, Work
from kafka_ordered_ops import OrderedWindows
from kafka_ordered_ops.core.record_schema import RECORD_SCHEMA
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.kafka.read.reader import RangeReader
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.ordered.records.columns import judged, partition_of, to_spark
from kafka_ordered_ops.ordered.records.pieces import pieces_of
from kafka_ordered_ops.spark import read_window


class Step(StrEnum):
    """A step of reading; each goes on where the one before it ends."""

    OFFSETS = "consume, offsets"
    TIMES = "and times, topic, partition"
    VALUES = "and key, value"
    HEADERS = "and headers"
    JUDGED = "and which are late"
    SPARK = "and as Spark's columns"
    STREAM = "and as an Arrow stream"


_COLUMNS: Final[Mapping[Step, tuple[str, ...]]] = {
    Step.OFFSETS: ("offset",),
    Step.TIMES: ("topic", "partition", "offset", "timestamp", "timestamp_type"),
    Step.VALUES: ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value"),
}


@dataclass(frozen=True)
class ReadSteps:
    """Reads the day's window up to a step, and lets go of it."""

    records: int
    last: Step

    def start(self, place: Place) -> Work:
        """Asks for the window's offsets."""
        plan, settings = _plan(place, self.records)

        def run(_: int) -> Outcome:
            started = time.perf_counter()
            batches = _batches(plan, settings, self.last)
            rows = _written(batches) if self.last is Step.STREAM else _count(batches)
            return Outcome(seconds=time.perf_counter() - started, records=rows)

        return Work(run)


@dataclass(frozen=True)
class ReadBySpark:
    """Has Spark read the day's window, and throw the rows away."""

    records: int
    #: Else by the plain connector.
    ours: bool

    def start(self, place: Place) -> Work:
        """Starts Spark."""
        spark = spark_session("reading")
        plan, settings = _plan(place, self.records)
        options = connector_options(place.bootstrap, plan, headers=True)

        def run(_: int) -> Outcome:
            started = time.perf_counter()
            if self.ours:
                frame = read_window(spark, plan, settings)
            else:
                frame = spark.read.format("kafka").options(**options).load()
            frame.write.format("noop").mode("overwrite").save()
            return Outcome(seconds=time.perf_counter() - started, records=self.records)

        return Work(run, partial(wake_workers, spark, place)) if self.ours else Work(run)


def _plan(place: Place, records: int) -> tuple[WindowPlan, ClientSettings]:
    with OrderedWindows({"bootstrap.servers": place.bootstrap}, "bench-reading") as windows:
        return windows.preview(day_window(records), "day"), windows.settings


def _batches(plan: WindowPlan, settings: ClientSettings, last: Step) -> Iterator[pa.RecordBatch]:
    pieces = {piece.tp: piece for piece in pieces_of([plan])}
    wanted = {tp: piece.wanted for tp, piece in pieces.items()}
    columns = _COLUMNS.get(last, RECORD_SCHEMA.names)
    with RangeReader(settings, plan.group_id, plan.isolation, wanted, columns=columns) as reader:
        for batch in reader.batches():
            if last in _COLUMNS or last is Step.HEADERS:
                yield batch
                continue
            piece = pieces[partition_of(batch)]
            stage, owners = judged(batch, piece)
            yield stage if last is Step.JUDGED else to_spark(stage, piece, owners)


def _count(batches: Iterator[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


def _written(batches: Iterator[pa.RecordBatch]) -> int:
    """As a Python worker hands batches to the JVM, but to nobody."""
    rows, writer = 0, None
    with open(os.devnull, "wb") as file:
        for batch in batches:
            if writer is None:
                writer = pa.ipc.new_stream(file, batch.schema)
            writer.write_batch(batch)
            rows += batch.num_rows
        if writer is not None:
            writer.close()
    return rows
