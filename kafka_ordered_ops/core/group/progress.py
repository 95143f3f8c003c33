"""A group's progress on one topic and its partitions, and its JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.strict_json import Fields
from kafka_ordered_ops.core.time_ranges import NO_STEPS, LateSteps
from kafka_ordered_ops.core.window.plan import ranges_from_json, ranges_to_json


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


def topic_from_json(fields: Fields) -> tuple[str, TopicState]:
    """Return the inverse of `topic_to_json`; raise `JsonError`."""
    name = fields.text("topic")
    topic = TopicState(
        topic_id=fields.text("topic_id"),
        settled=fields.boolean("settled"),
        partitions=dict(_partition_from_json(one) for one in fields.objects("partitions")),
    )
    fields.done()
    return name, topic


def _partition_from_json(fields: Fields) -> tuple[int, PartitionState]:
    number = fields.integer("partition", least=0)
    state = PartitionState(
        origin=fields.integer("origin", least=0),
        done=ranges_from_json(fields.integers("done")),
        committed=fields.integer_or_none("committed"),
        late=LateSteps.from_json(fields.integers("late")),
        leader_epoch=fields.integer("leader_epoch") if fields.has("leader_epoch") else None,
    )
    fields.done()
    return number, state
