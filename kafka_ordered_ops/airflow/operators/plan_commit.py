"""Plan and commit as tasks of their own, around any task that runs the job: Spark operators of your choice.

::

    plan = PlanWindowOperator(task_id="plan", topics="orders", group_id="hourly", start="earliest")
    job = SparkSubmitOperator(
        task_id="job",
        application="job.py",
        application_args=["--window", "{{ ti.xcom_pull('plan')['window_id'] }}", "--attempt", ...],
    )
    commit = CommitWindowOperator(task_id="commit", window=plan.output, output="/data/orders")
    plan >> job >> commit
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kafka_ordered_ops.airflow.compat import BaseOperator, Context, errors_for_airflow
from kafka_ordered_ops.airflow.connection import DEFAULT_CONN_ID, open_windows
from kafka_ordered_ops.airflow.operators.job_task import JobTask
from kafka_ordered_ops.airflow.operators.plan_task import OnEmpty, PlanTask
from kafka_ordered_ops.airflow.support.facts import delivery_facts, part_facts, plan_facts
from kafka_ordered_ops.airflow.support.literals import is_literal
from kafka_ordered_ops.airflow.support.outlets import tell_outlets
from kafka_ordered_ops.core.errors import ConfigError, SinkError, WindowSupersededError
from kafka_ordered_ops.core.group.checks import check_owned
from kafka_ordered_ops.core.group.splitting import PARTS_MAX, shares
from kafka_ordered_ops.core.types import PlanContent
from kafka_ordered_ops.output.reported import Reported
from kafka_ordered_ops.spark.job_checks import check_output
from kafka_ordered_ops.spark.job_outputs import check_parts_alike

if TYPE_CHECKING:
    from kafka_ordered_ops.airflow.support.times import WindowTimes
    from kafka_ordered_ops.core.group.group_state import WindowRecord
    from kafka_ordered_ops.core.window.plan import WindowPlan
    from kafka_ordered_ops.spark import StagedOutput
    from kafka_ordered_ops.windows import OrderedWindows, Staged

#: What a task must be told to go on with a window.
_NEEDED = ("window_id", "group", "claim_id", "attempt")


class PlanWindowOperator(PlanTask):
    """Plans a window, and hands it on: its id, the try that may commit it, and its ranges where they are few.

    A job reads the plan from the ledger by the window's id (`kafka_ordered_ops.spark.planned_window`), and
    `CommitWindowOperator` commits it. Until then the window stays open: the next try of this task, or a
    clear, takes the same plan up again, and only the newest may be committed.

    A window whose records other windows deliver is skipped, and with it the tasks that wait for it: an output
    without records in its place would hide theirs.

    Takes the arguments of `WindowTask` and `PlanTask`, and:

    Args:
        parts: split the window into so many parts, for tasks that run side by side: see
            `WindowPartOperator`. None: it is not split.

    Raises:
        ConfigError: a number of parts that cannot be.

    Returns:
        The window as `facts.plan_facts` has it, with ``conn_id`` and ``ledger_topic``. Of a window that is
        split, a list of its parts, as `facts.part_facts` has them, to expand a task over.
    """

    ui_color = "#e4eef0"

    def __init__(
        self,
        *,
        parts: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.parts = parts
        if parts is not None and (type(parts) is not int or not 1 <= parts <= PARTS_MAX):
            raise ConfigError(f"parts={parts!r}: a window is split into 1 to {PARTS_MAX:,} parts")

    def execute(self, context: Context) -> dict[str, Any] | list[dict[str, Any]]:
        """Plans."""
        with errors_for_airflow():
            times = self.times_of(context)
            with self.open_windows(context) as windows:
                plan = self.plan(windows, context, times)
                if plan.status.is_done:
                    windows.check_readable(plan)
                is_empty = not plan.offsets and self.on_empty is OnEmpty.SKIP
                if is_empty or plan.content is PlanContent.COVERED:
                    self.skip_empty(windows, plan)
                return self._handed_on(windows, plan, times)

    def _handed_on(
        self, windows: OrderedWindows, plan: WindowPlan, times: WindowTimes
    ) -> dict[str, Any] | list[dict[str, Any]]:
        where = {"conn_id": self.kafka_conn_id, "ledger_topic": self.ledger_topic}
        if self.parts is None:
            return {**plan_facts(plan, times), **where}
        parts = shares(plan, self.parts)
        if plan.status.is_open:
            windows.split(plan, self.parts)
        return [{**part_facts(part), **where} for part in parts]


class WindowFollower(BaseOperator):
    """A task that goes on with a window that another one has planned.

    Args:
        window: what `PlanWindowOperator` returned: its ``output``, or a template that renders it as JSON.
            (templated)
        settings_allowed: more of librdkafka's settings to take from the connection.
    """

    template_fields: Sequence[str] = ("window",)

    def __init__(self, *, window: Any, settings_allowed: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.window = window
        self.settings_allowed = tuple(settings_allowed)

    def open_windows(self, context: Context) -> OrderedWindows:
        """The service for the window's group; raises `ConfigError` when `window` is none."""
        told = self.told()
        return open_windows(
            told.get("conn_id") or DEFAULT_CONN_ID,
            str(told["group"]),
            settings_allowed=self.settings_allowed,
            ledger_topic=told.get("ledger_topic"),
            run_id=context.get("run_id"),
        )

    def told(self) -> Mapping[str, Any]:
        """What the planning task returned; of a list of parts, the first. Raises `ConfigError`."""
        window = self.window
        if isinstance(window, str):
            window = _parsed(window)
        if isinstance(window, Sequence) and not isinstance(window, str) and window:
            # A lazy sequence, where it comes from mapped tasks.
            window = window[0]
        if not isinstance(window, Mapping) or not set(_NEEDED) <= set(window):
            raise ConfigError(
                f"window= is {str(self.window)[:200]!r}, not what PlanWindowOperator returned: give its task's "
                "`output`. It is None where that task was skipped, or returned nothing to this run"
            )
        return window

    def planned(self, windows: OrderedWindows) -> WindowPlan:
        """The plan, with the right to commit it that the planning task got.

        If another try has taken the window up since, the commit is refused.
        """
        told = self.told()
        return _as_told(windows.show(str(told["window_id"])).plan, told)


