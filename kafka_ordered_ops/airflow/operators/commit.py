"""Commit as a separate task, downstream of those that delivered a planned window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kafka_ordered_ops.airflow.compat import Context, XComArg, errors_for_airflow
from kafka_ordered_ops.airflow.operators.follower import (
    HandedOn,
    WindowFollower,
    as_planned,
    whole_fact,
)
from kafka_ordered_ops.airflow.support.facts import delivery_facts
from kafka_ordered_ops.airflow.support.outlets import add_to_outlets
from kafka_ordered_ops.airflow.support.places import (
    Opened,
    Output,
    check_place,
    opened_place,
    text_of,
)
from kafka_ordered_ops.core.errors import SinkError
from kafka_ordered_ops.core.types import PlanContent
from kafka_ordered_ops.output.writing.reported import Reported
from kafka_ordered_ops.spark.job_outputs import check_parts_alike

if TYPE_CHECKING:
    from kafka_ordered_ops.core.group.group_state import WindowRecord
    from kafka_ordered_ops.core.window.plan import WindowPlan
    from kafka_ordered_ops.output.writing.staged_output import StagedOutput
    from kafka_ordered_ops.windows import Staged

#: A small JSON value, or the output of a task that returned one.
Told = Mapping[str, Any] | Sequence[Any] | str | float | XComArg | None


class CommitWindowOperator(WindowFollower):
    """Commits a planned window after upstream tasks have delivered it. Repeating it changes nothing.

    Takes the arguments of `WindowFollower`, and:

    Args:
        output: the folder that the job, or each part's job, passed to `kafka_ordered_ops.spark.write_window`. Its
            staged files are published after the commit. None: the job has its own sink. (templated)
        storage_conn_id: as for `OrderedWindowOperator`. (templated)
        result: the job's report about its own sink, a small JSON value, stored with the window. (templated)

    Returns:
        The facts of the delivered window, see `facts.delivery_facts`.
    """

    template_fields: Sequence[str] = (
        *WindowFollower.template_fields,
        "output_root",
        "result",
        "storage_conn_id",
    )
    ui_color = "#e4f0e8"

    def __init__(
        self,
        *,
        window: HandedOn,
        settings_allowed: Sequence[str] = (),
        output: Output = None,
        storage_conn_id: str | None = None,
        result: Told = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(window=window, settings_allowed=settings_allowed, **kwargs)
        # Not `output`: Airflow uses this name for the XCom of a task.
        self.output_root = text_of(output)
        self.storage_conn_id = storage_conn_id
        self.result = result
        check_place(self.output_root, storage_conn_id)

    def execute(self, context: Context) -> dict[str, Any]:
        """Commit and publish."""
        # Imported late: the ledger's rules load numpy, which no DAG's file needs.
        from kafka_ordered_ops.core.group.checks import check_owned
        from kafka_ordered_ops.core.window.plan import PARTS_MAX

        with errors_for_airflow(), self.open_windows(context) as windows:
            place = opened_place(self.output_root, self.storage_conn_id, travels=False)
            planned_facts = self.planned_facts()
            record = windows.show(str(planned_facts["window_id"]))
            plan = as_planned(record.plan, planned_facts)
            # First: for another attempt's window nothing is staged here, which would be reported as the error instead.
            check_owned(record, plan)
            parts = None
            if planned_facts.get("parts") is not None:
                parts = whole_fact(planned_facts, "parts", greatest=PARTS_MAX)
            done = windows.commit(plan, self._staged(plan, record, parts, place))
            self.log.info("Window %s is %s.", done.window_id, done.status.value)
            # Another task ran the job, before this one.
            facts = delivery_facts(windows.show(plan.window_id), ran=True)
        add_to_outlets(context, self.outlets, facts)
        return facts

    def _staged(
        self, plan: WindowPlan, record: WindowRecord, parts: int | None, place: Opened
    ) -> Staged | None:
        """Return the output to publish, or the report to store with the window."""
        if plan.content is PlanContent.COVERED:
            return None
        if parts is not None:
            return self._joined(plan, record, parts, place)
        if place[0] is None:
            return Reported.of(self.result)
        return self._whole(plan, record, place[0], place)

    def _whole(
        self, plan: WindowPlan, record: WindowRecord, root: str, place: Opened
    ) -> Staged | None:
        from kafka_ordered_ops.output.writing.staged_output import StagedOutput

        output = StagedOutput.of(plan, root, place[1])
        if output.exists():
            return output.as_found()
        if output.is_published():
            # Its facts are in the ledger.
            return _found(record, place) or output
        if not plan.offsets:
            # No records, no output.
            return None
        raise SinkError(
            f"window {plan.window_id}: attempt {plan.attempt} has no complete stage below "
            f"{output.root}. The job must write with write_window(df, output, plan), to the same folder",
            window_id=plan.window_id,
        )

    def _joined(
        self, plan: WindowPlan, record: WindowRecord, count: int, place: Opened
    ) -> Staged | None:
        """Return the parts' files as one output; None if the parts have their own sinks."""
        from kafka_ordered_ops.core.group.decisions.splitting import shares
        from kafka_ordered_ops.output.writing.staged_output import StagedOutput, output_of

        if record.parts is not None and record.parts.missing:
            return None  # The commit's error names the missing parts.
        check_parts_alike(plan, record.result)
        root, storage_options = place
        if not plan.status.is_open and root is not None:
            # A replay reports nothing to the ledger: its parts are found by their place.
            again = [StagedOutput.of(part, root, storage_options) for part in shares(plan, count)]
            if all(part.exists() for part in again):
                return StagedOutput.merged(again)
        found = _found(record, place)
        if found is not None:
            return found
        if output_of(record.result, record.plan) is not None:
            raise SinkError(
                f"window {plan.window_id}: the files of its parts are not there any more, or cannot be "
                "seen from here. Abandon the window and plan it again to run them again",
                window_id=plan.window_id,
            )
        return _own_sinks(record.result)


def _found(record: WindowRecord, place: Opened) -> StagedOutput | None:
    """Return the output that the ledger names, if it is below the task's root."""
    from kafka_ordered_ops.output.writing.staged_output import StagedOutput

    root, storage_options = place
    if root is None or not isinstance(record.result, Mapping):
        return None
    return StagedOutput.found(record.result, storage_options, root=root)


def _own_sinks(result: Any) -> Reported | None:
    """Return the reports of parts with their own sinks, as one; None if there are none."""
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
