"""Delta and Iceberg tables on Spark 4.1, fresh for each test, and what is seen in them."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kafka_ordered_ops.spark import TableSink
from kafka_ordered_ops.spark.write.table_stages import staging_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CATALOG = "koo_lake"
WAREHOUSE = f"spark.sql.catalog.{CATALOG}.warehouse"

#: Of `read_window`'s columns, those that the tests' tables keep.
COLUMNS = ("topic", "partition", "offset", "timestamp", "value")
_DDL = "topic string, partition int, offset bigint, timestamp timestamp, value binary, window_id string"


_DAILY = ("iceberg", "append")


def tables_conf(warehouse: Path) -> dict[str, str]:
    """Settings that may be made on a session that runs: Iceberg's catalog, and small jobs for small tables."""
    return {
        f"spark.sql.catalog.{CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
        f"spark.sql.catalog.{CATALOG}.type": "hadoop",
        WAREHOUSE: str(warehouse),
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.shuffle.partitions": "2",
    }


@dataclass(frozen=True)
class Lake:
    """One fresh table."""

    spark: SparkSession
    format: str
    table: str
    mode: str = "replace"

    @classmethod
    def make(
        cls,
        spark: SparkSession,
        format_: str,
        folder: Path | None = None,
        *,
        catalog: str = CATALOG,
        mode: str = "replace",
        columns: str = _DDL,
        partitions: str = "window_id",
        properties: str = "",
    ) -> Lake:
        """Makes the table; where its rows wait is the sink's business. A Delta table is in the folder."""
        table = f"{catalog}.db.orders_{uuid.uuid4().hex[:8]}"
        if format_ == "delta":
            table = f"delta.`{folder}/orders`"
        by = f" PARTITIONED BY ({partitions})" if partitions else ""
        more = f" TBLPROPERTIES ({properties})" if properties else ""
        spark.sql(f"CREATE TABLE {table} ({columns}) USING {format_}{by}{more}")
        return cls(spark, format_, table, mode)

    @property
    def staging(self) -> str:
        """The table in which rows wait, where that is no branch."""
        return staging_name(self.table)

    @property
    def sink(self) -> TableSink:
        """A sink as a new process has it."""
        keys = ("topic", "partition", "offset") if self.mode == "merge" else ()
        return self.sink_for(self.mode, keys=keys)

    def sink_for(self, mode: str, **more: Any) -> TableSink:
        """A sink of any mode."""
        return TableSink(self.spark, self.table, mode, **more)

    def rows(self) -> dict[str, list[tuple[str, int, int]]]:
        """What the table shows: (topic, partition, offset) by window, sorted, doubles kept."""
        found: dict[str, list[tuple[str, int, int]]] = {}
        for row in self.spark.table(self.table).collect():
            found.setdefault(row.window_id, []).append((row.topic, row.partition, row.offset))
        return {window_id: sorted(rows) for window_id, rows in found.items()}

    def staged_count(self) -> int:
        """How many rows wait in the staging table, or how many branches there are for them."""
        if self.mode == "append" and self.format == "iceberg":
            return self.spark.table(f"{self.table}.refs").where("name LIKE 'koo%'").count()
        return self.spark.table(self.staging).count()

    def frame(self, *offsets: int) -> DataFrame:
        """A job's result: rows with these offsets of partition 0."""
        rows: list[tuple[Any, ...]] = [
            ("orders", 0, offset, None, b"%d" % offset) for offset in offsets
        ]
        return self.spark.createDataFrame(rows, _DDL.removesuffix(", window_id string"))


def offsets(*values: int) -> list[tuple[str, int, int]]:
    """What `Lake.rows` says of rows that `Lake.frame` has made."""
    return [("orders", 0, value) for value in values]


@pytest.fixture(scope="session")
def lake_spark(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """The session of the other tests, with a catalog for Iceberg."""
    # Once, also where several modules ask: a catalogue that is in use keeps the warehouse that it began with.
    if spark.conf.get(WAREHOUSE, None) is None:
        for key, value in tables_conf(tmp_path_factory.mktemp("warehouse")).items():
            spark.conf.set(key, value)
    return spark


@pytest.fixture(params=[pytest.param("delta", marks=pytest.mark.long), "iceberg"])
def lake(request: pytest.FixtureRequest, lake_spark: SparkSession, tmp_path: Path) -> Lake:
    """A fresh table of each format. Delta takes twice the time, and the recipes hold it every day."""
    return Lake.make(lake_spark, request.param, tmp_path)


@pytest.fixture(
    params=[
        pytest.param(f"{one}-{mode}", marks=() if (one, mode) == _DAILY else pytest.mark.long)
        for one in ("iceberg", "delta")
        for mode in ("append", "replace", "merge")
    ]
)
def any_lake(request: pytest.FixtureRequest, lake_spark: SparkSession, tmp_path: Path) -> Lake:
    """A fresh table of each format for each mode; one of them every day."""
    format_, mode = request.param.split("-")
    return Lake.make(lake_spark, format_, tmp_path, mode=mode)
