"""Windows in Delta tables: the transaction id of a commit, and what its history says."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.spark.table_target import TableMode, TableTarget
from kafka_ordered_ops.spark.write.table_facts import TableFacts, quoted, session_with
from kafka_ordered_ops.spark.write.table_formats import (
    TableState,
    fields_of,
    is_replacing,
    merge_statement,
)
from kafka_ordered_ops.spark.write.table_stages import STAGE_COLUMNS, StagingTable, staging_name
from kafka_ordered_ops.spark.write.table_write import TableWrite

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Above what a commit says of itself: others write there, too.
_KEY: Final = "kafka_ordered_ops"

_APPEND_ONLY: Final = "delta.appendOnly"
_EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"


class Delta:
    """A commit says whose rows it shows in its ``userMetadata``, and has a transaction id of the window's own.

    Delta skips a commit whose ``txnVersion`` is not above the last one of its ``txnAppId``, and remembers that for
    ever. Appended is with one id for each claim and the version 1: once, whoever tries. In the other modes the version
    counts the window's publications, so that of two publishers that have seen the same, one comes through.
    """

    def __init__(self, facts: TableFacts, target: TableTarget) -> None:
        self.facts = facts
        self.target = target
        self.stage = StagingTable(facts, staging_name(facts.table))

    def check(self) -> None:
        """Refuse a session without Delta's SQL, where a statement is needed, and a table that refuses the mode."""
        mode = self.target.mode
        if mode is TableMode.MERGE:
            self.facts.check_extensions("mode 'merge'", _EXTENSION)
        if mode is not TableMode.APPEND and self.facts.delta_properties.get(_APPEND_ONLY) == "true":
            raise ConfigError(
                f"{self.facts.table} has {_APPEND_ONLY}=true, and mode {str(mode)!r} changes rows: use mode 'append', or "
                "unset that property"
            )

    def basis(self) -> int | None:
        """Delta remembers transaction ids for ever."""
        return None

    def look(self, write: TableWrite, *, turn: int = 0, since: int | None = None) -> TableState:
        """Find the newest commit of the window in the history; see `TableFormat`."""
        from pyspark.sql import functions as f

        def told(name: str) -> str:
            return f"$.{_KEY}.write.{name}"

        history = self.facts.spark.sql(f"DESCRIBE HISTORY {self.facts.table}")
        mine = f.get_json_object("userMetadata", told("window_id")) == f.lit(write.window_id)
        if not is_replacing(self.target):
            mine &= f.get_json_object("userMetadata", told("group")) == f.lit(write.group_id)
        rows = history.where(mine).orderBy(f.desc("version")).select("userMetadata").head(1)
        if rows:
            fields = fields_of(rows[0][0]).object(_KEY)
            return TableState(
                TableWrite.from_json(fields.object("write")), fields.integer("txn_version") + 1
            )
        # The first publication, unless it has just been skipped: then the history has forgotten older ones,
        # and only the clock is surely above what they counted to.
        return TableState(None, 1 if turn == 0 else int(time.time() * 1000))

    def show(self, write: TableWrite, records: int, basis: int | None) -> bool:
        """Commit the staged rows; see `TableFormat`."""
        is_append = self.target.mode is TableMode.APPEND
        # One id for each window: with one for all, an older window behind a newer one is skipped.
        window = f"{write.group_id}/{write.window_id}"
        app_id = f"{window}/{write.claim_id}" if is_append else window
        version = 1 if is_append else basis
        told = strict_json.dumps({_KEY: {"write": write.to_json(), "txn_version": version}})
        if self.target.mode is TableMode.MERGE:
            return self._merge(write, app_id, version, told)
        rows = self.stage.rows(write).drop(*STAGE_COLUMNS)
        writer = (
            rows.writeTo(self.facts.table)
            .option("txnAppId", app_id)
            .option("txnVersion", str(version))
            .option("userMetadata", told)
        )
        if is_append:
            # Skipped is what this claim has appended before.
            writer.append()
            return True
        writer.overwrite(self._of_window(rows, write))
        return False

    def _merge(self, write: TableWrite, app_id: str, version: int | None, told: str) -> bool:
        conf = {
            "spark.databricks.delta.write.txnAppId": app_id,
            "spark.databricks.delta.write.txnVersion": str(version),
            "spark.databricks.delta.commitInfo.userMetadata": told,
        }
        statement = merge_statement(self.facts, self.target, self.stage.statement(write))
        # It returns how many rows it has changed, and nothing if it was skipped.
        return bool(session_with(self.facts.spark, conf).sql(statement).collect())

    def _of_window(self, rows: DataFrame, write: TableWrite):  # type: ignore[no-untyped-def]
        from pyspark.sql import functions as f

        return f.col(quoted(self.facts.columns["window_id"])) == f.lit(write.window_id)
