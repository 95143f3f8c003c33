"""The recipes for tables: their snippets run as they stand, and the traps that their page names are there."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.spark_support import spark, spark41_conf
from tests.support.tables_support import CATALOG, Lake, lake_spark, offsets, tables_conf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["lake_spark", "spark"]  # fixtures

pytestmark = [
    pytest.mark.spark41,
    pytest.mark.timeout(600),
]

SNIPPETS = Path(__file__).parents[2] / "docs" / "snippets"


def _run(name: str, bootstrap: str, topic: str, folder: Path) -> str:
    """Runs a snippet, with the jars that a cluster would have; what it printed."""
    conf = folder / "conf"
    conf.mkdir(exist_ok=True)
    settings = {**spark41_conf(), **tables_conf(folder)}
    lines = "\n".join(f"{key} {value}" for key, value in settings.items())
    (conf / "spark-defaults.conf").write_text(f"{lines}\n")
    done = subprocess.run(
        [sys.executable, SNIPPETS / name, bootstrap, topic],
        cwd=folder,
        env={**os.environ, "SPARK_CONF_DIR": str(conf)},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "name",
    [
        "delta_table.py",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("iceberg_table.py", "parquet_partitions.py")
        ),
    ],
)
def test_a_recipe_runs_and_runs_again(bootstrap: str, tmp_path: Path, name: str) -> None:
    """On a topic that the first snippet fills; the second run shows the same rows, once."""
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    _run("fill_topic.py", bootstrap, topic, tmp_path)
    first, again = (_run(name, bootstrap, topic, tmp_path).split() for _ in range(2))
    if again[0] != first[0]:
        # An hour has ended in between: that was the next window, with more records.
        first, again = again, _run(name, bootstrap, topic, tmp_path).split()
    assert int(first[1]) > 0
    assert again == first


def _frame(lake: Lake, window_id: str, *values: int) -> DataFrame:
    return lake.frame(*values).selectExpr("*", f"'{window_id}' AS window_id")


def test_delta_skips_an_older_window_behind_a_newer_one_with_one_app_id(
    lake_spark: SparkSession, tmp_path: Path
) -> None:
    """The trap that a version for each window under one id has: nothing fails, and the rows are not there."""
    lake = Lake.make(lake_spark, "delta", tmp_path)

    def append(window_id: str, hour: int) -> None:
        writer = _frame(lake, window_id, hour).writeTo(lake.table)
        writer.option("txnAppId", "orders-hourly").option("txnVersion", str(hour)).append()

    append("11", 11)
    append("10", 10)
    assert lake.rows() == {"11": offsets(11)}


def test_delta_fills_in_columns_that_a_result_does_not_have(
    lake_spark: SparkSession, tmp_path: Path
) -> None:
    """Which is why the sink compares columns before the job."""
    lake = Lake.make(lake_spark, "delta", tmp_path)
    _frame(lake, "w", 1).drop("value").writeTo(lake.table).append()
    assert [row.value for row in lake_spark.table(lake.table).collect()] == [None]


def test_iceberg_overwrites_partitions_only_where_there_are_rows(
    lake_spark: SparkSession, tmp_path: Path
) -> None:
    """A result without rows leaves the older rows as they are: the sink overwrites by window."""
    lake = Lake.make(lake_spark, "iceberg", tmp_path)
    _frame(lake, "w", 1).writeTo(lake.table).overwritePartitions()
    _frame(lake, "w").writeTo(lake.table).overwritePartitions()
    assert lake.rows() == {"w": offsets(1)}


def test_iceberg_takes_a_branch_by_its_name_only(lake_spark: SparkSession, tmp_path: Path) -> None:
    """The option is ignored without a word, and the rows show at once; by name, they wait on the branch."""
    lake = Lake.make(lake_spark, "iceberg", tmp_path)
    _frame(lake, "before", 0).writeTo(lake.table).append()
    lake_spark.sql(f"ALTER TABLE {lake.table} CREATE BRANCH audit")
    _frame(lake, "named", 1).writeTo(f"{lake.table}.branch_audit").overwritePartitions()
    _frame(lake, "option", 2).writeTo(lake.table).option("branch", "audit").overwritePartitions()
    assert lake.rows() == {"before": offsets(0), "option": offsets(2)}
    [[snapshot_id]] = _sql(lake, f"SELECT snapshot_id FROM {lake.table}.refs WHERE name = 'audit'")
    name = lake.table.removeprefix(f"{CATALOG}.")
    _sql(lake, f"CALL {CATALOG}.system.cherrypick_snapshot('{name}', {snapshot_id})")
    assert lake.rows()["named"] == offsets(1)


def _sql(lake: Lake, text: str) -> list[Any]:
    return lake.spark.sql(text).collect()


def test_parquet_overwrites_partitions_only_where_there_are_rows(
    lake_spark: SparkSession, tmp_path: Path
) -> None:
    """Dynamic overwrite, too, leaves the older rows of a window that has none any more."""
    lake, folder = Lake(lake_spark, "parquet", "", ""), f"file://{tmp_path}/orders"

    def write(frame: DataFrame) -> None:
        writer = frame.write.mode("overwrite").partitionBy("window_id")
        writer.option("partitionOverwriteMode", "dynamic").parquet(folder)

    write(_frame(lake, "a", 1))
    write(_frame(lake, "b", 2))
    write(_frame(lake, "a", 3))
    write(_frame(lake, "b"))
    rows = lake_spark.read.parquet(folder).select("window_id", "offset").collect()
    assert sorted((str(row.window_id), row.offset) for row in rows) == [("a", 3), ("b", 2)]
