"""Windows in Iceberg tables: branches that are cherry-picked, and the metadata of snapshots."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Final

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.strict_json import JsonError
from kafka_ordered_ops.spark.write.table_errors import beside_others
from kafka_ordered_ops.spark.write.table_evolution import Addition, add_columns
from kafka_ordered_ops.spark.write.table_facts import TableFacts, literal, quoted
from kafka_ordered_ops.spark.write.table_formats import (
    TableState,
    commits_of,
    merge_statement,
    replace_statement,
    told_by,
)
from kafka_ordered_ops.spark.write.table_stages import (
    COMMIT_PROPERTY,
    STAGE_COLUMNS,
    Branches,
    Stage,
    StagingTable,
    publication_of,
    staging_name,
)
from kafka_ordered_ops.spark.write.table_write import StoredCommit, TableCommit, TableWrite
from kafka_ordered_ops.spark.write.write_session import session_with
from kafka_ordered_ops.spec.table import Table, TableMode

_log = logging.getLogger(__name__)

#: The property for how MERGE is validated against other commits.
_ISOLATION: Final = "write.merge.isolation-level"

_WINDOW_PROPERTY: Final = "kafka-ordered-ops.window"
_SESSION_PROPERTY: Final = "spark.sql.iceberg.snapshot-property"

_EXTENSION: Final = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"

#: Snapshots by id: the parent's id, and the commit of the window that the snapshot shows.
_Snapshots = dict[int, tuple[int | None, TableCommit | None]]


class Iceberg:
    """A snapshot records in its properties whose rows it shows.

    Rows are appended by a cherry-pick of a branch's snapshot: the table takes over its files, and Iceberg refuses a second
    cherry-pick of the same claim. In the other modes rows are copied from a staging table, and Iceberg validates the
    commit against others.
    """

    stage: Stage

    def __init__(self, facts: TableFacts, target: Table) -> None:
        self.facts = facts
        self.target = target
        self._branches = Branches(facts)
        self._staging = StagingTable(facts, staging_name(facts.table))
        self.stage = self._branches if target.mode is TableMode.APPEND else self._staging

    def check(self) -> None:
        """Raise `ConfigError` for a session without Iceberg's SQL, if the mode needs a statement."""
        table, what = self.facts.table, f"mode '{self.target.mode}'"
        if self.target.mode is TableMode.APPEND:
            drop = f"ALTER TABLE {table} DROP BRANCH IF EXISTS `koo_`"
            self.facts.check_sql(what, _EXTENSION, drop)
        elif self.target.mode is TableMode.MERGE or not self._has_window_partitions:
            merge = f"MERGE INTO {table} t USING {table} s ON false WHEN MATCHED THEN DELETE"
            self.facts.check_sql(what, _EXTENSION, f"EXPLAIN {merge}")
        if self.target.mode is not TableMode.APPEND:
            self._staging.check()
            self._warn_of_isolation()

    def add_early(self, added: Sequence[Addition]) -> tuple[Addition, ...]:
        """Add columns in a commit of their own: Iceberg's writer commits a changed schema before the rows; see `TableFormat`."""
        if added:
            beside_others(partial(self.facts.spark.sql, add_columns(added, self.facts.table)))
            self.facts.refresh(self.facts.table)
            self.facts.refresh_for_user()
            self.facts.forget()
        return ()

    def basis(self) -> int | None:
        """Return the table's current snapshot; None if it has none."""
        refs = self.facts.spark.table(f"{self.facts.table}.refs").where("name = 'main'")
        rows = refs.select("snapshot_id").head(1)
        return int(rows[0][0]) if rows else None

    def look(self, write: TableWrite, *, turn: int = 0, since: int | None = None) -> TableState:
        """Walk from the newest snapshot back; see `TableFormat`."""
        self.facts.refresh(self.facts.table)
        # The head first: a commit between the two queries is then seen, or makes our commit fail.
        basis = self.basis()
        if basis is None and self.target.mode is TableMode.REPLACE:
            basis = self._first_snapshot()
        snapshots = self._snapshots()
        known = list(_ancestors(basis, snapshots))
        commits = commits_of(
            write, self.target, (snapshots[snapshot_id][1] for snapshot_id in known)
        )
        # The first snapshot has no parent; before it, there is nothing.
        knows_all = basis is None or any(snapshots[snapshot_id][0] is None for snapshot_id in known)
        is_whole = knows_all or bool(commits) or since in known
        return TableState(commits, basis, is_whole, knows_all)

    def show(self, write: TableWrite, records: int, basis: int | None) -> None:
        """Commit the staged rows; see `TableFormat`."""
        if self.target.mode is TableMode.APPEND:
            self._pick(write)
        elif self.target.mode is TableMode.MERGE:
            rows = self._staging.statement(write)
            self._run(merge_statement(self.facts, self.target, rows), write, records)
        elif self._has_window_partitions:
            self._overwrite(write, records, basis)
        else:
            statement = replace_statement(self.facts, self._staging, write, records)
            self._run(statement, write, records)
        self.facts.refresh_for_user()

    def _pick(self, write: TableWrite) -> None:
        if (staged := self._branches.snapshot(write)) is None:
            return
        table = literal(self.facts.table)
        call = f"CALL {quoted(self.facts.catalog)}.system.cherrypick_snapshot"
        self.facts.spark.sql(f"{call}(table => {table}, snapshot_id => {staged[0]})").collect()
        self.facts.refresh(self.facts.table)

    def _first_snapshot(self) -> int | None:
        """Create the first snapshot of an empty table: a commit can only be validated from a snapshot on."""
        self.facts.spark.table(self.facts.table).limit(0).writeTo(self.facts.table).append()
        self.facts.refresh(self.facts.table)
        return self.basis()

    def _overwrite(self, write: TableWrite, records: int, basis: int | None) -> None:
        from pyspark.sql import functions as f

        (
            self._staging.rows(write)
            .drop(*STAGE_COLUMNS)
            .writeTo(self.facts.table)
            .option(f"snapshot-property.{_WINDOW_PROPERTY}", write.window_id)
            .option(f"snapshot-property.{COMMIT_PROPERTY}", self._told(write, records))
            .option("validate-from-snapshot-id", str(basis))
            .option("isolation-level", "serializable")
            # Not overwritePartitions: with it, a result without rows would keep the older rows.
            .overwrite(f.col(quoted(self.facts.columns["window_id"])) == f.lit(write.window_id))
        )
        self.facts.refresh(self.facts.table)

    def _run(self, statement: str, write: TableWrite, records: int) -> None:
        conf = {
            f"{_SESSION_PROPERTY}.{_WINDOW_PROPERTY}": write.window_id,
            f"{_SESSION_PROPERTY}.{COMMIT_PROPERTY}": self._told(write, records),
        }
        session_with(self.facts.spark, conf).sql(statement).collect()
        self.facts.refresh(self.facts.table)

    def _told(self, write: TableWrite, records: int) -> str:
        commit = TableCommit(write, TableMode(self.target.mode), records)
        return strict_json.dumps(commit.to_json())

    @cached_property
    def _has_window_partitions(self) -> bool:
        """Whether no file holds rows of two windows, so that Iceberg replaces a window by whole files."""
        if not self.facts.has_window_id:
            return False
        partitions = self.facts.spark.table(f"{self.facts.table}.partitions")
        schema: Any = partitions.schema
        names = schema["partition"].dataType.names if "partition" in schema.names else []
        columns = [name for name in names if self.facts.folded(name) == "window_id"]
        # Files from times with another partitioning may hold rows of several windows.
        return (
            bool(columns) and partitions.where(f"partition.{quoted(columns[0])} IS NULL").isEmpty()
        )

    def _warn_of_isolation(self) -> None:
        """Log a warning if the table lets two writers commit without seeing each other's rows."""
        isolation = self.facts.properties.get(_ISOLATION, "serializable")
        if isolation != "serializable":
            _log.warning(
                "%s has %s=%s: of two processes that publish the same window, or windows with the same keys, at the same "
                "moment, both may add their rows. Run one at a time, or unset that property.",
                self.facts.table,
                _ISOLATION,
                isolation,
            )

    def _snapshots(self) -> _Snapshots:
        from pyspark.sql import functions as f

        summary = f.col("summary")
        rows = (
            self.facts.spark.table(f"{self.facts.table}.snapshots")
            .select(
                "snapshot_id",
                "parent_id",
                f.element_at(summary, COMMIT_PROPERTY),
                f.coalesce(
                    f.element_at(summary, "published-wap-id"), f.element_at(summary, "wap.id")
                ),
                f.element_at(summary, "added-records"),
            )
            .collect()
        )
        table = self.facts.table
        return {int(row[0]): (row[1], _commit_of(table, *row[2:])) for row in rows}


def _ancestors(head: int | None, snapshots: _Snapshots) -> Iterator[int]:
    """Yield the known snapshots from the head back, up to the first one, or to an expired one."""
    while head in snapshots and head is not None:
        yield head
        head = snapshots[head][0]


def _commit_of(
    table: str, metadata: str | None, published: str | None, added: str | None
) -> TableCommit | None:
    """Return the window's commit in a snapshot; None for a snapshot of another program."""
    if metadata is not None:
        try:
            commit = StoredCommit.parse(told_by(metadata, table), "commit").commit
        except JsonError:
            return None
    elif published is not None and (write := publication_of(published)) is not None:
        # Cherry-picked: the rows of a claim, from any attempt.
        commit = TableCommit(write, TableMode.APPEND, None)
    else:
        return None
    if commit.mode is TableMode.APPEND:
        with suppress(JsonError):
            return replace(commit, records=strict_json.whole_number(added))
    return commit
