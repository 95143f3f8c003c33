"""The base of every task that plans: its policies about other windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NoReturn

from kafka_ordered_ops.airflow.compat import AirflowSkipException, Context
from kafka_ordered_ops.airflow.connection import DEFAULT_CONN_ID
from kafka_ordered_ops.airflow.operators.base import WindowTask
from kafka_ordered_ops.airflow.support.facts import lines_of
from kafka_ordered_ops.airflow.support.literals import choice_or_template, is_literal
from kafka_ordered_ops.airflow.support.times import WindowMode, WindowTimes
from kafka_ordered_ops.core.arguments import check_choice
from kafka_ordered_ops.core.errors import ConfigError, PlanTooLargeError, WindowCoveredError
from kafka_ordered_ops.core.types import (
    OnCovered,
    OnForeignCommit,
    OnOpenClaim,
    PlanContent,
    WindowStatus,
)
from kafka_ordered_ops.core.window.covered import covered_text
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.policy import Policy
from kafka_ordered_ops.hosting.held_text import held_facts, held_text
from kafka_ordered_ops.hosting.verdict import as_replay, is_finished, is_replayed, nothing_left
from kafka_ordered_ops.hosting.window_spec import span_of

if TYPE_CHECKING:
    from datetime import timedelta

    from kafka_ordered_ops.windows import OrderedWindows
    from kafka_ordered_ops.windows.sink import Place


#: The XCom about open windows that hold records of a window's times.
HELD_BY_OPEN: Final = "held_by_open"


class OnEmpty(StrEnum):
    """The outcome of a task whose window has no records: success or skipped."""

    SUCCEED = "succeed"
    SKIP = "skip"


class PlanTask(WindowTask):
    """A task that plans, with its policies about other windows.

    Args:
        mode: required. ``auto``: the run's interval if it has a length, else catch-up. ``catch_up``: everything
            before the cutoff that the group has not taken yet. ``interval``: from start to end, and late records.
            (templated)
        on_covered: what to do when nothing is left to take, because this window is finished (its task was cleared)
            or because other windows have taken its records. ``auto`` and ``replay``: read the records of the
            finished window with these times again, or skip the task if there is none. ``skip``: skip the task.
            ``fail``: fail it. (templated)
        on_open_claim: what to do about other open windows that may hold some of the records. (templated)
        claim_age: ``take_over`` abandons planned windows that no attempt has touched for longer. (templated)
        claim_wait: ``wait`` gives up after this long. (templated)
        on_empty: ``skip`` skips the task when its window has no records.
        on_foreign_commit: fail if another program moved the group's committed offset, or adopt it.
        redefine: make this task's mode, isolation and topics the group's, and this task the one that plans its
            windows: for one run, after a task was renamed or changed.
        max_offsets: refuse a window with more offsets, without a retry and before anything is read; None: no limit. A
            window has at least as many offsets as records. (templated)
    """

    template_fields: Sequence[str] = (
        *WindowTask.template_fields,
        "mode",
        "on_covered",
        "on_open_claim",
        "claim_age",
        "claim_wait",
        "max_offsets",
    )

    def __init__(
        self,
        *,
        mode: WindowMode | str,
        on_covered: OnCovered | str = OnCovered.AUTO,
        on_open_claim: OnOpenClaim | str = OnOpenClaim.STEP_AROUND,
        claim_age: timedelta | str | None = None,
        claim_wait: timedelta | str | None = None,
        on_empty: OnEmpty | str = OnEmpty.SUCCEED,
        on_foreign_commit: OnForeignCommit | str = OnForeignCommit.FAIL,
        redefine: bool = False,
        max_offsets: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.mode = mode
        if is_literal(mode):
            self.window_mode()
        self.on_covered = choice_or_template(on_covered, OnCovered, "on_covered")
        self.on_open_claim = choice_or_template(on_open_claim, OnOpenClaim, "on_open_claim")
        self.claim_age = claim_age
        self.claim_wait = claim_wait
        self.on_empty = check_choice(on_empty, OnEmpty, what="on_empty")
        self.on_foreign_commit = check_choice(
            on_foreign_commit, OnForeignCommit, what="on_foreign_commit"
        )
        self.redefine = redefine
        self.max_offsets = max_offsets
        self._policy(OnCovered.AUTO, is_literal)
        if is_literal(max_offsets):
            self._limit()
        self._check_alone()

    def window_mode(self) -> WindowMode:
        """Return the mode, once it is rendered; raise `ConfigError`."""
        return check_choice(self.mode, WindowMode, what="mode")

    def covered(self) -> OnCovered:
        """Return `on_covered`, once it is rendered; raise `ConfigError` for an unknown value."""
        return check_choice(self.on_covered or OnCovered.AUTO, OnCovered, what="on_covered")

    def windows_options(self, context: Context) -> dict[str, Any]:
        """Return arguments of `OrderedWindows`."""
        return {
            **super().windows_options(context),
            "on_foreign_commit": self.on_foreign_commit,
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
            AirflowSkipException: nothing is left to take, and the task is to be skipped.
            WindowCoveredError: nothing is left to take, and the task is to fail.
            PlanTooLargeError: it exceeds `max_offsets`. A new plan is abandoned again.
            KafkaOrderedOpsError: as `OrderedWindows.plan` does.
        """
        limit = self._limit()
        plan = self._planned(windows, context, times)
        for note in plan.notes:
            self.log.warning("Window %s: %s", plan.window_id, note)
        self._report_held(context, plan, is_logged=plan.content is not PlanContent.COVERED)
        if limit is not None and plan.offsets > limit:
            self._refuse(windows, plan, limit)
        result = windows.show(plan.window_id).result if plan.status.is_done else None
        finished = is_finished(plan, result)
        if plan.content is PlanContent.COVERED or finished:
            self._judge_nothing_left(windows, plan)
        for line in lines_of(plan):
            self.log.info("%s", line)
        return _again(plan, result, context) if finished else plan

    def publishes_to(self) -> Place | None:
        """Return where this task publishes files, to be looked at before the plan; None: it publishes none."""
        return None

    def _report_held(self, context: Context, plan: WindowPlan, *, is_logged: bool) -> None:
        """Report which open windows hold records of this one: in the log, and as an XCom that a skipped task has too."""
        if (text := held_text(plan)) is None:
            return
        if is_logged:
            self.log.warning("%s", text)
        ti = context.get("ti")
        if ti is not None:
            ti.xcom_push(key=HELD_BY_OPEN, value=held_facts(plan))

    def skip_empty(self, windows: OrderedWindows, plan: WindowPlan) -> NoReturn:
        """Commit a window that has nothing to read, and skip the task; raise `AirflowSkipException`."""
        if plan.status.is_open:
            windows.commit(plan)
        raise AirflowSkipException(no_records(plan))

    def _planned(self, windows: OrderedWindows, context: Context, times: WindowTimes) -> WindowPlan:
        window, window_id = self.window_of(times), self.window_id_of(context)
        on_covered = self.covered()
        if on_covered is OnCovered.AUTO:
            # A task that runs again should get its records, whichever run has taken them.
            on_covered = OnCovered.REPLAY
        try:
            return windows.plan(
                window, window_id, self._policy(on_covered), place=self.publishes_to()
            )
        except WindowCoveredError:
            if on_covered is not OnCovered.REPLAY:
                raise
        # No finished window has these times, to be replayed.
        return windows.plan(
            window, window_id, self._policy(OnCovered.SKIP), place=self.publishes_to()
        )

    def _policy(
        self, on_covered: OnCovered, is_known: Callable[[Any], bool] = lambda _: True
    ) -> Policy:
        spans = {
            name: span_of(span or None, name)
            for name in ("claim_age", "claim_wait")
            if is_known(span := getattr(self, name))
        }
        return self.spec(is_known).policy(
            on_covered, spans.get("claim_age"), spans.get("claim_wait")
        )

    def _refuse(self, windows: OrderedWindows, plan: WindowPlan, limit: int) -> NoReturn:
        # A higher attempt has resumed a window that an earlier attempt planned, and perhaps wrote.
        is_new = plan.status is WindowStatus.PLANNED and plan.attempt == 1
        if is_new:
            windows.abandon(plan)
        by_topic = dict.fromkeys(plan.topics, 0)
        for part in plan:
            by_topic[part.tp.topic] += part.taken.count
        worst = max(by_topic, key=lambda topic: by_topic[topic])
        raise PlanTooLargeError(
            f"window {plan.window_id} of group {plan.group_id} has {plan.offsets:,} offsets, and max_offsets is "
            f"{limit:,}; {by_topic[worst]:,} of them are in topic {worst}. The job was not run, and "
            f"{'its plan was given up' if is_new else f'it stays {plan.status.value}'}. Raise the limit, or take "
            "it in steps, with earlier cutoffs first",
            topic=worst,
        )

    def _limit(self) -> int | None:
        if self.max_offsets is None:
            return None
        try:
            limit = int(self.max_offsets)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"max_offsets is {self.max_offsets!r}, not a whole number") from error
        if limit < 0:
            raise ConfigError(f"max_offsets is {limit}: a window does not have fewer than none")
        return limit

    def _judge_nothing_left(self, windows: OrderedWindows, plan: WindowPlan) -> None:
        """Skip or fail, or log that its records are read again, for a window that is finished or covered."""
        text, again = nothing_left(plan), is_replayed(plan, self.covered())
        if plan.content is PlanContent.COVERED:
            # No finished window has these times to replay: a successful task would look like a delivery.
            # Airflow logs why a task is skipped.
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
        found = (task.group_id, task.kafka_conn_id, task.ledger_topic)
    elif isinstance(kind, type) and issubclass(kind, PlanTask):
        given = task.partial_kwargs
        conn_id = given.get("kafka_conn_id") or given.get("kafka_config_id") or DEFAULT_CONN_ID
        found = (given.get("group_id"), conn_id, given.get("ledger_topic"))
    else:
        return None
    return found if found[0] and is_literal(found) else None


def no_records(plan: WindowPlan) -> str:
    """Return why a task is skipped."""
    if plan.content is PlanContent.COVERED:
        return covered_text(plan)
    return f"window {plan.window_id} of group {plan.group_id} has no records"


def _again(plan: WindowPlan, result: Any, context: Context) -> WindowPlan:
    try_number = int(getattr(context.get("ti"), "try_number", 1))
    return as_replay(plan, result, run_id=str(context.get("run_id")), try_number=try_number)
