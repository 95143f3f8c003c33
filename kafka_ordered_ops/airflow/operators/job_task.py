"""The base of every task that runs a job on a window's records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from kafka_ordered_ops.airflow.compat import AirflowException
from kafka_ordered_ops.airflow.support.links import SparkJobLink
from kafka_ordered_ops.airflow.support.places import Output, check_known_output, opened, text_of
from kafka_ordered_ops.airflow.support.values import ValueTask
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.templates import is_known, is_literal
from kafka_ordered_ops.delivery.full_paths import check_full_path, check_full_paths
from kafka_ordered_ops.delivery.host import Host, Stop
from kafka_ordered_ops.delivery.job import Found, WindowJob
from kafka_ordered_ops.delivery.open_windows import OpenWindows
from kafka_ordered_ops.delivery.summary import job_step
from kafka_ordered_ops.spec.destination import Destination
from kafka_ordered_ops.spec.jobs import Application, Copy, Function, Job, job_of
from kafka_ordered_ops.spec.spark_submit import submit_of
from kafka_ordered_ops.spec.table import Table

if TYPE_CHECKING:
    from kafka_ordered_ops.core.window.plan import WindowPlan
    from kafka_ordered_ops.core.window.window import Window
    from kafka_ordered_ops.windows import ClientSettings, Staged
    from kafka_ordered_ops.windows.sink import Place

_log = logging.getLogger(__name__)


class JobTask(ValueTask):
    """A task that runs a job on the records of a window.

    Args:
        output: where the records go: a path or a `Folder` that every process of the job sees, a prefix in an object store,
            or a `Table`. A connection in an address, ``s3://conn_id@bucket/lake/orders``, or of an
            ``ObjectStoragePath``, is used for the store. Another task's result may be a path, or a mapping of a
            folder's fields. Omit it for a job that delivers the records itself. (templated)
        job: the job on the records: a `Copy`, the default; a function of the `OpenWindow`, or a `Function`; or an
            `Application`. (templated)

    Raises:
        ConfigError: no `output` for a copy or an application; an async function or a generator; a relative path.
    """

    template_fields: Sequence[str] = ("output_to", "job")
    operator_extra_links: Any = (SparkJobLink(),)

    def __init__(
        self,
        *,
        output: Output = None,
        job: Job | Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # Not `output`: Airflow uses this name for the XCom of a task.
        self.output_to: Any = text_of(output)
        # Not the function itself: Airflow calls any callable in a template field.
        self.job: Any = _known_job(job)
        #: Where the windows go, once the task runs.
        self._to: Destination | None = None
        self._is_opened = False
        #: The page of the attempt's Spark job, once it is known.
        self.spark_job_url: str | None = None
        #: The attempt, while it is executed.
        self._ti: Any = None
        self._stop = Stop("Airflow")
        self._check_literals()

    @classmethod
    def partial(cls, **parameters: Any) -> Any:
        """Raise `ConfigError` for a relative path while the DAG is parsed: mapped tasks are created when they run."""
        check_known_output(text_of(parameters.get("output")))
        if "job" in parameters:
            _check_known_paths(_known_job(parameters["job"]))
        return super().partial(**parameters)

    def on_kill(self) -> None:
        """Stop the job without a commit. Airflow calls this method in a signal handler."""
        self._stop.set()

    def check_job(
        self, settings: ClientSettings, group_id: str, windows: Iterable[Window] = ()
    ) -> None:
        """Raise for a job that cannot run, as `WindowJob.check` does, before its window is planned."""
        _check_known_paths(self.job)
        self._to = opened(self.output_to, travels=isinstance(self.job, Application))
        self._is_opened = True
        self._work().check(settings, group_id, windows)

    def job_to_run(self) -> Job:
        """Return the job, once it is rendered; raise `ConfigError`."""
        return job_of(self.job)

    def job_place(self) -> Place | None:
        """Return where the windows are published; see `WindowJob.place`."""
        return self._work().place()

    def job_session(
        self, settings: ClientSettings, windows: Iterable[Window]
    ) -> AbstractContextManager[Found]:
        """Return a context that is open until the window is published; it yields a finder of earlier outputs."""
        return self._work().session(
            settings,
            list(windows),
            self._stop.__bool__,
            lambda line: _log.info("%s", line),
        )

    def run_job(self, plan: WindowPlan, settings: ClientSettings) -> Staged:
        """Run the job; its output stays hidden until the commit.

        Raises:
            JobFailedError: the job failed, or Airflow has ended this attempt.
            KafkaOrderedOpsError: an error of the job.
        """
        self._stop.check(plan.window_id)
        self.spark_job_url = None
        lacks = "this task needs output=, the folder for the windows' outputs"
        host = Host(self._stop, lacks, lambda line: _log.info("%s", line))
        work = self._work()
        windows = OpenWindows(
            [plan], settings, work.to, host, engine=work.engine, ordered=work.job.ordered
        )
        windows.on_page = self._show_page
        # A function may skip or fail its task on purpose.
        with job_step([plan], lambda line: _log.error("%s", line), (AirflowException,)):
            [staged] = work.deliver(windows)
        # A stop after the job's end but before the commit counts as well.
        self._stop.check(plan.window_id)
        return staged

    def _show_page(self, page: str) -> None:
        """Store the address of the task's link while the job runs: Airflow reads links at the end of an attempt."""
        self.spark_job_url = page
        _log.info("Spark job: %s", page)
        if self._ti is not None:
            self._ti.xcom_push(key=SparkJobLink().xcom_key, value=page)

    def _check_literals(self) -> None:
        """Raise `ConfigError` for parameters that are known to be invalid without a run."""
        check_known_output(self.output_to)
        _check_known_paths(self.job)
        if self.output_to is None and isinstance(self.job, Copy | Application):
            raise ConfigError(
                "output= is missing: give a folder or a Table for the windows, or give job= a function with its own sink"
            )
        to = self.output_to if isinstance(self.output_to, Table) else None
        if (
            isinstance(self.job, Copy | Function | Application)
            and is_known(self.job)
            and is_known(to)
        ):
            WindowJob(job=self.job, to=to, may_start_spark=True).check_form()

    def _work(self) -> WindowJob:
        if not self._is_opened:
            raise AssertionError("the job is checked before it is used")
        return WindowJob(job=self.job_to_run(), to=self._to, may_start_spark=True)


def _known_job(job: Any) -> Any:
    """Return a job as a value if it is known; return another task's result unchanged."""
    if isinstance(job, Copy | Function | Application):
        return job
    return job_of(job) if callable(job) or is_literal(job) else job


def _check_known_paths(job: Any) -> None:
    """Raise `ConfigError` for a relative path of an application, or among its options, as far as they are known."""
    if not isinstance(job, Application):
        return
    if is_literal(job.path):
        check_full_path(job.path, what="application")
    if is_literal(job.submit) and not isinstance(job.submit, Mapping):
        check_full_paths(submit_of(job.submit))
