"""The one sentence about covered windows, for errors, notes, logs and pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kafka_ordered_ops.core.window.plan import WindowPlan

#: Why a window is covered. Callers add the open windows that hold some of its records.
COVERED_BECAUSE: Final = "other windows have taken its records"


def covered_text(plan: WindowPlan) -> str:
    """Return which window is covered, and why."""
    return f"window {plan.window_id} of group {plan.group_id} is covered: {COVERED_BECAUSE}"
