"""The base of every task that plans a window, delivers it and commits."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from kafka_ordered_ops.airflow.compat import AirflowSkipException, Context, errors_for_airflow
from kafka_ordered_ops.airflow.operators.plan_task import OnEmpty, PlanTask, no_records
from kafka_ordered_ops.airflow.support.facts import delivery_facts, plan_facts
from kafka_ordered_ops.airflow.support.lineage import LineageTask
from kafka_ordered_ops.airflow.support.outlets import add_to_outlets
from kafka_ordered_ops.delivery.host import Stop

if TYPE_CHECKING:
    from kafka_ordered_ops.airflow.support.times import WindowTimes
    from kafka_ordered_ops.core.window.plan import WindowPlan
    from kafka_ordered_ops.windows import Delivery, OrderedWindows


class DeliverTask(LineageTask, PlanTask):
    """A task that plans a window, delivers it and commits."""

    #: Set when the task must end.
    _stop: Stop

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        #: The facts for the link, once the window is planned.
        self.link_facts: dict[str, Any] | None = None

    def windows_options(self, context: Context) -> dict[str, Any]:
        """Return arguments of `OrderedWindows`: a scan ends when the task must end."""
        return {**super().windows_options(context), "progress": self._scanned}

    def execute(self, context: Context) -> dict[str, Any]:
        """Plan, deliver, commit."""
        with errors_for_airflow(lambda: self.places(context)):
            times = self.times_of(context)
            with (
                self.open_windows(context) as windows,
                self._opened_job(windows, times) as job,
            ):
                plan = self.plan(windows, context, times)
                self.link_facts = plan_facts(plan)
                self.report_lineage(windows, plan)
                if self.skips(plan):
                    self.skip_empty(windows, plan)
                delivery = self._deliver(windows, plan, job)
                facts = self._delivered(delivery, plan, times)
                self.report_lineage(windows, delivery.record)
        add_to_outlets(context, self.outlets, facts)
        return facts

    def _opened_job(
        self, windows: OrderedWindows, times: WindowTimes
    ) -> AbstractContextManager[Any]:
        """Check the job before its window is planned, and return a context that is open until the window is delivered."""
        raise NotImplementedError

    def _deliver(self, windows: OrderedWindows, plan: WindowPlan, job: Any) -> Delivery:
        """Deliver the window; `job` is from `_opened_job`."""
        raise NotImplementedError

    def _job_facts(self, result: Any) -> Mapping[str, Any]:
        """Return more facts for the XCom, from the window's result in the ledger."""
        return {}

    def _delivered(
        self, delivery: Delivery, plan: WindowPlan, times: WindowTimes
    ) -> dict[str, Any]:
        facts = {
            **delivery_facts(delivery.record, ran=delivery.ran, times=times),
            **self._job_facts(delivery.record.result),
        }
        self.log.info(
            "Window %s is %s: %s records in %s offsets.",
            plan.window_id,
            delivery.plan.status.value,
            "?" if facts["records"] is None else f"{facts['records']:,}",
            f"{plan.offsets:,}",
        )
        if self.on_empty is OnEmpty.SKIP and facts["records"] == 0:
            # Its offsets belong to markers or compacted records.
            raise AirflowSkipException(no_records(plan))
        return facts

    def _scanned(self, done: int, total: int) -> None:
        self._stop.check(self.window_id or self.task_id)
