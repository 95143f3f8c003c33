"""The stages for a window's rows until the window is committed: a staging table, or a branch of an Iceberg table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.strict_json import JsonError
from kafka_ordered_ops.spark.write.table_errors import beside_others
from kafka_ordered_ops.spark.write.table_evolution import (
    Addition,
    Path,
    add_columns,
    additions,
    clash,
    columns_as,
    evolved,
)
from kafka_ordered_ops.spark.write.table_facts import TableFacts, literal, quoted
from kafka_ordered_ops.spark.write.table_write import (
    METADATA_BYTES_MAX,
    StoredWrite,
    TableCommit,
    TableWrite,
    hashed,
)
from kafka_ordered_ops.spark.write.write_session import session_with
from kafka_ordered_ops.spec.table import TableMode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Columns of the staging table only: the window of a row, by its key (of one ledger and group) and, for people, by its
#: id; the write that the row belongs to; and whether the row deletes its key.
KEY_COLUMN: Final = "_koo_key"
WINDOW_COLUMN: Final = "_koo_window"
WRITE_COLUMN: Final = "_koo_write"
DELETED_COLUMN: Final = "_koo_deleted"
STAGE_COLUMNS: Final = (DELETED_COLUMN, KEY_COLUMN, WINDOW_COLUMN, WRITE_COLUMN)

#: The key of our entry in a snapshot's summary, where other programs write too.
COMMIT_PROPERTY: Final = "kafka-ordered-ops.commit"

#: The property of a staging table that names the table whose rows it stages.
_OWNER_PROPERTY: Final = "kafka-ordered-ops.staging-of"

#: The property with the columns and fields of a staging table that windows add to its table.
_ADDS_PROPERTY: Final = "kafka-ordered-ops.adds"

#: The errors of Spark and of the formats for a missing table.
_MISSING: Final = re.compile(
    r"TABLE_OR_VIEW_NOT_FOUND|DELTA_MISSING_DELTA_TABLE|DELTA_TABLE_NOT_FOUND|is not a Delta table"
)

#: The first element of a publication's id.
_PUBLISHER: Final = "kafka_ordered_ops"

#: Appended to the table's name.
_SUFFIX: Final = "__koo_staging"


class Stage(Protocol):
    """A hidden place for rows."""

    #: The name in messages.
    name: str

    def put(self, rows: DataFrame, write: TableWrite) -> None:
        """Write rows with the table's columns and `DELETED_COLUMN`."""

    def count(self, write: TableWrite) -> int:
        """Return how many rows of a write the stage holds."""

    def doubles(self, write: TableWrite, keys: Sequence[str]) -> int:
        """Return how many keys occur in several rows of a write."""

    def remove(self, write: TableWrite) -> None:
        """Remove the rows of one write."""

    def clear(self, write: TableWrite) -> None:
        """Remove the rows of a published write, and of the writes that it makes obsolete."""


def staging_name(table: str) -> str:
    """Return the name of a table's staging table."""
    return f"{table[:-1]}{_SUFFIX}`" if table.endswith("`") else f"{table}{_SUFFIX}"


