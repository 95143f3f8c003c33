"""A group's progress on one topic and its partitions, and its JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.strict_json import Fields, once
from kafka_ordered_ops.core.time_ranges import NO_STEPS, LateSteps
from kafka_ordered_ops.core.window.plan import (
    TOPIC_ID_LENGTH_MAX,
    bounded_ranges,
    ranges_to_json,
    stored_ranges,
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
        return sum(len(one.done) for one in self.partitions.values())


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
                **({} if state.leader_epoch is None else {"leader_epoch": state.leader_epoch}),
            }
            for number, state in sorted(topic.partitions.items())
        ],
    }


def topics_from_json(topics: Iterable[Fields]) -> dict[str, TopicState]:
    """Return the inverse of `topic_to_json` for all topics, by name; raise `JsonError`."""
    return once(bounded_ranges(map(_topic_from_json, topics), lambda one: one[1].ranges), "topic")


def _topic_from_json(fields: Fields) -> tuple[str, TopicState]:
    name = stored_topic(fields)
    topic = TopicState(
        topic_id=fields.text("topic_id", length_max=TOPIC_ID_LENGTH_MAX),
        settled=fields.boolean("settled"),
        partitions=once(
            bounded_ranges(
                map(_partition_from_json, fields.objects("partitions")),
                lambda one: len(one[1].done),
            ),
            "partition",
        ),
    )
    fields.done()
    return name, topic


def _partition_from_json(fields: Fields) -> tuple[int, PartitionState]:
    number = fields.int32("partition")
    state = PartitionState(
        origin=fields.integer("origin", least=0),
        done=stored_ranges(fields, "done"),
        committed=fields.integer_or_none("committed", least=0),
        late=LateSteps.from_json(fields.integers("late")),
        leader_epoch=fields.int32("leader_epoch") if fields.has("leader_epoch") else None,
    )
    fields.done()
    return number, state
