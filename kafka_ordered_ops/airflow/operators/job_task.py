"""The base of every task that runs a job on a window's records."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Final

from kafka_ordered_ops.airflow.compat import BaseOperator, mask
from kafka_ordered_ops.airflow.support.links import SparkJobLink
from kafka_ordered_ops.airflow.support.literals import check_native, is_literal
from kafka_ordered_ops.airflow.support.masking import secrets_of
from kafka_ordered_ops.airflow.support.places import (
    Output,
    check_known_output,
    check_place,
    opened_place,
    text_of,
)
from kafka_ordered_ops.core.arguments import path_text
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.hosting.full_paths import check_full_path, check_full_paths
from kafka_ordered_ops.hosting.job import BatchCall, Found, SparkCall, WindowJob
from kafka_ordered_ops.hosting.window_handle import Host, Stop, WindowHandle
from kafka_ordered_ops.spark.job_checks import check_partitioned
from kafka_ordered_ops.spec.destination import Folder
from kafka_ordered_ops.spec.engine import check_engine
from kafka_ordered_ops.spec.jobs import Application, Copy, Function
from kafka_ordered_ops.spec.spark_submit import submit_of
from kafka_ordered_ops.spec.table import Table, table_of_parameters

if TYPE_CHECKING:
    from kafka_ordered_ops.core.window.plan import WindowPlan
    from kafka_ordered_ops.output.places import OutputPlace
    from kafka_ordered_ops.spark import SparkSubmit
    from kafka_ordered_ops.windows import ClientSettings, Staged

_log = logging.getLogger(__name__)

#: Parameters that are lists or mappings.
_LISTS: Final = ("application_args", "op_kwargs", "spark_conf", "submit", "table_keys")


class JobTask(BaseOperator):
    """A task that runs a job on the records of a window.

    The job is one of: `application`, a Spark application that calls `kafka_ordered_ops.spark.current_window`,
    run by spark-submit; `python_callable`, called as ``f(spark, window)`` with a session in this process and an
    `OpenWindow`; `batch_callable`, called as ``f(batches, plan)`` with an iterator of Arrow batches in
    total order, without Spark; or none, and the records are copied to `output` as Parquet, without Spark.

    Args:
        application: path of a Python file. (templated)
        application_args: its arguments. (templated)
        submit: options of spark-submit; a `SparkSubmit`, or its arguments. (templated)
        python_callable: see above. It writes with ``window.write``, or has its own sink, which replaces an earlier
            attempt's output for the same window.
        batch_callable: see above; with its own sink.
        op_kwargs: more arguments for the function. (templated)
        spark_conf: Spark's settings for `python_callable` and `table`. (templated)
        output: the folder for the windows' outputs, which every process of the job sees, or a prefix in an object store:
            text, or an ``ObjectStoragePath``. A connection in it, ``s3://conn_id@bucket/lake/orders``, is that of the
            store. (templated)
        storage_conn_id: the connection of the store, of type ``aws``, ``google_cloud_platform``, ``wasb`` or ``adls``;
            None: the credentials of the worker's environment. It is read on the worker, when the task runs. (templated)
        partition_by: ``date`` or ``hour``: put windows' folders in `output` below ``date=2026-11-20/``, or below
            ``date=2026-11-20/hour=11/``: the UTC time at which they start.
        table: instead of `output`, an existing Delta or Iceberg table, ``lake.orders``. `python_callable` writes to it
            with ``window.write``; without one, records are copied by a Spark session in this process. An `application`
            writes to it with its window's ``write``, and is run once more after the commit, to publish. (templated)
        table_mode: how rows get into the table: ``append`` (the default), ``replace`` or ``merge``; see
            `kafka_ordered_ops.spark.TableSink`. (templated)
        table_keys: for ``merge``, the columns that identify a row. (templated)
        delete_tombstones: with ``merge``, a row whose ``value`` is null deletes the row with its key.
        ordered: total order by (timestamp, topic, partition, offset).
        engine: who reads Kafka: ``python``, ``connector`` or ``local``.

    Raises:
        ConfigError: two jobs, or none and no `output`; an async function or a generator; a relative path.
    """

    template_fields: Sequence[str] = (
        "application",
        "application_args",
        "op_kwargs",
        "output_root",
        "spark_conf",
        "storage_conn_id",
        "submit",
        "table",
        "table_keys",
        "table_mode",
    )
    operator_extra_links: Any = (SparkJobLink(),)
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "op_kwargs": "py",
        "spark_conf": "json",
        "submit": "py",
    }

    def __init__(
        self,
        *,
        application: str | os.PathLike[str] | None = None,
        application_args: Sequence[str] = (),
        submit: SparkSubmit | Mapping[str, Any] | None = None,
        python_callable: Callable[..., Any] | None = None,
        batch_callable: Callable[..., Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        spark_conf: Mapping[str, str] | None = None,
        output: Output = None,
        storage_conn_id: str | None = None,
        partition_by: str | None = None,
        table: str | None = None,
        table_mode: str | None = None,
        table_keys: str | Sequence[str] = (),
        delete_tombstones: bool = False,
        ordered: bool = True,
        engine: str = "python",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        jobs = {
            "application": application,
            "python_callable": python_callable,
            "batch_callable": batch_callable,
        }
        given = [name for name, job in jobs.items() if job is not None]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)}: a task runs one job, give one of them")
        if output is None and table is None and given in ([], ["application"]):
            raise ConfigError(
                "output= is missing: the folder for the windows' outputs. Or give table=, or python_callable or "
                "batch_callable, with its own sink"
            )
        text = path_text(application)
        self.application = application if text is None else text
        # Unchanged: they may be another task's result.
        self.application_args = application_args
        self.submit = submit
        self.python_callable = python_callable
        self.batch_callable = batch_callable
        self.op_kwargs = {} if op_kwargs is None else op_kwargs
        self.spark_conf = {} if spark_conf is None else spark_conf
        # Not `output`: Airflow uses this name for the XCom of a task.
        self.output_root = text_of(output)
        self.storage_conn_id = storage_conn_id
        self.partition_by = partition_by
        #: The output's root and storage options, once the task runs.
        self._opened: tuple[str | None, Mapping[str, Any] | None] | None = None
        self.table = table
        self.table_mode = table_mode
        self.table_keys = table_keys
        self.delete_tombstones = delete_tombstones
        self.ordered = ordered
        self.engine = engine
        #: The page of the attempt's Spark job, once it is known.
        self.spark_job_url: str | None = None
        #: The attempt, while it is executed.
        self._ti: Any = None
        self._stop = Stop("Airflow")
        self._check_literals()

    @classmethod
    def partial(cls, **given: Any) -> Any:
        """Raise `ConfigError` for a relative path while the DAG is parsed: mapped tasks are made when they run."""
        check_known_output(given.get("output"))
        _check_known_paths(given.get("application"), given.get("submit"))
        return super().partial(**given)

    def _do_render_template_fields(self, parent: Any, *args: Any, **kwargs: Any) -> None:
        """Render, and mask the secrets among the rendered settings of Spark, before Airflow stores and shows them."""
        super()._do_render_template_fields(parent, *args, **kwargs)
        for secret in secrets_of(self.spark_conf, self.submit):
            mask(secret)

    def on_kill(self) -> None:
        """Make the job end and commit nothing. Airflow calls it in a signal's handler."""
        self._stop.set()

    def check_job(self, settings: ClientSettings, group_id: str) -> None:
        """Raise for a job that cannot run, as `WindowJob.check` does, before its window is planned."""
        self._check_values()
        self._opened = opened_place(
            self.output_root, self.storage_conn_id, travels=self.application is not None
        )
        self._job().check(settings, group_id)

    def _check_literals(self) -> None:
        """Raise `ConfigError` for parameters that are known to be invalid without a run."""
        self._check_values(is_known=is_literal)
        self._job(is_known=is_literal).check_form()

    def _check_values(self, is_known: Callable[[Any], bool] = lambda _: True) -> None:
        check_engine(self.engine)
        for name in _LISTS:
            check_native(getattr(self, name), name)
        _check_known_paths(self.application, self.submit, is_known)
        given: object = self.op_kwargs
        if not isinstance(given, Mapping) and is_known(given):
            raise ConfigError(f"op_kwargs is a mapping, not a {type(given).__name__}")

    def job_place(self) -> OutputPlace | None:
        """Return where the job's files are published; None: it has none."""
        return self._job().place()

    def job_session(self) -> AbstractContextManager[Found]:
        """What is kept open until the window is published; it yields what finds earlier outputs."""
        return self._job().session(self._stop.__bool__, lambda line: _log.info("%s", line))

    def run_job(self, plan: WindowPlan, settings: ClientSettings) -> Staged:
        """Run the job; its output stays hidden until the commit.

        Raises:
            JobFailedError: the job failed, or Airflow has ended this attempt.
            KafkaOrderedOpsError: as the job does.
        """
        self._stop.check(plan.window_id)
        self.spark_job_url = None
        lacks = "this task needs output=, the folder for the windows' outputs"
        host = Host(self._stop, lacks, lambda line: _log.info("%s", line))
        job = self._job()
        windows = WindowHandle(
            [plan], settings, job.to, host, engine=self.engine, ordered=self.ordered
        )
        windows.on_page = self._show_page
        [staged] = job.deliver(windows)
        # A stop after the job's end but before the commit counts as well.
        self._stop.check(plan.window_id)
        return staged

    def _show_page(self, page: str) -> None:
        """Store the address of the task's link while the job runs: Airflow reads links at the end of an attempt."""
        self.spark_job_url = page
        _log.info("Spark job: %s", page)
        if self._ti is not None:
            self._ti.xcom_push(key=SparkJobLink().xcom_key, value=page)

    def _target(self, is_known: Callable[[Any], bool] = lambda _: True) -> Table | None:
        """The table, if it is known; raises `ConfigError`."""
        given = (self.table, self.table_mode, self.table_keys)
        if not all(map(is_known, given)):
            return None
        return table_of_parameters(
            *given, self.delete_tombstones, output=self.output_root, prefix="table_"
        )

    def _place(
        self, is_known: Callable[[Any], bool] = lambda _: True
    ) -> tuple[str | None, Mapping[str, Any] | None]:
        """The output's root and storage options, as far as they are known; raises `ConfigError`."""
        if self._opened is not None:
            return self._opened
        return check_place(self.output_root, self.storage_conn_id, is_known), None

    def _job(self, is_known: Callable[[Any], bool] = lambda _: True) -> WindowJob:
        """The job, as far as it is known: what is not is replaced by something valid."""
        return WindowJob(
            job=self._what(is_known),
            to=self._target(is_known) or self._output_folder(is_known),
            starts_spark=isinstance(self._call_of(), SparkCall) or self.table is not None,
            spark_conf=self.spark_conf if is_known(self.spark_conf) else {},
        )

    def _what(self, is_known: Callable[[Any], bool]) -> Copy | Function | Application:
        if self.application is not None:
            return Application(
                self.application if is_known(self.application) else "unknown.py",
                self.application_args if is_known(self.application_args) else (),
                self.submit if is_known(self.submit) else None,
                self.engine,
                self.ordered,
            )
        call = self._call_of()
        if call is None:
            # To a folder, this process copies alone.
            return Copy(None if self.table is None else self.engine, self.ordered)
        return Function(call, self.engine, self.ordered)

    def _output_folder(self, is_known: Callable[[Any], bool]) -> Folder | None:
        root, storage_options = self._place(is_known)
        if root is None:
            check_partitioned(self.partition_by, None)
            return None
        known = root if is_known(self.output_root) else "/unknown"
        return Folder(known, self.partition_by, storage_options)

    def _call_of(self) -> SparkCall | BatchCall | None:
        """Return the task's function as one of the window; None: it has none."""
        # The names of a mapping are known before its values are rendered.
        given: object = self.op_kwargs
        keywords = given if isinstance(given, Mapping) else None
        if self.python_callable is not None:
            return SparkCall(self.python_callable, keywords)
        if self.batch_callable is not None:
            return BatchCall(self.batch_callable, keywords)
        return None


def _check_known_paths(
    application: Any, submit: Any, is_known: Callable[[Any], bool] = is_literal
) -> None:
    """Raise `ConfigError` for a relative path of an application, or among its options, as far as they are known."""
    if is_known(application):
        check_full_path(application, what="application")
    if application is not None and is_known(submit):
        check_full_paths(submit_of(submit))
