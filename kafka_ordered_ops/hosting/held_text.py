"""The texts about open windows that hold records of a plan: the records are not lost, and how to deliver them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from kafka_ordered_ops.core.times import time_text
from kafka_ordered_ops.core.window.plan import WindowPlan

#: Windows that a text names; the facts have all of them.
_NAMED_MAX: Final = 5


def held_facts(plan: WindowPlan) -> list[dict[str, Any]]:
    """Return the open windows and their offsets, as plain JSON."""
    return [
        {
            "window_id": one.window_id,
            "offsets": one.offsets,
            "status": one.status.value,
            "touched_at": time_text(one.touched_at_ms),
        }
        for one in plan.held_by_open
    ]


def held_texts(plans: Sequence[WindowPlan]) -> list[str]:
    """Return a text for each window whose records other windows hold."""
    return [text for plan in plans if (text := held_text(plan)) is not None]


def held_text(plan: WindowPlan) -> str | None:
    """Return a text about open windows that hold offsets of a window, and what to do; None without them, or if it is done."""
    held = plan.held_by_open
    # For a delivered window, this was so when it was planned.
    if not held or not plan.status.is_open:
        return None
    named = ", ".join(
        f"{one.window_id} ({one.offsets:,} offsets, {one.status}, last touched {time_text(one.touched_at_ms)})"
        for one in held[:_NAMED_MAX]
    )
    more = f" and {len(held) - _NAMED_MAX:,} more" if len(held) > _NAMED_MAX else ""
    return (
        f"window {plan.window_id}: up to {sum(one.offsets for one in held):,} offsets of its times are held by "
        f"{len(held):,} open window{'' if len(held) == 1 else 's'}: {named}{more}. Their records are not lost: run "
        "those windows again to deliver them, or abandon them to let another window take the records"
    )
