"""The operator: plans a window, runs the job, commits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from kafka_ordered_ops.airflow.compat import AirflowSkipException, Context, errors_for_airflow
from kafka_ordered_ops.airflow.operators.job_task import JobTask
from kafka_ordered_ops.airflow.operators.plan_task import OnEmpty, PlanTask, no_records
from kafka_ordered_ops.airflow.support.facts import delivery_facts, plan_facts
from kafka_ordered_ops.airflow.support.lineage import lineage_of
from kafka_ordered_ops.airflow.support.links import SparkJobLink, WindowLink
from kafka_ordered_ops.airflow.support.outlets import add_to_outlets
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
from kafka_ordered_ops.hosting.table_session import Found
from kafka_ordered_ops.spark.job_checks import check_partitioned

if TYPE_CHECKING:
    from kafka_ordered_ops.airflow.support.times import WindowTimes
    from kafka_ordered_ops.core.window.plan import WindowPlan
    from kafka_ordered_ops.spark import SparkSubmit
    from kafka_ordered_ops.windows import OrderedWindows, Staged


class OrderedWindowOperator(JobTask, PlanTask):
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
        application: str | None = None,
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
        super().__init__(**arguments(locals(), own=["window_url"]))
        self.window_url = window_url
        #: The facts for the link, once the window is planned.
        self.link_facts: dict[str, Any] | None = None
        #: The facts for OpenLineage, as far as they are known.
        self._known: dict[str, Any] = {}
        self._brokers = ""

    def windows_options(self, context: Context) -> dict[str, Any]:
        """Return arguments of `OrderedWindows`: a scan ends when the task must end."""
        return {**super().windows_options(context), "progress": self._scanned}

    def get_openlineage_facets_on_complete(self, _task_instance: Any) -> Any:
        """Return topics and files, for the OpenLineage provider."""
        return lineage_of(self._known, self._brokers)

    def get_openlineage_facets_on_failure(self, _task_instance: Any) -> Any:
        """Return the same for a failed task: without files, unless it had committed before."""
        return lineage_of(self._known, self._brokers)

    def execute(self, context: Context) -> dict[str, Any]:
        """Plan, run the job, commit."""
        self._ti = context.get("ti")
        with errors_for_airflow():
            times = self.times_of(context)
            with self.open_windows(context) as windows, ExitStack() as stack:
                check_partitioned(self.partition_by, self.output_root, [self.window_of(times)])
                self.check_job(windows.settings, windows.group_id)
                found = stack.enter_context(self.job_session())
                plan = self.plan(windows, context, times)
                self.link_facts = self._known = plan_facts(plan)
                self._brokers = windows.settings.bootstrap_servers
                if not plan.offsets and self.on_empty is OnEmpty.SKIP:
                    self.skip_empty(windows, plan)
                facts = self._delivered(windows, plan, times, found)
        self._known = facts
        add_to_outlets(context, self.outlets, facts)
        return facts

    def _delivered(
        self, windows: OrderedWindows, plan: WindowPlan, times: WindowTimes, found: Found
    ) -> dict[str, Any]:
        delivery = windows.deliver(
            plan, lambda one: self.run_job(one, windows.settings), self._reopen(plan, found)
        )
        facts = delivery_facts(delivery.record, ran=delivery.ran, times=times)
        self.log.info(
            "Window %s is %s: %s records in %s offsets.",
            plan.window_id,
            delivery.plan.status.value,
            "?" if facts["records"] is None else f"{facts['records']:,}",
            f"{plan.offsets:,}",
        )
        if self.on_empty is OnEmpty.SKIP and facts["records"] == 0:
            # It had offsets: of markers, or of compacted records.
            raise AirflowSkipException(no_records(plan))
        return facts

    def _scanned(self, done: int, total: int) -> None:
        self._stop.check(self.window_id or self.task_id)

    def _reopen(
        self, plan: WindowPlan, found: Found
    ) -> Callable[[Mapping[str, Any]], Staged | None]:
        """Return a function that finds an earlier attempt's output; None for a published window, which is replayed."""

        def reopen(result: Mapping[str, Any]) -> Staged | None:
            return None if plan.status is WindowStatus.PUBLISHED else found(result)

        return reopen
