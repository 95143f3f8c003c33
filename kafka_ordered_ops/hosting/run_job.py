"""The work of one `run` or `open` on a window: what runs on its records, and where they go."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from kafka_ordered_ops.core.arguments import shown
from kafka_ordered_ops.core.errors import ConfigError, SinkError
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.hosting.open_window import OpenWindow
from kafka_ordered_ops.hosting.window_handle import Stop, WindowHandle
from kafka_ordered_ops.output.places import OutputPlace
from kafka_ordered_ops.output.reported import EarlierOutputs, Reported
from kafka_ordered_ops.spark.environment import java_answers
from kafka_ordered_ops.spark.job_checks import (
    check_application,
    check_deployed,
    check_partitioned,
    check_reading,
    check_spark,
    check_submission,
    check_writable,
)
from kafka_ordered_ops.spec.destination import Destination, Folder, Sink
from kafka_ordered_ops.spec.engine import Engine
from kafka_ordered_ops.spec.jobs import Application, Copy, Function, Job
from kafka_ordered_ops.spec.table import Table
from kafka_ordered_ops.windows import ClientSettings, Staged

if TYPE_CHECKING:
    from kafka_ordered_ops.spark import TableSink
    from kafka_ordered_ops.spark.applications.tables import TableApplication

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Earlier:
    """Finds what earlier attempts have delivered: in a sink first, then in files and reports."""

    sink: Callable[[Mapping[str, Any]], Staged | None] | None
    files: EarlierOutputs

    def __call__(self, result: Mapping[str, Any]) -> Staged | None:
        return (self.sink(result) if self.sink is not None else None) or self.files(result)

    def elsewhere(self, result: Mapping[str, Any]) -> Staged | None:
        """Return the output of a published window that is not in this place."""
        return self.files.elsewhere(result)

    def left(self, result: Mapping[str, Any]) -> Staged | None:
        """Return the output of another window of the group, if it was written to this place."""
        return (self.sink(result) if self.sink is not None else None) or self.files.left(result)


@dataclass(frozen=True, eq=False)
class RunJob:
    """The job of a window; checked when it is created, before the window is planned.

    Raises:
        ConfigError: it could not run, or the window could not be published.
    """

    settings: ClientSettings
    group_id: str
    to: Destination | None
    job: Job
    spark: Any
    window: Window
    #: True if a block does the work: then an output is not required.
    is_block: bool = False

    def __post_init__(self) -> None:
        if self.spark is not None:
            check_spark(self.spark)
        self._check_combination()
        folder, application = self.folder, self._application
        if folder is not None:
            check_partitioned(folder.partition_by, folder.root, [self.window])
        if application is not None:
            table = None if self.table is None else self.table.name
            root = None if folder is None else folder.root
            check_deployed(application.how, root, table=table)
            check_submission(application.path, self.settings, application.how)
        if self.spark is not None or application is not None:
            conf = None if self.spark is None else dict[str, str]()
            check_reading(self._engine, self.settings, conf=conf, group_id=self.group_id)
        if folder is not None:
            check_writable(folder.root, folder.storage_options, folder.partition_by)
        if self._table_sink is not None and self._copies:
            self._table_sink.check_copy()

    @property
    def folder(self) -> Folder | None:
        """The folder for the window's files."""
        return self.to if isinstance(self.to, Folder) else None

    @property
    def table(self) -> Table | None:
        """The table for the window's rows."""
        return self.to if isinstance(self.to, Table) else None

    @property
    def publishes_to(self) -> OutputPlace | None:
        """Where files are published; None: they are not."""
        folder = self.folder
        if folder is None:
            return None
        return OutputPlace(folder.root, folder.storage_options, folder.partition_by)

    @property
    def earlier(self) -> _Earlier:
        """What finds the outputs of earlier attempts."""
        folder = self.folder
        files = (
            EarlierOutputs(None, None)
            if folder is None
            else EarlierOutputs(folder.root, folder.storage_options)
        )
        return _Earlier(self._find, files)

    def write(self, plan: WindowPlan) -> Staged:
        """Write the window."""
        with java_answers(), self.opened(plan) as window:
            match self.job:
                case Application():
                    return self._submitted(window, self.job)
                case Function():
                    return window.outputs(self.job.call(window))[0]
            if self.spark is None:
                return window.copy()
            rows = window.read()
            return window.write(
                rows if self._table_sink is None else self._table_sink.fitting(rows)
            )

    @contextlib.contextmanager
    def opened(self, plan: WindowPlan) -> Iterator[OpenWindow]:
        """Open the window until the block ends."""
        folder = self.folder
        handle = WindowHandle(
            [plan],
            self.settings,
            output=None if folder is None else folder.root,
            ordered=self.job.ordered,
            engine=self._engine,
            lacks="there is no folder to write the window to: give output=, or write(df, path) one",
            stop=Stop("this process"),
            say=_log.info,
            storage_options=None if folder is None else folder.storage_options,
            table=None if self._application is not None else self.table,
            partition_by=None if folder is None else folder.partition_by,
        )
        window = OpenWindow(handle, spark=self.spark, sink=self._sink)
        with contextlib.closing(window):
            yield window

    @property
    def _application(self) -> Application | None:
        return self.job if isinstance(self.job, Application) else None

    @property
    def _copies(self) -> bool:
        return isinstance(self.job, Copy) and not self.is_block

    @cached_property
    def _table_sink(self) -> TableSink | None:
        if self.table is None or self._application is not None:
            return None
        from kafka_ordered_ops.spark.write.table_windows import table_sink

        return table_sink(self.spark, self.table)

    @property
    def _find(self) -> Callable[[Mapping[str, Any]], Staged | None] | None:
        """What looks for an earlier attempt's output elsewhere than in files."""
        if self._table_sink is None:
            return self._by if self._sink is None else self._sink.found
        from kafka_ordered_ops.spark.write.table_windows import found_in_table

        return partial(found_in_table, self._table_sink)

    @cached_property
    def _by(self) -> TableApplication | None:
        """The application that writes and publishes the table's rows."""
        if self.table is None or (application := self._application) is None:
            return None
        from kafka_ordered_ops.spark.applications.tables import table_application

        return table_application(
            self.table, application.path, application.how, arguments=application.arguments
        )

    @property
    def _sink(self) -> Sink | None:
        if self._table_sink is not None:
            return self._table_sink
        return None if self.to is None or isinstance(self.to, Folder | Table) else self.to

    @property
    def _engine(self) -> str:
        if self.job.engine is not None:
            return str(self.job.engine)
        return (Engine.LOCAL if self._copies and self.spark is None else Engine.PYTHON).value

    def _check_combination(self) -> None:
        is_submitted = self._application is not None
        if self.table is not None and self.spark is None and not is_submitted:
            raise ConfigError(
                f"output is the table {self.table.name!r}, which Spark writes: give spark=, a session with the table's "
                "catalogue, or an Application as the job"
            )
        if is_submitted and self.spark is not None:
            raise ConfigError(
                "the job is an Application, and spark is given: an application creates its own session. Pass a function "
                "to use this session"
            )
        if not self._copies or self.spark is not None:
            return
        if self.to is None:
            raise ConfigError(
                "there is nothing to do with the window's records: give output= (a folder, a Table or a sink), or job="
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

    def _submitted(self, window: OpenWindow, job: Application) -> Staged:
        """Run the application; return its output."""
        path = check_application(job.path)
        if self.folder is not None or self.table is not None:
            return window.submit(path, job.arguments, job.how)
        told = window.submit_alone(path, job.arguments, job.how)
        found = Reported.found(told) if self._sink is None else self._sink.found(told)
        if self._sink is None and found is None and not _is_hidden(told):
            return Reported.of(told)
        if found is None or self._sink is None:
            raise SinkError(
                f"window {window.window_id}: the application wrote a hidden output, but run has no output= to publish it "
                "to. Nothing was committed: give the same output= (a folder or a sink) to run",
                window_id=window.window_id,
            )
        return found


def _is_hidden(report: Mapping[str, Any]) -> bool:
    """Return whether an application reports an output that waits to be published."""
    return "claim_id" in report or isinstance(report.get("write"), Mapping)
