"""Bad records of windows that go to a table: the rows are in the table once, and the dead letters in their topic once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kafka_ordered_ops import Table
from tests.support.both_worlds import broker as broker
from tests.support.dead_letters import BAD, die_at_commit, fill, places, service, window
from tests.support.spark_support import java_home, spark, spark41_conf
from tests.support.tables_support import Lake, lake_spark
from tests.support.worlds import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["lake_spark", "spark"]  # fixtures

pytestmark = [pytest.mark.spark41, pytest.mark.timeout(600)]

_COLUMNS = "id bigint, partition int, offset bigint, window_id string"


def _lake(spark: SparkSession, format_: str, folder: Path, mode: str = "append") -> Lake:
    return Lake.make(spark, format_, folder, mode=mode, columns=_COLUMNS, partitions="")


def _ids(lake: Lake) -> list[int | None]:
    rows = lake.spark.table(lake.table).select("id").collect()
    return sorted((row[0] for row in rows), key=str)


@pytest.mark.parametrize(
    ("format_", "mode"),
    [
        ("delta", "append"),
        ("iceberg", "append"),
        pytest.param("delta", "replace", marks=pytest.mark.long),
        pytest.param("iceberg", "replace", marks=pytest.mark.long),
        pytest.param("delta", "merge", marks=pytest.mark.long),
        pytest.param("iceberg", "merge", marks=pytest.mark.long),
    ],
)
def test_a_table_has_the_good_records(
    broker: World, lake_spark: SparkSession, tmp_path: Path, format_: str, mode: str
) -> None:
    """In each mode; a second run changes neither the table nor the topic."""
    fill(broker)
    lake, windows = _lake(lake_spark, format_, tmp_path, mode), service(broker)
    keys = ["partition", "offset"] if mode == "merge" else []
    asked, to = window(broker, keys=None, flatten=True), Table(lake.table, mode, keys=keys)
    result = windows.run(asked, to, spark=lake_spark, window_id="w")
    assert (result.records, result.dead_letters) == (5, 2)
    assert places(broker) == [BAD[0], BAD[2]]
    again = windows.run(asked, to, spark=lake_spark, window_id="w")
    assert (again.ran, again.dead_letters, len(places(broker))) == (False, 2, 2)
    assert _ids(lake) == [1, 1, 3, 6, None]
    assert lake.staged_count() == 0


@pytest.mark.long
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_driver_that_is_killed_at_the_commit_leaves_each_once(
    broker: World, lake_spark: SparkSession, tmp_path: Path, when: str
) -> None:
    """The rows wait in the stage; the next run commits or publishes them, and writes no dead letter again."""
    fill(broker)
    lake = Lake.make(
        lake_spark,
        "delta",
        tmp_path,
        mode="append",
        columns="key struct<id: bigint>, value struct<id: bigint>",
        partitions="",
    )
    session = {"java_home": java_home(), "conf": spark41_conf()}
    die_at_commit(broker, lake.table, when, 2, session)
    result = service(broker).run(window(broker), Table(lake.table), spark=lake_spark, window_id="w")
    assert (result.records, result.dead_letters) == (4, 3)
    assert places(broker) == BAD
    rows = lake_spark.table(lake.table).select("value.id").collect()
    assert sorted((row[0] for row in rows), key=str) == [1, 1, 6, None]
    assert lake.staged_count() == 0
