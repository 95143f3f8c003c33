"""Write a window as rows of a Delta or Iceberg table: staged before the Kafka commit, visible after it.

A table's commit is atomic, but it is not Kafka's. Written before the Kafka commit, the rows of an attempt whose commit
is refused would show; so they wait in a *staging table* of the same format, and `TableOutput.publish` copies them
over once the window is committed, in one commit of the table that replaces all rows of the window's id.

Every such commit carries whose rows it shows (`TableWrite`). Publishing looks that up, and commits only on what
it has seen: the format refuses a commit for a window that another program has replaced meanwhile. So publishing
again changes nothing, and an older attempt does not come through after a newer one.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from kafka_ordered_ops.core.errors import (
    ConfigError,
    JobFailedError,
    KafkaOrderedOpsError,
    SinkError,
    WindowSupersededError,
)
from kafka_ordered_ops.core.strict_json import Fields, JsonError
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.output.stage import check_has_output
from kafka_ordered_ops.output.staged_output import Facts
from kafka_ordered_ops.spark.environment import check_frame, check_pyspark, check_tables
from kafka_ordered_ops.spark.failures import named_error

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Version of the JSON that the ledger keeps and that the table's commits carry.
TABLE_VERSION: Final = 1

#: In the staging table only: which write a row belongs to.
WRITE_COLUMN: Final = "_koo_write"

#: Each turn but the last was lost to another commit of the same window, or of the same files.
_TURNS_MAX: Final = 5

T = TypeVar("T")

#: A write's name becomes part of a statement.
_CLAIM_ID: Final = re.compile(r"[A-Za-z0-9_.-]+")
_TOKEN: Final = re.compile(r"[0-9a-f]+")

#: The formats' words for "another program has committed meanwhile: look again".
_CONFLICT: Final = re.compile(
    r"Concurrent\w+Exception|DELTA_CONCURRENT_|CommitFailedException|Found conflicting"
    # Iceberg's, of a reading: the table has moved on since Spark looked at it, a moment ago.
    r"|Failed to enforce scan consistency"
)

#: What an exception of the JVM says, in the text that Python sees of it.
_JVM_MESSAGE: Final = re.compile(r"^:? ?((?:[\w$]+\.)+\w*(?:Exception|Error): .*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class TableWrite:
    """One attempt's rows of one window."""

    group_id: str
    window_id: str
    claim_id: str
    attempt: int
    #: Tells two writes of the same attempt apart: a replay has the attempt of what it replaces.
    token: str

    def __post_init__(self) -> None:
        if not _CLAIM_ID.fullmatch(self.claim_id) or not _TOKEN.fullmatch(self.token):
            raise ConfigError(
                f"claim {self.claim_id[:140]!r} of window {self.window_id}, write {self.token[:20]!r}: letters, "
                "digits, '_', '.' and '-' are what rows can be told apart by"
            )

    @classmethod
    def of(cls, plan: WindowPlan) -> TableWrite:
        """Return a new write of this plan's attempt."""
        token = uuid.uuid4().hex[:12]
        return cls(plan.group_id, plan.window_id, plan.claim_id, plan.attempt, token)

    @property
    def name(self) -> str:
        """Its name in the staging table."""
        return f"{self.claim_id}-{self.attempt}-{self.token}"

    def makes_worthless(self, name: str) -> bool:
        """Return whether staged rows of the same window are of no more use once this write shows."""
        claim_id, attempt, _ = name.rsplit("-", 2)
        return claim_id != self.claim_id or int(attempt) <= self.attempt

    def to_json(self) -> dict[str, Any]:
        """Return what the table's commit carries."""
        return {
            "group": self.group_id,
            "window_id": self.window_id,
            "claim_id": self.claim_id,
            "attempt": self.attempt,
            "token": self.token,
        }

    @classmethod
    def from_json(cls, fields: Fields) -> TableWrite:
        """Parse the JSON of `to_json`; raise `JsonError` if it is invalid."""
        try:
            write = cls(
                group_id=fields.text("group"),
                window_id=fields.text("window_id"),
                claim_id=fields.text("claim_id"),
                attempt=fields.integer("attempt", least=0),
                token=fields.text("token"),
            )
        except ConfigError as error:
            raise JsonError(str(error)) from error
        fields.done()
        return write


@dataclass(frozen=True, slots=True)
class TableState:
    """The state of one window in a table."""

    #: Whose rows show; None where no commit is known that has shown any.
    shown: TableWrite | None
    #: What a commit on top of this must be based on; its meaning is the format's.
    basis: int | None


