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
from kafka_ordered_ops.cli.options.profile import kept_option
from kafka_ordered_ops.cli.options.storage import Storage
from kafka_ordered_ops.cli.show.screen import Screen
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.types import PartitionBy
from kafka_ordered_ops.spec.engine import Engine
from kafka_ordered_ops.spec.table import Table, table_of_parameters

if TYPE_CHECKING:
    from kafka_ordered_ops.core.window.plan import WindowPlan
    from kafka_ordered_ops.core.window.window import Window
    from kafka_ordered_ops.hosting.job import Found, WindowJob
    from kafka_ordered_ops.output.places import OutputPlace
    from kafka_ordered_ops.spec.destination import Folder
    from kafka_ordered_ops.windows import ClientSettings, Staged

    Write = Callable[[Sequence[WindowPlan]], Sequence[Staged]]

#: Spark's own rule for masked values.
_SECRET: Final = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Sink(Storage):
    """The destination and form of the written records."""

    output: Annotated[
        str | None,
        kept_option(
            "--output",
            metavar="DIR",
            help="Folder for the Parquet files, in window_id=<times>-<digest>/, or a prefix in an object store.",
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
            help="With --mode merge: a record without a value deletes its row.",
        ),
    ] = False
    engine: Annotated[
        Engine,
        typer.Option(
            "--engine",
            help="python: Spark with Python readers. connector: Spark with its Kafka connector. local: no Spark, in memory.",
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
        from kafka_ordered_ops.spark.job_checks import (
            check_partitioned,
            check_session,
            check_storage_options,
        )

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
        job.check(settings, group_id)

    def opened(self) -> AbstractContextManager[Found]:
        """Return what is kept open until windows are published; it yields what finds earlier outputs."""
        # Ctrl-C interrupts the job itself.
        return self._job().session(lambda: False)

    @property
    def publishes_to(self) -> OutputPlace | None:
        """Where files are published; None: rows go to a table."""
        return self._job().place()

    @property
    def place(self) -> str:
        """The folder or the table."""
        return self.output or self.table or ""

    @property
    def target(self) -> Table | None:
        """The table, and how rows get into it; raises `ConfigError`."""
        return table_of_parameters(
            self.table, self.mode, self.keys, self.delete_tombstones, output=self.output
        )

    def writer(self, settings: ClientSettings, screen: Screen) -> Write:
        """Return a function that reads plans in one pass, and writes each one to its hidden stage."""
        from kafka_ordered_ops.hosting.window_handle import Host, Stop, WindowHandle

        screen.hide(value for key, value in self._conf().items() if _SECRET.search(key) and value)

        def write(plans: Sequence[WindowPlan]) -> Sequence[Staged]:
            job = self._job()
            # Ctrl-C interrupts the job itself. An application's output is not part of the command's.
            host = Host(Stop("the command line"), "--output is missing", display=screen)
            windows = WindowHandle(
                plans, settings, job.to, host, engine=job.engine, ordered=self.ordered
            )
            with _quiet_py4j():
                staged = job.deliver(windows)
            screen.phase("committing")
            return staged

        return write

    @property
    def _to(self) -> Folder | Table | None:
        """Where windows go; raises `ConfigError`."""
        from kafka_ordered_ops.spec.destination import Folder

        if (table := self.target) is not None or self.output is None:
            return table
        return Folder(self.output, self.partition_by, self.storage_options)

    def _job(self) -> WindowJob:
        """Build the job; raises `ConfigError`."""
        from kafka_ordered_ops.hosting.job import WindowJob
        from kafka_ordered_ops.spec.jobs import Copy

        conf = self._conf()
        if self.engine is Engine.LOCAL:
            for option, given in (("--table", self.table), ("--spark-conf", conf)):
                if given:
                    raise ConfigError(
                        f"{option} needs Spark, and --engine local runs without it: omit one of them"
                    )
            return WindowJob(job=Copy(ordered=self.ordered), to=self._to)
        return WindowJob(
            job=Copy(self.engine, self.ordered),
            to=self._to,
            starts_spark=True,
            spark_conf=conf,
            java_home=bundled_java(),
        )

    def _conf(self) -> dict[str, str]:
        conf = dict[str, str]()
        for number, text in enumerate(self.spark_conf, start=1):
            key, sign, value = text.partition("=")
            if not sign or not key.startswith("spark."):
                # Without the text: it may be a secret whose key was forgotten.
                raise ConfigError(f"--spark-conf number {number} is not spark.KEY=VALUE")
            conf[key] = value
        return conf


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
        from kafka_ordered_ops.hosting.job import WindowJob
        from kafka_ordered_ops.spec.jobs import Application
        from kafka_ordered_ops.spec.spark_submit import SparkSubmit

        if self.application is not None:
            how = SparkSubmit(master=self.master, conf=self._conf(), java_home=bundled_java())
            job = Application(self.application, self.arguments, how, self.engine, self.ordered)
            return WindowJob(job=job, to=self._to)
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
        # The session's own error explains better what is missing.
        return None
