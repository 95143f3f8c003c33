"""Plan as a separate task, upstream of any task that runs the job, such as a Spark operator.

::

    plan = PlanWindowOperator(
        task_id="plan", window=Window("orders", starting_offsets="earliest"), group_id="hourly", mode="catch_up"
    )
    job = SparkSubmitOperator(
        task_id="job",
        application="job.py",
        application_args=["--window", "{{ ti.xcom_pull('plan')['window_id'] }}", "--attempt", ...],
    )
    commit = CommitWindowOperator(task_id="commit", window=plan.output, output="/data/orders")
    plan >> job >> commit
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.airflow.compat import Context, conf, errors_for_airflow
from kafka_ordered_ops.airflow.operators.plan_task import OnEmpty, PlanTask
from kafka_ordered_ops.airflow.support.facts import (
    PLANNED_VERSION,
    part_facts,
    plan_facts_with_ranges,
)
from kafka_ordered_ops.airflow.support.times import WindowMode
from kafka_ordered_ops.core.arguments import check_count
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.types import PlanContent
from kafka_ordered_ops.core.window.plan import PARTS_MAX
from kafka_ordered_ops.core.window.policy import DEFAULT_POLICY, Policy
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.delivery.arguments import arguments

if TYPE_CHECKING:
    from kafka_ordered_ops.airflow.support.times import WindowTimes
    from kafka_ordered_ops.core.window.plan import WindowPlan
    from kafka_ordered_ops.windows import OrderedWindows


#: Airflow's own default of ``[core] max_map_length``.
_MAP_LENGTH: Final = 1024


class PlanWindowOperator(PlanTask):
    """Plans a window and returns it: its id, the attempt that may commit it, and its ranges if they are few.

    A job reads the plan from the ledger by the window's id (`kafka_ordered_ops.spark.planned_window`), and
    `CommitWindowOperator` commits it. Until then the window stays open: the next attempt of this task, or a
    clear, resumes the same plan, and only the newest attempt may be committed.

    The task and its downstream tasks are skipped if other windows deliver the records: an empty output would hide
    theirs.

    Takes the arguments of `WindowTask` and `PlanTask`, and:

    Args:
        parts: split the window into this many parts, for parallel tasks: see `WindowPartOperator`. By default it is
            not split.

    Raises:
        ConfigError: an invalid number of parts, or more than Airflow expands a task over.

    Returns:
        The window's facts (`facts.plan_facts_with_ranges`), with ``conn_id`` and ``ledger_topic``. For a split window a list of
        its parts (`facts.part_facts`), to expand a task over.
    """

    ui_color = "#e4eef0"

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
        policy: Policy = DEFAULT_POLICY,
        on_empty: OnEmpty | str = OnEmpty.SUCCEED,
        kafka_conn_id: str | None = None,
        ledger_topic: str | None = None,
        parts: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**arguments(locals(), own=["parts"]))
        self.parts = parts
        if parts is not None:
            check_count(parts, what="parts", least=1, greatest=PARTS_MAX)
            _check_expandable(parts)

    def update_relative(self, other: Any, upstream: bool = True, edge_modifier: Any = None) -> None:
        """Raise `ConfigError` for a task on parts that does not fit; Airflow calls this method for each related task."""
        super().update_relative(other, upstream, edge_modifier)
        _check_part(self, other)

    def execute(self, context: Context) -> dict[str, Any] | list[dict[str, Any]]:
        """Plan the window, and return its facts."""
        with errors_for_airflow(lambda: self.places(context)):
            times = self.times_of(context)
            self.window_of(times).check_no_dead_letters("a job in another task")
            with self.open_windows(context) as windows:
                plan = self.plan(windows, context, times)
                if plan.status.is_done:
                    windows.check_readable(plan)
                if self.skips(plan) or plan.content is PlanContent.COVERED:
                    self.skip_empty(windows, plan)
                return self._result(windows, plan, times)

    def _result(
        self, windows: OrderedWindows, plan: WindowPlan, times: WindowTimes
    ) -> dict[str, Any] | list[dict[str, Any]]:
        where = {
            "version": PLANNED_VERSION,
            "conn_id": self.kafka_conn_id,
            "ledger_topic": self.ledger_topic,
        }
        if self.parts is None:
            return {**plan_facts_with_ranges(plan, times), **where}
        # Imported late: it loads numpy, which no DAG's file needs.
        from kafka_ordered_ops.core.group.decisions.splitting import shares

        parts = shares(plan, self.parts)
        if plan.status.is_open:
            windows.split(plan, self.parts)
        return [{**part_facts(part), **where} for part in parts]


def _check_part(plan: PlanWindowOperator, task: Any) -> None:
    """Raise `ConfigError` for a job on parts that does not fit its plan: the job would fail after the plan."""
    from kafka_ordered_ops.airflow.operators.part import WindowPartOperator

    kind = getattr(task, "operator_class", type(task))
    if not isinstance(kind, type) or not issubclass(kind, WindowPartOperator):
        return
    expanded = getattr(getattr(task, "expand_input", None), "value", None)
    mapped = expanded.get("window") if isinstance(expanded, Mapping) else None
    window = (
        mapped
        or getattr(task, "window", None)
        or vars(task).get("partial_kwargs", {}).get("window")
    )
    if getattr(window, "operator", None) is not plan:
        return
    if plan.parts is None:
        raise ConfigError(
            f"task {task.task_id} runs a job on a part of the window of task {plan.task_id}, which does not split it: give "
            f"{plan.task_id} parts=, or use a task for the whole window"
        )
    if mapped is None:
        raise ConfigError(
            f"task {task.task_id} gets all parts of the window of task {plan.task_id}, and runs a job on one: expand it with "
            f"{kind.__name__}.partial(...).expand(window=...)"
        )


def _check_expandable(parts: int) -> None:
    """Raise `ConfigError` for more parts than Airflow accepts in the list that a task is expanded over.

    Airflow refuses the list itself when the planning task returns it: the window would be planned and split by then.
    """
    limit = conf.getint("core", "max_map_length", fallback=_MAP_LENGTH)
    if parts > limit:
        raise ConfigError(
            f"parts is {parts:,}, but Airflow expands a task over at most {limit:,} items: give fewer parts, or raise "
            "max_map_length in [core] of Airflow's configuration"
        )