class TableFormat(Protocol):
    """The operations of a table format that publishing needs."""

    #: As Spark's ``using`` takes it.
    name: str

    def check(self, table: str) -> None:
        """Raise `ConfigError` for a table that windows cannot be replaced in."""

    def look(self, table: str, window_id: str, *, turn: int) -> TableState:
        """Return whose rows of a window show; at turn 0, nothing was tried before."""

    def replace(self, table: str, rows: DataFrame, write: TableWrite, basis: int | None) -> None:
        """Put rows in the place of the window's, in one commit, if the window is still as it was seen.

        A commit that comes too late fails or is skipped without a word: look again.
        """


class TableSink:
    """Windows as rows of one table, distinguished by its column ``window_id``.

    A table holds the windows of one group: their ids distinguish their rows, not their group's name.

    Args:
        spark: the session; it has the format's jars and extensions.
        table: the existing table in SQL syntax: ``lake.orders``, or ``delta.`/folder```. It must have a column
            ``window_id`` of type string.
        staging: a table of the same format that nobody else uses; created if it is missing. Attempts
            that died leave rows in it until their window is published.
        table_format: the format.
    """

    def __init__(
        self, spark: SparkSession, table: str, staging: str, table_format: TableFormat
    ) -> None:
        check_pyspark()
        check_tables(spark, table, staging)
        self.spark = spark
        self.table = table
        self.staging = staging
        self.format = table_format
        self._has_staging = False

    def write(self, df: DataFrame, plan: WindowPlan) -> TableOutput:
        """Write a window's result to the staging table; nothing is visible yet.

        Pass the result to ``windows.commit(plan, output)``, which commits the window and then publishes.

        Args:
            df: the result of the user's job, with the table's columns; ``window_id`` is filled in.
            plan: the window, whole.

        Raises:
            ConfigError: the table or its columns are not as required; or the plan is a part of a window.
            SinkError: the job failed; nothing was committed.
            ReadError, BrokerError, RecordsLostError: the job failed because a task could not read the window.
            WindowCoveredError: other windows deliver its records.
        """
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        check_has_output(plan)
        check_frame(df)
        if plan.part is not None:
            raise ConfigError(
                f"window {plan.window_id}: {plan.part} cannot be written to a table: write the whole "
                "window, or its parts as Parquet (write_window)"
            )
        started = time.monotonic()
        write = TableWrite.of(plan)
        with table_errors(f"window {plan.window_id} cannot be written to {self.staging}"):
            self._check_columns(df)
            self.make_staging()
            rows = df.drop("window_id", WRITE_COLUMN)
            rows = rows.withColumn("window_id", f.lit(write.window_id))
            rows = rows.withColumn(WRITE_COLUMN, f.lit(write.name))
            observation = Observation()
            rows = rows.observe(observation, f.count(f.lit(1)).alias("records"))
            rows.writeTo(self.staging).append()
            records = int(observation.get["records"])
        elapsed_ms = round((time.monotonic() - started) * 1000)
        return TableOutput(self, write, {"records": records, "elapsed_ms": elapsed_ms})

    def found(self, result: Mapping[str, Any]) -> TableOutput | None:
        """Return what an earlier attempt left, from its JSON in the ledger; None if it is gone or has another format.

        What the ledger knows as published counts as there: rows that somebody has deleted since come back by a
        replay only. For `OrderedWindows.deliver`.

        Raises:
            SinkError: the table cannot be asked.
        """
        try:
            output = TableOutput.from_json(self, Fields(dict(result), "result"))
        except JsonError:
            return None
        if output is None or output.published or output.is_staged():
            return output
        # Died between the table's commit and the ledger's.
        return output if self.look(output.write.window_id).shown == output.write else None

    def look(self, window_id: str, *, turn: int = 0) -> TableState:
        """Return whose rows of a window show; raise `SinkError`."""
        with table_errors(f"{self.table} cannot be asked for window {window_id}"):
            return beside_others(partial(self.format.look, self.table, window_id, turn=turn))

    def staged(self, window_id: str) -> DataFrame:
        """Return the staged rows of a window, of all its writes."""
        return self.spark.table(self.staging).where(self._is_window(window_id))

    def make_staging(self) -> None:
        """Make the staging table, if there is none: the table's columns, and which write a row is of."""
        from pyspark.sql import functions as f

        if self._has_staging:
            return
        like = self.spark.table(self.table).limit(0).withColumn(WRITE_COLUMN, f.lit(""))
        writer = like.writeTo(self.staging).using(self.format.name)
        try:
            writer.partitionedBy(f.col("window_id"), f.col(WRITE_COLUMN)).create()
        except Exception as error:
            if "ALREADY_EXISTS" not in str(error):
                raise
        self._has_staging = True

    def remove_staged(self, name: str) -> None:
        """Remove the staged rows of one write; those that another process removes meanwhile are gone, too."""
        # By a partition column alone, so that no file is read. A name holds nothing to be quoted.
        statement = f"DELETE FROM {self.staging} WHERE {WRITE_COLUMN} = '{name}'"
        beside_others(partial(self.spark.sql, statement))

    @cached_property
    def _columns(self) -> frozenset[str]:
        try:
            columns = frozenset(self.spark.table(self.table).columns)
        except Exception as error:
            raise ConfigError(
                f"the table {self.table} cannot be read: {_told(error)}. Create it before the first window, "
                f"with a column window_id of type string, partitioned by it (using {self.format.name})"
            ) from error
        if "window_id" not in columns:
            raise ConfigError(
                f"the table {self.table} has no column window_id, by which a window's rows are found and "
                "replaced: add it, of type string"
            )
        self.format.check(self.table)
        return columns

    def _check_columns(self, df: DataFrame) -> None:
        # Delta would fill in nulls for what is missing.
        given = set(df.columns) - {WRITE_COLUMN} | {"window_id"}
        if given == self._columns:
            return
        missing = ", ".join(sorted(self._columns - given)) or "none"
        unknown = ", ".join(sorted(given - self._columns)) or "none"
        raise ConfigError(
            f"the result does not have the columns of {self.table}: missing are {missing}; not in the table are "
            f"{unknown}. Select the table's columns, or alter the table and its staging table"
        )

    def _is_window(self, window_id: str) -> Column:
        from pyspark.sql import functions as f

        return f.col("window_id") == f.lit(window_id)


