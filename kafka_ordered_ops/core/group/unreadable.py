"""A window whose record cannot be read: its claims are unknown, so no window can be planned beside it.

It is damaged, or another version of this package wrote it. Its group continues with all planned
windows. Abandoning it removes the record, and forgets the facts that depend on its offsets.
"""

from __future__ import annotations

from dataclasses import replace

from kafka_ordered_ops.core.group.checks import known_state
from kafka_ordered_ops.core.group.group_state import (
    Change,
    GroupView,
    Pruned,
    WindowRecord,
    next_state,
)
from kafka_ordered_ops.core.planning.time_map import EMPTY_MAP
from kafka_ordered_ops.core.times import time_at
from kafka_ordered_ops.core.types import PlanContent, WindowStatus
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.window import Window


def abandon(view: GroupView, window_id: str, *, keep_origins: bool = False) -> Change:
    """Remove the window's record; the group's progress is unchanged.

    Committed offsets are in the group's state. The offsets of the open window are unknown, and no time map has their
    times. All bounds are therefore forgotten, and read again by the next plan.
    """
    state = known_state(view)
    is_open = window_id in state.open
    held = {part.tp.topic for record in view.open_windows() for part in record.plan}
    # Another one that cannot be read may hold offsets of any topic.
    keeps_all = keep_origins or not is_open or view.open_unreadable() != [window_id]
    topics = {
        name: topic
        for name, topic in state.topics.items()
        if topic.settled or name in held or keeps_all
    }
    freed = {
        tp: known.forgetting(known.covered) if tp.topic in topics else EMPTY_MAP
        for tp, known in view.time_maps.items()
        if is_open
    }
    return Change(
        state=next_state(replace(state, topics=topics), closed=[window_id], published=[window_id]),
        records=(),
        time_maps={tp: time_map for tp, time_map in freed.items() if time_map != view.time_map(tp)},
        forgotten=(window_id,),
    )


def stand_in(view: GroupView, window_id: str) -> WindowRecord:
    """Return a stand-in for the record of such an abandoned window, of which only the id is known."""
    definition = known_state(view).definition
    plan = WindowPlan(
        group_id=view.group_id,
        window_id=window_id,
        window=Window(definition.topics, time_at(0), exclude=definition.exclude),
        claim_id="",
        attempt=0,
        status=WindowStatus.ABANDONED,
        content=PlanContent.EMPTY,
        planned_at_ms=0,
        partitions=(),
        notes=(f"its record was removed: {view.unreadable[window_id].message}",),
    )
    return WindowRecord(plan, pruned=Pruned(0, 0))
