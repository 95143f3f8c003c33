"""Windows with nothing left to take: finished ones, and those whose records other windows have."""

from __future__ import annotations

import time
import uuid
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.core.errors import WindowCoveredError, WindowMismatchError
from kafka_ordered_ops.core.types import OnCovered, PlanContent, WindowStatus
from kafka_ordered_ops.core.window.covered import covered_text
from kafka_ordered_ops.core.window.plan import WindowPlan, newest_attempt
from kafka_ordered_ops.output.writing.staged_output import output_of
from kafka_ordered_ops.spec.destination import Destination, Folder
from kafka_ordered_ops.spec.table import Table, table_of

if TYPE_CHECKING:
    from kafka_ordered_ops.windows import Delivery, OrderedWindows

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


def delivered_again(
    windows: OrderedWindows, plans: Sequence[WindowPlan], on_covered: OnCovered
) -> list[WindowPlan]:
    """Return the plans to deliver: finished windows as another attempt, if the policy requests a replay.

    Raises:
        WindowCoveredError: a window is finished, and `on_covered` is fail.
        RecordsLostError: retention removed some records of a window to read again.
    """
    if on_covered in (OnCovered.AUTO, OnCovered.SKIP):
        return list(plans)
    done = [plan.window_id for plan in plans if plan.status.is_done]
    results = (
        {record.plan.window_id: record.result for record in windows.show_many(done)} if done else {}
    )
    again = []
    for plan in plans:
        result = results.get(plan.window_id)
        if is_finished(plan, result) and is_replayed(plan, on_covered):
            windows.check_readable(plan)
            again.append(as_replay(plan, result, run_id=uuid.uuid4().hex, try_number=0))
        else:
            again.append(plan)
    return again


def check_same_output(delivery: Delivery, to: Destination | None) -> None:
    """Raise `WindowMismatchError` for a window that was delivered before, to an output other than the requested one."""
    plan, result = delivery.plan, delivery.record.result
    if delivery.ran or result is None or not isinstance(to, Folder | Table | None):
        return
    table, output = table_of(result), output_of(result, plan)
    before = table if output is None else output.root
    now = to.root if isinstance(to, Folder) else None if to is None else to.name
    is_same = to.names(before or "") if isinstance(to, Table) else before == now
    if not is_same:
        raise WindowMismatchError(
            f"window {plan.window_id} of group {plan.group_id} was delivered to {before or 'no output: its job did'}, and this "
            f"call asks for {now or 'no output'}: nothing was done. Name the same output, or use on_covered='replay' to "
            "read the same records again and deliver them here",
            window_id=plan.window_id,
            differences={"output": (before, now)},
        )


def nothing_left(plan: WindowPlan) -> str:
    """Return the reason why nothing is left to take."""
    if plan.content is PlanContent.COVERED:
        return covered_text(plan)
    return f"window {plan.window_id} of group {plan.group_id} is {plan.status} already"


def as_replay(plan: WindowPlan, result: Any, *, run_id: str, try_number: int) -> WindowPlan:
    """Return a finished window's plan for one more delivery, as a new attempt.

    Its output is separate from the published one and from those of concurrent replays by other attempts or runs. The
    ledger accepts any attempt of a finished window. Attempts grow with time: a replay that published and died before
    it was recorded must not block the next replay, of any run.

    Args:
        plan: the window's plan.
        result: the result that the ledger stores with the window, with the published output.
        run_id: the host's run.
        try_number: the attempt within the run.
    """
    run = zlib.crc32(f"{run_id}:{try_number}".encode()) % _RUNS_APART
    return replace(
        plan, attempt=max(newest_attempt(plan, result), time.time_ns() // 1_000) + 1 + run
    )