@dataclass
class TableOutput:
    """The rows that one attempt wrote to the staging table; a `Staged` for `OrderedWindows.commit`."""

    sink: TableSink = field(repr=False, compare=False)
    write: TableWrite
    #: ``records`` and ``elapsed_ms``.
    facts: Facts
    #: Whether this output has shown in the table. The ledger keeps it: the table's own memory of its commits
    #: ends with the retention of its log or snapshots.
    published: bool = False

    def is_staged(self) -> bool:
        """Return whether all of its rows are in the staging table; raise `SinkError`."""
        with table_errors(f"{self.sink.staging} cannot be read"):
            # Of nothing, all is there.
            return not self._records or self._count() == self._records

    def check_ready(self) -> None:
        """Look, before the window is committed, whether `publish` could show it; raises what that raises."""
        shown = self.write if self.published else self.sink.look(self.write.window_id).shown
        if shown == self.write:
            return
        self._check_newer(shown, 0)
        with table_errors(f"{self.sink.staging} cannot be read"):
            self._check_count(beside_others(self._count) if self._records else 0)

    def publish(self) -> None:
        """Replace the window's rows in the table by these rows, in one commit. Repeating it changes nothing.

        Raises:
            SinkError: the rows are neither staged nor shown; the window in the table is another group's; or the
                table cannot be written.
            WindowSupersededError: the table shows a newer attempt's rows of this window.
        """
        if self.published:
            return
        sink, window_id = self.sink, self.write.window_id
        with table_errors(f"window {window_id} cannot be published to {sink.table}"):
            if not self._show():
                raise SinkError(
                    f"window {window_id} cannot be published to {sink.table}: {_TURNS_MAX} attempts lost to other "
                    "commits, or were skipped by the table. Run the same window again",
                    window_id=window_id,
                )
            # Before the staged rows go: from here on, they are not needed.
            self.published = True
            for name in beside_others(self._staged_names):
                if self.write.makes_worthless(name):
                    sink.remove_staged(name)

    def discard(self) -> None:
        """Remove the staged rows; visible rows stay. Repeating it changes nothing. Raises `SinkError`."""
        with table_errors(f"the staged rows of window {self.write.window_id} cannot be removed"):
            if self.write.name in self._staged_names():
                self.sink.remove_staged(self.write.name)

    def to_json(self) -> dict[str, Any]:
        """Return versioned JSON: what the ledger keeps, enough to publish from another process."""
        return {
            "version": TABLE_VERSION,
            "format": self.sink.format.name,
            "table": self.sink.table,
            "staging": self.sink.staging,
            "write": self.write.to_json(),
            "facts": dict(self.facts),
            "published": self.published,
        }

    @classmethod
    def from_json(cls, sink: TableSink, fields: Fields) -> TableOutput | None:
        """Return the inverse of `to_json`; None for an output of other tables. Raises `JsonError`."""
        if (version := fields.integer("version")) != TABLE_VERSION:
            raise JsonError(f"output version {version}; this package reads version {TABLE_VERSION}")
        where = (fields.text("format"), fields.text("table"), fields.text("staging"))
        write = TableWrite.from_json(fields.object("write"))
        facts = fields.object("facts")
        kept = {name: facts.integer(name, least=0) for name in ("records", "elapsed_ms")}
        facts.done()
        output = cls(sink, write, kept, fields.boolean("published"))
        fields.done()
        return output if where == (sink.format.name, sink.table, sink.staging) else None

    @property
    def _records(self) -> int:
        return self.facts["records"] or 0

    def _show(self) -> bool:
        """Return whether the table shows these rows in the end."""
        for turn in range(_TURNS_MAX + 1):
            # Before the look: rows that are gone by then may have been published by another process.
            count = beside_others(self._count)
            look = beside_others(
                partial(self.sink.format.look, self.sink.table, self.write.window_id, turn=turn)
            )
            if look.shown == self.write:
                return True
            self._check_newer(look.shown, turn)
            self._check_count(count)
            if turn == _TURNS_MAX:
                break
            try:
                rows = self._rows().drop(WRITE_COLUMN)
                self.sink.format.replace(self.sink.table, rows, self.write, look.basis)
            except Exception as error:
                if not _is_conflict(error):
                    raise
        return False

    def _check_count(self, count: int) -> None:
        if count != self._records:
            raise SinkError(
                f"window {self.write.window_id} cannot be published: {self.sink.staging} holds {count:,} of "
                f"{self._records:,} rows of attempt {self.write.attempt} of claim {self.write.claim_id}: the "
                "others were deleted. Run the window again to write them again",
                window_id=self.write.window_id,
            )

    def _check_newer(self, shown: TableWrite | None, turn: int) -> None:
        if shown is None:
            return
        if shown.group_id != self.write.group_id:
            raise SinkError(
                f"{self.sink.table} shows window {shown.window_id} of group {shown.group_id}, but this window is of "
                f"group {self.write.group_id}: each would replace the other. Give each group its own table",
                window_id=self.write.window_id,
            )
        # The ledger has just said that this claim is the window's: another one in the table is older, unless it
        # has come while this publish was at work.
        newer = (
            turn > 0
            if shown.claim_id != self.write.claim_id
            else shown.attempt > self.write.attempt
        )
        if newer:
            raise WindowSupersededError(
                f"attempt {self.write.attempt} of window {shown.window_id} comes too late: {self.sink.table} "
                f"shows attempt {shown.attempt} of claim {shown.claim_id}. There is nothing to do",
                window_id=self.write.window_id,
            )

    def _rows(self) -> DataFrame:
        from pyspark.sql import functions as f

        of_write = f.col(WRITE_COLUMN) == f.lit(self.write.name)
        return self.sink.staged(self.write.window_id).where(of_write)

    def _count(self) -> int:
        self.sink.make_staging()
        return self._rows().count()

    def _staged_names(self) -> list[str]:
        self.sink.make_staging()
        staged = self.sink.staged(self.write.window_id)
        return [str(row[0]) for row in staged.select(WRITE_COLUMN).distinct().collect()]


@contextmanager
def table_errors(what: str) -> Iterator[None]:
    """Raise Spark's errors in the block as errors of this package: a task's own class, or `JobFailedError`."""
    try:
        yield
    except KafkaOrderedOpsError:
        raise
    except Exception as error:
        # Of Spark's own kinds or py4j's, which Connect does not have.
        named = named_error(error)
        if named is not None:
            raise named from error
        raise JobFailedError(
            f"{what}: {_told(error)}. Nothing is lost: fix the cause and run the same window again"
        ) from error


def beside_others(action: Callable[[], T]) -> T:
    """Repeat what fails only because others have committed meanwhile."""
    for _ in range(_TURNS_MAX):
        try:
            return action()
        except Exception as error:
            if not _is_conflict(error):
                raise
    return action()


def _is_conflict(error: BaseException) -> bool:
    return _CONFLICT.search(str(error)) is not None


def _told(error: BaseException) -> str:
    """Return the line of an error that says what happened."""
    text = str(error)
    if found := _JVM_MESSAGE.search(text):
        return found[1]
    return next((line for line in text.splitlines() if line.strip()), type(error).__name__)