class StagingTable:
    """A table of the same format, created on demand; publishing copies its rows."""

    def __init__(self, facts: TableFacts, name: str) -> None:
        self.name = name
        self._facts = facts
        self._is_made = False

    @cached_property
    def _spark(self) -> SparkSession:
        """The session for statements on this table alone.

        By default, Delta computes a table's state in 50 tasks, too many for a small table.
        """
        spark = self._facts.spark
        if self._facts.format != "delta":
            return spark
        return session_with(spark, {"spark.databricks.delta.snapshotPartitions": "2"})

    def put(self, rows: DataFrame, write: TableWrite) -> None:
        """Write rows; see `Stage`."""
        from pyspark.sql import functions as f

        self.make()
        if write.adds:
            self._add_for(rows, write.adds)
            # Other windows may have staged other fields.
            staged = self._spark.table(self.name).drop(*STAGE_COLUMNS).schema
            columns = columns_as(rows.schema, staged, self._facts.folded)
            rows = rows.selectExpr(*columns, DELETED_COLUMN)
        rows = rows.withColumn(KEY_COLUMN, f.lit(write.window_key))
        rows = rows.withColumn(WINDOW_COLUMN, f.lit(write.window_id))
        rows.withColumn(WRITE_COLUMN, f.lit(write.name)).writeTo(self.name).append()
        self._facts.refresh(self.name)

    def rows(self, write: TableWrite) -> DataFrame:
        """Return the rows of a write."""
        return self._of_write(self._facts.spark, write)

    def statement(self, write: TableWrite, columns: str = "*") -> str:
        """Return columns of the rows of a write as a part of a statement."""
        return (
            f"(SELECT {columns} FROM {self.name} WHERE {KEY_COLUMN} = {literal(write.window_key)} "
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
        self._remove(write, write.name)

    def clear(self, write: TableWrite) -> None:
        """Remove obsolete rows; see `Stage`."""
        for name in beside_others(lambda: self._names(write)):
            if write.makes_worthless(name):
                self._remove(write, name)

    def check(self) -> None:
        """Raise `ConfigError` if another program's table has this name, because it would be replaced.

        A property marks our staging table, and names the table that it belongs to: a folder may have been copied with both.
        """
        try:
            rows = self._spark.sql(f"SHOW TBLPROPERTIES {self.name}").collect()
        except Exception as error:
            if _MISSING.search(str(error)):
                return
            raise
        if not any(row[0] == _OWNER_PROPERTY for row in rows):
            raise ConfigError(
                f"rows for {self._facts.table} wait in a table named {self.name}, and there is one that this package did not "
                "create: rename it, or write to another table"
            )

    def make(self) -> None:
        """Create the staging table, if there is none, with the table's columns and our own."""
        from pyspark.sql import functions as f

        if self._is_made:
            return
        like = self._facts.spark.table(self._facts.table).limit(0)
        like = like.withColumn(DELETED_COLUMN, f.lit(False))
        for column in (KEY_COLUMN, WINDOW_COLUMN, WRITE_COLUMN):
            like = like.withColumn(column, f.lit(""))
        writer = like.writeTo(self.name).using(self._facts.format)
        for name, value in {_OWNER_PROPERTY: self._facts.table, **self._facts.inherited}.items():
            writer = writer.tableProperty(name, value)
        try:
            writer.partitionedBy(f.col(KEY_COLUMN), f.col(WRITE_COLUMN)).create()
        except Exception as error:
            if "ALREADY_EXISTS" not in str(error):
                raise
            self.check()
            staged = self._spark.table(self.name).schema
            if self._is_stale(staged, like.schema):
                # A stale table is replaced: its rows are lost, and their windows are read again.
                writer.createOrReplace()
            else:
                # Columns that were added to the table since.
                self._add([*additions(like.schema, staged, self._facts.folded)])
        self._is_made = True

    def _is_stale(self, staged: Any, table: Any) -> bool:
        """Return whether the staging table has a column that was dropped, renamed or changed in the table.

        A column that the table does not have yet may be one that a window adds: the staging table's property names those.
        """
        folded = self._facts.folded
        if clash(staged, table, folded):
            return True
        extra = [self._folded_path(each.path) for each in additions(staged, table, folded)]
        added = self._added()
        # What the table has by now is not added any more: it may be renamed.
        waiting = {
            path
            for path in added
            if any(_is_below(path, each) or _is_below(each, path) for each in extra)
        }
        if waiting != added:
            self._keep_added(waiting)
        return not all(any(_is_below(path, above) for above in waiting) for path in extra)

    def _added(self) -> set[Path]:
        """Return the columns and fields that windows add."""
        for row in self._spark.sql(f"SHOW TBLPROPERTIES {self.name}").collect():
            if row[0] == _ADDS_PROPERTY:
                try:
                    paths = strict_json.loads(str(row[1]), limit_bytes=METADATA_BYTES_MAX)
                except JsonError:
                    return set()
                return {tuple(map(str, path)) for path in paths if isinstance(path, list)}
        return set()

    def _keep_added(self, paths: set[Path]) -> None:
        text = literal(strict_json.dumps(sorted(map(list, paths))))
        statement = f"ALTER TABLE {self.name} SET TBLPROPERTIES ('{_ADDS_PROPERTY}' = {text})"
        beside_others(partial(self._spark.sql, statement))

    def _folded_path(self, path: Path) -> Path:
        return tuple(map(self._facts.folded, path))

    def _add_for(self, rows: DataFrame, added: Sequence[Addition]) -> None:
        """Add the columns and fields that a window adds to the table."""
        staged, folded = self._spark.table(self.name).schema, self._facts.folded
        wanted = evolved(self._facts.schema, rows.schema, folded, {each.path for each in added})
        if clash(wanted, staged, folded):
            names = ", ".join(each.name for each in added)
            raise ConfigError(
                f"rows add {names} to {self._facts.table}, and an earlier window has staged one of them with another type in "
                f"{self.name}. Finish or abandon that window, then drop that table"
            )
        if missing := [*additions(wanted, staged, folded)]:
            # First: without it, another process would take the columns for renamed ones.
            self._keep_added(self._added() | {self._folded_path(each.path) for each in missing})
            self._add(missing)

    def _add(self, missing: Sequence[Addition]) -> None:
        if missing:
            beside_others(partial(self._spark.sql, add_columns(missing, self.name)))
            self._facts.refresh(self.name)

    def _remove(self, write: TableWrite, name: str) -> None:
        # By partition columns alone, so that no file is read. It is fine if another process removes the rows first.
        statement = (
            f"DELETE FROM {self.name} WHERE {KEY_COLUMN} = {literal(write.window_key)} "
            f"AND {WRITE_COLUMN} = {literal(name)}"
        )
        beside_others(partial(self._spark.sql, statement))
        self._facts.refresh(self.name)

    def _of_write(self, spark: SparkSession, write: TableWrite) -> DataFrame:
        from pyspark.sql import functions as f

        return self._of_window(spark, write).where(f.col(WRITE_COLUMN) == f.lit(write.name))

    def _of_window(self, spark: SparkSession, write: TableWrite) -> DataFrame:
        from pyspark.sql import functions as f

        return spark.table(self.name).where(f.col(KEY_COLUMN) == f.lit(write.window_key))

    def _names(self, write: TableWrite) -> list[str]:
        self.make()
        self._facts.refresh(self.name)
        names = self._of_window(self._spark, write).select(WRITE_COLUMN).distinct().collect()
        return [str(row[0]) for row in names]


class Branches:
    """A branch of the Iceberg table itself for each write: publishing takes over its files without copying them."""

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
            .option(f"snapshot-property.{COMMIT_PROPERTY}", _told(write))
            # Iceberg publishes an id only once, whoever does it.
            .option("snapshot-property.wap.id", publication_id(write))
            .append()
        )
        self._facts.refresh(table)

    def snapshot(self, write: TableWrite) -> tuple[int, int | None] | None:
        """Return the snapshot of a write and the one that it is based on; None if the branch is gone or empty."""
        from pyspark.sql import functions as f

        refs = self._spark.table(f"{self._facts.table}.refs")
        refs = refs.where(f.col("name") == f.lit(_branch_of(write)))
        is_own = f.element_at("summary", COMMIT_PROPERTY) == f.lit(_told(write))
        snapshots = self._spark.table(f"{self._facts.table}.snapshots").where(is_own)
        columns = ("snapshot_id", "parent_id")
        rows = snapshots.join(refs.select("snapshot_id"), "snapshot_id").select(*columns).head(1)
        return (int(rows[0][0]), rows[0][1]) if rows else None

    def count(self, write: TableWrite) -> int:
        """Return how many rows there are; see `Stage`."""
        from pyspark.sql import functions as f

        self._facts.refresh(self._facts.table)
        if (snapshot := beside_others(lambda: self.snapshot(write))) is None:
            return 0
        snapshots = self._spark.table(f"{self._facts.table}.snapshots")
        added = snapshots.where(f.col("snapshot_id") == f.lit(snapshot[0]))
        row: Any = added.select(f.element_at("summary", "added-records")).head(1)
        return int(row[0][0] or 0) if row else 0

    def doubles(self, write: TableWrite, keys: Sequence[str]) -> int:
        """Return 0: appended rows have no keys; see `Stage`."""
        return 0

    def remove(self, write: TableWrite) -> None:
        """Drop one branch; see `Stage`."""
        self._drop(_branch_of(write))

    def clear(self, write: TableWrite) -> None:
        """Drop obsolete branches; see `Stage`."""
        from pyspark.sql import functions as f

        self._facts.refresh(self._facts.table)
        refs = self._spark.table(f"{self._facts.table}.refs")
        branches = refs.where(f.col("name").startswith(_prefix_of(write)))
        for row in beside_others(lambda: branches.select("name").collect()):
            name = str(row[0])
            claim, attempt, _ = name.removeprefix(_prefix_of(write)).split("_")
            if claim != _claim_name(write) or int(attempt) <= write.attempt:
                self._drop(name)

    def _drop(self, name: str) -> None:
        statement = f"ALTER TABLE {self._facts.table} DROP BRANCH IF EXISTS `{name}`"
        beside_others(partial(self._spark.sql, statement))
        self._facts.refresh(self._facts.table)


