"""Reduce old windows in the ledger to their counts, or forget them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kafka_ordered_ops.core.group.checks import known_state
from kafka_ordered_ops.core.group.decisions.forgotten import forgotten_record_of
from kafka_ordered_ops.core.group.group_state import (
    Change,
    GroupView,
    Pruned,
    WindowRecord,
    next_state,
)

#: Windows pruned in one transaction: some hundred bytes each.
PRUNED_AT_ONCE_MAX: Final = 500


def may_be_pruned(record: WindowRecord, *, before_ms: int, forget: bool) -> bool:
    """Return whether a window is closed and was last changed before a time; a pruned one only with `forget`.

    One whose output is not published yet must not be pruned either: its plan and result are needed to publish it.
    """
    return (
        not record.status.is_open
        and max(record.touched_at_ms, record.committed_at_ms or 0) < before_ms
        and (forget or record.pruned is None)
    )


def prune(view: GroupView, window_ids: list[str], *, before_ms: int, forget: bool) -> Change | None:
    """Reduce windows to their id, definition, state and counts; with `forget`, remove them.

    Windows that are no longer old are left: a window planned again meanwhile is another window. The group's progress does not change. None if there is nothing to do.
    """
    state = known_state(view)
    chosen = [
        record
        for window_id in window_ids
        if (record := view.windows.get(window_id)) is not None
        and window_id not in state.unpublished
        and may_be_pruned(record, before_ms=before_ms, forget=forget)
    ]
    if not chosen:
        return None
    state = next_state(state)
    if forget:
        forgotten_records = {
            record.plan.window_id: forgotten_record_of(record) for record in chosen
        }
        return Change(
            state=state,
            records=(),
            forgotten=tuple(forgotten_records),
            forgotten_records={
                name: record for name, record in forgotten_records.items() if record is not None
            },
        )
    return Change(state=state, records=tuple(_stub(record) for record in chosen))


def is_pruned(view: GroupView, window_id: str, *, forget: bool) -> bool:
    """Return whether a window is already pruned, or gone."""
    record = view.windows.get(window_id)
    if record is None:
        return forget and window_id not in view.unreadable
    return not forget and record.pruned is not None


def _stub(record: WindowRecord) -> WindowRecord:
    plan = record.plan
    return replace(
        record,
        plan=replace(plan, partitions=(), notes=(), stepped_around=(), held_by_open=()),
        result=None,
        parts=None,
        pruned=Pruned(
            offsets=plan.offsets, lost=sum(offsets.count for offsets in plan.lost.values())
        ),
    )
