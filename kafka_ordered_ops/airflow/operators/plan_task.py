"""The base of every task that plans: its policies about other windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NoReturn

from kafka_ordered_ops.airflow.compat import AirflowSkipException, Context
from kafka_ordered_ops.airflow.connection import DEFAULT_CONN_ID
from kafka_ordered_ops.airflow.operators.base import WindowTask
from kafka_ordered_ops.airflow.support.facts import lines_of
from kafka_ordered_ops.airflow.support.literals import is_literal
from kafka_ordered_ops.airflow.support.times import WindowMode, WindowTimes
from kafka_ordered_ops.core.arguments import check_choice, shown
from kafka_ordered_ops.core.errors import ConfigError, WindowCoveredError
from kafka_ordered_ops.core.types import OnCovered, PlanContent
from kafka_ordered_ops.core.window.covered import covered_text
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.policy import DEFAULT_POLICY, Policy, check_policy
from kafka_ordered_ops.delivery.summary import all_held_text, held_facts, held_text
from kafka_ordered_ops.delivery.verdict import as_replay, is_finished, is_replayed, nothing_left

if TYPE_CHECKING:
    from kafka_ordered_ops.windows import OrderedWindows
    from kafka_ordered_ops.windows.sink import Place


#: The XCom about open windows that hold records of a window's times.
HELD_BY_OPEN: Final = "held_by_open"


class OnEmpty(StrEnum):
    """The outcome of a task whose window has no records: success or skipped."""

    SUCCEED = "succeed"
    SKIP = "skip"


class PlanTask(WindowTask):
    """A task that plans, with its policy about other windows.

    Args:
        mode: required. ``auto``: the run's interval if it has a length, else catch-up. ``catch_up``: everything
            before the cutoff that the group has not taken yet. ``interval``: from start to end, and late records.
            (templated)
        policy: what to do about conflicting windows and programs. For `Policy.on_covered`, ``auto`` and ``replay``
            read the records of the finished window with these times again (its task was cleared), or skip the task
            without such a window; ``skip`` skips the task. (templated)
        on_empty: ``skip`` skips the task when its window has no records. It is always skipped if open windows may hold
            them: it would look as if there were none.
    """

    template_fields: Sequence[str] = (*WindowTask.template_fields, "mode", "policy")

    def __init__(
        self,
        *,
        mode: WindowMode | str,
        policy: Policy = DEFAULT_POLICY,
        on_empty: OnEmpty | str = OnEmpty.SUCCEED,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.mode = mode
        if is_literal(mode):
            self.window_mode()
        if not isinstance(policy, Policy):
            raise ConfigError(f"policy is {shown(policy)}: give a Policy")
        self.policy = policy
        self.on_empty = check_choice(on_empty, OnEmpty, what="on_empty")
        self._check_alone()

    def window_mode(self) -> WindowMode:
        """Return the mode, once it is rendered; raise `ConfigError`."""
        return check_choice(self.mode, WindowMode, what="mode")

    def windows_options(self, context: Context) -> dict[str, Any]:
        """Return arguments of `OrderedWindows`."""
        return {
            **super().windows_options(context),
            "owner": owner_of(context),
        }

    def _check_alone(self) -> None:
        """Raise `ConfigError` if another task of the DAG plans windows of the same group.

        Each would miss the records that the other one takes. Rendered values are checked at the first plan.
        """
        mine = _group_of(self)
        if mine is None or not self.has_dag():  # type: ignore[no-untyped-call]
            return
        for other in self.dag.tasks:
            if other.task_id != self.task_id and _group_of(other) == mine:
                raise ConfigError(
                    f"tasks {other.task_id} and {self.task_id} of DAG {self.dag.dag_id} plan windows of the same group, "
                    f"{self.group_id}: each would miss the records that the other one takes. Give each its own group"
                )

    def plan(self, windows: OrderedWindows, context: Context, times: WindowTimes) -> WindowPlan:
        """Plan the window, or resume its plan.

        The plan's status and content decide what to do: replay a finished window, and nothing for a covered one.

        Raises:
            AirflowSkipException: no records are left to take, and the task must be skipped.
            WindowCoveredError: no records are left to take, and the task must fail.
            KafkaOrderedOpsError: an error of `OrderedWindows.plan`.
        """
        plan = self._planned(windows, context, times)
        for note in plan.notes:
            self.log.warning("Window %s: %s", plan.window_id, note)
        self._report_held(context, plan, is_logged=plan.content is not PlanContent.COVERED)
        result = windows.show(plan.window_id).result if plan.status.is_done else None
        finished = is_finished(plan, result)
        if plan.content is PlanContent.COVERED or finished:
            self._judge_nothing_left(windows, plan)
        for line in lines_of(plan):
            self.log.info("%s", line)
        return _again(plan, result, context) if finished else plan

    def publishes_to(self) -> Place | None:
        """Return the place where this task publishes windows, which the plan checks first; None for a task that does not."""
        return None

    def _report_held(self, context: Context, plan: WindowPlan, *, is_logged: bool) -> None:
        """Report the open windows that hold records of this window: in the log, and as an XCom, even if the task is skipped."""
        if (text := held_text(plan)) is None:
            return
        if is_logged:
            self.log.warning("%s", text)
        ti = context.get("ti")
        if ti is not None:
            ti.xcom_push(key=HELD_BY_OPEN, value=held_facts(plan))

    def skips(self, plan: WindowPlan) -> bool:
        """Return whether the task is skipped instead of delivering nothing.

        It always is if open windows hold records of the window's times: a successful task would hide them.
        """
        is_asked = not plan.offsets and self.on_empty is OnEmpty.SKIP
        return is_asked or all_held_text(plan) is not None

    def skip_empty(self, windows: OrderedWindows, plan: WindowPlan) -> NoReturn:
        """Commit a window that has nothing to read, and skip the task; raise `AirflowSkipException`."""
        held = held_text(plan)
        if plan.status.is_open:
            windows.commit(plan)
        raise AirflowSkipException(f"{no_records(plan)}{'' if held is None else f'. {held}'}")

    def _planned(self, windows: OrderedWindows, context: Context, times: WindowTimes) -> WindowPlan:
        window, window_id = self.window_of(times), self.window_id_of(context)
        policy = check_policy(self.policy)
        if policy.on_covered is OnCovered.AUTO:
            # A task that runs again needs its records, whichever run has taken them.
            policy = replace(policy, on_covered=OnCovered.REPLAY)
        try:
            return windows.plan(window, window_id, policy, place=self.publishes_to())
        except WindowCoveredError:
            if policy.on_covered is not OnCovered.REPLAY:
                raise
        # No finished window with these times can be replayed.
        skips = replace(policy, on_covered=OnCovered.SKIP)
        return windows.plan(window, window_id, skips, place=self.publishes_to())

    def _judge_nothing_left(self, windows: OrderedWindows, plan: WindowPlan) -> None:
        """Skip or fail, or log that its records are read again, for a window that is finished or covered."""
        text, again = nothing_left(plan), is_replayed(plan, self.policy.on_covered)
        if plan.content is PlanContent.COVERED:
            # No finished window with these times can be replayed: a successful task would look like a delivery.
            # Airflow logs the reason of a skipped task.
            held = held_text(plan)
            windows.commit(plan)
            raise AirflowSkipException(
                f"{text}: nothing is delivered by this task{'' if held is None else f'. {held}'}"
            )
        if not again:
            raise AirflowSkipException(f"{text}, and on_covered='skip'")
        self.log.info("%s. Its records are read again; progress does not move.", text)


def owner_of(context: Context) -> str | None:
    """Return the planner's name: this task, for every run and map index."""
    ti = context.get("ti")
    names = getattr(ti, "dag_id", None), getattr(ti, "task_id", None)
    return None if None in names else f"airflow:{names[0]}.{names[1]}"


def _group_of(task: Any) -> tuple[Any, Any, Any] | None:
    """Return the group, connection and ledger that a task plans with; None for other tasks, and for templates."""
    kind = getattr(task, "operator_class", None)
    if isinstance(task, PlanTask):
        identity = (task.group_id, task.kafka_conn_id, task.ledger_topic)
    elif isinstance(kind, type) and issubclass(kind, PlanTask):
        parameters = task.partial_kwargs
        conn_id = parameters.get("kafka_conn_id") or DEFAULT_CONN_ID
        identity = (parameters.get("group_id"), conn_id, parameters.get("ledger_topic"))
    else:
        return None
    return identity if identity[0] and is_literal(identity) else None


def no_records(plan: WindowPlan) -> str:
    """Return the reason why a task is skipped."""
    if plan.content is PlanContent.COVERED:
        return covered_text(plan)
    return f"window {plan.window_id} of group {plan.group_id} has no records"


def _again(plan: WindowPlan, result: Any, context: Context) -> WindowPlan:
    try_number = int(getattr(context.get("ti"), "try_number", 1))
    return as_replay(plan, result, run_id=str(context.get("run_id")), try_number=try_number)
