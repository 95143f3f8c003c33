"""The 24 hourly windows of a day that has gone by: in one pass, one by one, and by Structured Streaming."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.backlog import DAY_START, topic_of
from benchmarks.one_window import wake_workers
from benchmarks.sessions import CONNECTOR_TUNING, rows_in, spark_session
from benchmarks.values import Outcome, Place, Work
from kafka_ordered_ops import Earliest, OrderedWindows, Window, stage_windows
from kafka_ordered_ops.kafka.settings import ReaderKind
from kafka_ordered_ops.spark import read_window, read_windows, write_window, write_windows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOURS: Final = 24
HOUR: Final = timedelta(hours=1)


def hours() -> Iterator[tuple[datetime, datetime]]:
    """Start and end of each hour of the day."""
    for n in range(HOURS):
        yield DAY_START + n * HOUR, DAY_START + (n + 1) * HOUR


@dataclass(frozen=True)
class HourlyWindows:
    """A new group's windows, planned, delivered by the python engine, committed and published."""

    records: int
    one_pass: bool
    reader: ReaderKind = ReaderKind.AUTO

    def start(self, place: Place) -> Work:
        """Starts Spark."""
        spark = spark_session("hourly")
        topic = topic_of(self.records)
        asked = [
            Window([topic], cutoff=end, since=begin, starting_offsets=Earliest())
            for begin, end in hours()
        ]
        names = [f"{begin:%H}" for begin, _ in hours()]

        def run(round_: int) -> Outcome:
            out = place.folder / f"round-{round_}"
            group_id = f"bench-{uuid.uuid4().hex[:12]}"
            started = time.perf_counter()
            settings = {"bootstrap.servers": place.bootstrap, "reader": self.reader.value}
            with OrderedWindows(settings, group_id) as windows:
                if self.one_pass:
                    _deliver_together(spark, windows, asked, names, out)
                else:
                    for window, name in zip(asked, names, strict=True):
                        _deliver(spark, windows, window, name, out)
            seconds = time.perf_counter() - started
            rows = rows_in(out.glob("window_id=*"))
            shutil.rmtree(out)
            return Outcome(seconds=seconds, records=rows)

        return Work(run, partial(wake_workers, spark, place))


@dataclass(frozen=True)
class HourlyLocal:
    """The same in one pass by engine local: this process reads and writes, without Spark."""

    records: int
    reader: ReaderKind = ReaderKind.AUTO

    def start(self, place: Place) -> Work:
        """Nothing to start."""
        topic = topic_of(self.records)
        asked = [
            Window([topic], cutoff=end, since=begin, starting_offsets=Earliest())
            for begin, end in hours()
        ]
        names = [f"{begin:%H}" for begin, _ in hours()]

        def run(round_: int) -> Outcome:
            out = place.folder / f"round-{round_}"
            started = time.perf_counter()
            settings = {"bootstrap.servers": place.bootstrap, "reader": self.reader.value}
            with OrderedWindows(settings, f"bench-{uuid.uuid4().hex[:12]}") as windows:
                plans = windows.plan_many(asked, names)
                staged = stage_windows(plans, windows.settings, out, ordered=False)
                windows.commit_many(plans, staged)
            seconds = time.perf_counter() - started
            rows = rows_in(out.glob("window_id=*"))
            shutil.rmtree(out)
            return Outcome(seconds=seconds, records=rows)

        return Work(run)


def _deliver_together(
    spark: SparkSession,
    windows: OrderedWindows,
    asked: Sequence[Window],
    names: Sequence[str],
    out: Path,
) -> None:
    plans = windows.plan_many(asked, names)
    frame = read_windows(spark, plans, windows.settings)
    windows.commit_many(plans, write_windows(frame, out, plans, ordered=False))


def _deliver(
    spark: SparkSession, windows: OrderedWindows, window: Window, name: str, out: Path
) -> None:
    plan = windows.plan(window, name)
    frame = read_window(spark, plan, windows.settings)
    windows.commit(plan, write_window(frame, out, plan, ordered=False))


@dataclass(frozen=True)
class Streaming:
    """Structured Streaming's `availableNow` over the same backlog, filtered by time."""

    records: int
    #: One query for all hours, which writes a folder for each; else a query an hour, each with a checkpoint
    #: of its own, which has to read from the earliest record: time tells nothing about offsets.
    one_query: bool

    def start(self, place: Place) -> Work:
        """Starts Spark."""
        spark = spark_session("streaming")
        options = {
            "kafka.bootstrap.servers": place.bootstrap,
            **CONNECTOR_TUNING,
            "subscribe": topic_of(self.records),
            "startingOffsets": "earliest",
            "includeHeaders": "true",
        }

        def run(round_: int) -> Outcome:
            out = place.folder / f"round-{round_}"
            started = time.perf_counter()
            if self.one_query:
                self._write_all(spark.readStream.format("kafka").options(**options).load(), out)
            else:
                for begin, end in hours():
                    stream = spark.readStream.format("kafka").options(**options).load()
                    _write_hour(stream, begin, end, out)
            seconds = time.perf_counter() - started
            rows = rows_in([out])
            shutil.rmtree(out)
            return Outcome(seconds=seconds, records=rows)

        return Work(run)

    @staticmethod
    def _write_all(stream: DataFrame, out: Path) -> None:
        from pyspark.sql import functions as f

        *_, (_, end) = hours()
        of_the_day = stream.filter(_between(DAY_START, end))
        _run(of_the_day.withColumn("hour", f.hour("timestamp")), out, "all", partition_by=["hour"])


def _write_hour(stream: DataFrame, begin: datetime, end: datetime, out: Path) -> None:
    _run(stream.filter(_between(begin, end)), out, f"{begin:%H}")


def _between(begin: datetime, end: datetime) -> str:
    # By number: text would be read in the session's time zone.
    begin_ms, end_ms = (round(one.timestamp() * 1000) for one in (begin, end))
    return f"unix_millis(timestamp) >= {begin_ms} and unix_millis(timestamp) < {end_ms}"


def _run(stream: DataFrame, out: Path, name: str, *, partition_by: Sequence[str] = ()) -> None:
    writer = (
        stream.writeStream.format("parquet")
        .option("compression", "zstd")
        .option("checkpointLocation", str(out / "checkpoints" / name))
        .trigger(availableNow=True)
    )
    if partition_by:
        writer = writer.partitionBy(*partition_by)
    writer.start(str(out / "output" / name)).awaitTermination()
