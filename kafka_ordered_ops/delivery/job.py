"""The job of windows: its work on their records, their destination, and its Spark session."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka_ordered_ops.core.arguments import shown
from kafka_ordered_ops.core.errors import ConfigError, SinkError
from kafka_ordered_ops.delivery.open_window import OpenWindow
from kafka_ordered_ops.delivery.open_windows import OpenWindows
from kafka_ordered_ops.output.address import bad_root
from kafka_ordered_ops.output.writing.lettered import found_with_letters
from kafka_ordered_ops.output.writing.reported import EarlierOutputs, Reported
from kafka_ordered_ops.spec.destination import Destination, Folder, Sink
from kafka_ordered_ops.spec.engine import Engine
from kafka_ordered_ops.spec.jobs import Application, Copy, Function, Job
from kafka_ordered_ops.spec.table import Table
from kafka_ordered_ops.spec.writable import check_partitioned, check_writable

if TYPE_CHECKING:
    import pyarrow as pa

    from kafka_ordered_ops.core.window.window import Window
    from kafka_ordered_ops.spark import TableSink
    from kafka_ordered_ops.windows import ClientSettings, Staged
    from kafka_ordered_ops.windows.sink import Place

#: Returns the output of an earlier attempt, if there is one.
Found = Callable[[Mapping[str, Any]], "Staged | None"]


@dataclass(kw_only=True, eq=False)
class WindowJob:
    """A job, the destination of its windows, and its Spark session in this process.

    Args:
        job: what runs on the records.
        to: the destination; `None` means that the job delivers the records itself.
        spark: the caller's session.
        may_start_spark: whether to start a session for the job, or use the running one, if `spark` is missing.
        java_home: the Java of such a session; `None` means ``JAVA_HOME``, or ``java`` from the path.
        is_block: whether the caller's own code does the work, in place of the job.
    """

    job: Job
    to: Destination | None = None
    spark: Any = None
    may_start_spark: bool = False
    java_home: Path | None = None
    is_block: bool = False
    #: While the session of a table is open.
    _table_sink: TableSink | None = field(default=None, init=False, repr=False)
    #: Keeps the session open for several windows.
    _sessions: ExitStack | None = field(default=None, init=False, repr=False)

    # --- before a window is planned --------------------------------------------------------------

    def check_form(self) -> None:
        """Raise `ConfigError` for errors that are known without a window."""
        application = self._application
        if self.table is not None and application is not None and self.table.conf:
            raise ConfigError(
                "the application has its own session, which writes the table: give the table's conf in its submit, as "
                "{'conf': {...}}"
            )
        if application is not None:
            from kafka_ordered_ops.spark.job_checks import check_submit

            check_submit(application.how)
        if self.spark_conf and not self.may_start_spark:
            raise ConfigError(
                f"conf has {', '.join(sorted(self.spark_conf))}, for a session that Airflow, Dagster or the command line start: "
                "set them on the session that you give as spark="
            )

    def check(
        self, settings: ClientSettings, group_id: str, windows: Iterable[Window] = ()
    ) -> None:
        """Raise for a job that cannot run, before its windows are planned and hold their records.

        Raises:
            ConfigError: the job, the destination, the engine, Spark's settings; or a window that does not fit the folder, or
                whose bad records the job cannot leave out.
            SinkError: the folder's file system fails.
        """
        self.check_form()
        self._check_combination()
        folder, application = self.folder, self._application
        windows = list(windows)
        self.check_dead_letters(windows)
        if folder is not None:
            check_partitioned(folder.partition_by, folder.root, windows)
        if application is not None or self._has_spark:
            self._check_spark(settings, group_id)
        if folder is not None:
            check_writable(folder.root, folder.storage_options, folder.partition_by)

    def check_dead_letters(self, windows: Sequence[Window]) -> None:
        """Raise `ConfigError` for windows whose bad records the job's output cannot name, or that it has no place for."""
        for window in windows:
            if self._application is not None and self.to is None:
                window.check_no_dead_letters("an application without an output")
            if window.has_bad_output and (self.to is None or self._sink is not None):
                raise ConfigError(
                    f"on_bad is {window.on_bad}, which writes bad records beside the output, and "
                    f"{'there is no output' if self.to is None else 'the output is your own sink'}: give a folder or a Table, or name "
                    "a topic for them, dead_letter:TOPIC"
                )
        folder = self.folder
        if folder is not None and any(window.has_bad_output for window in windows):
            check_writable(bad_root(folder.root), folder.storage_options, folder.partition_by)

    def _check_spark(self, settings: ClientSettings, group_id: str) -> None:
        from kafka_ordered_ops.spark.job_checks import (
            check_deployed,
            check_reading,
            check_session,
            check_spark,
            check_submission,
        )

        folder, application = self.folder, self._application
        if application is not None:
            root = None if folder is None else folder.root
            table = None if self.table is None else self.table.name
            check_deployed(application.how, root, table=table)
            check_submission(application.path, settings, application.how)
            # Another process has the session.
            check_reading(self.engine, settings, conf=None, group_id=group_id)
        elif self.spark is not None:
            check_spark(self.spark)
            check_reading(self.engine, settings, conf={}, group_id=group_id)
        elif self.starts_spark:
            check_session(self.spark_conf, java_home=self.java_home)
            check_reading(self.engine, settings, conf=self.spark_conf, group_id=group_id)

    def copied(self, settings: ClientSettings, windows: Sequence[Window]) -> pa.Schema | None:
        """Return the columns of the records that go to a table as they are, if they are decoded; None otherwise.

        Columns that are not inferred yet are missing: `place` compares them with the table.

        Raises:
            ConfigError: an invalid schema, or no registry for it.
            RegistryError, AuthenticationError: the registry fails, or refuses the credentials.
        """
        decoded = [window for window in windows if window.is_decoded]
        if self.table is None or not self._copies or not decoded:
            return None
        # Imported late: they load pyarrow.
        import pyarrow as pa

        from kafka_ordered_ops.decoding.decoder import decoder_of
        from kafka_ordered_ops.output.writing.window_batches import window_schema

        if decoded[0].is_open:
            return pa.schema([])
        return window_schema(decoder_of(decoded[0], settings))

    def place(self) -> Place | None:
        """Return where windows are published, to be checked before they are claimed: files, or a table for copied records."""
        # Imported late: they load pyarrow.
        if (folder := self.folder) is not None:
            from kafka_ordered_ops.output.places import OutputPlace

            return OutputPlace(
                folder.root, folder.storage_options, folder.partition_by, is_copy=self._copies
            )
        if self.table is None or not self._copies:
            return None
        from kafka_ordered_ops.spark.write.table_windows import TablePlace

        return TablePlace(self.table, self._table_sink)

    @property
    def folder(self) -> Folder | None:
        """The folder for the windows' files."""
        return self.to if isinstance(self.to, Folder) else None

    @property
    def table(self) -> Table | None:
        """The table for the windows' rows."""
        return self.to if isinstance(self.to, Table) else None

    @property
    def engine(self) -> str:
        """The engine that reads Kafka."""
        if self.job.engine is not None:
            return str(self.job.engine)
        copies_alone = self._copies and not self._has_spark
        return (Engine.LOCAL if copies_alone else Engine.PYTHON).value

    @property
    def spark_conf(self) -> Mapping[str, str]:
        """The settings of the session that is started."""
        of_job = {} if isinstance(self.job, Application) else self.job.conf
        return {**of_job, **({} if self.table is None else self.table.conf)}

    @property
    def starts_spark(self) -> bool:
        """Whether a session is started for the job in any case, before the window is planned or read."""
        if self.spark is not None or self._application is not None:
            return False
        needs = self.table is not None or self.job.engine not in (None, Engine.LOCAL)
        return self.may_start_spark and (needs or bool(self.spark_conf))

    # --- around the delivery ---------------------------------------------------------------------

    @contextmanager
    def session(
        self,
        settings: ClientSettings,
        windows: Sequence[Window],
        stopped: Callable[[], bool] = lambda: False,
        say: Callable[[str], None] | None = None,
    ) -> Iterator[Found]:
        """Keep the windows' resources open until they are published; yield a function that finds earlier outputs.

        A table is checked in a session that lasts as long as the block, and the job uses the same session. An existing session
        is left running.

        Args:
            settings: how to reach the cluster.
            windows: the windows, before they are planned.
            stopped: whether the job must end.
            say: receives the output lines of an application; `None` leaves them in its own log.

        Raises:
            ConfigError: there is no Spark, the table is not as required, or as `copied` does.
            RegistryError, AuthenticationError: as `copied` does.
        """
        records = self.copied(settings, windows)
        if self.table is None:
            yield self._earlier()
        elif (application := self._application) is not None:
            from kafka_ordered_ops.spark.applications.tables import table_application

            yield table_application(
                self.table,
                application.path,
                application.how,
                arguments=application.arguments,
                log_line=say,
                cancelled=stopped,
            )
        else:
            from kafka_ordered_ops.spark.write.table_windows import (
                check_bad,
                found_in_table,
                table_sink,
            )

            with self._table_session(self.table, stopped) as spark:
                sink = self._table_sink = table_sink(spark, self.table)
                if self._copies and (records is None or records.names):
                    sink.check_copy(records)
                if any(window.has_bad_output for window in windows):
                    check_bad(sink)
                try:
                    yield _Earlier(partial(found_in_table, sink), EarlierOutputs())
                finally:
                    self._table_sink = None

    def deliver(self, windows: OpenWindows) -> list[Staged]:
        """Run the job; its output stays hidden until the commit.

        Raises:
            JobFailedError: the job failed, or its host has ended it.
            KafkaOrderedOpsError: as the job does. Exceptions of a function propagate.
        """
        job = self.job
        if isinstance(job, Application):
            return self._submitted(windows, job)
        try:
            with self.opened(windows) as window:
                if isinstance(job, Function):
                    return window.outputs(job.run(window))
                if self._has_spark and self.table is None:
                    windows.is_copied = True
                    window.write(window.read())
                    return window.outputs(None)
                windows.copy()
                return window.outputs(None)
        except Exception as error:
            if windows.stop and self._may_start:
                # The session was stopped, whatever error Java raises.
                raise windows.stop.error(windows.plans[0].window_id) from error
            raise

    @contextmanager
    def opened(self, windows: OpenWindows) -> Iterator[OpenWindow]:
        """Open windows for the user's code until the block ends."""
        windows.table_sink = self._table_sink
        with (
            _named_end_of_java(),
            self._session_before(windows) as windows.spark,
            closing(OpenWindow(windows)) as window,
        ):
            if self._may_start:
                window.session = partial(self._started, windows)
            yield window

    @contextmanager
    def one_session(self) -> Iterator[None]:
        """Keep the session of the block's first window open for the next windows."""
        with ExitStack() as sessions:
            self._sessions = sessions
            try:
                yield
            finally:
                self._sessions = None

    # --- inside ----------------------------------------------------------------------------------

    @property
    def _application(self) -> Application | None:
        return self.job if isinstance(self.job, Application) else None

    @property
    def _copies(self) -> bool:
        return isinstance(self.job, Copy) and not self.is_block

    @property
    def _has_spark(self) -> bool:
        return self.spark is not None or self.starts_spark

    @property
    def _may_start(self) -> bool:
        return self.starts_spark or (self.may_start_spark and self.spark is None)

    @property
    def _sink(self) -> Sink | None:
        return None if self.to is None or isinstance(self.to, Folder | Table) else self.to

    def _earlier(self) -> _Earlier:
        folder = self.folder
        files = (
            EarlierOutputs()
            if folder is None
            else EarlierOutputs(folder.root, folder.storage_options)
        )
        sink = self._sink
        return _Earlier(None if sink is None else partial(found_with_letters, sink.found), files)

    @contextmanager
    def _table_session(self, table: Table, stopped: Callable[[], bool]) -> Iterator[Any]:
        if self.spark is not None:
            yield self.spark
            return
        from kafka_ordered_ops.spark.job_session import job_session

        with job_session(f"table {table.name}", self.spark_conf, stopped, self.java_home) as spark:
            yield spark

    @contextmanager
    def _session_before(self, windows: OpenWindows) -> Iterator[Any]:
        """Yield the session before the job reads; `None` without one."""
        if self.starts_spark:
            with self._started(windows) as spark:
                yield spark
        else:
            yield self.spark

    @contextmanager
    def _started(self, windows: OpenWindows) -> Iterator[Any]:
        """Yield a session for the job's windows."""
        from kafka_ordered_ops.spark.environment import has_session
        from kafka_ordered_ops.spark.job_session import job_session

        name, stop = windows.plans[0].window_id, windows.stop
        tasks = None if windows.display is None else windows.display.report
        in_files = self.engine == Engine.LOCAL and windows.output is not None
        windows.show_phase("starting Spark")
        if self._sessions is not None and not has_session():
            # Then the window's own session, below, is the same one.
            session = job_session("windows", self.spark_conf, stop.__bool__, self.java_home)
            self._sessions.enter_context(session)
        with (
            windows.temporary_folder() if in_files else nullcontext() as root,
            job_session(
                f"window {name}", self.spark_conf, stop.__bool__, self.java_home, tasks
            ) as spark,
        ):
            windows.show_phase("running in Spark", "tasks")
            windows.show_session(spark)
            windows.local_root = root
            yield spark

    def _check_combination(self) -> None:
        if self.table is not None and not self._has_spark and self._application is None:
            raise ConfigError(
                f"table is {self.table.name!r}, which needs Spark: give spark=, a session with the table's catalogue, "
                "or an Application as the job"
            )
        if self._application is not None and self.spark is not None:
            raise ConfigError(
                "spark and an application are both given: an application creates its own session. Pass a function "
                "to use this session"
            )
        if not self._copies or self._has_spark:
            return
        if self.to is None:
            raise ConfigError(
                "there is nothing to do with the window's records: give output, a folder, a Table or a sink; or a job, a "
                "function or an Application"
            )
        if self._sink is not None:
            raise ConfigError(
                f"output is {shown(self.to)}, which takes a Spark DataFrame: give spark= as well, or a "
                "function that creates one"
            )
        if self.job.engine not in (None, Engine.LOCAL):
            raise ConfigError(
                f"engine is {str(self.job.engine)!r}, which reads with Spark: give spark=, or engine='local'"
            )

    def _submitted(self, windows: OpenWindows, job: Application) -> list[Staged]:
        """Run the application; return its outputs."""
        from kafka_ordered_ops.spark.job_checks import check_application

        path = check_application(job.path)
        if self.folder is not None or self.table is not None:
            return [*windows.submit(path, job.arguments, job.how)]
        report = windows.submit_alone(path, job.arguments, job.how)
        sink = self._sink
        output = Reported.found(report) if sink is None else found_with_letters(sink.found, report)
        if sink is None and output is None and not _is_hidden(report):
            return [Reported.of(report)]
        if output is None or sink is None:
            window_id = windows.plans[0].window_id
            raise SinkError(
                f"window {window_id}: the application wrote a hidden output, but run has no output= to publish it "
                "to. Nothing was committed: give the same output= (a folder or a sink) to run",
                window_id=window_id,
            )
        return [output]


@contextmanager
def _named_end_of_java() -> Iterator[None]:
    """Raise `JobFailedError` if the block fails because Spark's Java process has ended."""
    try:
        yield
    except Exception:
        # The job may have started its own session.
        if "pyspark" not in sys.modules:
            raise
        from kafka_ordered_ops.spark.environment import java_answers

        with java_answers():
            raise


@dataclass(frozen=True)
class _Earlier:
    """Finds outputs of earlier attempts: in a sink or a table first, then in files and reports."""

    sink: Found | None
    files: EarlierOutputs

    def __call__(self, result: Mapping[str, Any]) -> Staged | None:
        return (self.sink(result) if self.sink is not None else None) or self.files(result)

    def elsewhere(self, result: Mapping[str, Any]) -> Staged | None:
        """Return the output of a published window that is not in this place."""
        return self.files.elsewhere(result)

    def left(self, result: Mapping[str, Any]) -> Staged | None:
        """Return the output of another window of the group, if it was written to this place."""
        return (self.sink(result) if self.sink is not None else None) or self.files.left(result)


def _is_hidden(report: Mapping[str, Any]) -> bool:
    """Return whether an application reports an output that waits to be published."""
    return "claim_id" in report or isinstance(report.get("write"), Mapping)
