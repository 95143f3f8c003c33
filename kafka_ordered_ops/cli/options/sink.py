"""How a window's records are written to files: the options of a `WindowJob`, and running it for the screen."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kafka_ordered_ops.cli.options.help import JOB
from kafka_ordered_ops.cli.options.pairs import pairs_of
from kafka_ordered_ops.cli.options.profile import profile_option
from kafka_ordered_ops.cli.options.storage import Storage
from kafka_ordered_ops.cli.show.screen import Screen
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.types import PartitionBy
from kafka_ordered_ops.spec.engine import Engine
from kafka_ordered_ops.spec.table import SchemaEvolution, Table, TableMode

if TYPE_CHECKING:
    from kafka_ordered_ops.core.window.plan import WindowPlan
    from kafka_ordered_ops.core.window.window import Window
    from kafka_ordered_ops.delivery.job import Found, WindowJob
    from kafka_ordered_ops.spec.destination import Folder
    from kafka_ordered_ops.windows import ClientSettings, Staged
    from kafka_ordered_ops.windows.sink import Place

    Write = Callable[[Sequence[WindowPlan]], Sequence[Staged]]

#: Spark's own rule for masked values.
_SECRET: Final = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Sink(Storage):
    """The destination and form of the written records."""

    output: Annotated[
        str | None,
        profile_option(
            "--output",
            metavar="DIR",
            help="Folder for the Parquet files, in window_id=<id>/, or a prefix in an object store.",
        ),
    ] = None
    partition_by: Annotated[
        PartitionBy | None,
        typer.Option(
            "--partition-by",
            rich_help_panel=JOB,
            help="Put windows' folders below date=2026-11-20/, or below date=2026-11-20/hour=11/: the UTC time at which they start.",
        ),
    ] = None
    table: Annotated[
        str | None,
        typer.Option(
            "--table",
            metavar="NAME",
            help="Instead of --output: an existing Delta or Iceberg table. --spark-conf names its jars and catalogue.",
        ),
    ] = None
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode",
            metavar="MODE",
            rich_help_panel=JOB,
            help="How rows get into the table: append (default), replace or merge.",
        ),
    ] = None
    keys: Annotated[
        list[str],
        typer.Option(
            "--key",
            metavar="COLUMN",
            rich_help_panel=JOB,
            help="With --mode merge: a column that identifies a row (repeatable).",
        ),
    ] = field(default_factory=list)
    delete_tombstones: Annotated[
        bool,
        typer.Option(
            "--delete-tombstones",
            rich_help_panel=JOB,
            help="With --mode merge: a record without a value, or marked as __deleted, deletes its row.",
        ),
    ] = False
    schema_evolution: Annotated[
        str | None,
        typer.Option(
            "--schema-evolution",
            metavar="none|add",
            rich_help_panel=JOB,
            help="add: columns of decoded values that the table does not have are added to it.",
        ),
    ] = None
    engine: Annotated[
        Engine,
        typer.Option(
            "--engine",
            help="python: Spark with Python readers. connector: Spark with its Kafka connector. local: this process, without Spark.",
        ),
    ] = Engine.PYTHON
    ordered: Annotated[
        bool,
        typer.Option(
            "--ordered/--unordered",
            rich_help_panel=JOB,
            help="Sort by time across all files, or keep the order of the logs.",
        ),
    ] = True
    spark_conf: Annotated[
        list[str],
        typer.Option(
            "--spark-conf",
            metavar="KEY=VALUE",
            rich_help_panel=JOB,
            help="A Spark setting (repeatable).",
        ),
    ] = field(default_factory=list)

    def check(
        self, settings: ClientSettings, group_id: str, questions: Sequence[Window] = ()
    ) -> None:
        """Raise `ConfigError` for a job that cannot run, before its windows are planned."""
        from kafka_ordered_ops.spark.job_checks import check_session
        from kafka_ordered_ops.spec.writable import check_partitioned, check_storage_options

        if self.output is None and self.table is None:
            raise ConfigError("--output is missing: the folder for the files. Or give --table")
        check_storage_options(self.storage_options, self.output)
        check_partitioned(self.partition_by, self.output, questions)
        job = self._job()
        if job.starts_spark and self.table is None:
            try:
                check_session(job.spark_conf, java_home=job.java_home)
            except ConfigError as error:
                raise type(error)(
                    f"{error}. Or use --engine local, which needs no Spark"
                ) from error
        job.check(settings, group_id, questions)

    def opened(
        self, settings: ClientSettings, windows: Sequence[Window] = ()
    ) -> AbstractContextManager[Found]:
        """Return the job's session, open until windows are published; it yields a function that finds earlier outputs."""
        # Ctrl-C interrupts the job itself.
        return self._job().session(settings, windows)

    @property
    def publishes_to(self) -> Place | None:
        """Where windows are published, which the plan checks."""
        return self._job().place()

    @property
    def target(self) -> Table | None:
        """The table, and the mode of writing to it; raises `ConfigError`."""
        if self.table is None:
            table_options = {
                "--mode": self.mode,
                "--key": self.keys,
                "--delete-tombstones": self.delete_tombstones,
                "--schema-evolution": self.schema_evolution,
            }
            if names := [option for option, value in table_options.items() if value]:
                raise ConfigError(f"{' and '.join(names)} is for a table: also give --table")
            return None
        if self.output is not None:
            raise ConfigError(
                "--output and --table conflict: a window has one destination, give one of them"
            )
        return Table(
            self.table,
            self.mode or TableMode.APPEND,
            self.keys,
            self.delete_tombstones,
            self.schema_evolution or SchemaEvolution.NONE,
        )

    def writer(self, settings: ClientSettings, screen: Screen) -> Write:
        """Return a function that reads plans in one pass, and writes each one to its hidden stage."""
        from kafka_ordered_ops.delivery.host import Host, Stop
        from kafka_ordered_ops.delivery.open_windows import OpenWindows

        screen.hide(value for key, value in self._conf().items() if _SECRET.search(key) and value)

        def write(plans: Sequence[WindowPlan]) -> Sequence[Staged]:
            job = self._job()
            # Ctrl-C interrupts the job itself. An application's output is not part of the command's.
            host = Host(Stop("the command line"), "--output is missing", display=screen)
            windows = OpenWindows(
                plans, settings, job.to, host, engine=job.engine, ordered=self.ordered
            )
            with _quiet_py4j():
                staged = job.deliver(windows)
            screen.phase("committing")
            return staged

        return write

    @property
    def destination(self) -> Folder | Table | None:
        """The destination of the windows; raises `ConfigError`."""
        from kafka_ordered_ops.spec.destination import Folder

        if (table := self.target) is not None or self.output is None:
            return table
        return Folder(self.output, self.partition_by, self.storage_options)

    def _job(self) -> WindowJob:
        """Build the job; raises `ConfigError`."""
        from kafka_ordered_ops.delivery.job import WindowJob
        from kafka_ordered_ops.spec.jobs import Copy

        conf = self._conf()
        if self.engine is Engine.LOCAL:
            for option, value in (("--table", self.table), ("--spark-conf", conf)):
                if value:
                    raise ConfigError(
                        f"{option} needs Spark, and --engine local runs without it: omit one of them"
                    )
            return WindowJob(job=Copy(ordered=self.ordered), to=self.destination)
        return WindowJob(
            job=Copy(self.engine, self.ordered, conf),
            to=self.destination,
            may_start_spark=True,
            java_home=bundled_java(),
        )

    def _conf(self) -> dict[str, str]:
        return dict(pairs_of("--spark-conf", self.spark_conf, prefix="spark."))


