"""Commit as a separate task, downstream of the tasks that delivered a planned window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kafka_ordered_ops.airflow.compat import Context, XComArg, errors_for_airflow
from kafka_ordered_ops.airflow.operators.follower import (
    PlannedWindow,
    WindowFollower,
    as_planned,
    whole_fact,
)
from kafka_ordered_ops.airflow.support.facts import delivery_facts
from kafka_ordered_ops.airflow.support.lineage import LineageTask
from kafka_ordered_ops.airflow.support.outlets import add_to_outlets
from kafka_ordered_ops.airflow.support.places import (
    Output,
    check_known_output,
    opened_folder,
    text_of,
)
from kafka_ordered_ops.core.errors import SinkError
from kafka_ordered_ops.core.types import PlanContent
from kafka_ordered_ops.output.writing.reported import Reported
from kafka_ordered_ops.spec.job_outputs import check_parts_alike

if TYPE_CHECKING:
    from kafka_ordered_ops.core.group.group_state import WindowRecord
    from kafka_ordered_ops.core.window.plan import WindowPlan
    from kafka_ordered_ops.output.writing.staged_output import StagedOutput
    from kafka_ordered_ops.spec.destination import Folder
    from kafka_ordered_ops.windows import Staged

#: A job's report: a small JSON value, or the output of a task that returned one.
JobReport = Mapping[str, Any] | Sequence[Any] | str | float | XComArg | None


class CommitWindowOperator(LineageTask, WindowFollower):
    """Commits a planned window after upstream tasks have delivered it. Repeating it changes nothing.

    Takes the arguments of `WindowFollower`, and:

    Args:
        output: the folder that the job, or each part's job, passed to `kafka_ordered_ops.spark.write_window`, a path or
            a `Folder`. Its staged files are published after the commit. Omit it for a job with its own sink. (templated)
        result: the job's report about its own sink, a small JSON value, stored with the window. (templated)

    Returns:
        The facts of the delivered window, see `facts.delivery_facts`.
    """

    template_fields: Sequence[str] = (
        *WindowFollower.template_fields,
        "output_to",
        "result",
    )
    ui_color = "#e4f0e8"

    def __init__(
        self,
        *,
        window: PlannedWindow,
        output: Output = None,
        result: JobReport = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(window=window, **kwargs)
        # Not `output`: Airflow uses this name for the XCom of a task.
        self.output_to: Any = text_of(output)
        self.result = result
        check_known_output(self.output_to)

    def execute(self, context: Context) -> dict[str, Any]:
        """Commit and publish."""
        # Imported late: the ledger's rules load numpy, which no DAG's file needs.
        from kafka_ordered_ops.core.group.checks import check_owned
        from kafka_ordered_ops.core.window.plan import PARTS_MAX

        with errors_for_airflow(self.places), self.open_windows(context) as windows:
            place = opened_folder(self.output_to)
            planned_facts = self.planned_facts()
            record = windows.show(str(planned_facts["window_id"]))
            plan = as_planned(record.plan, planned_facts)
            self.report_lineage(windows, plan)
            # Check the owner first: for another attempt's window, the error would only report missing staged files.
            check_owned(record, plan)
            parts = None
            if planned_facts.get("parts") is not None:
                parts = whole_fact(planned_facts, "parts", greatest=PARTS_MAX)
            done = windows.commit(plan, self._staged(plan, record, parts, place))
            self.log.info("Window %s is %s.", done.window_id, done.status.value)
            # Another task has run the job.
            committed = windows.show(plan.window_id)
            self.report_lineage(windows, committed)
            facts = delivery_facts(committed, ran=True)
        add_to_outlets(context, self.outlets, facts)
        return facts

    def _staged(
        self, plan: WindowPlan, record: WindowRecord, parts: int | None, place: Folder | None
    ) -> Staged | None:
        """Return the output to publish, or the report to store with the window."""
        if plan.content is PlanContent.COVERED:
            return None
        if parts is not None:
            return self._joined(plan, record, parts, place)
        if place is None:
            return Reported.of(self.result)
        return self._whole(plan, record, place)

    def _whole(self, plan: WindowPlan, record: WindowRecord, place: Folder) -> Staged | None:
        from kafka_ordered_ops.output.writing.staged_output import StagedOutput

        output = StagedOutput.of(plan, place.root, place.storage_options, place.partition_by)
        if output.exists():
            return output.as_found()
        if output.is_published():
            # The ledger has its facts.
            return _recorded_output(record, place) or output
        if not plan.offsets:
            # A window without records needs no output.
            return None
        raise SinkError(
            f"window {plan.window_id}: attempt {plan.attempt} has no complete stage below "
            f"{output.root}. The job must write with write_window(df, output, plan), to the same folder",
            window_id=plan.window_id,
        )

    def _joined(
        self, plan: WindowPlan, record: WindowRecord, count: int, place: Folder | None
    ) -> Staged | None:
        """Return the parts' files as one output; None if the parts have their own sinks."""
        from kafka_ordered_ops.core.group.decisions.splitting import shares
        from kafka_ordered_ops.output.writing.staged_output import StagedOutput, output_of

        if record.parts is not None and record.parts.missing:
            return None  # The commit's error names the missing parts.
        check_parts_alike(plan, record.result)
        if not plan.status.is_open and place is not None:
            # A replay reports nothing to the ledger: its parts are found by their paths.
            part_outputs = [
                StagedOutput.of(part, place.root, place.storage_options, place.partition_by)
                for part in shares(plan, count)
            ]
            if all(part.exists() for part in part_outputs):
                return StagedOutput.merged(part_outputs)
        recorded = _recorded_output(record, place)
        if recorded is not None:
            return recorded
        if output_of(record.result, record.plan) is not None:
            raise SinkError(
                f"window {plan.window_id}: the files of its parts are missing, or not visible from this "
                "worker. To run the parts again, abandon the window and plan it again",
                window_id=plan.window_id,
            )
        return _own_sinks(record.result)


def _recorded_output(record: WindowRecord, place: Folder | None) -> StagedOutput | None:
    """Return the output that the ledger records, if it is below the task's root."""
    from kafka_ordered_ops.output.writing.staged_output import StagedOutput

    if place is None or not isinstance(record.result, Mapping):
        return None
    return StagedOutput.found(record.result, place.storage_options, root=place.root)


def _own_sinks(result: Any) -> Reported | None:
    """Return the merged reports of parts with their own sinks; None without reports."""
    from kafka_ordered_ops.output.parts import sum_of_facts

    if not isinstance(result, Mapping):
        return None
    if not isinstance(result.get("parts"), list):
        return Reported.found(result)
    parts = [Reported.found(report) for report in result["parts"]]
    known = [part.result for part in parts if part is not None]
    if len(known) != len(parts):
        return None
    facts = [dict(report.get("facts", {})) for report in known]
    return Reported(
        {"facts": sum_of_facts(facts), "returned": [report.get("returned") for report in known]}
    )
