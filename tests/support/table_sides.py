"""Windows of one group into a table that others may write to as well, and what readers see there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kafka_ordered_ops import Function, OrderedWindows, Policy, Table, Window, WindowPlan
from kafka_ordered_ops.core.types import TopicPartition, WindowStatus
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.spark_support import Crash
from tests.support.tables_support import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kafka_ordered_ops import OpenWindow
    from kafka_ordered_ops.delivery.run_result import RunResult

TOPIC, GROUP = "orders", "hourly"
HOUR_MS = 3_600_000
T0_MS = 1_700_000_000_000 // HOUR_MS * HOUR_MS
#: The columns of the tests' tables, but the window's id.
ROW = "value string, offset bigint"

FORMATS = pytest.mark.parametrize(
    "format_", [pytest.param("delta", marks=pytest.mark.long), "iceberg"]
)
MODES = pytest.mark.parametrize("mode", ["append", "replace", "merge"])


def hour(number: int = 0) -> Window:
    """The records before the end of an hour."""
    end = datetime.fromtimestamp((T0_MS + (number + 1) * HOUR_MS) / 1000, UTC)
    return Window(TOPIC, cutoff=end, starting_offsets="earliest")


class Dying(OrderedWindows):
    """Dies after Kafka's commit."""

    def publish_many(self, plans: Sequence[WindowPlan], staged: Any) -> list[WindowPlan]:
        raise Crash


@dataclass
class Side:
    """One cluster, with its ledger, and a table that others may write to as well."""

    kafka: InMemoryKafka
    lake: Lake
    group: str = GROUP
    #: What the job makes of the records.
    columns: str = ROW

    def produce(self, *values: str, number: int = 0) -> None:
        """Records of an hour."""
        for value in values:
            at = T0_MS + number * HOUR_MS + 1
            self.kafka.produce(TOPIC, value=value.encode(), partition=0, timestamp_ms=at)

    def windows(self, kind: type[OrderedWindows] = OrderedWindows) -> OrderedWindows:
        """The service as a new process has it."""
        return kind(self.kafka.settings, self.group)

    def run(
        self,
        window_id: str = "w",
        *,
        mode: str = "",
        number: int = 0,
        kept: slice = slice(None),
        kind: type[OrderedWindows] = OrderedWindows,
        allow_fewer: bool = False,
        fails: bool = False,
    ) -> RunResult:
        """Deliver a window by a function that writes some of its records; or by one whose job fails, if it is run."""
        from pyspark.sql.functions import expr

        def job(window: OpenWindow) -> None:
            rows = window.to_arrow().to_pylist()[kept]
            names = [one.split()[0] for one in self.columns.split(", ")]
            values = [
                tuple({**row, "value": row["value"].decode()}[name] for name in names)
                for row in rows
            ]
            frame = self.lake.spark.createDataFrame(values, self.columns)
            if fails:
                frame = frame.withColumn("value", expr("raise_error('it ran')"))
            window.write(frame)

        with self.windows(kind) as windows:
            return windows.run(
                hour(number),
                self.table(mode),
                job=Function(job, engine="local"),
                window_id=window_id,
                policy=Policy(allow_fewer=allow_fewer),
                spark=self.lake.spark,
            )

    def table(self, mode: str = "") -> Table:
        """The table as a place of windows."""
        mode = mode or self.lake.mode
        keys = ["value"] if mode == "merge" else ()
        return Table(self.lake.table, mode, keys)

    def move_back(self) -> None:
        """Some program moves the group to its beginning, and that is adopted."""
        self.kafka.commit(self.group, {TopicPartition(TOPIC, 0): 0})
        with self.windows() as windows:
            windows.adopt()

    def open_windows(self) -> list[str]:
        """The ids of windows that hold offsets."""
        with self.windows() as windows:
            return [one.plan.window_id for one in windows.list() if one.status.is_open]

    def status(self, window_id: str = "w") -> WindowStatus:
        """What the ledger says of a window."""
        with self.windows() as windows:
            return windows.show(window_id).status


def rows_in(lake: Lake) -> list[tuple[str, str]]:
    """What readers see: window id and value, sorted, doubles kept."""
    lake.spark.sql(f"REFRESH TABLE {lake.table}")
    return sorted((row.window_id, row.value) for row in lake.spark.table(lake.table).collect())


def shown(*values: str, window_id: str = "w") -> list[tuple[str, str]]:
    """Rows of a window, as `rows_in` has them."""
    return sorted((window_id, value) for value in values)


def make(spark: SparkSession, format_: str, folder: Path, mode: str, **more: Any) -> Lake:
    """A fresh table."""
    columns = f"{ROW}, window_id string"
    return Lake.make(spark, format_, folder, mode=mode, columns=columns, **more)


@pytest.fixture
def eu() -> Iterator[InMemoryKafka]:
    """A cluster."""
    with InMemoryKafka() as kafka:
        kafka.create_topic(TOPIC, 1)
        yield kafka


@pytest.fixture
def us() -> Iterator[InMemoryKafka]:
    """Another one, with a topic of the same name."""
    with InMemoryKafka() as kafka:
        kafka.create_topic(TOPIC, 1)
        yield kafka
