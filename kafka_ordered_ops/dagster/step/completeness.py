"""An asset's check that a step's windows got the records of their times, and that no other window of the group holds records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from dagster import (
    AssetCheckResult,
    AssetCheckSeverity,
)

from kafka_ordered_ops.core.types import PlanContent
from kafka_ordered_ops.dagster.metadata.tables import held_table
from kafka_ordered_ops.delivery.summary import held_texts

if TYPE_CHECKING:
    from kafka_ordered_ops.core.window.plan import WindowPlan

#: The name of the check.
WINDOWS_COMPLETE: Final = "windows_complete"

#: Windows listed in a description.
_NAMED_MAX: Final = 5


def complete_about() -> dict[str, str]:
    """Return the name of the check, with its description."""
    return {
        WINDOWS_COMPLETE: "No other window has taken, and no open window holds, records of the step's windows. No "
        "window of the group holds records while no attempt works on it."
    }


def covered_text(plans: Sequence[WindowPlan]) -> str | None:
    """Return the names of covered windows and the reason; None without covered windows."""
    covered = [plan.window_id for plan in plans if plan.content is PlanContent.COVERED]
    if not covered:
        return None
    more = f" and {len(covered) - _NAMED_MAX:,} more" if len(covered) > _NAMED_MAX else ""
    return (
        f"{len(covered):,} of {len(plans):,} windows of group {plans[0].group_id} are covered, and nothing was delivered for "
        f"them: other windows have taken their records ({', '.join(covered[:_NAMED_MAX])}{more})"
    )


def complete_result(plans: Sequence[WindowPlan], left: Sequence[str]) -> AssetCheckResult:
    """Return the check's result: an error for covered windows, a warning for windows that miss records or hold others.

    Args:
        plans: the step's windows of one partition.
        left: notes about the group's windows that no attempt works on.
    """
    covered = covered_text(plans)
    held = held_texts(plans)
    problems = [*([] if covered is None else [covered]), *held[:_NAMED_MAX], *left]
    return AssetCheckResult(
        passed=not problems,
        check_name=WINDOWS_COMPLETE,
        severity=AssetCheckSeverity.WARN if covered is None else AssetCheckSeverity.ERROR,
        description=". ".join(problems) if problems else None,
        metadata={} if not held else {"held_by_open": held_table(plans)},
    )
