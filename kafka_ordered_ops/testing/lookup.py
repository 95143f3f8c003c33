"""The look-up door of the model: the answers of `kafka.lookup.Lookup`, from memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from kafka_ordered_ops.core.cluster.cluster_facts import (
    LogClaim,
    LogEnd,
    TopicFacts,
    check_group_empty,
    check_partitions_exist,
    is_pattern,
    matching_topics,
    unknown_topics,
)
from kafka_ordered_ops.core.errors import invariant
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.testing.log import PartitionLog
from kafka_ordered_ops.testing.registry import reach

_Answer = TypeVar("_Answer")


class MemoryLookup:
    """Look up facts of one model. A context manager.

    Every method raises `BrokerUnreachableError` if the model cannot be reached.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> MemoryLookup:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing."""

    def topics(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        """Describe topics by name; raise one `UnknownTopicError` for all topics that do not exist."""
        cluster = reach(self._name)
        with cluster.changed:
            unique = list(dict.fromkeys(names))
            if unknown := sorted(name for name in unique if name not in cluster.topics):
                raise unknown_topics(unknown, cluster.topics)
            return {name: cluster.topics[name].facts for name in unique}

    def existing(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        """Describe the topics that exist."""
        cluster = reach(self._name)
        with cluster.changed:
            return self.topics(name for name in names if name in cluster.topics)

    def matching(self, patterns: Iterable[str], exclude: Iterable[str] = ()) -> list[str]:
        """Return the topics that match; see `core.cluster.cluster_facts.matching_topics`."""
        cluster = reach(self._name)
        with cluster.changed:
            return matching_topics(patterns, exclude, cluster.topics)

    def selected(self, names: Sequence[str], exclude: Sequence[str] = ()) -> dict[str, TopicFacts]:
        """Describe the topics that names and patterns select; raise `UnknownTopicError` if there are none."""
        if exclude or any(is_pattern(name) for name in names):
            names = self.matching(names, exclude)
        return self.topics(names)

    def log_starts(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset in each log; for an empty log, its end."""
        return self._of_each(partitions, lambda log: log.log_start)

    def end_offsets(
        self, partitions: Collection[TopicPartition], isolation: Isolation
    ) -> dict[TopicPartition, int]:
        """Return the last stable offsets under read_committed, else the high watermarks."""
        return self._of_each(partitions, lambda log: log.end_offset(isolation))

    def log_ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogEnd]:
        """Return the high watermarks, with the epochs of the leaders."""
        return self._of_each(partitions, lambda log: LogEnd(log.high_watermark, log.leader_epoch))

    def diverged(
        self, group_id: str, claims: Mapping[TopicPartition, LogClaim]
    ) -> dict[TopicPartition, int]:
        """Return the claims about logs that are false, each with the offset up to which the log is the same."""
        cluster = reach(self._name)
        with cluster.changed:
            ends = {
                tp: cluster.log(tp).end_of_epoch(claim.leader_epoch) for tp, claim in claims.items()
            }
        return {tp: end for tp, end in ends.items() if end < claims[tp].end}

    def first_at_or_after(
        self, partitions: Collection[TopicPartition], timestamp_ms: int, isolation: Isolation
    ) -> dict[TopicPartition, int | None]:
        """Return the index's answer, which counts markers and aborted records; None if there is none below the end."""
        invariant(timestamp_ms >= 0, f"a look-up by the negative timestamp {timestamp_ms}")
        return self._of_each(partitions, lambda log: log.first_at_or_after(timestamp_ms, isolation))

    def first_at_or_after_each(
        self,
        partitions: Collection[TopicPartition],
        timestamps_ms: Iterable[int],
        isolation: Isolation,
    ) -> dict[int, dict[TopicPartition, int | None]]:
        """Return the index's answers for several times, by time."""
        return {
            time_ms: self.first_at_or_after(partitions, time_ms, isolation)
            for time_ms in timestamps_ms
        }

    def greatest_timestamps(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int | None]:
        """Return the greatest timestamp in each log (ms), including markers and aborted records; None if there is none.

        As on a broker, it is the greatest timestamp of all segments, even if the record was deleted.
        """
        return self._of_each(partitions, PartitionLog.greatest_timestamp_ms)

    def group_members(self, group_id: str) -> list[str]:
        """Return the live members as ``client id@host (member id)``."""
        cluster = reach(self._name)
        with cluster.changed:
            return sorted(cluster.group(group_id).members.values())

    def check_kind(self, group_id: str) -> None:
        """Do nothing: all groups of the model are consumer groups."""

    def check_no_members(self, group_id: str) -> None:
        """Raise `GroupInUseError` if the group has members: a window's commit would bypass them."""
        check_group_empty(group_id, self.group_members(group_id))

    def _of_each(
        self, partitions: Collection[TopicPartition], ask: Callable[[PartitionLog], _Answer]
    ) -> dict[TopicPartition, _Answer]:
        cluster = reach(self._name)
        with cluster.changed:
            check_partitions_exist(partitions, self.topics({tp.topic for tp in partitions}))
            return {tp: ask(cluster.log(tp)) for tp in partitions}
