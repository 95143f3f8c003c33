"""What a task says of its window: to the next task, to assets, to people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.hosting.held_text import held_facts
from kafka_ordered_ops.hosting.summary import plan_summary, window_summary

if TYPE_CHECKING:
    from kafka_ordered_ops.airflow.support.times import WindowTimes
    from kafka_ordered_ops.core.group.group_state import WindowRecord
    from kafka_ordered_ops.core.window.plan import WindowPlan

#: A plan of so many ranges at most is handed on with its ranges; others by reference only.
RANGES_MAX: Final = 200

#: A window of more partitions goes into an XCom without them.
PARTITIONS_MAX: Final = 200

#: Open windows that are named in an XCom.
HELD_MAX: Final = 20

#: Partitions that are written into the log, one line each.
_LINES_MAX: Final = 50


def plan_facts(plan: WindowPlan, times: WindowTimes | None = None) -> dict[str, Any]:
    """A window as plain JSON, small: what it is, and a reference to its plan in the ledger."""
    return {
        **plan_summary(plan),
        "claim_id": plan.claim_id,
        "topics": list(plan.topics),
        "cutoff_source": None if times is None else times.source.value,
        "offsets": plan.offsets,
        "partitions": _partitions(plan),
        # Few in any case that is worth a look; the XCom stays small.
        "held_by_open": held_facts(plan)[:HELD_MAX],
    }


def handed_on(plan: WindowPlan, times: WindowTimes) -> dict[str, Any]:
    """A window for the task that runs its job: the same, and its exact offsets where they are few ranges."""
    return {**plan_facts(plan, times), "ranges": _ranges(plan)}


def part_facts(part: WindowPlan) -> dict[str, Any]:
    """A part of a split window as plain JSON: there may be a thousand in one XCom."""
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
    """What became of a window."""
    return {**plan_facts(record.plan, times), **window_summary(record), "ran": ran}


def lines_of(plan: WindowPlan) -> list[str]:
    """A plan for the log: a table, one line for each partition."""
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
    """Lines of equal columns; the last one is not padded."""
    every = [head, *rows]
    widths = [max(len(row[n]) for row in every) for n in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in every
    ]


def _partitions(plan: WindowPlan) -> dict[str, dict[str, int]] | None:
    """What is taken of each partition, by its bounds: records out of order make very many ranges."""
    if len(plan.taken) > PARTITIONS_MAX:
        return None
    return {
        str(tp): {
            "from": taken.first,
            "up_to": taken.end,
            "offsets": taken.count,
            "ranges": len(taken),
        }
        for tp, taken in plan.taken.items()
    }


def _ranges(plan: WindowPlan) -> dict[str, list[list[int]]] | None:
    """Half-open ranges by partition; None where there are too many for an XCom."""
    if sum(len(taken) for taken in plan.taken.values()) > RANGES_MAX:
        return None
    return {str(tp): taken.bounds.tolist() for tp, taken in plan.taken.items()}
