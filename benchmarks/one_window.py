"""A day's window to Parquet: by the package's engines, and by the plain connector."""

from __future__ import annotations

import shutil
import time
import uuid
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.backlog import DAY, DAY_START, topic_of
from benchmarks.sessions import connector_options, rows_in, spark_session
from benchmarks.values import Outcome, Place, Work
from kafka_ordered_ops import Earliest, OrderedWindows, Window
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.output.writing.stage import stage_window
from kafka_ordered_ops.output.writing.staged_output import StagedOutput
from kafka_ordered_ops.spark import read_window, write_window

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The topic that workers read to wake up: a slice for every core.
WAKE_RECORDS: Final = 100_000

ORDER: Final = ("timestamp", "topic", "partition", "offset")


class Way(StrEnum):
    """Who reads Kafka and who writes the files."""

    PYTHON = "python"
    #: Spark's Kafka connector as an engine, which tells windows and late records apart as well.
    CONNECTOR = "engine connector"
    #: One process reads Kafka into files, and these are the output: no Spark.
    LOCAL = "local"
    #: One process reads Kafka into files, and a Spark job copies them: as for a job of the user's own.
    LOCAL_AND_SPARK = "local, then Spark"


def day_window(records: int) -> Window:
    """The window of a whole day of the topic with so many records."""
    return Window([topic_of(records)], cutoff=DAY_START + DAY, starting_offsets=Earliest())


def wake_workers(spark: SparkSession, place: Place) -> None:
    """Has some records read: Spark ends Python workers that were idle for a minute, and a round may be longer."""
    with OrderedWindows({"bootstrap.servers": place.bootstrap}, "bench-wake") as windows:
        plan = windows.preview(day_window(WAKE_RECORDS), "day")
        read_window(spark, plan, windows.settings).write.format("noop").mode("overwrite").save()


@dataclass(frozen=True)
class OurWindow:
    """Plans the window for a new group, delivers it to Parquet, commits and publishes."""

    records: int
    way: Way
    ordered: bool

    def start(self, place: Place) -> Work:
        """Starts Spark where it is used."""
        spark = None if self.way is Way.LOCAL else spark_session(self.way)
        window = day_window(self.records)

        def run(round_: int) -> Outcome:
            out = place.folder / f"round-{round_}"
            group_id = f"bench-{uuid.uuid4().hex[:12]}"
            started = time.perf_counter()
            with OrderedWindows({"bootstrap.servers": place.bootstrap}, group_id) as windows:
                plan = windows.plan(window, "day")
                planned = time.perf_counter()
                staged = self._deliver(spark, plan, windows.settings, out)
                written = time.perf_counter()
                windows.commit(plan, staged)
                committed = time.perf_counter()
            rows = rows_in(out.glob("window_id=*"))
            shutil.rmtree(out)
            return Outcome(
                seconds=written - planned,
                records=rows,
                beyond_s={"plan": planned - started, "commit": committed - written},
            )

        if spark is None or self.way is not Way.PYTHON:
            return Work(run)
        return Work(run, partial(wake_workers, spark, place))

    def _deliver(
        self, spark: SparkSession | None, plan: WindowPlan, settings: ClientSettings, out: Path
    ) -> StagedOutput:
        if spark is None:
            return stage_window(plan, settings, out, ordered=self.ordered)
        staged = self.way is Way.LOCAL_AND_SPARK
        frame = read_window(
            spark,
            plan,
            settings,
            ordered=self.ordered,
            engine="local" if staged else self.way.value.removeprefix("engine "),
            local_root=out / "kafka" if staged else None,
        )
        return write_window(frame, out, plan, ordered=self.ordered)


@dataclass(frozen=True)
class Connector:
    """The plain connector reads the same ranges and writes Parquet with the same settings."""

    records: int
    ordered: bool = False
    #: What the package reads always; records here have none.
    headers: bool = True

    def start(self, place: Place) -> Work:
        """Starts Spark, and asks for the window's offsets: they are given to the connector."""
        spark = spark_session("connector")
        with OrderedWindows({"bootstrap.servers": place.bootstrap}, "bench-preview") as windows:
            plan = windows.preview(day_window(self.records), "day")
        options = connector_options(place.bootstrap, plan, headers=self.headers)

        def run(round_: int) -> Outcome:
            out = place.folder / f"round-{round_}"
            started = time.perf_counter()
            frame = spark.read.format("kafka").options(**options).load()
            if self.ordered:
                frame = frame.orderBy(*ORDER)
            frame.write.option("compression", "zstd").parquet(str(out))
            seconds = time.perf_counter() - started
            rows = rows_in([out])
            shutil.rmtree(out)
            return Outcome(seconds=seconds, records=rows)

        return Work(run)
