"""Write windows to an existing Delta or Iceberg table: staged before the Kafka commit, visible after it.

A table's commit is atomic, but separate from Kafka's. If rows were committed to the table before the Kafka commit, the
rows of an attempt whose Kafka commit is refused would be visible. So they wait in a hidden stage (`table_stages`), and
`TableOutput.publish` shows them in one commit of the table, once the window is committed.

Every such commit records whose rows it shows (`TableWrite`), so publishing again changes nothing, and an older attempt
cannot be published after a newer one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.core.errors import ConfigError, SinkError
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.core.window.dead_letters import bad_name
from kafka_ordered_ops.core.window.plan import WindowPlan, check_not_covered
from kafka_ordered_ops.spark.environment import check_frame, check_pyspark, check_spark
from kafka_ordered_ops.spark.write.table_decoded import (
    DELETED,
    DELETIONS,
    MARKS,
    decoded_types,
    deletion,
    is_field,
)
from kafka_ordered_ops.spark.write.table_delta import Delta
from kafka_ordered_ops.spark.write.table_errors import fitting_errors, table_errors, told_by
from kafka_ordered_ops.spark.write.table_evolution import columns_as, common, evolved
from kafka_ordered_ops.spark.write.table_facts import INVALID, TableFacts, listed, quoted
from kafka_ordered_ops.spark.write.table_formats import ORDER_COLUMNS, TableFormat
from kafka_ordered_ops.spark.write.table_iceberg import Iceberg
from kafka_ordered_ops.spark.write.table_output import KeptOutput, TableOutput
from kafka_ordered_ops.spark.write.table_result import check_result, may_be_missing, new_columns
from kafka_ordered_ops.spark.write.table_rules import misfits, sql_type
from kafka_ordered_ops.spark.write.table_stages import DELETED_COLUMN, STAGE_COLUMNS
from kafka_ordered_ops.spark.write.table_write import TableWrite
from kafka_ordered_ops.spark.write.write_session import check_not_audited, in_session, write_session
from kafka_ordered_ops.spec.table import SchemaEvolution, Table, TableMode

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_FORMATS: Final[dict[str, type[Delta] | type[Iceberg]]] = {"delta": Delta, "iceberg": Iceberg}

#: The columns of `read_windows`, with their types in Spark SQL.
_RECORD_COLUMNS: Final = {
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp_ltz",
    "timestamp_type": "int",
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key: string, value: binary>>",
    "late": "boolean",
    "window_id": "string",
}

_ROW: Final = "_koo_row"


def check_whole(plan: WindowPlan) -> None:
    """Raise `ConfigError` for a part of a window."""
    if plan.part is not None:
        raise ConfigError(
            f"window {plan.window_id}: {plan.part} cannot be written to a table: write the whole "
            "window, or its parts as Parquet (write_window)"
        )


class TableSink:
    """Write windows as rows of an existing table. The catalogue determines whether it is a Delta or an Iceberg table.

    Args:
        spark: the session; it has the format's jars and extensions.
        table: the table in SQL syntax: ``lake.orders``, or ``delta.`/folder```.
        mode: ``append`` adds a window's rows exactly once. ``replace`` replaces all rows with the same ``window_id``,
            a column of type string that the table must have. ``merge`` updates or inserts by `keys`; the newest
            record of a key by (timestamp, topic, partition, offset) wins.
        keys: the columns that identify a row, for ``merge``.
        delete_tombstones: with ``merge``, a row whose ``value`` is null, or that `Debezium` marks as ``__deleted``, deletes the
            row with its key.
        schema_evolution: ``add`` adds columns and nested fields that the table does not have: in Delta in the commit that shows
            the rows, in Iceberg in a commit of its own as the rows are staged.

    Raises:
        ConfigError: an invalid argument, a missing table, a table that is neither Delta nor Iceberg, or a table or
            a session that does not support the mode.
    """

    def __init__(
        self,
        spark: SparkSession,
        table: str,
        mode: TableMode | str = TableMode.APPEND,
        *,
        keys: str | Sequence[str] = (),
        delete_tombstones: bool = False,
        schema_evolution: SchemaEvolution | str = SchemaEvolution.NONE,
    ) -> None:
        check_pyspark()
        check_spark(spark)
        target = Table(table, mode, keys, delete_tombstones, schema_evolution)
        self.spark = write_session(spark)
        self._facts = TableFacts.of(self.spark, target.name, spark)
        self.target = replace(target, name=self._facts.table)
        if self._facts.format == "iceberg":
            check_not_audited(spark, self.target.name)
        self.format: TableFormat = _FORMATS[self._facts.format](self._facts, self.target)
        self._check_columns()
        self.format.check()
        self._facts.warn_of_unsafe_store()

    def write(self, df: DataFrame, plan: WindowPlan) -> TableOutput:
        """Write a window's result to a hidden stage; nothing is visible yet.

        Pass the result to ``windows.commit(plan, output)``, which commits the window and then publishes.

        Args:
            df: the result of the user's job, with the table's columns; a column ``window_id`` of the table is filled
                in. With mode ``merge``, it may also have ``value`` and the columns that determine the newest record of
                a key.
            plan: the whole window.

        Raises:
            ConfigError: the columns are not as required; the plan is a part of a window; or a replay with mode ``append``.
            OutputOwnedError: readers see rows that this window must not replace, or that it has already appended; the job
                did not run.
            SinkError: the job failed; nothing was committed.
            ReadError, BrokerError, RecordsLostError: the job failed because a task could not read the window.
            WindowCoveredError: other windows deliver its records.
        """
        check_frame(df)
        self.check_place(plan)
        return self._staged(df, plan)

    def write_each(
        self, frames: Sequence[DataFrame], plans: Sequence[WindowPlan]
    ) -> list[TableOutput]:
        """Write several windows as `write` does; if one of them is refused, no job runs."""
        for plan in plans:
            self.check_place(plan)
        return [self._staged(df, plan) for df, plan in zip(frames, plans, strict=True)]

    def check_place(self, plan: WindowPlan) -> None:
        """Check, before its job runs, that a window's rows can be shown; raise what `write` raises."""
        check_not_covered(plan)
        check_whole(plan)
        mode = self.target.mode
        # Whether the table may show rows of the window already, as far as the ledger knows.
        is_first = plan.status.is_open and not plan.replaces
        if mode is TableMode.MERGE or (mode is TableMode.APPEND and is_first):
            return
        output = self._output(TableWrite.of(plan))
        with table_errors(f"{self.target.name} cannot be read for window {plan.window_id}"):
            if mode is TableMode.APPEND and plan.status.is_done:
                self._check_no_replay(plan, output)
            else:
                output.check_place(is_first=is_first)

    def _staged(self, df: DataFrame, plan: WindowPlan) -> TableOutput:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        started = time.monotonic()
        write, observation = TableWrite.of(plan), Observation()
        with table_errors(f"window {plan.window_id} cannot be written to {self.target.name}"):
            rows, write = self._rows(in_session(df, self.spark), write)
            output = self._output(write, self.format.basis())
            aggregates = [
                f.bool_or(f.col(quoted(key)).isNull()).alias(f"null_{number}")
                for number, key in enumerate(self.target.keys)
            ]
            deleted, is_good = f.col(DELETED_COLUMN), f.lit(True)
            for number, rule in enumerate(self._facts.rules.values()):
                # As in Delta, a condition that is null is not met.
                is_met = deleted | f.coalesce(f.expr(rule), f.lit(False))
                aggregates.append(f.bool_or(~is_met).alias(f"broken_{number}"))
                is_good &= is_met
            observed = rows.observe(observation, *aggregates) if aggregates else rows
            try:
                # Rows that break a rule are not written: the staging table may have the same rule.
                with fitting_errors(self.target.name):
                    self.format.stage.put(observed.where(is_good), write)
                # Whether there are such rows, not how many: a table that shuffles rows before it writes them computes them
                # twice, and so does a lost executor.
                flags = observation.get if aggregates else {}
                output.facts = {
                    "records": self.format.stage.count(write),
                    "elapsed_ms": round((time.monotonic() - started) * 1000),
                }
                self._check_keys(df, flags, output)
                self._check_rules(flags, output)
            except (ConfigError, SinkError):
                output.discard()
                raise
        return output

    def _output(self, write: TableWrite, basis: int | None = None) -> TableOutput:
        return TableOutput(self.format, write, {"records": 0, "elapsed_ms": 0}, basis)

    def found(self, result: Mapping[str, Any]) -> TableOutput | None:
        """Return the output of an earlier attempt, by its JSON in the ledger; None if it is gone or of another table.

        An output that is published according to the ledger counts as existing: only a replay restores rows that
        were deleted since. For `OrderedWindows.deliver`.

        Raises:
            SinkError: the table cannot be read; or it has forgotten whether the window was appended.
        """
        entry = KeptOutput.from_json(result)
        if entry is None or not self.is_of(entry):
            return None
        output = self.reopened(entry)
        if output.published or output.is_staged():
            return output
        # An earlier process may have died between the table's commit and the ledger's.
        return output if output.is_shown() else None

    def is_of(self, entry: KeptOutput) -> bool:
        """Return whether an earlier attempt's output is for this table in its present format."""
        return (entry.target.name, entry.format) == (self.target.name, self._facts.format)

    def reopened(self, entry: KeptOutput) -> TableOutput:
        """Return an earlier attempt's output as it was staged, whatever mode is set now; the table is not read."""
        format_ = _FORMATS[entry.format](self._facts, entry.target)
        bad = None if entry.bad is None else self.bad.reopened(entry.bad)
        return TableOutput(
            format_, entry.write, entry.facts, entry.basis, entry.published, entry.dead_letters, bad
        )

    @cached_property
    def bad(self) -> TableSink:
        """The sink for the records that jobs leave out, in a table beside this one; raises as `TableSink` does."""
        # A replay replaces what is there, also if its rows are appended here.
        own, name = self._facts.own or self.spark, bad_name(self.target.name)
        return TableSink(own, name, TableMode.REPLACE)

    def check_copy(self, records: pa.Schema | None = None) -> None:
        """Raise `ConfigError` unless unchanged records can fill the table's columns.

        Args:
            records: the columns of the records, if they are decoded.
        """
        types = self._record_types(records)
        record_columns = {self._facts.folded(name): type_ for name, type_ in types.items()}
        self._check_marks(types)
        self._check_fields(types)
        names = {k: v for k, v in self._facts.columns.items() if k in record_columns}
        if missing := [
            name
            for folded, name in self._facts.columns.items()
            if folded not in record_columns and not may_be_missing(self._facts, self.target, name)
        ]:
            raise ConfigError(
                f"the table {self.target.name} has columns that a record does not have: {', '.join(missing)}. A record "
                f"has {', '.join(types)}: give a function that makes the others, and calls window.write(df)"
            )
        reason = self._misfit({name: record_columns[folded] for folded, name in names.items()})
        if reason is not None:
            raise ConfigError(
                f"a record does not fit the table {self.target.name}: {reason}. Give a function that makes the table's "
                "columns, and calls window.write(df)"
            )

    def _misfit(self, types: Mapping[str, str]) -> str | None:
        """Return why values of these types cannot be stored in the table's columns; None if they can."""
        values = ", ".join(
            f"CAST(NULL AS {type_}) AS {quoted(name)}" for name, type_ in types.items()
        )
        statement = (
            f"EXPLAIN INSERT INTO {self.target.name} ({listed(list(types))}) SELECT {values}"
        )
        with table_errors(f"{self.target.name} cannot be read"):
            answer = str(self.spark.sql(statement).collect()[0][0])
        if not answer.startswith(INVALID):
            return None
        return told_by(RuntimeError(answer.removeprefix(INVALID).lstrip(": \n")))

    def fitting(self, df: DataFrame) -> DataFrame:
        """Return those columns of unchanged records that `write` accepts; raise `ConfigError` if one must not be lost."""
        self._check_marks(df.columns)
        self._check_fields(df.columns)
        known = {*self._facts.columns, *self._extras, "window_id"}
        return df.select(
            [
                name
                for name in df.columns
                if self._facts.folded(name) in known
                or (self.target.adds_columns and is_field(name))
            ]
        )

    # --- columns and rows --------------------------------------------------------------------------

    @cached_property
    def _extras(self) -> frozenset[str]:
        """The columns that a result may have in addition to the table's."""
        if self.target.mode is not TableMode.MERGE:
            return frozenset({"window_id"})
        deletions = DELETIONS if self.target.delete_tombstones else frozenset[str]()
        return frozenset({"window_id", *ORDER_COLUMNS, *deletions})

    def _check_marks(self, names: Iterable[str]) -> None:
        """Raise `ConfigError` for a copy that would lose the marks of rows that are no rows of the source."""
        known = {*self._facts.columns, *({DELETED} if self.target.delete_tombstones else ())}
        lost = [name for name in names if name in MARKS and self._facts.folded(name) not in known]
        if lost:
            raise ConfigError(
                f"the table {self.target.name} does not have the columns {', '.join(lost)}, without which deleted rows and bad "
                "values look like others: add them. Rows marked as __deleted are deleted by mode 'merge' with "
                "delete_tombstones=True"
            )

    def _check_fields(self, names: Iterable[str]) -> None:
        """Raise `ConfigError` for a copy that would lose fields of decoded values: a newer schema may have more of them."""
        if self.target.adds_columns:
            return
        lost = [
            name
            for name in names
            if is_field(name) and self._facts.folded(name) not in self._facts.columns
        ]
        if lost:
            raise ConfigError(
                f"the table {self.target.name} does not have the columns {', '.join(lost)} of decoded values: ALTER TABLE "
                f"{self.target.name} ADD COLUMNS, give a schema without them, or set schema_evolution='add'"
            )

    def _check_columns(self) -> None:
        facts, target = self._facts, self.target
        facts.check_columns((*STAGE_COLUMNS, _ROW))
        if target.mode is TableMode.REPLACE and not facts.has_window_id:
            raise ConfigError(
                f"mode 'replace' finds a window's rows by the column window_id, of type string, which {target.name} "
                f"does not have: ALTER TABLE {target.name} ADD COLUMN window_id STRING, or use mode 'append' or "
                "'merge'"
            )
        if missing := [key for key in target.keys if facts.folded(key) not in facts.columns]:
            raise ConfigError(
                f"keys has {', '.join(missing)}, which {target.name} does not have: its columns are "
                f"{', '.join(facts.fields)}"
            )

    def _record_types(self, records: pa.Schema | None) -> dict[str, str]:
        """Return the types of records in SQL, with exactly the nested fields that the table has now.

        Raises `ConfigError` for other differences within columns: Spark fills in nulls, or names no field.
        """
        if records is None:
            return dict(_RECORD_COLUMNS)
        facts, wrong = self._facts, list[str]()

        def known(name: str, kind: Any) -> Any:
            if (there := facts.columns.get(facts.folded(name))) is None:
                return kind
            wanted, may_evolve = facts.fields[there], self.target.adds_columns
            wrong.extend(misfits(kind, wanted, facts.folded, there, may_evolve=may_evolve))
            return common(kind, wanted, facts.folded)

        types = decoded_types(records, _RECORD_COLUMNS, known)
        if wrong:
            raise ConfigError(
                f"a record does not fit the table {self.target.name}: {'. '.join(wrong)}. Alter the table, give a schema that fits, or "
                "set schema_evolution='add', which adds fields"
            )
        return types

    def _rows(self, df: DataFrame, write: TableWrite) -> tuple[DataFrame, TableWrite]:
        """Return the rows to stage, and the write with the columns that it adds.

        The rows have the table's columns, each key once, and whether a row deletes its key.
        """
        from pyspark.sql import functions as f

        facts = self._facts
        if self.target.adds_columns:
            # Other windows may have added columns.
            facts.forget()
        result_columns = {facts.folded(name): name for name in df.columns}
        filled = {"window_id"} if facts.has_window_id else set[str]()
        check_result(df, facts, self.target, extras=self._extras, filled=filled)
        if filled:
            df = df.withColumn(result_columns.get("window_id", "window_id"), f.lit(write.window_id))
        deleted = f.lit(False)
        if self.target.delete_tombstones:
            deleted = deletion(df, result_columns)
        rows = df.withColumn(DELETED_COLUMN, deleted)
        if self._is_ordered(df):
            rows = self._newest(rows, result_columns)
        if self.target.adds_columns:
            extras = [name for k, name in result_columns.items() if self._is_extra(k)]
            kept: Any = df.drop(*extras).schema
            if added := new_columns(kept, facts, self.target):
                self._check_before_adding(kept)
            write = replace(write, adds=self.format.add_early(added))
            wanted = evolved(facts.schema, kept, facts.folded)
            return rows.selectExpr(*columns_as(kept, wanted, facts.folded), DELETED_COLUMN), write
        columns = [
            f.col(quoted(result_columns.get(k, name))).alias(name)
            for k, name in facts.columns.items()
        ]
        return rows.select(*columns, DELETED_COLUMN), write

    def _check_before_adding(self, kept: Any) -> None:
        """Raise `ConfigError` for rows that do not fit the columns that the table has, before it gets others."""
        facts = self._facts
        types = {
            there: sql_type(common(field.dataType, facts.fields[there], facts.folded))
            for field in kept.fields
            if (there := facts.columns.get(facts.folded(field.name))) is not None
        }
        if (reason := self._misfit(types)) is not None:
            raise ConfigError(
                f"the result does not fit the table {self.target.name}: {reason}. Cast its columns, or alter the table. No column "
                "was added"
            )

    def _is_extra(self, folded: str) -> bool:
        return folded in self._extras and folded not in self._facts.columns

    def _is_ordered(self, df: DataFrame) -> bool:
        names = {self._facts.folded(name) for name in df.columns}
        return self.target.mode is TableMode.MERGE and names.issuperset(ORDER_COLUMNS)

    def _newest(self, rows: DataFrame, result_columns: Mapping[str, str]) -> DataFrame:
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        keys = [f.col(quoted(result_columns[self._facts.folded(key)])) for key in self.target.keys]
        order = [f.desc(quoted(result_columns[name])) for name in ORDER_COLUMNS]
        number = f.row_number().over(Window.partitionBy(*keys).orderBy(*order))
        return rows.withColumn(_ROW, number).where(f.col(_ROW) == 1).drop(_ROW)

    def _check_no_replay(self, plan: WindowPlan, output: TableOutput) -> None:
        """Raise `ConfigError` for a replay that would add a window's rows a second time."""
        state = self.format.look(output.write)
        is_forgotten = not state.knows_all and plan.status is WindowStatus.PUBLISHED
        if state.shown is not None or is_forgotten:
            raise ConfigError(
                f"window {plan.window_id} was appended to {self.target.name} before{', or may have been' if is_forgotten else ''}"
                ": mode 'append' adds a window once. Use mode 'replace' or 'merge' to deliver it again"
            )

    def _check_keys(self, df: DataFrame, flags: Mapping[str, Any], output: TableOutput) -> None:
        """Raise `SinkError` for a null key, or for a duplicate key without columns that determine the newest row."""
        what = f"window {output.write.window_id}"
        for number, key in enumerate(self.target.keys):
            # The flag is null if there are no rows.
            if flags[f"null_{number}"]:
                hint = ". A tombstone has it with Debezium(..., keys=...)"
                raise SinkError(
                    f"{what}: at least one row has no {key}, which is a key of {self.target.name}. Nothing was "
                    f"committed: leave such rows out, or fill the column in{hint if DELETED in df.columns else ''}",
                    window_id=output.write.window_id,
                )
        if self.target.mode is not TableMode.MERGE or self._is_ordered(df):
            return
        if twice := self.format.stage.doubles(output.write, self.target.keys):
            raise SinkError(
                f"{what}: {twice:,} keys of {self.target.name} ({', '.join(self.target.keys)}) are in several rows. "
                f"Nothing was committed: keep the columns {', '.join(ORDER_COLUMNS)}, by which the newest row is "
                "found, or make the keys unique",
                window_id=output.write.window_id,
            )

    def _check_rules(self, flags: Mapping[str, Any], output: TableOutput) -> None:
        """Raise `SinkError` for rows that the table would refuse after the commit: the window could never be published."""
        window_id = output.write.window_id
        for number, name in enumerate(self._facts.rules):
            if flags[f"broken_{number}"]:
                raise SinkError(
                    f"window {window_id}: {self.target.name} refuses at least one row: {name}. Nothing was committed: leave "
                    "such rows out, or change their values",
                    window_id=window_id,
                )
