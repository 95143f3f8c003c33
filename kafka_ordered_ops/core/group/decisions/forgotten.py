"""Windows that were forgotten: their ids are used up, and never deliver twice.

The output of a forgotten window stands. Planned again, the window is covered: it takes nothing, and late records of its
times stay for the next window or a sweep.
"""

from __future__ import annotations

from kafka_ordered_ops.core.errors import WindowCoveredError, WindowMismatchError
from kafka_ordered_ops.core.group.checks import known_state
from kafka_ordered_ops.core.group.group_state import (
    Change,
    Forgotten,
    GroupView,
    WindowRecord,
    next_state,
)
from kafka_ordered_ops.core.types import OnCovered, PlanContent, WindowStatus
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.window import Window


def forgotten_record_of(record: WindowRecord) -> Forgotten | None:
    """Return what is kept of a window that is forgotten; None if it never delivered anything."""
    plan = record.plan
    claims = plan.replaces
    if record.status.is_done or record.status is WindowStatus.REWOUND:
        claims = (*claims, plan.claim_id)
    return Forgotten(claims, plan.window.question_digest) if claims else None


def check_same_question(
    group_id: str, window_id: str, forgotten: Forgotten, window: Window
) -> None:
    """Raise `WindowMismatchError` if a forgotten window's id is used for another request."""
    if forgotten.question == window.question_digest:
        return
    raise WindowMismatchError(
        f"window {window_id} of group {group_id} was delivered with other arguments, and forgotten since. Use another "
        "window id",
        window_id=window_id,
        differences={},
    )


def recall(
    view: GroupView, window_id: str, window: Window, *, on_covered: OnCovered, now_ms: int
) -> Change | WindowRecord | None:
    """Plan a forgotten window: it is covered, and committed at once; None if it is not forgotten any more.

    Raises:
        WindowMismatchError: it asked for other records.
        WindowCoveredError: `on_covered` is fail or replay.
    """
    if (record := view.windows.get(window_id)) is not None:
        return record
    if (forgotten := view.forgotten.get(window_id)) is None:
        return None
    check_same_question(view.group_id, window_id, forgotten, window)
    if not on_covered.allows_covered:
        raise WindowCoveredError(
            f"window {window_id} of group {view.group_id} was delivered, and forgotten since: its output stands, and its "
            "plan is gone. Late records of its times come with the next window or a sweep; or plan it with on_covered='skip'",
            window_id=window_id,
        )
    plan = WindowPlan(
        group_id=view.group_id,
        window_id=window_id,
        window=window,
        claim_id=forgotten.claims[-1],
        attempt=1,
        status=WindowStatus.COMMITTED,
        content=PlanContent.COVERED,
        planned_at_ms=now_ms,
        partitions=(),
        replaces=forgotten.claims[:-1],
        notes=(
            "it was delivered and forgotten before: its output stands, and late records of its times come with the "
            "next window or a sweep",
        ),
    )
    record = WindowRecord(plan, touched_at_ms=now_ms, committed_at_ms=now_ms)
    return Change(state=next_state(known_state(view)), records=(record,))
