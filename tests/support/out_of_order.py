"""Which records of a window are out_of_order, by brute force over all that a plain consumer sees."""

from __future__ import annotations

from kafka_ordered_ops import WindowPlan
from kafka_ordered_ops.core.types import TopicPartition
from tests.support.logs import Records


def out_of_order_of(plan: WindowPlan, visible: Records) -> Records:
    """The records that a plan takes behind the first visible one stamped at or after its cutoff."""
    first: dict[TopicPartition, int] = {}
    for (topic, partition, offset), time_ms in visible.items():
        tp = TopicPartition(topic, partition)
        if time_ms >= plan.cutoff_ms:
            first[tp] = min(offset, first.get(tp, offset))
    taken = plan.taken
    return {
        key: time_ms
        for key, time_ms in visible.items()
        if (tp := TopicPartition(*key[:2])) in taken and first.get(tp, key[2]) < key[2] in taken[tp]
    }


def checked_out_of_order(plan: WindowPlan, visible: Records) -> int | None:
    """How many out-of-order records a plan says that it has; what it says of each partition is compared with all records.

    Args:
        plan: a window, just planned.
        visible: all records that a consumer of its isolation saw then, and maybe some that came later.
    """
    ends = {part.tp: part.decided_end for part in plan}
    visible = {
        key: time_ms
        for key, time_ms in visible.items()
        if key[2] < ends.get(TopicPartition(*key[:2]), 0)
    }
    found = out_of_order_of(plan, visible)
    for part in plan:
        if part.head_end is None:
            continue
        mine = [key[2] for key in visible if TopicPartition(*key[:2]) == part.tp]
        told = {offset for offset in mine if offset in part.taken and offset >= part.head_end}
        assert told == {key[2] for key in found if TopicPartition(*key[:2]) == part.tp}
    return len(found) if plan.tells_out_of_order else None
