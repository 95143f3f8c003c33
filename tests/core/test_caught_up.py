"""Whether a group has caught up, where brokers cannot be made to answer so on demand."""

from __future__ import annotations

import numpy as np

from kafka_ordered_ops.core.group.group_state import (
    GroupDefinition,
    GroupState,
    GroupView,
    PartitionState,
    TopicState,
)
from kafka_ordered_ops.core.liveness.caught_up import CatchUpReason, caught_up
from kafka_ordered_ops.core.liveness.live_search import LogFacts
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.planning.time_map import EMPTY_MAP, TimeMap
from kafka_ordered_ops.core.time_ranges import NO_STEPS, TimeRange
from kafka_ordered_ops.core.types import INT64_MIN, Isolation, Mode, TopicPartition

TP = TopicPartition("orders", 0)
TIMES = TimeRange(INT64_MIN, 1_000)


def view_of(done: int, time_map: TimeMap = EMPTY_MAP) -> GroupView:
    """A group that has committed a window up to the cutoff, with so many offsets."""
    late = NO_STEPS.with_step(done, TIMES)
    partition = PartitionState(0, OffsetSet.of((0, done)), done, late)
    definition = GroupDefinition(Mode.CATCH_UP, Isolation.READ_COMMITTED, ("orders",), ())
    topics = {"orders": TopicState("id", True, {0: partition})}
    return GroupView(
        "group", GroupState("group", 1, definition, (), topics, ()), {}, {TP: time_map}
    )


def reason_of(view: GroupView, *, is_proven: bool) -> CatchUpReason:
    """The verdict on a log from 10 to 20, of which the index says that the cutoff lies at its start."""
    facts = LogFacts(TP, "id", 10, 20, 20, 10, index_is_proven=is_proven)
    [one] = caught_up(view, [facts], TIMES, now_ms=2_000).partitions
    return one.reason


def test_an_index_that_proves_nothing_is_not_believed() -> None:
    """It answers with the log's start then, as it does where everything is later."""
    assert reason_of(view_of(10), is_proven=True) is CatchUpReason.COMMITTED
    assert reason_of(view_of(10), is_proven=False) is CatchUpReason.NOT_DONE


def test_what_the_group_has_read_itself_is_believed() -> None:
    """Offsets whose times it knows to be later hold nothing back; those that may be earlier do."""
    later, maybe = (
        TimeMap(np.array([[10, 20, least, 5_000]], dtype=np.int64), "id") for least in (1_000, 999)
    )
    assert reason_of(view_of(10, later), is_proven=False) is CatchUpReason.COMMITTED
    for is_proven in (True, False):
        assert reason_of(view_of(10, maybe), is_proven=is_proven) is CatchUpReason.NOT_DONE
