"""The operator: plans a window, runs the job, commits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from kafka_ordered_ops.airflow.compat import Context
from kafka_ordered_ops.airflow.operators.deferrable_task import DeferrableTask
from kafka_ordered_ops.airflow.operators.job_task import JobTask
from kafka_ordered_ops.airflow.operators.plan_task import OnEmpty, PlanTask
from kafka_ordered_ops.airflow.support.links import SparkJobLink, WindowLink
from kafka_ordered_ops.airflow.support.places import Output
from kafka_ordered_ops.airflow.support.times import WindowMode
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.core.window.policy import DEFAULT_POLICY, Policy
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.delivery.arguments import arguments
from kafka_ordered_ops.delivery.job import Found
from kafka_ordered_ops.spec.jobs import Job

if TYPE_CHECKING:
    from kafka_ordered_ops.airflow.support.times import WindowTimes
    from kafka_ordered_ops.core.window.plan import WindowPlan
    from kafka_ordered_ops.windows import Delivery, OrderedWindows, Staged
    from kafka_ordered_ops.windows.sink import Place


class OrderedWindowOperator(DeferrableTask):
    """Reads exactly the records before a time, once, in order; runs a job on them; commits if the job succeeds.

    The commit is one transaction after the job. An attempt that fails, is killed or is overtaken commits nothing, and
    the next one takes the same records. Returns, as a small XCom, the window, its counts and the offsets taken from
    each partition (`facts.delivery_facts`).

    Takes the arguments of `WindowTask`, `PlanTask`, `JobTask` and `DeferrableTask`.

    Raises:
        AirflowFailException: an error that no retry can fix; with the error's name.
        AirflowSkipException: there is nothing to do, and the task must be skipped.
    """

    template_fields: Sequence[str] = (
        *PlanTask.template_fields,
        *JobTask.template_fields,
    )
    operator_extra_links = (WindowLink(), SparkJobLink())
    ui_color = "#e8f0e4"

    def __init__(
        self,
        *,
        topics: str | Sequence[str] | None = None,
        window: Window | None = None,
        group_id: str,
        mode: WindowMode | str,
        cutoff: datetime | str | None = None,
        since: datetime | str | None = None,
        partition_span: timedelta | None = None,
        window_id: str | None = None,
        output: Output = None,
        job: Job | Callable[..., Any] | None = None,
        policy: Policy = DEFAULT_POLICY,
        on_empty: OnEmpty | str = OnEmpty.SUCCEED,
        kafka_conn_id: str | None = None,
        ledger_topic: str | None = None,
        deferrable: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**arguments(locals()))

    def execute(self, context: Context) -> dict[str, Any]:
        """Plan, run the job, commit."""
        self._ti = context.get("ti")
        return super().execute(context)

    @contextmanager
    def _opened_job(self, windows: OrderedWindows, times: WindowTimes) -> Iterator[Found]:
        """Check the job, and yield a finder of earlier outputs."""
        wanted = [self.window_of(times)]
        self.check_job(windows.settings, windows.group_id, wanted)
        with self.job_session(windows.settings, wanted) as find_earlier:
            yield find_earlier

    def publishes_to(self) -> Place | None:
        """Return where the job's windows are published; see `WindowJob.place`."""
        return self.job_place()

    def _deliver(self, windows: OrderedWindows, plan: WindowPlan, job: Found) -> Delivery:
        reopen = _Earlier(plan, job)
        delivery = windows.deliver(
            plan, lambda attempt_plan: self.run_job(attempt_plan, windows.settings), reopen
        )
        self.finished()
        return delivery


@dataclass(frozen=True)
class _Earlier:
    """Finds outputs of earlier attempts; a published window is replayed."""

    plan: WindowPlan
    job: Found

    def __call__(self, result: Mapping[str, Any]) -> Staged | None:
        return None if self.plan.status is WindowStatus.PUBLISHED else self.job(result)

    def left(self, result: Mapping[str, Any]) -> Staged | None:
        """Return the output of another window of the group."""
        left: Found | None = getattr(self.job, "left", None)
        return None if left is None else left(result)
