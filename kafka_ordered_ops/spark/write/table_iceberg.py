"""Windows in Iceberg tables: branches that are cherry-picked, and what snapshots say of themselves."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.strict_json import JsonError
from kafka_ordered_ops.spark.write.table_facts import TableFacts, literal, quoted
from kafka_ordered_ops.spark.write.table_formats import (
    TableState,
    commits_of,
    fields_of,
    merge_statement,
    replace_statement,
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
from kafka_ordered_ops.spark.write.table_write import TableCommit, TableWrite
from kafka_ordered_ops.spark.write.write_session import session_with
from kafka_ordered_ops.spec.table import Table, TableMode

_log = logging.getLogger(__name__)

#: How MERGE is validated against commits of others.
_ISOLATION: Final = "write.merge.isolation-level"

_WINDOW_PROPERTY: Final = "kafka-ordered-ops.window"
_SESSION_PROPERTY: Final = "spark.sql.iceberg.snapshot-property"

_EXTENSION: Final = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"

#: Snapshots by their ids: the parent, and what it says of the window that it shows.
_Snapshots = dict[int, tuple[int | None, TableCommit | None]]


class Iceberg:
    """A snapshot says whose rows it shows in its properties.

    Appended is by a cherry-pick of a branch's snapshot: the files are taken over, and Iceberg refuses a second one of
    the same claim. In the other modes a staging table is copied, and the commit is validated against the others.
    """

    stage: Stage

    def __init__(self, facts: TableFacts, target: Table) -> None:
        self.facts = facts
        self.target = target
        self._branches = Branches(facts)
        self._staging = StagingTable(facts, staging_name(facts.table))
        self.stage = self._branches if target.mode is TableMode.APPEND else self._staging

    def check(self) -> None:
        """Refuse a session without Iceberg's SQL, where a statement is needed."""
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

    def basis(self) -> int | None:
        """Return the snapshot that the table shows; None for one without any."""
        refs = self.facts.spark.table(f"{self.facts.table}.refs").where("name = 'main'")
        rows = refs.select("snapshot_id").head(1)
        return int(rows[0][0]) if rows else None

    def look(self, write: TableWrite, *, turn: int = 0, since: int | None = None) -> TableState:
        """Walk from the newest snapshot back; see `TableFormat`."""
        self.facts.refresh(self.facts.table)
        # The head first: what is committed between the two questions is then seen, or refuses the commit.
        basis = self.basis()
        if basis is None and self.target.mode is TableMode.REPLACE:
            basis = self._first_snapshot()
        snapshots = self._snapshots()
        known = list(_ancestors(basis, snapshots))
        commits = commits_of(write, self.target, (snapshots[one][1] for one in known))
        # The first snapshot has no parent; before it, there is nothing.
        knows_all = basis is None or any(snapshots[one][0] is None for one in known)
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
        """Make a first snapshot of an empty table: there is no validating from before it."""
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
            # Not overwritePartitions: a result without rows would leave the older rows as they are.
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
        found = [one for one in names if self.facts.folded(one) == "window_id"]
        # Files of before the table was partitioned so, or of after it, may hold rows of several windows.
        return bool(found) and partitions.where(f"partition.{quoted(found[0])} IS NULL").isEmpty()

    def _warn_of_isolation(self) -> None:
        """Log a warning where the table lets two writers commit whose rows they did not see of each other."""
        told = self.facts.properties.get(_ISOLATION, "serializable")
        if told != "serializable":
            _log.warning(
                "%s has %s=%s: of two processes that publish the same window, or windows with the same keys, at the same "
                "moment, both may add their rows. Run one at a time, or unset that property.",
                self.facts.table,
                _ISOLATION,
                told,
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
        return {int(row[0]): (row[1], _commit_of(*row[2:])) for row in rows}


def _ancestors(head: int | None, snapshots: _Snapshots) -> Iterator[int]:
    """Return the known snapshots from the head back: up to the first one, or to one that has expired."""
    while head in snapshots and head is not None:
        yield head
        head = snapshots[head][0]


def _commit_of(told: str | None, published: str | None, added: str | None) -> TableCommit | None:
    """Return what a snapshot shows of a window; None for one of another program."""
    if told is not None:
        try:
            commit = TableCommit.from_json(fields_of(told))
        except JsonError:
            return None
    elif published is not None and (write := publication_of(published)) is not None:
        # Cherry-picked: a claim's rows, of whichever attempt.
        commit = TableCommit(write, TableMode.APPEND, None)
    else:
        return None
    if commit.mode is TableMode.APPEND and added is not None and added.isdecimal():
        return replace(commit, records=int(added))
    return commit
