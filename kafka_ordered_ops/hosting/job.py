"""A host's job on a window's records: an application, a function with or without Spark, or a copy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.hosting.table_session import Found, table_session
from kafka_ordered_ops.hosting.window_handle import WindowHandle
from kafka_ordered_ops.spark.job_checks import (
    check_deployed,
    check_partitioned,
    check_reading,
    check_session,
    check_spark_conf,
    check_storage_options,
    check_submission,
    check_submit,
    check_writable,
)
from kafka_ordered_ops.spark.job_outputs import outputs_of
from kafka_ordered_ops.spec.destination import check_output
from kafka_ordered_ops.spec.engine import Engine, check_engine
from kafka_ordered_ops.spec.jobs import arguments_of, check_function
from kafka_ordered_ops.spec.spark_submit import SparkSubmit, submit_of
from kafka_ordered_ops.spec.table import Table

if TYPE_CHECKING:
    import pyarrow as pa

    from kafka_ordered_ops.output.places import OutputPlace
    from kafka_ordered_ops.output.staged_output import StagedOutput
    from kafka_ordered_ops.windows import ClientSettings, Staged


@dataclass(frozen=True, kw_only=True)
class Job:
    """One of: an application by spark-submit, a function with Spark, one without, or, with none of them, a copy.

    Args:
        application: path of a Python file.
        arguments: the application's.
        submit: the options of spark-submit; a `SparkSubmit`, or its arguments.
        spark_function: called as ``f(spark, window)``, with a session in this process and a `SparkWindow`.
        batch_function: called as ``f(batches, plan)``, with an iterator of Arrow batches in order.
        keywords: more arguments of the function; None: unknown yet.
        spark_conf: Spark's settings in this process.
        java_home: the Java of a session in this process; None: ``JAVA_HOME``, or ``java`` from the path.
        output: the folder for the windows' files, or a prefix in an object store; None: the job has its own sink.
        storage_options: credentials and settings of an object store.
        partition_by: the folders above the windows' folders: ``date`` or ``hour``.
        table: instead of `output`, the table for the windows' rows.
        engine: who reads Kafka.
    """

    application: object = None
    arguments: object = ()
    submit: SparkSubmit | Mapping[str, Any] | None = None
    spark_function: Callable[..., Any] | None = None
    batch_function: Callable[..., Any] | None = None
    keywords: Mapping[str, Any] | None = field(default_factory=dict)
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    java_home: Path | None = None
    output: str | None = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    partition_by: str | None = None
    table: Table | None = None
    engine: str = "python"

    def check_form(self, is_known: Callable[[Any], bool] = lambda _: True) -> None:
        """Raise `ConfigError` for errors that are known without a window; unknown values are not checked."""
        check_engine(self.engine)
        if self.output is not None and is_known(self.output):
            check_output(self.output)
        check_storage_options(self.storage_options, self.output)
        check_partitioned(self.partition_by, self.output)
        if self.table is not None and self.application is not None and self.spark_conf:
            raise ConfigError(
                "an application and Spark's settings of this process are both given: the application has its own session, "
                "which writes the table. Give its settings in submit, as {'conf': {...}}"
            )
        if self.table is not None and self.batch_function is not None:
            raise ConfigError(
                "a function of batches and a table are both given: Spark writes tables. Give a function with Spark"
            )
        if self.application is not None and is_known(self.application):
            _check_path(self.application)
        if self.spark_function is not None:
            check_function(self.spark_function, "spark", "window", keywords=self.keywords)
        if self.batch_function is not None:
            check_function(self.batch_function, "batches", "plan", keywords=self.keywords)
        if is_known(self.spark_conf):
            check_spark_conf(self.spark_conf)
        if is_known(self.submit) and (how := submit_of(self.submit)) is not None:
            check_submit(how)

    def check(self, client: ClientSettings, group_id: str) -> None:
        """Raise for a job that cannot run, before its window is planned and holds its records.

        Raises:
            ConfigError: the output folder, the application, the function, the engine or Spark's settings.
            SinkError: the output folder's file system fails.
        """
        self.check_form()
        if self.application is not None:
            arguments_of(self.arguments)
            how = submit_of(self.submit) or SparkSubmit()
            check_deployed(how, self.output, table=None if self.table is None else self.table.name)
            check_submission(self.application, client, how)
            # Another process has the session.
            check_reading(self.engine, client, conf=None, group_id=group_id)
        elif self.spark_function is not None or self.table is not None:
            check_session(self.spark_conf, java_home=self.java_home)
            check_reading(self.engine, client, conf=self.spark_conf, group_id=group_id)
        if self.output is not None:
            check_writable(self.output, self.storage_options, self.partition_by)

    def session(
        self, stopped: Callable[[], bool], say: Callable[[str], None] | None = None
    ) -> AbstractContextManager[Found]:
        """Return what a host keeps open until it has published: it yields what finds earlier outputs.

        Args:
            stopped: whether the job is to end.
            say: receives the lines that an application writes; None: they stay in its own log.

        Raises:
            ConfigError: the table is not as required; on entering.
        """
        if self.table is not None and self.application is not None:
            from kafka_ordered_ops.spark.applications.tables import table_application

            return nullcontext(
                table_application(
                    self.table,
                    str(self.application),
                    submit_of(self.submit),
                    arguments=arguments_of(self.arguments),
                    log_line=say,
                    cancelled=stopped,
                    storage_options=self.storage_options,
                )
            )
        return table_session(
            self.table,
            conf=self.spark_conf,
            stopped=stopped,
            copies=self.spark_function is None,
            java_home=self.java_home,
            storage_options=self.storage_options,
            output=self.output,
        )

    def place(self) -> OutputPlace | None:
        """Return where windows are to be published, to be looked at before they are claimed; None: not in files."""
        if self.output is None:
            return None
        # Imported late: it loads pyarrow.
        from kafka_ordered_ops.output.places import OutputPlace

        return OutputPlace(self.output, self.storage_options, self.partition_by)

    def deliver(self, windows: WindowHandle) -> list[Staged]:
        """Run the job; its output stays hidden until the commit.

        Raises:
            JobFailedError: the job failed, or its host has ended it.
            KafkaOrderedOpsError: as the job does.
        """
        if self.application is not None:
            arguments, how = arguments_of(self.arguments), submit_of(self.submit)
            return [*windows.submit(str(self.application), arguments, how)]
        if self.spark_function is not None:
            return self._with_spark(windows, self.spark_function)
        if self.batch_function is not None:
            return self._with_batches(windows, self.batch_function)
        return [*windows.copy()]

    def _with_spark(self, windows: WindowHandle, function: Callable[..., Any]) -> list[Staged]:
        from kafka_ordered_ops.spark.job_session import job_session

        name, stop = windows.plans[0].window_id, windows.stop
        tasks = None if windows.display is None else windows.display.report
        in_files = windows.engine == Engine.LOCAL and windows.output is not None
        windows.show_phase("starting Spark")
        try:
            with (
                windows.temporary_folder() if in_files else nullcontext() as root,
                job_session(
                    f"window {name}", self.spark_conf, stop.__bool__, self.java_home, tasks
                ) as spark,
            ):
                windows.show_phase("running in Spark", "tasks")
                windows.show_session(spark)
                windows.local_root = root
                returned = function(spark, SparkWindow(windows, spark), **(self.keywords or {}))
        except Exception as error:
            if stop:
                # The session was stopped, whatever error Java raises.
                raise stop.error(name) from error
            raise
        return windows.outputs(returned)

    def _with_batches(self, windows: WindowHandle, function: Callable[..., Any]) -> list[Staged]:
        """Call the function with batches from files that are read first: the order is known when all are complete."""
        with windows.temporary_folder() as folder:
            [staged] = windows.staged_below(folder)
            [plan] = windows.plans
            returned = function(_batches(staged, windows), plan, **(self.keywords or {}))
            # The function cannot write its results to the folder.
            return outputs_of([plan], None, returned, output=None, facts=staged.facts)


@dataclass(frozen=True)
class SparkWindow:
    """A function's argument besides its session: the window, with reading and writing."""

    _windows: WindowHandle
    spark: Any

    @property
    def plan(self) -> WindowPlan:
        """The window's exact offsets."""
        return self._windows.plans[0]

    @property
    def settings(self) -> ClientSettings:
        """The client settings."""
        return self._windows.client

    @property
    def staged(self) -> Staged | None:
        """The output that was written or reported so far."""
        return self._windows.staged[0] if self._windows.staged else None

    def read(self, *, ordered: bool | None = None) -> Any:
        """Return exactly the window's records, as a DataFrame; see `kafka_ordered_ops.spark.read_window`."""
        return self._windows.read(self.spark, ordered=ordered)

    def write(self, df: Any, path: str | os.PathLike[str] | None = None) -> Any:
        """Write the window's output, hidden until the task has committed; by default below `output`, or to `table`.

        Raises:
            ConfigError: there is an output already, or no folder for it.
            KafkaOrderedOpsError: as `kafka_ordered_ops.spark.write_window` does.
        """
        # Of several windows, as the command line copies them, all are written.
        return self._windows.write(df, path)[0]

    def report(self, staged: Staged) -> None:
        """Report your own sink's staged output, to be published after the commit."""
        self._windows.report([staged])


def _check_path(application: object) -> None:
    if not isinstance(application, str) or not application.strip() or "\0" in application:
        raise ConfigError(f"application is the path of a Python file, not {application!r}")


def _batches(staged: StagedOutput, windows: WindowHandle) -> Iterator[pa.RecordBatch]:
    import pyarrow.parquet as pq

    for file in sorted(Path(staged.stage_path).glob("part-*.parquet")):
        with pq.ParquetFile(file) as parquet:
            for batch in parquet.iter_batches():
                windows.stop.check(windows.plans[0].window_id)
                if batch.num_rows:
                    yield batch
