"""Windows in Iceberg tables: branches that are cherry-picked, and what snapshots say of themselves."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.strict_json import Fields, JsonError
from kafka_ordered_ops.spark.table_target import TableMode, TableTarget
from kafka_ordered_ops.spark.write.table_facts import TableFacts, literal, quoted, session_with
from kafka_ordered_ops.spark.write.table_formats import (
    TableState,
    fields_of,
    is_replacing,
    merge_statement,
    replace_statement,
)
from kafka_ordered_ops.spark.write.table_stages import (
    STAGE_COLUMNS,
    WRITE_PROPERTY,
    Branches,
    Stage,
    StagingTable,
    staging_name,
)
from kafka_ordered_ops.spark.write.table_write import TableWrite

_WINDOW_PROPERTY: Final = "kafka-ordered-ops.window"
_SESSION_PROPERTY: Final = "spark.sql.iceberg.snapshot-property"

_EXTENSION: Final = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"

#: A snapshot: its parent, and what it says of the window that it shows.
_Snapshots = dict[int, tuple[int | None, str | None, str | None]]


class Iceberg:
    """A snapshot says whose rows it shows in its properties.

    Appended is by a cherry-pick of a branch's snapshot: the files are taken over, and Iceberg refuses a second one of
    the same claim. In the other modes a staging table is copied, and the commit is validated against the others.
    """

    stage: Stage

    def __init__(self, facts: TableFacts, target: TableTarget) -> None:
        self.facts = facts
        self.target = target
        self._branches = Branches(facts)
        self._staging = StagingTable(facts, staging_name(facts.table))
        self.stage = self._branches if target.mode is TableMode.APPEND else self._staging

    def check(self) -> None:
        """Refuse a session without Iceberg's SQL, where a statement is needed."""
        if self.target.mode is not TableMode.REPLACE or not self._has_window_partitions:
            self.facts.check_extensions(f"mode '{self.target.mode}'", _EXTENSION)

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
        current, shown, is_whole = basis, None, True
        while current is not None and shown is None:
            if current not in snapshots:
                is_whole = False
                break
            parent, told, published = snapshots[current]
            shown = self._shown_by(write, told, published)
            if current == since:
                break
            current = parent
        return TableState(shown, basis, is_whole)

    def show(self, write: TableWrite, records: int, basis: int | None) -> bool:
        """Commit the staged rows; see `TableFormat`."""
        if self.target.mode is TableMode.APPEND:
            self._pick(write)
        elif self.target.mode is TableMode.MERGE:
            rows = self._staging.statement(write)
            self._run(merge_statement(self.facts, self.target, rows), write)
        elif self._has_window_partitions:
            self._overwrite(write, basis)
        else:
            self._run(replace_statement(self.facts, self._staging, write, records), write)
        return True

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

    def _overwrite(self, write: TableWrite, basis: int | None) -> None:
        from pyspark.sql import functions as f

        (
            self._staging.rows(write)
            .drop(*STAGE_COLUMNS)
            .writeTo(self.facts.table)
            .option(f"snapshot-property.{_WINDOW_PROPERTY}", write.window_id)
            .option(f"snapshot-property.{WRITE_PROPERTY}", strict_json.dumps(write.to_json()))
            .option("validate-from-snapshot-id", str(basis))
            .option("isolation-level", "serializable")
            # Not overwritePartitions: a result without rows would leave the older rows as they are.
            .overwrite(f.col(quoted(self.facts.columns["window_id"])) == f.lit(write.window_id))
        )
        self.facts.refresh(self.facts.table)

    def _run(self, statement: str, write: TableWrite) -> None:
        conf = {
            f"{_SESSION_PROPERTY}.{_WINDOW_PROPERTY}": write.window_id,
            f"{_SESSION_PROPERTY}.{WRITE_PROPERTY}": strict_json.dumps(write.to_json()),
        }
        session_with(self.facts.spark, conf).sql(statement).collect()
        self.facts.refresh(self.facts.table)

    @cached_property
    def _has_window_partitions(self) -> bool:
        """Whether no file holds rows of two windows, so that Iceberg replaces a window by whole files."""
        if not self.facts.has_window_id:
            return False
        schema = self.facts.spark.table(f"{self.facts.table}.partitions").schema
        partition: Any = schema["partition"].dataType if "partition" in schema.names else None
        return partition is not None and "window_id" in map(self.facts.folded, partition.names)

    def _snapshots(self) -> _Snapshots:
        from pyspark.sql import functions as f

        summary = f.col("summary")
        rows = (
            self.facts.spark.table(f"{self.facts.table}.snapshots")
            .select(
                "snapshot_id",
                "parent_id",
                f.element_at(summary, WRITE_PROPERTY),
                f.coalesce(
                    f.element_at(summary, "published-wap-id"), f.element_at(summary, "wap.id")
                ),
            )
            .collect()
        )
        return {int(row[0]): (row[1], row[2], row[3]) for row in rows}

    def _shown_by(
        self, write: TableWrite, told: str | None, published: str | None
    ) -> TableWrite | None:
        """Return whose rows of the window a snapshot shows."""
        if told is not None:
            found = _write_of(told)
        elif published is not None:
            found = _publication_of(published)
        else:
            return None
        if found is None or found.window_id != write.window_id:
            return None
        return found if is_replacing(self.target) or found.group_id == write.group_id else None


def _write_of(told: str) -> TableWrite | None:
    try:
        return TableWrite.from_json(fields_of(told))
    except JsonError:
        return None


def _publication_of(published: str) -> TableWrite | None:
    """Return what a cherry-picked snapshot shows: a claim's rows, of whichever attempt."""
    try:
        told: Any = strict_json.loads(published, limit_bytes=len(published) + 1)
    except JsonError:
        return None
    if not isinstance(told, list) or len(told) != 4 or told[0] != "kafka_ordered_ops":
        return None
    fields = dict(zip(("group", "window_id", "claim_id"), told[1:], strict=True))
    try:
        return TableWrite.from_json(Fields({**fields, "attempt": 0, "token": "0"}, "snapshot"))
    except JsonError:
        return None
