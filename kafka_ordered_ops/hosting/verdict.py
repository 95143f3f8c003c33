"""Windows with nothing left to take: finished ones, and those whose records other windows have."""

from __future__ import annotations

import time
import zlib
from dataclasses import replace
from typing import Any, Final

from kafka_ordered_ops.core.errors import WindowCoveredError
from kafka_ordered_ops.core.types import OnCovered, PlanContent, WindowStatus
from kafka_ordered_ops.core.window.covered import covered_text
from kafka_ordered_ops.core.window.plan import WindowPlan, newest_attempt

#: Runs that replay a window in the same millisecond differ, and so do their attempts.
_RUNS_APART: Final = 1_000


def is_finished(plan: WindowPlan, result: Any) -> bool:
    """Return whether a window is finished. A committed window may still have to be published.

    Args:
        plan: the window's plan, with its status in the ledger.
        result: the result that the ledger stores with the window.
    """
    if plan.status is WindowStatus.COMMITTED:
        return result is None
    return plan.status.is_done


def is_replayed(plan: WindowPlan, on_covered: OnCovered) -> bool:
    """Return whether a window with nothing left to take is to be read again.

    Raises:
        WindowCoveredError: `on_covered` is fail.
    """
    if on_covered is OnCovered.FAIL:
        raise WindowCoveredError(
            f"{nothing_left(plan)}, and on_covered='fail'. Use 'replay' to read the same records again, or 'skip'",
            window_id=plan.window_id,
        )
    return on_covered is not OnCovered.SKIP and plan.content is not PlanContent.COVERED


def nothing_left(plan: WindowPlan) -> str:
    """Return the reason why nothing is left to take."""
    if plan.content is PlanContent.COVERED:
        return covered_text(plan)
    return f"window {plan.window_id} of group {plan.group_id} is {plan.status} already"


def as_replay(plan: WindowPlan, result: Any, *, run_id: str, try_number: int) -> WindowPlan:
    """Return a finished window's plan for one more delivery, as a new attempt.

    Its output is separate from the published one and from those of concurrent replays by other attempts or runs. The
    ledger accepts any attempt of a finished window. Attempts grow with time: a replay that published and died before
    it was recorded must not stand in the way of the next one, of whichever run.

    Args:
        plan: the window's plan.
        result: the result that the ledger stores with the window, which names the published output.
        run_id: the host's run.
        try_number: the attempt within the run.
    """
    run = zlib.crc32(f"{run_id}:{try_number}".encode()) % _RUNS_APART
    return replace(
        plan, attempt=max(newest_attempt(plan, result), time.time_ns() // 1_000) + 1 + run
    )