class CommitWindowOperator(WindowFollower):
    """Commits a planned window, once the tasks before this one have delivered it; again, a no-op.

    Takes the arguments of `WindowFollower`, and:

    Args:
        output: the folder that the job, or each part's, gave to `kafka_ordered_ops.spark.write_window`: what
            it has staged there is published after the commit. None: the job has a sink of its own. (templated)
        result: what the job says of its sink, as a little JSON, kept with the window. (templated)

    Returns:
        What became of the window, as `facts.delivery_facts` has it.
    """

    template_fields: Sequence[str] = (
        *WindowFollower.template_fields,
        "output_root",
        "result",
    )
    ui_color = "#e4f0e8"

    def __init__(self, *, output: str | None = None, result: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # Not `output`: that is what Airflow calls the XCom of a task.
        self.output_root = output
        self.result = result
        _check_literal_output(output)

    def execute(self, context: Context) -> dict[str, Any]:
        """Commits and publishes."""
        with errors_for_airflow(), self.open_windows(context) as windows:
            if self.output_root is not None:
                check_output(self.output_root)
            told = self.told()
            record = windows.show(str(told["window_id"]))
            plan = _as_told(record.plan, told)
            # First: of another try's window nothing is staged here, and that is not what is wrong.
            check_owned(record, plan)
            done = windows.commit(plan, self._staged(plan, record, told.get("parts")))
            self.log.info("Window %s is %s.", done.window_id, done.status.value)
            # The job is another task's, which has run when this one does.
            facts = delivery_facts(windows.show(plan.window_id), ran=True)
        tell_outlets(context, self.outlets, facts)
        return facts

    def _staged(self, plan: WindowPlan, record: WindowRecord, parts: int | None) -> Staged | None:
        """What there is to publish, or to be kept with the window."""
        if plan.content is PlanContent.COVERED:
            return None
        if parts is not None:
            return self._joined(plan, record, int(parts))
        if self.output_root is None:
            return Reported.of(self.result)
        return self._whole(plan, record, self.output_root)

    def _whole(self, plan: WindowPlan, record: WindowRecord, root: str) -> Staged | None:
        from kafka_ordered_ops.spark import StagedOutput

        output = StagedOutput.of(plan, root)
        if output.exists():
            return output.as_found()
        if output.is_published():
            # Its facts are in the ledger.
            return _found(record) or output
        if not plan.offsets:
            # There was nothing to write.
            return None
        raise SinkError(
            f"window {plan.window_id}: attempt {plan.attempt} has staged nothing complete below "
            f"{output.root}. The job must write with write_window(df, output, plan), to the same folder",
            window_id=plan.window_id,
        )

    def _joined(self, plan: WindowPlan, record: WindowRecord, count: int) -> Staged | None:
        """What the parts have written, as one output; None where they have sinks of their own."""
        from kafka_ordered_ops.output.staged_output import StagedOutput, output_of

        if record.parts is not None and record.parts.missing:
            return None  # The commit says which.
        check_parts_alike(plan, record.result)
        if not plan.status.is_open and self.output_root is not None:
            # Of a replay the ledger is told nothing: its parts are found by their place.
            again = [StagedOutput.of(part, self.output_root) for part in shares(plan, count)]
            if all(part.exists() for part in again):
                return StagedOutput.merged(again)
        found = _found(record)
        if found is not None:
            return found
        if output_of(record.result) is not None:
            raise SinkError(
                f"window {plan.window_id}: what its parts have written is not there any more, or cannot be "
                "seen from here. Abandon the window and plan it again to run them again",
                window_id=plan.window_id,
            )
        return _own_sinks(record.result)


class WindowPartOperator(JobTask, WindowFollower):
    """Runs a job on one part of a window that was split, and reports it; `CommitWindowOperator` commits them all.

    ::

        plan = PlanWindowOperator(task_id="plan", parts=4, ...)
        part = WindowPartOperator.partial(task_id="part", output="/data/orders").expand(
            window=plan.output
        )
        part >> CommitWindowOperator(task_id="commit", window=plan.output, output="/data/orders")

    A part is a contiguous run of the window's offsets, of about the weight of the others. Its records are
    in order in itself. Takes the arguments of `WindowFollower` and `JobTask`.

    Returns:
        ``window_id``, ``part``, ``parts`` and the job's ``result``.
    """

    template_fields: Sequence[str] = (
        *WindowFollower.template_fields,
        *JobTask.template_fields,
    )
    ui_color = "#e8f0e4"

    def execute(self, context: Context) -> dict[str, Any]:
        """Reads, runs the job, reports."""
        with errors_for_airflow(), self.open_windows(context) as windows:
            told = self.told()
            if not isinstance(self.window, Mapping) or "part" not in told:
                raise ConfigError(
                    "window= is a whole window, not a part of one: give PlanWindowOperator parts=, and expand this "
                    "task over its output"
                )
            index, count = int(told["part"]), int(told["parts"])
            self.check_job(windows.settings, windows.group)
            part = shares(self.planned(windows), count)[index]
            staged = self.run_job(part, windows.settings)
            windows.report(part, staged)
            return {
                "window_id": part.window_id,
                "part": index,
                "parts": count,
                "result": dict(staged.to_json()),
            }


class AbandonWindowOperator(WindowFollower):
    """Gives a planned window up that is still open: its offsets are free for others. Of a done one, nothing.

    As a teardown (``.as_teardown(setups=plan)``) it lets go of a window whose job failed for good. Without
    it the window stays open, which is right where it will be tried again: later windows step around it.

    Takes the arguments of `WindowFollower`, and:

    Args:
        output: the folder that the job wrote to: what it has staged there, and nobody will publish, is
            removed. (templated)
    """

    template_fields: Sequence[str] = (*WindowFollower.template_fields, "output_root")
    ui_color = "#f0e8e4"

    def __init__(self, *, output: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.output_root = output
        _check_literal_output(output)

    def execute(self, context: Context) -> None:
        """Abandons the window if it is open, and still this run's."""
        with errors_for_airflow(), self.open_windows(context) as windows:
            if self.output_root is not None:
                check_output(self.output_root)
            plan = self.planned(windows)
            try:
                windows.abandon(plan)
            except WindowSupersededError as error:
                # Committed, or taken up by another try since: that is no fault of a run that ends.
                self.log.info("Nothing to abandon: %s", error)
                return
            self.log.info("Window %s is abandoned.", plan.window_id)
            self._discard(plan)

    def _discard(self, plan: WindowPlan) -> None:
        from kafka_ordered_ops.spark import StagedOutput

        if self.output_root is not None:
            StagedOutput.of(plan, self.output_root).discard()


def _check_literal_output(output: str | None) -> None:
    if output is not None and is_literal(output):
        check_output(output)


def _as_told(plan: WindowPlan, told: Mapping[str, Any]) -> WindowPlan:
    return replace(plan, claim_id=str(told["claim_id"]), attempt=int(told["attempt"]))


def _found(record: WindowRecord) -> StagedOutput | None:
    """The output that the ledger names, if it is there."""
    from kafka_ordered_ops.spark import StagedOutput

    return StagedOutput.found(record.result) if isinstance(record.result, Mapping) else None


def _own_sinks(result: Any) -> Reported | None:
    """What parts with sinks of their own have reported, as one; None where nothing is known."""
    from kafka_ordered_ops.output.parts import sum_of_facts

    if not isinstance(result, Mapping):
        return None
    if not isinstance(result.get("parts"), list):
        return Reported.found(result)
    parts = [Reported.found(one) for one in result["parts"]]
    known = [part.result for part in parts if part is not None]
    if len(known) != len(parts):
        return None
    facts = [dict(one.get("facts", {})) for one in known]
    return Reported(
        {"facts": sum_of_facts(facts), "returned": [one.get("returned") for one in known]}
    )


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
