"""Where a read starts: a bound for all topics, for some, or for single partitions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kafka_ordered_ops.core.arguments import shown
from kafka_ordered_ops.core.cluster.cluster_facts import is_selected
from kafka_ordered_ops.core.cluster.names import as_partition
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.core.window.bounds import (
    AtOffset,
    Bound,
    Committed,
    Earliest,
    StartingOffsets,
    as_bound,
    as_starting_offsets,
    bound_of,
    bounds_of,
)


@dataclass(frozen=True, slots=True)
class ReadStarts:
    """Starting offsets of a read."""

    #: Topics that are not in a mapping start at earliest.
    by_topic: StartingOffsets
    by_partition: Mapping[TopicPartition, Bound]

    @classmethod
    def of(cls, value: object, topics: Collection[str]) -> ReadStarts:
        """Convert starting offsets, as for a window, or a mapping whose keys may also be single partitions.

        Raises:
            ConfigError: an invalid bound, or a topic that is not among those of the read.
        """
        exact: dict[TopicPartition, Bound] = {}
        if isinstance(value, Mapping):
            single = {key: bound for key, bound in value.items() if not isinstance(key, str)}
            for key, bound in single.items():
                tp = as_partition(key, what="starting_offsets")
                if not is_selected(tp.topic, topics, ()):
                    raise ConfigError(
                        f"starting_offsets has {tp}, and the topics are {', '.join(sorted(topics)[:5])}: name some of them"
                    )
                exact[tp] = as_exact_bound(bound, what=f"starting_offsets of {tp}")
            value = {key: bound for key, bound in value.items() if isinstance(key, str)}
            if single and not value:
                value = Earliest()
        starts = as_starting_offsets(value, topics)
        if starts is None:
            raise ConfigError(
                "starting_offsets is None: give 'earliest', 'latest' or another bound"
            )
        return cls(starts, exact)

    def bound_of_topic(self, topic: str) -> Bound:
        """Return where a topic starts; a topic that is not in a mapping starts at earliest."""
        return bound_of(self.by_topic, topic) or Earliest()

    @property
    def need_a_group(self) -> bool:
        """Whether one of the bounds is the committed offset."""
        return Committed() in (*bounds_of(self.by_topic), *self.by_partition.values())


def as_exact_bound(value: object, *, what: str) -> Bound:
    """Convert a position in one partition: an offset, or a bound as for windows; raise `ConfigError` for others."""
    if isinstance(value, int) and not isinstance(value, bool):
        return AtOffset(value)
    bound = as_bound(value)
    if bound is None:
        raise ConfigError(
            f"{what} is {shown(value)}: give an offset, a time, 'earliest' or 'latest'"
        )
    return bound
