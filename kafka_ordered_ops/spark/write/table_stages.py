"""Where a window's rows wait until it is committed: a staging table, or a branch of an Iceberg table."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.spark.write.table_errors import beside_others
from kafka_ordered_ops.spark.write.table_facts import TableFacts, literal, quoted, session_with
from kafka_ordered_ops.spark.write.table_write import TableWrite

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: In the staging table only: which window and which write a row belongs to, and whether it deletes its key.
WINDOW_COLUMN: Final = "_koo_window"
WRITE_COLUMN: Final = "_koo_write"
DELETED_COLUMN: Final = "_koo_deleted"
STAGE_COLUMNS: Final = (DELETED_COLUMN, WINDOW_COLUMN, WRITE_COLUMN)

#: Above what a snapshot says of itself: others write there, too.
WRITE_PROPERTY: Final = "kafka-ordered-ops.write"

#: What Delta takes in a column's name only with column mapping.
_ODD: Final = re.compile(r"[ ,;{}()\n\t=]")

#: Beside the table's own name.
_SUFFIX: Final = "__koo_staging"


class Stage(Protocol):
    """A hidden place for rows."""

    #: For messages.
    name: str

    def put(self, rows: DataFrame, write: TableWrite) -> None:
        """Write rows with the table's columns and `DELETED_COLUMN`."""

    def count(self, write: TableWrite) -> int:
        """Return how many rows of a write are there."""

    def doubles(self, write: TableWrite, keys: Sequence[str]) -> int:
        """Return how many keys are in several rows of a write."""

    def remove(self, write: TableWrite) -> None:
        """Remove the rows of one write."""

    def clear(self, write: TableWrite) -> None:
        """Remove the rows of a write that shows, and of those that it makes worthless."""


def staging_name(table: str) -> str:
    """Return the name of a table's staging table."""
    return f"{table[:-1]}{_SUFFIX}`" if table.endswith("`") else f"{table}{_SUFFIX}"


class StagingTable:
    """A table of the same format, created when it is needed; publishing copies its rows."""

    def __init__(self, facts: TableFacts, name: str) -> None:
        self.name = name
        self._facts = facts
        self._is_made = False

    @cached_property
    def _spark(self) -> SparkSession:
        """The session for what concerns this table alone.

        Delta computes a table's state in so many tasks, by default 50, and this is a small table.
        """
        spark = self._facts.spark
        if self._facts.format != "delta" or not hasattr(spark, "_jsparkSession"):
            return spark
        return session_with(spark, {"spark.databricks.delta.snapshotPartitions": "2"})

    def put(self, rows: DataFrame, write: TableWrite) -> None:
        """Write rows; see `Stage`."""
        from pyspark.sql import functions as f

        self.make()
        rows = rows.withColumn(WINDOW_COLUMN, f.lit(write.window_id))
        rows.withColumn(WRITE_COLUMN, f.lit(write.name)).writeTo(self.name).append()
        self._facts.refresh(self.name)

    def rows(self, write: TableWrite) -> DataFrame:
        """Return the rows of a write."""
        return self._of_write(self._facts.spark, write)

    def statement(self, write: TableWrite) -> str:
        """Return the rows of a write as a part of a statement."""
        return (
            f"(SELECT * FROM {self.name} WHERE {WINDOW_COLUMN} = {literal(write.window_id)} "
            f"AND {WRITE_COLUMN} = {literal(write.name)})"
        )

    def count(self, write: TableWrite) -> int:
        """Return how many rows there are; see `Stage`."""
        self.make()
        self._facts.refresh(self.name)
        return beside_others(lambda: self._of_write(self._spark, write).count())

    def doubles(self, write: TableWrite, keys: Sequence[str]) -> int:
        """Count keys in several rows; see `Stage`."""

        def counted() -> int:
            by_key = self._of_write(self._spark, write).groupBy(*map(quoted, keys)).count()
            return by_key.where("count > 1").count()

        return beside_others(counted)

    def remove(self, write: TableWrite) -> None:
        """Remove the rows of one write; see `Stage`."""
        self._remove(write.name)

    def clear(self, write: TableWrite) -> None:
        """Remove worthless rows; see `Stage`."""
        for name in beside_others(lambda: self._names(write)):
            if write.makes_worthless(name):
                self._remove(name)

    def make(self) -> None:
        """Create the table, if there is none, with the table's columns and our own."""
        from pyspark.sql import functions as f

        if self._is_made:
            return
        like = self._facts.spark.table(self._facts.table).limit(0)
        like = like.withColumn(DELETED_COLUMN, f.lit(False))
        like = like.withColumn(WINDOW_COLUMN, f.lit("")).withColumn(WRITE_COLUMN, f.lit(""))
        writer = like.writeTo(self.name).using(self._facts.format)
        if self._facts.format == "delta" and any(map(_ODD.search, like.columns)):
            writer = writer.tableProperty("delta.columnMapping.mode", "name")
        try:
            writer.partitionedBy(f.col(WINDOW_COLUMN), f.col(WRITE_COLUMN)).create()
        except Exception as error:
            if "ALREADY_EXISTS" not in str(error):
                raise
            if self._is_stale(like):
                # Of no use: its rows go with it, and their windows are read again.
                writer.createOrReplace()
            else:
                self._take_up_new_columns(like)
        self._is_made = True

    def _is_stale(self, like: DataFrame) -> bool:
        """Return whether it has a column that the table has no more, or with another type: dropped, renamed or changed."""
        kinds = {self._facts.folded(one.name): one.dataType.simpleString() for one in like.schema}
        fields = self._spark.table(self.name).schema.fields
        return any(
            kinds.get(self._facts.folded(one.name)) != one.dataType.simpleString() for one in fields
        )

    def _take_up_new_columns(self, like: DataFrame) -> None:
        """Add the columns that the table has got since its staging table was created."""
        there = {self._facts.folded(name) for name in self._spark.table(self.name).columns}
        for field in like.schema.fields:
            if self._facts.folded(field.name) not in there:
                kind = field.dataType.simpleString()
                name = field.name.replace("`", "``")
                self._spark.sql(f"ALTER TABLE {self.name} ADD COLUMNS (`{name}` {kind})")

    def _remove(self, name: str) -> None:
        # By a partition column alone, so that no file is read. What another process removes meanwhile is gone, too.
        statement = f"DELETE FROM {self.name} WHERE {WRITE_COLUMN} = {literal(name)}"
        beside_others(partial(self._spark.sql, statement))
        self._facts.refresh(self.name)

    def _of_write(self, spark: SparkSession, write: TableWrite) -> DataFrame:
        from pyspark.sql import functions as f

        return self._of_window(spark, write).where(f.col(WRITE_COLUMN) == f.lit(write.name))

    def _of_window(self, spark: SparkSession, write: TableWrite) -> DataFrame:
        from pyspark.sql import functions as f

        return spark.table(self.name).where(f.col(WINDOW_COLUMN) == f.lit(write.window_id))

    def _names(self, write: TableWrite) -> list[str]:
        self.make()
        self._facts.refresh(self.name)
        names = self._of_window(self._spark, write).select(WRITE_COLUMN).distinct().collect()
        return [str(row[0]) for row in names]


