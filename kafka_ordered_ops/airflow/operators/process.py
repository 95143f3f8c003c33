"""The operator that calls a function for each record of a window, and commits when all are done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from kafka_ordered_ops.airflow.operators.deliver_task import DeliverTask
from kafka_ordered_ops.airflow.operators.plan_task import OnEmpty, PlanTask
from kafka_ordered_ops.airflow.support.links import WindowLink
from kafka_ordered_ops.airflow.support.times import WindowMode
from kafka_ordered_ops.core.templates import check_rendered
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.core.window.policy import DEFAULT_POLICY, Policy
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.delivery.arguments import arguments
from kafka_ordered_ops.delivery.host import Stop
from kafka_ordered_ops.delivery.process_job import process, processed_facts
from kafka_ordered_ops.output.writing.reported import Reported
from kafka_ordered_ops.spec.process import Process, check_process

if TYPE_CHECKING:
    from kafka_ordered_ops.airflow.support.times import WindowTimes
    from kafka_ordered_ops.core.window.plan import WindowPlan
    from kafka_ordered_ops.windows import Delivery, OrderedWindows


class ProcessWindowOperator(DeliverTask):
    """Calls a function for each record before a time, many at a time, in order by key; commits when all are done.

    Progress is stored in the ledger every 10 s, and when the task fails or is ended. The next attempt calls the function
    only for the remaining records. Returns, as a small XCom, the window and its counts (`facts.delivery_facts`).

    Takes the arguments of `WindowTask` and `PlanTask`, and:

    Args:
        job: a function of a `Record`, or a `Process`. (templated)

    Raises:
        ConfigError: an invalid argument.
        AirflowFailException: an error that no retry can fix; with the error's name.
        AirflowSkipException: there is nothing to do, and the task must be skipped.
    """

    template_fields: Sequence[str] = (*PlanTask.template_fields, "job")
    operator_extra_links = (WindowLink(),)
    ui_color = "#f0ece0"

    def __init__(
        self,
        *,
        topics: str | Sequence[str] | None = None,
        window: Window | None = None,
        group_id: str,
        mode: WindowMode | str,
        job: Process | Callable[..., Any],
        cutoff: datetime | str | None = None,
        since: datetime | str | None = None,
        partition_span: timedelta | None = None,
        window_id: str | None = None,
        policy: Policy = DEFAULT_POLICY,
        on_empty: OnEmpty | str = OnEmpty.SUCCEED,
        kafka_conn_id: str | None = None,
        ledger_topic: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**arguments(locals(), own=["job"]))
        # Not the function itself: Airflow calls any callable in a template field.
        self.job = check_process(job)
        self._stop = Stop("Airflow")

    def on_kill(self) -> None:
        """Stop processing, and store the progress. Airflow calls this method in a signal handler."""
        self._stop.set()

    def _opened_job(
        self, windows: OrderedWindows, times: WindowTimes
    ) -> AbstractContextManager[Process]:
        check_rendered(self.job, "the job")
        self.window_of(times).check_for_function()
        return nullcontext(self.job)

    def _deliver(self, windows: OrderedWindows, plan: WindowPlan, job: Process) -> Delivery:
        def processed(attempt_plan: WindowPlan) -> Reported:
            self._stop.check(attempt_plan.window_id)
            return process(
                job, attempt_plan, windows, stopped=self._stop.__bool__, say=self._log_line
            )

        def reopen(result: Mapping[str, Any]) -> Reported | None:
            # A published window is replayed.
            return None if plan.status is WindowStatus.PUBLISHED else Reported.found(result)

        return windows.deliver(plan, processed, reopen)

    def _job_facts(self, result: Any) -> Mapping[str, Any]:
        return processed_facts(result)

    def _log_line(self, line: str) -> None:
        self.log.info("%s", line)
