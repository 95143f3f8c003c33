"""The model's doors for `kafka.internal_topics.InternalTopics` and `kafka.outside_commits.OutsideCommits`."""

from __future__ import annotations

from collections.abc import Mapping

from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffset
from kafka_ordered_ops.core.errors import GroupInUseError
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.testing.registry import reach


class MemoryInternalTopics:
    """Create and trim topics of a model. A context manager."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> MemoryInternalTopics:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing."""

    def ensure(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create a topic; an existing topic is not changed."""
        cluster = reach(self._name)
        with cluster.changed:
            if name not in cluster.topics:
                cluster.create_topic(name, partitions, config)

    def grow(self, name: str, partitions: int) -> None:
        """Increase a topic to a number of partitions; a topic with more partitions is not changed."""
        cluster = reach(self._name)
        with cluster.changed:
            if len(cluster.topic(name).logs) < partitions:
                cluster.add_partitions(name, partitions)

    def delete_before(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Delete the records below offsets."""
        cluster = reach(self._name)
        with cluster.changed:
            for tp, offset in offsets.items():
                cluster.delete_records(tp, offset)


class MemoryOutsideCommits:
    """Commit for a group of a model without being a member. A context manager."""

    def __init__(self, name: str, group_id: str) -> None:
        self._name, self._group = name, group_id

    def __enter__(self) -> MemoryOutsideCommits:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing."""

    def commit(
        self, offsets: Mapping[TopicPartition, CommittedOffset], *, timeout_s: float
    ) -> None:
        """Store offsets, with metadata byte for byte."""
        cluster = reach(self._name)
        with cluster.changed:
            if members := tuple(cluster.group(self._group).members.values()):
                raise GroupInUseError(
                    f"group {self._group} has live members, which commit its offsets. Stop the members first",
                    group_id=self._group,
                    members=members,
                )
            cluster.commit(self._group, offsets)
