"""The offsets that open windows hold and new windows would otherwise take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from kafka_ordered_ops.core.group.group_state import GroupState, GroupView
from kafka_ordered_ops.core.planning.planning import WindowsRequest
from kafka_ordered_ops.core.time_ranges import TimeRange, TimeSplit
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.core.window.plan import HeldElsewhere
from kafka_ordered_ops.core.window.window import Window


def held_by_open(
    view: GroupView,
    state: GroupState,
    windows: Sequence[Window],
    ends: Mapping[TopicPartition, int],
) -> list[tuple[HeldElsewhere, ...]]:
    """Return the open windows in the way of each new window, with the offsets that they hold below its ends.

    An open window counts where its times meet those that a window asks for. No timestamp is read for this, so
    that the numbers are upper bounds: an open window with other times as well may hold less.

    Args:
        view: the group, with the windows that are open.
        state: its state, with the partitions that are planned now.
        windows: those that are planned now, in the order in which they are served.
        ends: by partition, the offset up to which they are decided.
    """
    held: list[list[HeldElsewhere]] = [[] for _ in windows]
    splits: dict[tuple[TimeRange, ...], TimeSplit] = {}
    for record in view.open_windows():
        times, counts = record.plan.window.times, Counter[int]()
        askers: dict[tuple[TimeRange, ...], frozenset[int]] = {}
        for part in record.plan:
            known = state.partition(part.tp)
            if known is None or part.tp not in ends or not part.taken:
                continue
            frozen = known.late.times
            if frozen not in splits:
                splits[frozen] = WindowsRequest.of(windows, frozen).split
            if frozen not in askers:
                askers[frozen] = splits[frozen].meeting(times)
            if askers[frozen]:
                offsets = part.taken.within(0, ends[part.tp]).count
                counts.update(dict.fromkeys(askers[frozen], offsets))
        for number, offsets in counts.items():
            if offsets:
                plan = record.plan
                held[number].append(
                    HeldElsewhere(plan.window_id, offsets, plan.status, record.touched_at_ms)
                )
    return [tuple(holders) for holders in held]
