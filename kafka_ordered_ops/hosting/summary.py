"""The facts of a window that every host reports, with the same names and texts, as plain JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafka_ordered_ops.core.times import time_text
from kafka_ordered_ops.output.writing.reported import result_facts, returned_by

if TYPE_CHECKING:
    from kafka_ordered_ops.core.group.group_state import WindowRecord
    from kafka_ordered_ops.core.window.plan import WindowPlan


def plan_summary(plan: WindowPlan) -> dict[str, Any]:
    """Return the facts of a planned window."""
    return {
        "window_id": plan.window_id,
        "group": plan.group_id,
        "status": plan.status.value,
        "content": plan.content.value,
        "since": time_or_none(plan.window.since_ms),
        "cutoff": time_text(plan.cutoff_ms),
        "offsets": plan.offsets,
        "attempt": plan.attempt,
    }


def window_summary(record: WindowRecord) -> dict[str, Any]:
    """Return the facts of a window with its sink's counts; None: not reported."""
    from kafka_ordered_ops.output.writing.staged_output import output_of
    from kafka_ordered_ops.spec.table import table_of

    facts, output = result_facts(record.result), output_of(record.result, record.plan)
    return {
        **plan_summary(record.plan),
        "records": facts.get("records"),
        "late": facts.get("late"),
        # For an older plan the sink counted by the broker's index.
        "out_of_order": facts.get("out_of_order") if record.plan.tells_out_of_order else None,
        "timestamp_min": time_or_none(facts.get("timestamp_ms_min")),
        "timestamp_max": time_or_none(facts.get("timestamp_ms_max")),
        "output": table_of(record.result) if output is None else output.final_path,
        "result": returned_by(record.result),
    }


def time_or_none(timestamp_ms: int | None) -> str | None:
    """Return a time as text; None for None."""
    return None if timestamp_ms is None else time_text(int(timestamp_ms))
