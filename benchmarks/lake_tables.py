"""A window into an existing table, in each mode; and the same rows by a plain ``df.writeTo``."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final

from benchmarks.one_window import day_window, wake_workers
from benchmarks.sessions import lake_session
from benchmarks.values import Outcome, Place, Work
from kafka_ordered_ops import OrderedWindows
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.spark import TableSink, read_window
from kafka_ordered_ops.spec.table import TableMode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: What Iceberg's catalogue is called.
CATALOG: Final = "lake"

#: These identify a record, for mode merge: each row is a new one.
_KEYS: Final = ("topic", "partition", "offset")
_COLUMNS: Final = (*_KEYS, "timestamp", "key", "value")
_DDL: Final = (
    "topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary"
)


class TableFormat(StrEnum):
    """Of the formats that a table can have."""

    DELTA = "Delta"
    ICEBERG = "Iceberg"


@dataclass(frozen=True)
class ToTable:
    """Plans the window for a new group, writes it to a new table, commits and publishes it; or only writes it."""

    records: int
    format: TableFormat
    #: None: a plain ``df.writeTo``.
    mode: TableMode | None

    def start(self, place: Place) -> Work:
        """Starts Spark."""
        spark = lake_session(str(self.mode), place.folder / f"lake-{uuid.uuid4().hex[:8]}", CATALOG)

        def run(round_: int) -> Outcome:
            table = self._make(spark, round_, place)
            group_id = f"bench-{uuid.uuid4().hex[:12]}"
            with OrderedWindows({"bootstrap.servers": place.bootstrap}, group_id) as windows:
                plan = windows.plan(day_window(self.records), "day")
                seconds, beyond_s = self._deliver(spark, windows, plan, table)
            rows = spark.table(table).count()
            spark.sql(f"DROP TABLE {table}")
            return Outcome(seconds=seconds, records=rows, beyond_s=beyond_s)

        return Work(run, partial(wake_workers, spark, place))

    def _make(self, spark: SparkSession, round_: int, place: Place) -> str:
        """Makes an empty table: rows that are in it already would cost any MERGE the same."""
        name = f"round_{round_}_{uuid.uuid4().hex[:8]}"
        window_id = ", window_id string" if self.mode is TableMode.REPLACE else ""
        if self.format is TableFormat.ICEBERG:
            table, where = f"{CATALOG}.db.{name}", ""
        else:
            table, where = f"default.{name}", f" LOCATION '{place.folder / name}'"
        spark.sql(f"CREATE TABLE {table} ({_DDL}{window_id}) USING {self.format.lower()}{where}")
        return table

    def _deliver(
        self, spark: SparkSession, windows: OrderedWindows, plan: WindowPlan, table: str
    ) -> tuple[float, dict[str, float]]:
        started = time.perf_counter()
        rows = _rows(spark, plan, windows.settings)
        if self.mode is None:
            rows.writeTo(table).append()
            return time.perf_counter() - started, {}
        keys = _KEYS if self.mode is TableMode.MERGE else ()
        output = TableSink(spark, table, self.mode, keys=keys).write(rows, plan)
        written = time.perf_counter()
        windows.commit(plan)
        committed = time.perf_counter()
        output.publish()
        publish = time.perf_counter() - committed
        return written - started + publish, {"commit": committed - written, "publish": publish}


def _rows(spark: SparkSession, plan: WindowPlan, settings: ClientSettings) -> DataFrame:
    return read_window(spark, plan, settings).select(*_COLUMNS)
