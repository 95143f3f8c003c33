"""Whether a step's windows got the records of their times, as an asset's check: a green step may deliver nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from dagster import (
    AssetCheckResult,
    AssetCheckSeverity,
    AssetCheckSpec,
    AssetKey,
    MetadataValue,
    TableColumn,
    TableRecord,
    TableSchema,
)

from kafka_ordered_ops.core.types import PlanContent
from kafka_ordered_ops.hosting.held_text import held_facts, held_text

if TYPE_CHECKING:
    from kafka_ordered_ops.core.window.plan import WindowPlan

#: The name of the check.
WINDOWS_COMPLETE: Final = "windows_complete"

#: Rows of a table, and windows that a description names.
_ROWS_MAX: Final = 200
_NAMED_MAX: Final = 5

_HELD: Final = TableSchema(
    columns=[
        TableColumn("window"),
        TableColumn("held_by"),
        TableColumn("offsets", "int"),
        TableColumn("status"),
        TableColumn("touched_at"),
    ]
)


def complete_spec(key: AssetKey) -> AssetCheckSpec:
    """The check of an asset."""
    told = "No other window has taken, and no open window holds, records of the step's windows."
    return AssetCheckSpec(WINDOWS_COMPLETE, asset=key, description=told)


def covered_text(plans: Sequence[WindowPlan]) -> str | None:
    """Which windows have nothing of their own, and why; None: none of them."""
    covered = [plan.window_id for plan in plans if plan.content is PlanContent.COVERED]
    if not covered:
        return None
    more = f" and {len(covered) - _NAMED_MAX:,} more" if len(covered) > _NAMED_MAX else ""
    return (
        f"{len(covered):,} of {len(plans):,} windows of group {plans[0].group} are covered, and nothing was delivered for "
        f"them: other windows have taken, or hold, all records of their times ({', '.join(covered[:_NAMED_MAX])}{more})"
    )


def complete_result(plans: Sequence[WindowPlan]) -> AssetCheckResult:
    """The check's result: an error for windows without records of their own, a warning for those that are short."""
    covered = covered_text(plans)
    held = [text for plan in plans if (text := held_text(plan)) is not None]
    told = [*([] if covered is None else [covered]), *held[:_NAMED_MAX]]
    return AssetCheckResult(
        passed=not told,
        check_name=WINDOWS_COMPLETE,
        severity=AssetCheckSeverity.WARN if covered is None else AssetCheckSeverity.ERROR,
        description=". ".join(told) if told else None,
        metadata={} if not held else {"held_by_open": held_table(plans)},
    )


def held_table(plans: Sequence[WindowPlan]) -> Any:
    """The open windows that hold records of some windows' times."""
    rows = [
        TableRecord(
            {
                "window": plan.window_id,
                "held_by": one["window_id"],
                "offsets": one["offsets"],
                "status": one["status"],
                "touched_at": one["touched_at"],
            }
        )
        for plan in plans
        for one in held_facts(plan)
    ]
    return MetadataValue.table(rows[:_ROWS_MAX], schema=_HELD)
