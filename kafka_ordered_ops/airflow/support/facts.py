"""The facts of a window that a task reports: to the next task, to assets, and in the log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.delivery.summary import (
    held_facts,
    partition_bounds,
    plan_summary,
    window_summary,
)

if TYPE_CHECKING:
    from kafka_ordered_ops.airflow.support.times import WindowTimes
    from kafka_ordered_ops.core.group.group_state import WindowRecord
    from kafka_ordered_ops.core.window.plan import WindowPlan

#: Version of what a planning task returns to the tasks that continue its window.
PLANNED_VERSION: Final = 1

#: A plan with at most this many ranges is passed on with its ranges, a larger one by reference only.
RANGES_MAX: Final = 200

#: Open windows in an XCom.
HELD_MAX: Final = 20

#: Partitions in the log, one line each.
_LINES_MAX: Final = 50


def plan_facts(plan: WindowPlan, times: WindowTimes | None = None) -> dict[str, Any]:
    """Return a window as small plain JSON: its definition, and a reference to its plan in the ledger."""
    return {
        **plan_summary(plan),
        "claim_id": plan.claim_id,
        "topics": list(plan.topics),
        "cutoff_source": None if times is None else times.source.value,
        "offsets": plan.offsets,
        "partitions": partition_bounds(plan),
        # Usually few; the XCom stays small.
        "held_by_open": held_facts(plan)[:HELD_MAX],
    }


def plan_facts_with_ranges(plan: WindowPlan, times: WindowTimes) -> dict[str, Any]:
    """Return the facts of `plan_facts` for the task that runs the job, with the exact ranges if they are few."""
    return {**plan_facts(plan, times), "ranges": _ranges(plan)}


def part_facts(part: WindowPlan) -> dict[str, Any]:
    """Return a part of a split window as plain JSON: there may be a thousand in one XCom."""
    share = part.part
    if share is None:
        raise AssertionError(f"window {part.window_id} is not split")
    return {
        "window_id": part.window_id,
        "group": part.group_id,
        "claim_id": part.claim_id,
        "attempt": part.attempt,
        "offsets": part.offsets,
        "part": share.index,
        "parts": share.count,
    }


def delivery_facts(
    record: WindowRecord, *, ran: bool, times: WindowTimes | None = None
) -> dict[str, Any]:
    """Return the facts of a delivered window."""
    return {**plan_facts(record.plan, times), **window_summary(record), "ran": ran}


def lines_of(plan: WindowPlan) -> list[str]:
    """Return a plan for the log: a table, one line for each partition."""
    parts = [part for part in plan if part.taken or part.lost]
    rows = [
        (
            str(part.tp),
            f"{part.taken.first:,}" if part.taken else "-",
            f"{part.taken.end:,}" if part.taken else "-",
            f"{part.taken.count:,}",
            f"{part.lost.count:,}" if part.lost else "",
        )
        for part in parts[:_LINES_MAX]
    ]
    table = table_of(("partition", "from", "up to", "offsets", "lost"), rows)
    if (more := len(parts) - _LINES_MAX) > 0:
        table.append(f"... and {more:,} more partitions")
    return table


def table_of(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return lines of equal columns; the last one is not padded."""
    every = [head, *rows]
    widths = [max(len(row[n]) for row in every) for n in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in every
    ]


def _ranges(plan: WindowPlan) -> dict[str, list[list[int]]] | None:
    """Return half-open ranges by partition; None if there are too many for an XCom."""
    if sum(len(taken) for taken in plan.taken.values()) > RANGES_MAX:
        return None
    return {str(tp): taken.bounds.tolist() for tp, taken in plan.taken.items()}
