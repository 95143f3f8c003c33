"""A group's progress on one topic and its partitions, and its JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.strict_json import Count, Int32, Stored, once
from kafka_ordered_ops.core.time_ranges import NO_STEPS, LateSteps
from kafka_ordered_ops.core.window.plan import (
    Ranges,
    TopicId,
    TopicName,
    bounded_ranges,
    ranges_from_json,
    ranges_to_json,
    stored_topic,
)


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A group's progress on one partition."""

    #: The start of the group, or its new start after an adoption, and not below what Parallel Consumer has done. Any
    #: program may have done offsets below it; above it, only windows that are not rewound have taken offsets.
    origin: int
    #: Offsets that committed windows took, everything below the start, and what Parallel Consumer has done.
    done: OffsetSet
    #: The group's committed offset in Kafka when it was last written or seen; None: there was none.
    committed: int | None
    #: The times that committed windows cover.
    late: LateSteps = NO_STEPS
    #: The epoch of the log's leader when the group last read; None: unknown.
    leader_epoch: int | None = None

    @property
    def base(self) -> int:
        """The first offset that is not done: the group's committed offset."""
        return self.done.first_missing(0)

    @property
    def beyond(self) -> OffsetSet:
        """The done offsets above the base."""
        return self.done - OffsetSet.of((0, self.base))

    @property
    def delivered_before_ms(self) -> int | None:
        """The greatest cutoff of the committed windows; None if there is none."""
        return self.late.times[-1].before_ms if self.late else None

    def lag(self, log_start: int, end_offset: int) -> int:
        """Return the number of offsets of the log that are not done; done ranges beyond the first one do not count."""
        return (OffsetSet.of((log_start, end_offset)) - self.done).count


@dataclass(frozen=True, slots=True)
class TopicState:
    """A group's progress on one topic."""

    topic_id: str
    #: Whether a window with this topic was ever committed; until then its origin may be chosen again.
    settled: bool
    partitions: Mapping[int, PartitionState]

    @property
    def ranges(self) -> int:
        """The number of ranges that are done."""
        return sum(len(partition.done) for partition in self.partitions.values())


def topic_to_json(name: str, topic: TopicState) -> dict[str, Any]:
    """Return plain JSON."""
    return {
        "topic": name,
        "topic_id": topic.topic_id,
        "settled": topic.settled,
        "partitions": [
            {
                "partition": number,
                "origin": state.origin,
                "done": ranges_to_json(state.done),
                "committed": state.committed,
                "late": state.late.to_json(),
                "leader_epoch": state.leader_epoch,
            }
            for number, state in sorted(topic.partitions.items())
        ],
    }


class _StoredPartition(Stored, frozen=True):
    partition: Int32
    origin: Count
    done: Ranges
    committed: Count | None
    late: list[int]
    leader_epoch: Int32 | None

    @property
    def state(self) -> PartitionState:
        done, late = ranges_from_json(self.done), LateSteps.from_json(self.late)
        return PartitionState(self.origin, done, self.committed, late, self.leader_epoch)


class StoredTopic(Stored, frozen=True):
    """The JSON of a topic's state."""

    topic: TopicName
    topic_id: TopicId
    settled: bool
    partitions: list[_StoredPartition]

    @property
    def state(self) -> TopicState:
        """The state; raises `JsonError` for ranges that do not rise, or are too many."""
        partitions = ((partition.partition, partition.state) for partition in self.partitions)
        bounded = bounded_ranges(partitions, lambda item: len(item[1].done))
        return TopicState(self.topic_id, self.settled, once(bounded, "partition"))


def topics_from(stored: Iterable[StoredTopic]) -> dict[str, TopicState]:
    """Return the states of topics by name; raise `JsonError`."""
    topics = ((stored_topic(topic.topic), topic.state) for topic in stored)
    return once(bounded_ranges(topics, lambda item: item[1].ranges), "topic")