class Branches:
    """A branch of the Iceberg table itself for each write: publishing takes over its files and copies nothing."""

    def __init__(self, facts: TableFacts) -> None:
        self.name = f"a branch of {facts.table}"
        self._facts = facts
        self._spark = facts.spark

    def put(self, rows: DataFrame, write: TableWrite) -> None:
        """Write rows; see `Stage`."""
        branch = _branch_of(write)
        table = self._facts.table
        beside_others(partial(self._spark.sql, f"ALTER TABLE {table} CREATE BRANCH `{branch}`"))
        (
            rows.drop(DELETED_COLUMN)
            .writeTo(f"{table}.`branch_{branch}`")
            .option(f"snapshot-property.{WRITE_PROPERTY}", strict_json.dumps(write.to_json()))
            # Iceberg publishes an id once, whoever asks.
            .option("snapshot-property.wap.id", publication_id(write))
            .append()
        )
        self._facts.refresh(table)

    def snapshot(self, write: TableWrite) -> tuple[int, int | None] | None:
        """Return the snapshot of a write and the one that it is based on; None where the branch is gone or empty."""
        from pyspark.sql import functions as f

        refs = self._spark.table(f"{self._facts.table}.refs")
        refs = refs.where(f.col("name") == f.lit(_branch_of(write)))
        mine = f.element_at("summary", WRITE_PROPERTY) == f.lit(strict_json.dumps(write.to_json()))
        snapshots = self._spark.table(f"{self._facts.table}.snapshots").where(mine)
        columns = ("snapshot_id", "parent_id")
        found = snapshots.join(refs.select("snapshot_id"), "snapshot_id").select(*columns).head(1)
        return (int(found[0][0]), found[0][1]) if found else None

    def count(self, write: TableWrite) -> int:
        """Return how many rows there are; see `Stage`."""
        from pyspark.sql import functions as f

        self._facts.refresh(self._facts.table)
        if (found := beside_others(lambda: self.snapshot(write))) is None:
            return 0
        snapshots = self._spark.table(f"{self._facts.table}.snapshots")
        added = snapshots.where(f.col("snapshot_id") == f.lit(found[0]))
        row: Any = added.select(f.element_at("summary", "added-records")).head(1)
        return int(row[0][0] or 0) if row else 0

    def doubles(self, write: TableWrite, keys: Sequence[str]) -> int:
        """Return 0: what is appended has no keys; see `Stage`."""
        return 0

    def remove(self, write: TableWrite) -> None:
        """Drop one branch; see `Stage`."""
        self._drop(_branch_of(write))

    def clear(self, write: TableWrite) -> None:
        """Drop worthless branches; see `Stage`."""
        from pyspark.sql import functions as f

        self._facts.refresh(self._facts.table)
        refs = self._spark.table(f"{self._facts.table}.refs")
        mine = refs.where(f.col("name").startswith(_prefix_of(write)))
        for row in beside_others(lambda: mine.select("name").collect()):
            name = str(row[0])
            claim, attempt, _ = name.removeprefix(_prefix_of(write)).split("_")
            if claim != _hash(write.claim_id) or int(attempt) <= write.attempt:
                self._drop(name)

    def _drop(self, name: str) -> None:
        statement = f"ALTER TABLE {self._facts.table} DROP BRANCH IF EXISTS `{name}`"
        beside_others(partial(self._spark.sql, statement))
        self._facts.refresh(self._facts.table)


def publication_id(write: TableWrite) -> str:
    """Return the id under which Iceberg publishes a claim's rows, once."""
    return strict_json.dumps(["kafka_ordered_ops", write.group_id, write.window_id, write.claim_id])


def _branch_of(write: TableWrite) -> str:
    return f"{_prefix_of(write)}{_hash(write.claim_id)}_{write.attempt}_{write.token}"


def _prefix_of(write: TableWrite) -> str:
    return f"koo_{_hash(strict_json.dumps([write.group_id, write.window_id]))}_"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
