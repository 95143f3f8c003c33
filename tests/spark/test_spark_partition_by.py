"""Spark writes windows below folders of dates and hours, and reads them: as typed columns, by which it skips files."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kafka_ordered_ops import ConfigError, OrderedWindows, StagedOutput, Window, WindowPlan
from kafka_ordered_ops.spark import read_output, submit, write_window, write_windows
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.spark_support import spark
from tests.support.submit_support import TIMEOUT_S, application, small

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]  # a fixture

pytestmark = [pytest.mark.spark, pytest.mark.slow]

#: 2026-11-20T08:00Z
EIGHT_MS = 1_795_161_600_000

#: No broker: the application does not read.
NOBODY = "127.0.0.1:1"

#: Writes rows of its own.
WRITE = """
    from pyspark.sql import SparkSession
    from kafka_ordered_ops import current_windows

    spark = SparkSession.builder.getOrCreate()
    windows = current_windows(spark)
    assert windows.partition_by == "hour"
    windows.write(spark.range(3).withColumnRenamed("id", "n"))
"""


@pytest.fixture
def kafka() -> Iterator[InMemoryKafka]:
    """A record in each of three hours."""
    with InMemoryKafka() as made:
        made.create_topic("orders")
        for n in range(3):
            made.produce("orders", value=b"v", timestamp_ms=EIGHT_MS + n * 3_600_000)
        yield made


@pytest.fixture
def plans(kafka: InMemoryKafka) -> list[WindowPlan]:
    """The three hours, from eight to eleven."""
    with OrderedWindows(kafka.settings, group_id="g") as windows:
        return [
            windows.plan(
                Window(
                    "orders",
                    f"2026-11-20T{n + 9:02d}:00Z",
                    "earliest",
                    since=f"2026-11-20T{n + 8:02d}:00Z",
                ),
                f"w{n}",
            )
            for n in range(3)
        ]


def test_spark_writes_and_reads_dates_and_hours(
    spark: SparkSession, plans: list[WindowPlan], tmp_path: Path
) -> None:
    """Alone, and together with one that has no rows; types and a filter, and each window by its name."""
    root = str(tmp_path / "orders")
    rows = spark.range(4).selectExpr("id as n")
    outputs = [write_window(rows, root, plans[0], partition_by="hour")]
    named = rows.selectExpr("n + 10 as n", "'w1' as window_id")
    outputs += write_windows(named, root, plans[1:], partition_by="hour")
    for output in outputs:
        output.publish()
    frame = spark.read.parquet(root)
    types = dict(frame.dtypes)
    assert (types["date"], types["hour"]) == ("date", "int")
    day = datetime.date(2026, 11, 20)
    found = frame.where("date = '2026-11-20' and hour between 9 and 10")
    assert sorted((row.n, row.date, row.hour) for row in found.collect()) == [
        (n, day, 9) for n in range(10, 14)
    ]
    # Files that a filter skips are not opened at all.
    for one in Path(outputs[0].final_path).glob("*.parquet"):
        one.write_bytes(b"no parquet")
    schema = "n bigint, date date, hour int"
    pruned = spark.read.schema(schema).parquet(root).where("hour > 8")
    assert pruned.count() == 4
    assert [row.n for row in read_output(spark, root, ["w1"]).collect()] == [10, 11, 12, 13]
    assert read_output(spark, root, ["w2"]).count() == 0


def test_a_column_of_the_same_name_is_refused(
    spark: SparkSession, plans: list[WindowPlan], tmp_path: Path
) -> None:
    """Readers would show the folder's date in it; an hour is no column of folders of dates."""
    root = tmp_path / "orders"
    rows = spark.range(1).selectExpr("id as n", "id as Hour")
    named = rows.selectExpr("*", "'w0' as window_id")
    with pytest.raises(ConfigError, match="have a column Hour"):
        write_window(rows, root, plans[0], partition_by="hour")
    with pytest.raises(ConfigError, match="have a column Hour"):
        write_windows(named, root, plans, partition_by="hour")
    assert not root.exists()
    write_window(rows, root, plans[0], partition_by="date").publish()
    assert spark.read.parquet(str(root)).columns == ["n", "Hour", "date", "window_id"]


@pytest.mark.long
@pytest.mark.timeout(2 * TIMEOUT_S)
def test_a_submitted_job_writes_below_them(plans: list[WindowPlan], tmp_path: Path) -> None:
    """The application is not changed; a bad value starts nothing."""
    job, root = application(tmp_path, WRITE), tmp_path / "orders"
    with pytest.raises(ConfigError, match="partition_by is 'day'"):
        submit(plans[0], job, NOBODY, root, partition_by="day")
    assert not root.exists()
    output = submit(plans[2], job, NOBODY, root, how=small(), partition_by="hour")
    output.publish()
    assert Path(output.final_path).parent == root / "date=2026-11-20" / "hour=10"
    found = StagedOutput.found(output.to_json())
    assert found is not None
    assert found.is_published()
