"""The offsets that open windows hold of a group's partitions, and the times that are late there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kafka_ordered_ops.core.cluster.cluster_facts import is_selected
from kafka_ordered_ops.core.group.progress import TopicState
from kafka_ordered_ops.core.offset_set import OffsetSet, union_of
from kafka_ordered_ops.core.time_ranges import LateSteps, TimeRange
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.core.window.plan import PartitionPlan, WindowPlan


@dataclass(frozen=True, slots=True)
class Claims:
    """The shares of open windows, each with its window's times, by partition."""

    by_partition: Mapping[TopicPartition, Sequence[tuple[PartitionPlan, TimeRange]]]
    #: Partitions that appeared while windows were open, with the times of these.
    appeared: Mapping[TopicPartition, Sequence[TimeRange]] = field(default_factory=dict)

    def offsets(self, tp: TopicPartition) -> OffsetSet:
        """Return the offsets of a partition that open windows hold."""
        held = self.by_partition.get(tp, ())
        return union_of(offsets for part, _ in held for offsets in (part.taken, part.lost))

    def late(self, tp: TopicPartition, committed: LateSteps) -> LateSteps:
        """Return which records are late, given the committed windows and the open ones."""
        return committed.with_steps(
            [
                *((part.decided_end, times) for part, times in self.by_partition.get(tp, ())),
                *((0, times) for times in self.appeared.get(tp, ())),
            ]
        )


def appeared_since(topics: Mapping[str, TopicState], plan: WindowPlan) -> list[TopicPartition]:
    """Return the partitions that a window selects and that were not there when it was planned.

    All of its times are late on them: they count as planned without a record.
    """
    if len(plan.partitions) == sum(len(topic.partitions) for topic in topics.values()):
        return []
    held = {part.tp for part in plan}
    ids = plan.topic_ids
    return [
        TopicPartition(name, number)
        for name, topic in topics.items()
        # Offsets in an older topic of the same name mean nothing for this one.
        if ids.get(name, topic.topic_id) == topic.topic_id
        and (name in ids or is_selected(name, plan.window.topics, plan.window.exclude))
        for number in topic.partitions
        if TopicPartition(name, number) not in held
    ]
