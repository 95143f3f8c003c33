"""`run` and the hosts' jobs into existing tables, from a real broker: what was there stays, what is new comes once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kafka_ordered_ops import ConfigError, Copy, Earliest, OrderedWindows, Table
from kafka_ordered_ops.delivery.job import WindowJob
from tests.support.hosts_support import writing
from tests.support.spark_support import spark
from tests.support.tables_support import Lake, lake_spark
from tests.support.windows_support import before

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


__all__ = ["lake_spark", "spark"]  # fixtures

pytestmark = [pytest.mark.spark41, pytest.mark.timeout(600)]

_COLUMNS = "offset bigint, timestamp timestamp, value string"


def _offsets(lake: Lake) -> list[int]:
    return sorted(int(row[0]) for row in lake.spark.table(lake.table).select("offset").collect())


def test_run_appends_to_a_table_that_people_have(
    bootstrap: str, group_id: str, orders: str, lake_spark: SparkSession, tmp_path: Path
) -> None:
    """By name alone; again, and nothing is done; a table that does not fit is refused before anything is planned."""
    columns = _COLUMNS.replace("string", "binary")
    lake = Lake.make(
        lake_spark,
        "iceberg",
        tmp_path,
        mode="append",
        columns=columns,
        partitions="days(timestamp)",
    )
    lake_spark.sql(f"INSERT INTO {lake.table} VALUES (-1, now(), NULL)")
    asked = before(orders, 12, Earliest())
    with OrderedWindows(bootstrap, group_id=group_id) as windows:
        misfit = Lake.make(lake_spark, "iceberg", tmp_path, columns="id int", partitions="")
        with pytest.raises(ConfigError, match="a record does not have: id"):
            windows.run(asked, Table(misfit.table), window_id="w", spark=lake_spark)
        assert windows.list() == []
        first = windows.run(asked, Table(lake.table), window_id="w", spark=lake_spark)
        again = windows.run(asked, Table(lake.table), window_id="w", spark=lake_spark)
    assert (first.ran, first.records, first.output) == (True, 3, lake.table)
    assert (again.ran, again.output) == (False, lake.table)
    assert _offsets(lake) == [-1, 0, 1, 3]
    assert lake.staged_count() == 0


def test_a_function_s_rows_are_merged(
    bootstrap: str, group_id: str, orders: str, lake_spark: SparkSession, tmp_path: Path
) -> None:
    """Into columns of the table's own, by a block as well, in whichever order the windows come."""
    lake = Lake.make(
        lake_spark,
        "iceberg",
        tmp_path,
        mode="merge",
        columns="id int, newest bigint",
        partitions="",
    )
    kept = ("timestamp", "topic", "partition", "offset")

    def job(window: Any) -> None:
        window.write(window.read().selectExpr("1 AS id", "offset AS newest", *kept))

    table = Table(lake.table, "merge", keys=["id"])
    with OrderedWindows(bootstrap, group_id=group_id) as windows:
        windows.run(before(orders, 12, Earliest()), table, job=job, spark=lake_spark)
        [[_, first]] = lake_spark.table(lake.table).collect()
        with windows.open(before(orders, 40), table, spark=lake_spark) as window:
            job(window)
        [[_, second]] = lake_spark.table(lake.table).collect()
    assert first in (0, 1, 3)
    assert second in (2, 4, 5)


def test_a_host_s_windows_share_a_session(
    bootstrap: str, group_id: str, orders: str, lake_spark: SparkSession, tmp_path: Path
) -> None:
    """As operator, asset and command line deliver: two windows in one pass, each found again by its own output."""
    lake = Lake.make(
        lake_spark,
        "iceberg",
        tmp_path,
        mode="replace",
        columns="offset bigint, window_id string",
        partitions="",
    )
    job = WindowJob(job=Copy(), to=Table(lake.table, "replace"), may_start_spark=True)
    with OrderedWindows(bootstrap, group_id=group_id) as windows:
        job.check(windows.settings, group_id)
        asked = [before(orders, 12, Earliest()), before(orders, 40, Earliest())]
        write = writing(job, windows)
        for ran in (True, False):
            with job.session(windows.settings, asked) as found:
                plans = windows.plan_many(asked, ["a", "b"])
                assert [one.ran for one in windows.deliver_many(plans, write, found)] == [ran, ran]
    rows = [(row.window_id, row.offset) for row in lake_spark.table(lake.table).collect()]
    assert sorted(rows) == [("a", 0), ("a", 1), ("a", 3), ("b", 2), ("b", 4), ("b", 5)]