@dataclass(frozen=True, kw_only=True)
class JobSink(Sink):
    """A sink that may be your own application."""

    application: Annotated[
        Path | None,
        typer.Option(
            "--application",
            rich_help_panel=JOB,
            metavar="JOB.py",
            help="Your Spark job, run by spark-submit. Default: copy the records.",
        ),
    ] = None
    master: Annotated[
        str | None,
        typer.Option(
            "--master",
            rich_help_panel=JOB,
            metavar="URL",
            help="Spark master of the application. Default: from Spark's configuration.",
        ),
    ] = None
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="ARGUMENT", help="Arguments of the application, after --.", show_default=False
        ),
    ] = field(default_factory=list)

    def _job(self) -> WindowJob:
        from kafka_ordered_ops.delivery.job import WindowJob
        from kafka_ordered_ops.spec.jobs import Application
        from kafka_ordered_ops.spec.spark_submit import SparkSubmit

        if self.application is not None:
            how = SparkSubmit(master=self.master, conf=self._conf(), java_home=bundled_java())
            job = Application(self.application, self.arguments, how, self.engine, self.ordered)
            return WindowJob(job=job, to=self.destination)
        if self.master is not None:
            raise ConfigError("--master applies to an application: also give --application")
        if self.arguments:
            raise ConfigError(
                f"{self.arguments[0]!r} and the words after it are arguments of an application: also give "
                "--application"
            )
        return super()._job()


@contextlib.contextmanager
def _quiet_py4j() -> Iterator[None]:
    """Suppress py4j's log of an interrupted call, which has two tracebacks."""
    quiet = logging.NullHandler()
    logging.getLogger().addHandler(quiet)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(quiet)


def bundled_java() -> Path | None:
    """Return the Java of the embedded extra, on a machine without Java."""
    if os.environ.get("JAVA_HOME") or shutil.which("java"):
        return None
    from kafka_ordered_ops.embedded import JavaNotFoundError, java_home_for_spark

    try:
        return Path(java_home_for_spark())
    except JavaNotFoundError:
        # The session's own error explains the cause better.
        return None
