"""The base of a task that may leave its worker while an application runs in a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from kafka_ordered_ops.airflow.compat import Context, conf, ends_drivers
from kafka_ordered_ops.airflow.operators.deliver_task import DeliverTask
from kafka_ordered_ops.airflow.operators.job_task import JobTask
from kafka_ordered_ops.airflow.support.places import opened
from kafka_ordered_ops.core.errors import (
    ConfigError,
    JobFailedError,
    KafkaOrderedOpsError,
    UnknownWindowError,
)
from kafka_ordered_ops.core.templates import is_known
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.delivery.summary import job_step
from kafka_ordered_ops.spec.destination import Folder
from kafka_ordered_ops.spec.jobs import Application, Copy, Function, Job

if TYPE_CHECKING:
    from kafka_ordered_ops.airflow.support.times import WindowTimes
    from kafka_ordered_ops.core.window.plan import WindowPlan
    from kafka_ordered_ops.core.window.window import Window
    from kafka_ordered_ops.spark.applications.detached import DetachedRun
    from kafka_ordered_ops.spark.applications.yarn import ResourceManager
    from kafka_ordered_ops.windows import ClientSettings, OrderedWindows, Staged


class DeferrableTask(JobTask, DeliverTask):
    """A task that runs a job, and may be deferred while an application runs in a cluster.

    Each execution of the task looks first for a driver that an earlier one has submitted. So a deferred task that resumes
    and a retry after a worker's death take the same way: a driver that runs is waited for, one that has succeeded is
    committed. A driver from before the task was cleared is ended: a clear asks for a new one.

    Args:
        deferrable: whether the task is deferred while its application runs; `None` means Airflow's
            ``[operators] default_deferrable`` for applications that allow it.

    Raises:
        ConfigError: `deferrable` is set for a job that does not allow it.
    """

    def __init__(self, *, deferrable: bool | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.deferrable = deferrable
        #: Knows the drivers of a task that is deferred; `None` for any other task.
        self._manager: ResourceManager | None = None
        #: The driver that an earlier execution has submitted, or this one.
        self._run: DetachedRun | None = None
        #: The name by which the drivers of this task are found.
        self._name = ""
        #: How many tries the task has in all: each clear adds some, a retry does not.
        self._tries_max = 0
        #: The trigger's event, in a task that resumes.
        self._event: Mapping[str, Any] | None = None
        if isinstance(self.job, Copy | Function | Application) and is_known(self.job):
            self._may_defer(self.job)

    def check_job(
        self, settings: ClientSettings, group_id: str, windows: Iterable[Window] = ()
    ) -> None:
        """Raise for a job that cannot run, or whose drivers cannot be asked for, before its window is planned."""
        super().check_job(settings, group_id, windows)
        self._manager = self._run = None
        if not self._may_defer(self.job_to_run()):
            return
        try:
            manager = _manager_of(self._application)
            manager.check()
        except ConfigError as error:
            if self.deferrable:
                raise
            self.log.warning("The task is not deferred: %s", error)
        else:
            self._manager = manager

    def plan(self, windows: OrderedWindows, context: Context, times: WindowTimes) -> WindowPlan:
        """Return the plan of a driver that was submitted before; otherwise plan the window, or resume its plan.

        Raises:
            JobFailedError: the files of the driver that a deferred task has waited for are gone.
        """
        plan = self._plan_of_driver(windows, context, times)
        if plan is not None:
            self.log.info(
                "Window %s: its driver with tag %s was submitted before, for attempt %d.",
                plan.window_id,
                self._run.tag if self._run else "",
                plan.attempt,
            )
            return plan
        if self._event is not None:
            raise JobFailedError(
                "the driver that this task has waited for is gone, or belongs to an older attempt. Nothing was committed: run the "
                "task again"
            )
        return super().plan(windows, context, times)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Commit and publish what the driver has written, as an execution without a deferral does."""
        self._event = event
        result: dict[str, Any] = self.execute(context)
        return result

    def resume_execution(
        self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context
    ) -> Any:
        """Continue after the trigger; if that has failed or timed out, end the driver."""
        from airflow.sdk.bases.operator import TRIGGER_FAIL_REPR

        if next_method == TRIGGER_FAIL_REPR:
            self._end_drivers(context)
        return super().resume_execution(next_method, next_kwargs, context)

    def run_job(self, plan: WindowPlan, settings: ClientSettings) -> Staged:
        """Run the job, or defer the task until its driver has ended; see `JobTask.run_job`."""
        if self._manager is None:
            return super().run_job(plan, settings)
        with job_step([plan], lambda line: self.log.error("%s", line)):
            return self._awaited(plan, settings, self._manager)

    def finished(self) -> None:
        """Remove the files of the driver, whose output is committed."""
        if self._run is not None:
            self._run.remove()

    def _awaited(
        self, plan: WindowPlan, settings: ClientSettings, manager: ResourceManager
    ) -> Staged:
        """Return the driver's output, or defer the task; submit a driver if there is none."""
        self._stop.check(plan.window_id)
        if self._run is None:
            self._run = self._submitted(plan, settings, manager)
        run, application = self._run, manager.application(self._run.tag)
        has_succeeded = application is not None and application.has_succeeded
        if self._event is not None and self._event.get("timed_out") and not has_succeeded:
            run.discard()
            raise JobFailedError(
                f"the driver of window {plan.window_id} was ended: it ran longer than {self._application.how.timeout_s:g} s. Nothing was "
                "committed: run the window again",
                window_id=plan.window_id,
            )
        # A new driver may not be listed yet. One that a trigger has waited for is lost.
        is_lost = application is None and self._event is not None
        if not is_lost and (application is None or not application.has_ended):
            if application is not None and application.page is not None:
                self._show_page(application.page)
            self._defer(run, manager)
        staged = run.output(application)
        # A stop after the job's end but before the commit counts as well.
        self._stop.check(plan.window_id)
        return staged

    def _defer(self, run: DetachedRun, manager: ResourceManager) -> NoReturn:
        from kafka_ordered_ops.airflow.triggers.driver import YarnDriverTrigger

        self.log.info("The task is deferred until the driver with tag %s has ended.", run.tag)
        self.defer(
            trigger=YarnDriverTrigger(
                manager.urls, run.tag, deadline=run.submitted_s + self._application.how.timeout_s
            ),
            method_name="execute_complete",
        )

    def _submitted(
        self, plan: WindowPlan, settings: ClientSettings, manager: ResourceManager
    ) -> DetachedRun:
        from kafka_ordered_ops.spark.applications.detached import submit_detached
        from kafka_ordered_ops.spark.job_checks import check_application

        job, folder = self._application, self._output_folder()
        return submit_detached(
            plan,
            check_application(job.path),
            job,
            settings,
            folder.root,
            manager,
            name=self._name,
            tries_max=self._tries_max,
            engine=self._work().engine,
            partition_by=folder.partition_by,
            log_line=lambda line: self.log.info("%s", line),
            cancelled=self._stop.__bool__,
        )

    def _plan_of_driver(
        self, windows: OrderedWindows, context: Context, times: WindowTimes
    ) -> WindowPlan | None:
        """Return the plan of the driver to wait for, if there is one; end all others of this task."""
        if self._manager is None:
            return None
        from kafka_ordered_ops.spark.applications.detached import find

        self._name = self.window_id_of(context)
        self._tries_max = getattr(context["ti"], "max_tries", 0)
        found: WindowPlan | None = None
        for run in find(self._output_folder().root, self._name):
            is_cleared = run.submission.tries_max < self._tries_max
            plan = None if found is not None or is_cleared else self._owned(windows, run, times)
            if plan is not None and self._goes_on(run, self._manager):
                found, self._run = plan, run
            else:
                self.log.info(
                    "The driver with tag %s has failed, is of an older attempt, or from before the task was cleared.",
                    run.tag,
                )
                run.end(self._manager)
        return found

    def _owned(
        self, windows: OrderedWindows, run: DetachedRun, times: WindowTimes
    ) -> WindowPlan | None:
        """Return the plan that a driver's output can be committed with; None if it belongs to an older attempt."""
        from kafka_ordered_ops.core.group.checks import check_same_question
        from kafka_ordered_ops.core.window.plan import newest_attempt

        try:
            record = windows.show(run.plan.window_id)
        except UnknownWindowError:
            return None
        plan, attempt = record.plan, run.plan.attempt
        if plan.claim_id != run.plan.claim_id:
            return None
        if record.status.is_open:
            check_same_question(plan, self.window_of(times))
            is_its = plan.attempt == attempt and record.status is WindowStatus.PLANNED
            return plan if is_its else None
        # A replay has its own attempt of a finished window.
        return (
            replace(plan, attempt=attempt)
            if attempt > newest_attempt(plan, record.result)
            else None
        )

    def _goes_on(self, run: DetachedRun, manager: ResourceManager) -> bool:
        """Return whether to wait for a driver; raise `JobFailedError` while another process submits it."""
        if self._event is not None:
            return True
        application = manager.application(run.tag)
        if application is not None:
            return application.has_succeeded or not application.has_ended
        if run.is_in_submission:
            raise JobFailedError(
                f"another attempt of this task submits the driver of window {run.plan.window_id} now. Run the task again",
                window_id=run.plan.window_id,
            )
        return False

    def _end_drivers(self, context: Context) -> None:
        """End the drivers of a task whose trigger has failed."""
        from kafka_ordered_ops.spark.applications.detached import find

        try:
            self._to = opened(self.output_to, travels=True)
            manager = _manager_of(self._application)
            for run in find(self._output_folder().root, self.window_id_of(context)):
                run.end(manager)
        except KafkaOrderedOpsError as error:
            self.log.warning("The driver of this task may still run: %s", error)

    def _may_defer(self, job: Job) -> bool:
        """Return whether the task is deferred; raise `ConfigError` if it must be and cannot."""
        default = conf.getboolean("operators", "default_deferrable", fallback=False)
        if not (default if self.deferrable is None else self.deferrable):
            return False
        from kafka_ordered_ops.spec.detachable import not_detachable

        why_not = not_detachable(job)
        if why_not is None and not ends_drivers():
            why_not = "this Airflow does not tell a trigger that its task was cleared, so a driver could go on: use Airflow 3.3"
        if why_not is not None and self.deferrable:
            raise ConfigError(f"deferrable=True, and {why_not}")
        return why_not is None

    @property
    def _application(self) -> Application:
        job = self.job_to_run()
        if not isinstance(job, Application):
            raise AssertionError("only applications are deferred")
        return job

    def _output_folder(self) -> Folder:
        if not isinstance(self._to, Folder):
            raise AssertionError("cluster mode is refused for any other output")
        return self._to


def _manager_of(job: Application) -> ResourceManager:
    from kafka_ordered_ops.spark.applications.yarn import ResourceManager

    return ResourceManager.of(job.how.variables())
