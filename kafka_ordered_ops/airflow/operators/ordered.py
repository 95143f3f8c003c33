"""The operator: plans a window, runs the job, commits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from kafka_ordered_ops.airflow.compat import Context
from kafka_ordered_ops.airflow.operators.deliver_task import DeliverTask
from kafka_ordered_ops.airflow.operators.job_task import JobTask
from kafka_ordered_ops.airflow.operators.plan_task import OnEmpty, PlanTask
from kafka_ordered_ops.airflow.support.links import SparkJobLink, WindowLink
from kafka_ordered_ops.airflow.support.places import Output
from kafka_ordered_ops.airflow.support.times import WindowMode
from kafka_ordered_ops.core.types import (
    Isolation,
    OnCovered,
    OnDataLoss,
    OnForeignCommit,
    OnOpenClaim,
    WindowStatus,
)
from kafka_ordered_ops.core.window.bounds import Bound
from kafka_ordered_ops.hosting.arguments import arguments
from kafka_ordered_ops.hosting.job import Found
from kafka_ordered_ops.spark.job_checks import check_partitioned

if TYPE_CHECKING:
    from kafka_ordered_ops.airflow.support.times import WindowTimes
    from kafka_ordered_ops.core.window.plan import WindowPlan
    from kafka_ordered_ops.spark import SparkSubmit
    from kafka_ordered_ops.windows import Delivery, OrderedWindows, Staged
    from kafka_ordered_ops.windows.sink import Place


class OrderedWindowOperator(JobTask, DeliverTask):
    """Reads exactly the records before a time, once, in order; runs a job on them; commits if the job succeeds.

    The commit is one transaction after the job. An attempt that fails, is killed or is overtaken commits nothing, and
    the next one takes the same records. Returns, as a small XCom, the window, its counts and the offsets taken from
    each partition (`facts.delivery_facts`).

    Takes the arguments of `WindowTask`, `PlanTask` and `JobTask`, and:

    Args:
        window_url: a page about the window, for the task's link; see `links.WindowLink`.

    Raises:
        AirflowFailException: an error that no retry can fix; with the error's name.
        AirflowSkipException: there is nothing to do, and the task is to be skipped.
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
        topics: str | Sequence[str],
        group_id: str,
        mode: WindowMode | str,
        kafka_conn_id: str | None = None,
        kafka_config_id: str | None = None,
        cutoff: datetime | str | None = None,
        since: datetime | str | None = None,
        partition_span: timedelta | None = None,
        starting_offsets: Bound | datetime | str | None = None,
        max_out_of_orderness: timedelta | str | None = None,
        isolation: Isolation | str = Isolation.READ_COMMITTED,
        exclude: str | Sequence[str] = (),
        on_data_loss: OnDataLoss | str = OnDataLoss.FAIL,
        window_id: str | None = None,
        settings_allowed: Sequence[str] = (),
        ledger_topic: str | None = None,
        on_covered: OnCovered | str = OnCovered.AUTO,
        on_open_claim: OnOpenClaim | str = OnOpenClaim.STEP_AROUND,
        claim_age: timedelta | str | None = None,
        claim_wait: timedelta | str | None = None,
        on_empty: OnEmpty | str = OnEmpty.SUCCEED,
        on_foreign_commit: OnForeignCommit | str = OnForeignCommit.FAIL,
        redefine: bool = False,
        max_offsets: int | str | None = None,
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
        window_url: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**arguments(locals()))

    def execute(self, context: Context) -> dict[str, Any]:
        """Plan, run the job, commit."""
        self._ti = context.get("ti")
        return super().execute(context)

    @contextmanager
    def _opened_job(self, windows: OrderedWindows, times: WindowTimes) -> Iterator[Found]:
        """Return what finds earlier outputs."""
        check_partitioned(self.partition_by, self.output_root, [self.window_of(times)])
        self.check_job(windows.settings, windows.group_id)
        with self.job_session() as found:
            yield found

    def publishes_to(self) -> Place | None:
        """Return where the job's files are published; None: it has none."""
        return self.job_place()

    def _deliver(self, windows: OrderedWindows, plan: WindowPlan, job: Found) -> Delivery:
        reopen = _Earlier(plan, job)
        return windows.deliver(plan, lambda one: self.run_job(one, windows.settings), reopen)


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
