"""What every task that runs a job on a window's records has in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from kafka_ordered_ops.airflow.compat import BaseOperator
from kafka_ordered_ops.airflow.support.jobs import (
    Job,
    Run,
    Stop,
    application_job,
    batch_job,
    copy_job,
    spark_job,
)
from kafka_ordered_ops.airflow.support.literals import is_literal
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.spark.job_checks import (
    check_engine,
    check_function,
    check_output,
    check_reading,
    check_session,
    check_spark_conf,
    check_submission,
    check_submit,
    check_writable,
)

if TYPE_CHECKING:
    from kafka_ordered_ops.core.window.plan import WindowPlan
    from kafka_ordered_ops.spark import SparkSubmit
    from kafka_ordered_ops.windows import ClientSettings, Staged


class JobTask(BaseOperator):
    """A task that runs a job on the records of a window.

    The job is one of: `application`, a Spark application that calls `kafka_ordered_ops.spark.current_window`,
    run by spark-submit; `python_callable`, called as ``f(spark, window)`` with a session in this process and a
    `jobs.SparkWindow`; `batch_callable`, called as ``f(batches, plan)`` with an iterator of Arrow batches in
    total order, without Spark; or none, and the records are copied to `output` as Parquet, without Spark.

    Args:
        application: path of a Python file. (templated)
        application_args: its arguments. (templated)
        submit: how spark-submit is run; a `SparkSubmit`, or its arguments.
        python_callable: see above. It writes with ``window.write``, or has a sink of its own that replaces
            what an earlier try wrote for the same window.
        batch_callable: see above; with a sink of its own.
        op_kwargs: more arguments for the function. (templated)
        spark_conf: Spark's settings for `python_callable`.
        output: the folder for the windows' outputs, which every process of the job sees. (templated)
        ordered: total order by (timestamp, topic, partition, offset).
        engine: who reads Kafka: ``python``, ``jvm`` or ``stage``.

    Raises:
        ConfigError: two jobs, or none and no `output`; a function that does nothing when it is called.
    """

    template_fields: Sequence[str] = (
        "application",
        "application_args",
        "op_kwargs",
        "output_root",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"op_kwargs": "py"}

    def __init__(
        self,
        *,
        application: str | None = None,
        application_args: Sequence[str] = (),
        submit: SparkSubmit | Mapping[str, Any] | None = None,
        python_callable: Callable[..., Any] | None = None,
        batch_callable: Callable[..., Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        spark_conf: Mapping[str, str] | None = None,
        output: str | None = None,
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
        if output is None and given in ([], ["application"]):
            raise ConfigError(
                "output= is missing: the folder for the windows' outputs. Or give python_callable or "
                "batch_callable, with a sink of its own"
            )
        self.application = application
        # As they are given: they may come from another task.
        self.application_args = application_args
        self.submit = submit
        self.python_callable = python_callable
        self.batch_callable = batch_callable
        self.op_kwargs = {} if op_kwargs is None else op_kwargs
        self.spark_conf = {} if spark_conf is None else spark_conf
        # Not `output`: that is what Airflow calls the XCom of a task.
        self.output_root = output
        self.ordered = ordered
        self.engine = engine
        self._stop = Stop()
        self._check_literals()

    def on_kill(self) -> None:
        """Has the job ended, and nothing committed. Airflow calls it in a signal's handler."""
        self._stop.set()

    def check_job(self, settings: ClientSettings, group: str) -> None:
        """Raises for a job that cannot run: before its window is planned, which would hold its records.

        Raises:
            ConfigError: the output folder, the application, the function, the engine or Spark's settings.
            SinkError: the output folder's file system fails.
        """
        self._check_form()
        in_process: Mapping[str, Any] | None = None
        if self.application is not None:
            from kafka_ordered_ops.spark import SparkSubmit

            self._arguments()
            check_submission(self.application, settings, self._how() or SparkSubmit())
        elif self._runs_spark:
            in_process = self.spark_conf
            check_session(self.spark_conf, java_home=None)
        if self.application is not None or self._runs_spark:
            check_reading(self.engine, settings, conf=in_process, group=group)
        if self.output_root is not None:
            check_writable(self.output_root)

    @property
    def _runs_spark(self) -> bool:
        """Whether the job is a function with a session in this process."""
        return self.python_callable is not None

    def _check_literals(self) -> None:
        """Raises `ConfigError` for what can be seen to be wrong without a run."""
        self._check_form(is_known=is_literal)
        check_spark_conf(self.spark_conf)
        how = self._how()
        if how is not None:
            check_submit(how)

    def _check_form(self, is_known: Callable[[Any], bool] = lambda _: True) -> None:
        check_engine(self.engine)
        if self.output_root is not None and is_known(self.output_root):
            check_output(self.output_root)
        if self.application is not None and is_known(self.application):
            _check_path(self.application)
        # The names of a mapping are known before its values are rendered.
        keywords: Any = self.op_kwargs
        if isinstance(keywords, Mapping):
            self._check_functions(keywords)
        elif is_known(keywords):
            raise ConfigError(f"op_kwargs is a mapping, not a {type(keywords).__name__}")
        else:
            self._check_functions(None)

    def _check_functions(self, keywords: Mapping[str, Any] | None) -> None:
        """Raises `ConfigError` for a function that cannot be called with what it is given."""
        if self.python_callable is not None:
            check_function(self.python_callable, "spark", "window", keywords=keywords)
        if self.batch_callable is not None:
            check_function(self.batch_callable, "batches", "plan", keywords=keywords)

    def run_job(self, plan: WindowPlan, settings: ClientSettings) -> Staged:
        """Brings the records to where they belong, hidden until the commit.

        Raises:
            JobFailedError: the job failed, or Airflow has ended this try.
            KafkaOrderedOpsError: as the job does.
        """
        self._stop.check(plan.window_id)
        run = Run(
            plan=plan,
            settings=settings,
            stop=self._stop,
            output=self.output_root,
            ordered=self.ordered,
            engine=self.engine,
        )
        staged = self._job()(run)
        # What is told after the job has ended, but before anything is committed, counts as well.
        self._stop.check(plan.window_id)
        return staged

    def _job(self) -> Job:
        if self.application is not None:
            return application_job(self.application, self._arguments(), self._how())
        if self.python_callable is not None:
            return spark_job(self.python_callable, self.spark_conf, self.op_kwargs)
        if self.batch_callable is not None:
            return batch_job(self.batch_callable, self.op_kwargs)
        return copy_job

    def _arguments(self) -> list[str]:
        if isinstance(self.application_args, str):
            raise ConfigError(
                f"application_args is one text, {self.application_args!r}: give a list of arguments"
            )
        return [str(one) for one in self.application_args]

    def _how(self) -> SparkSubmit | None:
        from kafka_ordered_ops.spark import DeployMode, SparkSubmit

        if self.submit is None or isinstance(self.submit, SparkSubmit):
            return self.submit
        try:
            arguments = dict(self.submit)
            if "deploy_mode" in arguments:
                arguments["deploy_mode"] = DeployMode(arguments["deploy_mode"])
            return SparkSubmit(**arguments)
        except ConfigError:
            raise
        except (AttributeError, TypeError, ValueError) as error:
            raise ConfigError(f"submit= is no way to run spark-submit: {error}") from error


def _check_path(application: object) -> None:
    if not isinstance(application, str) or not application.strip() or "\0" in application:
        raise ConfigError(f"application is the path of a Python file, not {application!r}")
