"""State for topics and partitions that are new to a group: their starts, and the times that are late on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kafka_ordered_ops.core.cluster.cluster_facts import is_pattern
from kafka_ordered_ops.core.group.group_state import GroupState, PartitionState, TopicState
from kafka_ordered_ops.core.group.others import OthersCommit
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.time_ranges import NO_STEPS, LateSteps
from kafka_ordered_ops.core.window.window import Window


def is_first_plan(state: GroupState | None, window: Window, topic: str) -> bool:
    """Return whether the window's starting offsets decide; topics and partitions that appear later start at earliest."""
    if state is None:
        return True
    if topic in state.topics:
        return False
    if topic in window.topics:
        return True
    return not any(name in state.patterns for name in window.topics if is_pattern(name))


def covered_before(state: GroupState, topic: str) -> LateSteps:
    """Return the times that committed windows had covered before a partition was there: all of them are late on it.

    Those of open windows are not stored: they may be abandoned.
    """
    known = state.topics.get(topic)
    siblings = known.partitions.values() if known else (partition for _, partition in state)
    frozen = {times for partition in siblings for times in partition.late.times}
    return NO_STEPS.with_steps((0, times) for times in frozen)


def begun(commit: OthersCommit) -> PartitionState:
    """Return the state of a partition that begins where another program stands, done offsets beyond included."""
    done = OffsetSet.of((0, commit.offset)) | commit.done
    return PartitionState(origin=commit.end, done=done, committed=commit.offset)


def with_newcomers(
    state: GroupState, newcomers: Mapping[str, TopicState], window: Window
) -> GroupState:
    """Return the group's state with more topics and partitions; existing ones stay."""
    topics = dict(state.topics)
    for name, new in newcomers.items():
        late = NO_STEPS
        if not is_first_plan(state, window, name):
            late = covered_before(state, name)
        known = state.topics.get(name)
        partitions = {} if known is None else known.partitions
        added = {
            number: replace(partition, late=late)
            for number, partition in new.partitions.items()
            if number not in partitions
        }
        topics[name] = replace(known or new, partitions={**added, **partitions})
    return replace(state, topics=topics)
