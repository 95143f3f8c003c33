"""Applications whose windows go to a real table: staged by the application, shown after Kafka's commit, once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kafka_ordered_ops import Application, ConfigError, Earliest, OrderedWindows, Table
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.spark import SparkSubmit
from kafka_ordered_ops.spec.table import location_of
from tests.support.spark_support import Crash, spark, spark41_conf
from tests.support.submit_support import application, small
from tests.support.tables_support import WAREHOUSE, Lake, lake_spark, tables_conf
from tests.support.windows_support import before

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from kafka_ordered_ops import WindowPlan

__all__ = ["lake_spark", "spark"]  # fixtures

pytestmark = [pytest.mark.spark41, pytest.mark.timeout(900)]

#: Has a session of its own, counts its own work, and ends as jobs do.
JOB = """
    import pathlib, sys
    from pyspark.sql import SparkSession
    from kafka_ordered_ops import current_window

    spark = SparkSession.builder.appName("mine").getOrCreate()
    try:
        window = current_window(spark)
    except:
        print("a job that takes whatever comes")
        raise SystemExit(3)
    with open(pathlib.Path(__file__).with_suffix(".ran"), "a") as ran:
        ran.write("work\\n")
    window.write(window.read().selectExpr("offset", "timestamp", *sys.argv[1:]))
    spark.stop()
"""
_COLUMNS = "offset bigint, timestamp timestamp, value binary, window_id string"


def _how(lake: Lake) -> SparkSubmit:
    """With the catalogue of the test's session."""
    return small(**spark41_conf(), **tables_conf(Path(lake.spark.conf.get(WAREHOUSE) or "")))


def _make(spark: SparkSession, format_: str, folder: Path, mode: str) -> Lake:
    return Lake.make(spark, format_, folder, mode=mode, columns=_COLUMNS, partitions="")


def _offsets(lake: Lake) -> list[int]:
    lake.spark.sql(f"REFRESH TABLE {lake.table}")
    return sorted(int(row[0]) for row in lake.spark.table(lake.table).select("offset").collect())


def _works(job: Path) -> int:
    """How often the application has done work of its own."""
    return len(job.with_suffix(".ran").read_text().split())


class _Dying(OrderedWindows):
    """Dies after Kafka's commit."""

    def publish_many(self, plans: Sequence[WindowPlan], staged: Any) -> list[WindowPlan]:
        raise Crash


def test_an_application_s_window_is_appended_once(
    bootstrap: str, group_id: str, orders: str, lake_spark: SparkSession, tmp_path: Path
) -> None:
    """To Iceberg; the caller has no Spark, the application does its work once, and is only run again to publish."""
    lake = _make(lake_spark, "iceberg", tmp_path, "append")
    job = application(tmp_path, JOB)
    asked = before(orders, 12, Earliest())
    to, how = Table(lake.table), Application(job, ["value"], _how(lake))
    with OrderedWindows(bootstrap, group_id=group_id) as windows:
        first = windows.run(asked, to, job=how)
        again = windows.run(asked, to, job=how)
        located = location_of(windows.show(first.window_id).result)
    assert (first.ran, first.records, first.output) == (True, 3, lake.table)
    assert located is not None
    assert located.files == f"{located.catalog}/{(located.name or '').replace('.', '/')}"
    assert located.catalog == lake_spark.conf.get(WAREHOUSE)
    assert (again.ran, again.status) == (False, WindowStatus.PUBLISHED)
    assert _offsets(lake) == [0, 1, 3]
    assert lake.staged_count() == 0
    assert _works(job) == 1


@pytest.mark.long
@pytest.mark.parametrize("mode", ["append", "replace", "merge"])
@pytest.mark.parametrize("format_", ["iceberg", "delta"])
def test_a_caller_that_dies_after_kafka_s_commit(
    bootstrap: str,
    group_id: str,
    orders: str,
    lake_spark: SparkSession,
    tmp_path: Path,
    format_: str,
    mode: str,
) -> None:
    """The next call finds the staged rows and shows them; columns that do not fit fail before anything is committed."""
    lake = _make(lake_spark, format_, tmp_path, mode)
    job = application(tmp_path, JOB)
    asked = before(orders, 12, Earliest())
    to = Table(lake.table, mode, keys=["offset"] if mode == "merge" else ())

    def selecting(column: str) -> Application:
        return Application(job, [column], _how(lake))

    with _Dying(bootstrap, group_id=group_id) as dying:
        with pytest.raises(ConfigError, match="Missing: value"):
            dying.run(asked, to, job=selecting("key"), window_id="w")
        assert dying.show("w").status is WindowStatus.PLANNED
        with pytest.raises(Crash):
            dying.run(asked, to, job=selecting("value"), window_id="w")
        assert dying.show("w").status is WindowStatus.COMMITTED
    assert _offsets(lake) == []
    with OrderedWindows(bootstrap, group_id=group_id) as windows:
        done = windows.run(asked, to, job=selecting("value"), window_id="w")
    assert (done.ran, done.status) == (False, WindowStatus.PUBLISHED)
    assert _offsets(lake) == [0, 1, 3]
    assert lake.staged_count() == 0
    assert _works(job) == 2
