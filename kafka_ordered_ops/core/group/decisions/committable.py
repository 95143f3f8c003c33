"""Refuse windows whose commit could not be stored, before they are claimed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kafka_ordered_ops.core.errors import PlanTooLargeError
from kafka_ordered_ops.core.group.group_state import GroupState, PartitionState
from kafka_ordered_ops.core.group.shared_commits import check_maps_fit
from kafka_ordered_ops.core.offset_set import OffsetSet, union_of
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.core.window.plan import PLAN_RANGES_MAX, WindowPlan


def check_committable(state: GroupState, plans: Sequence[WindowPlan]) -> None:
    """Raise if the group's progress, with all of these windows committed, could not be stored.

    Raises:
        PlanTooLargeError: the group's state would have too many ranges.
        OffsetMapTooLargeError: the group shares its progress with Parallel Consumer, and maps would not fit.
    """
    # No union has more ranges than its parts have together.
    ranges = sum(len(partition.done) for _, partition in state)
    ranges += sum(part.ranges for plan in plans for part in plan)
    if ranges <= PLAN_RANGES_MAX and not state.format.is_shared:
        return
    after = _committed(state, plans)
    if state.format.is_shared:
        check_maps_fit(state.group_id, after.items())
    by_topic = dict.fromkeys((tp.topic for tp, _ in state), 0)
    for tp, partition in state:
        by_topic[tp.topic] += len(after.get(tp, partition).done)
    ranges = sum(by_topic.values())
    if ranges > PLAN_RANGES_MAX:
        worst = max(by_topic, key=lambda topic: by_topic[topic])
        raise PlanTooLargeError(
            f"group {state.group_id}: with window {plans[-1].window_id} committed, its state would have {ranges:,} ranges "
            f"of done offsets (limit {PLAN_RANGES_MAX:,}), {by_topic[worst]:,} of them in topic {worst}. Nothing was "
            "claimed. Commit windows that hold the records in between first, or plan a later cutoff",
            topic=worst,
        )


def _committed(
    state: GroupState, plans: Sequence[WindowPlan]
) -> dict[TopicPartition, PartitionState]:
    """Return the progress of the partitions that windows take offsets of, with these committed."""
    taken: dict[TopicPartition, list[OffsetSet]] = {}
    for part in (part for plan in plans for part in plan):
        if part.taken or part.lost:
            taken.setdefault(part.tp, []).extend((part.taken, part.lost))
    progress: dict[TopicPartition, PartitionState] = {}
    for tp, offsets in taken.items():
        known = state.partition(tp)
        if known is not None:
            progress[tp] = replace(known, done=union_of([known.done, *offsets]))
    return progress
