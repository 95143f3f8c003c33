"""The one job of windows: what runs on their records, where they go, and with which Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka_ordered_ops.core.arguments import shown
from kafka_ordered_ops.core.errors import ConfigError, SinkError
from kafka_ordered_ops.hosting.open_window import OpenWindow
from kafka_ordered_ops.hosting.window_handle import WindowHandle
from kafka_ordered_ops.output.writing.reported import EarlierOutputs, Reported
from kafka_ordered_ops.spark.environment import java_answers
from kafka_ordered_ops.spark.job_checks import (
    check_application,
    check_deployed,
    check_partitioned,
    check_reading,
    check_session,
    check_spark,
    check_spark_conf,
    check_submission,
    check_submit,
    check_writable,
)
from kafka_ordered_ops.spark.job_outputs import outputs_of
from kafka_ordered_ops.spec.destination import Destination, Folder, Sink
from kafka_ordered_ops.spec.engine import Engine
from kafka_ordered_ops.spec.jobs import Application, Copy, Function, Job, check_function
from kafka_ordered_ops.spec.table import Table

if TYPE_CHECKING:
    from kafka_ordered_ops.core.window.window import Window
    from kafka_ordered_ops.output.places import OutputPlace
    from kafka_ordered_ops.spark import TableSink
    from kafka_ordered_ops.windows import ClientSettings, Staged

#: Finds what an earlier attempt has written.
Found = Callable[[Mapping[str, Any]], "Staged | None"]


@dataclass(kw_only=True, eq=False)
class WindowJob:
    """A job, where its windows go, and the Spark that it has in this process.

    Args:
        job: what runs on the records.
        to: where they go; None: the job delivers them itself.
        spark: the caller's session.
        starts_spark: without one, whether a session is started for the job, or the running one used.
        spark_conf: settings of such a session.
        java_home: its Java; None: ``JAVA_HOME``, or ``java`` from the path.
        is_block: whether the caller's own code does the work, in place of the job.
    """

    job: Job
    to: Destination | None = None
    spark: Any = None
    starts_spark: bool = False
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    java_home: Path | None = None
    is_block: bool = False
    #: While the session of a table is open.
    _table_sink: TableSink | None = field(default=None, init=False, repr=False)

    # --- before a window is planned --------------------------------------------------------------

    def check_form(self) -> None:
        """Raise `ConfigError` for errors that are known without a window."""
        application = self._application
        if self.table is not None and application is not None and self.spark_conf:
            raise ConfigError(
                "an application and Spark's settings of this process are both given: the application has its own session, "
                "which writes the table. Give its settings in submit, as {'conf': {...}}"
            )
        if self.table is not None and self._call_of_batches:
            raise ConfigError(
                "a function of batches and a table are both given: Spark writes tables. Give a function with Spark"
            )
        check_spark_conf(self.spark_conf)
        if application is not None:
            check_submit(application.how)

    def check(
        self, settings: ClientSettings, group_id: str, windows: Iterable[Window] = ()
    ) -> None:
        """Raise for a job that cannot run, before its windows are planned and hold their records.

        Raises:
            ConfigError: the job, the destination, the engine, Spark's settings; or a window that does not fit the folder.
            SinkError: the folder's file system fails.
        """
        self.check_form()
        self._check_combination()
        folder, application = self.folder, self._application
        if folder is not None:
            check_partitioned(folder.partition_by, folder.root, windows)
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
        if folder is not None:
            check_writable(folder.root, folder.storage_options, folder.partition_by)

    def place(self) -> OutputPlace | None:
        """Return where windows are to be published, to be looked at before they are claimed; None: not in files."""
        if (folder := self.folder) is None:
            return None
        # Imported late: it loads pyarrow.
        from kafka_ordered_ops.output.places import OutputPlace

        return OutputPlace(folder.root, folder.storage_options, folder.partition_by)

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
        """Who reads Kafka."""
        if self.job.engine is not None:
            return str(self.job.engine)
        copies_alone = self._copies and not self._has_spark
        return (Engine.LOCAL if copies_alone else Engine.PYTHON).value

    # --- around the delivery ---------------------------------------------------------------------

    @contextmanager
    def session(
        self,
        stopped: Callable[[], bool] = lambda: False,
        say: Callable[[str], None] | None = None,
    ) -> Iterator[Found]:
        """Keep open what the windows need until they are published; yield what finds earlier outputs.

        A table is checked in a session that lasts as long as the block, and the job uses the same. A session that was there
        before is left alone.

        Args:
            stopped: whether the job is to end.
            say: receives the lines that an application writes; None: they stay in its own log.

        Raises:
            ConfigError: there is no Spark, or the table is not as required.
        """
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
            from kafka_ordered_ops.spark.write.table_windows import found_in_table, table_sink

            with self._table_session(self.table, stopped) as spark:
                sink = self._table_sink = table_sink(spark, self.table)
                if self._copies:
                    sink.check_copy()
                try:
                    yield _Earlier(partial(found_in_table, sink), EarlierOutputs())
                finally:
                    self._table_sink = None

    def deliver(self, windows: WindowHandle) -> list[Staged]:
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
                    returned = job.call(window)
                    if self._call_of_batches:
                        # It cannot write to the folder.
                        return outputs_of(
                            windows.plans, None, returned, output=None, facts=window.facts
                        )
                    return window.outputs(returned)
                if self._has_spark and self.table is None:
                    window.write(window.read())
                    return window.outputs(None)
                return [*windows.copy()]
        except Exception as error:
            if windows.stop and self.starts_spark:
                # The session was stopped, whatever error Java raises.
                raise windows.stop.error(windows.plans[0].window_id) from error
            raise

    @contextmanager
    def opened(self, windows: WindowHandle) -> Iterator[OpenWindow]:
        """Open windows, as the user's code gets them, until the block ends."""
        windows.table_sink = self._table_sink
        with (
            java_answers(),
            self._job_session(windows) as spark,
            closing(OpenWindow(windows, spark=spark, sink=self._sink)) as window,
        ):
            yield window

    # --- inside ----------------------------------------------------------------------------------

    @property
    def _application(self) -> Application | None:
        return self.job if isinstance(self.job, Application) else None

    @property
    def _copies(self) -> bool:
        return isinstance(self.job, Copy) and not self.is_block

    @property
    def _call_of_batches(self) -> bool:
        return isinstance(self.job, Function) and isinstance(self.job.call, BatchCall)

    @property
    def _has_spark(self) -> bool:
        return self.spark is not None or self.starts_spark

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
        return _Earlier(None if self._sink is None else self._sink.found, files)

    @contextmanager
    def _table_session(self, table: Table, stopped: Callable[[], bool]) -> Iterator[Any]:
        if self.spark is not None:
            yield self.spark
            return
        from kafka_ordered_ops.spark.job_session import job_session

        with job_session(f"table {table.name}", self.spark_conf, stopped, self.java_home) as spark:
            yield spark

    @contextmanager
    def _job_session(self, windows: WindowHandle) -> Iterator[Any]:
        """Yield the session that the job works in; None: it has none."""
        if self.spark is not None or not self.starts_spark:
            yield self.spark
            return
        from kafka_ordered_ops.spark.job_session import job_session

        name, stop = windows.plans[0].window_id, windows.stop
        tasks = None if windows.display is None else windows.display.report
        in_files = self.engine == Engine.LOCAL and windows.output is not None
        windows.show_phase("starting Spark")
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
                f"table is {self.table.name!r}, which Spark writes: give spark=, a session with the table's catalogue, "
                "or application="
            )
        if self._application is not None and self.spark is not None:
            raise ConfigError(
                "application and spark are both given: an application creates its own session. Pass a function "
                "to use this session"
            )
        if not self._copies or self._has_spark:
            return
        if self.to is None:
            raise ConfigError(
                "there is nothing to do with the window's records: give output= (a folder or a sink), table=, function= "
                "or application="
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

    def _submitted(self, windows: WindowHandle, job: Application) -> list[Staged]:
        """Run the application; return its outputs."""
        path = check_application(job.path)
        if self.folder is not None or self.table is not None:
            return [*windows.submit(path, job.arguments, job.how)]
        told = windows.submit_alone(path, job.arguments, job.how)
        found = Reported.found(told) if self._sink is None else self._sink.found(told)
        if self._sink is None and found is None and not _is_hidden(told):
            return [Reported.of(told)]
        if found is None or self._sink is None:
            window_id = windows.plans[0].window_id
            raise SinkError(
                f"window {window_id}: the application wrote a hidden output, but run has no output= to publish it "
                "to. Nothing was committed: give the same output= (a folder or a sink) to run",
                window_id=window_id,
            )
        return [found]


@dataclass(frozen=True)
class SparkCall:
    """A host's function ``f(spark, window, ...)``, as a function of the window.

    Args:
        function: the user's.
        keywords: more arguments; None: they are not known yet.

    Raises:
        ConfigError: it cannot be called so.
    """

    function: Callable[..., Any]
    keywords: Mapping[str, Any] | None = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_function(self.function, "spark", "window", keywords=self.keywords)

    def __call__(self, window: OpenWindow) -> Any:
        """Call it with the window and its session."""
        return self.function(window.spark, window, **(self.keywords or {}))


@dataclass(frozen=True)
class BatchCall:
    """A host's function ``f(batches, plan, ...)``, as a function of the window; see `SparkCall`."""

    function: Callable[..., Any]
    keywords: Mapping[str, Any] | None = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_function(self.function, "batches", "plan", keywords=self.keywords)

    def __call__(self, window: OpenWindow) -> Any:
        """Call it with the window's batches, in total order."""
        return self.function(window.to_batches(), window.plan, **(self.keywords or {}))


@dataclass(frozen=True)
class _Earlier:
    """Finds what earlier attempts have delivered: in a sink or a table first, then in files and reports."""

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