def _is_below(path: Path, above: Path) -> bool:
    return path[: len(above)] == above


def publication_id(write: TableWrite) -> str:
    """Return the id under which Iceberg publishes a claim's rows, once."""
    return strict_json.dumps(
        [_PUBLISHER, write.ledger_id, write.group_id, write.window_id, write.claim_id]
    )


def publication_of(published: str) -> TableWrite | None:
    """Return the claim whose rows an id has published; None for another program's id."""
    try:
        parts: Any = strict_json.loads(published, limit_bytes=METADATA_BYTES_MAX)
    except JsonError:
        return None
    if not isinstance(parts, list) or len(parts) != 5 or parts[0] != _PUBLISHER:
        return None
    fields = dict(zip(("ledger", "group", "window_id", "claim_id"), parts[1:], strict=True))
    try:
        return StoredWrite.parse({**fields, "attempt": 0, "token": "0"}, "snapshot").write
    except JsonError:
        return None


def _told(write: TableWrite) -> str:
    """Return the JSON for a branch's snapshot; the number of rows is not known in advance."""
    return strict_json.dumps(TableCommit(write, TableMode.APPEND, None).to_json())


def _branch_of(write: TableWrite) -> str:
    return f"{_prefix_of(write)}{_claim_name(write)}_{write.attempt}_{write.token}"


def _prefix_of(write: TableWrite) -> str:
    return f"koo_{write.window_key}_"


def _claim_name(write: TableWrite) -> str:
    return hashed(write.claim_id)[:16]
