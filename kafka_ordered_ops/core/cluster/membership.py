"""Membership of a live consumer group: which partitions a member has, and which groups it may join."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from kafka_ordered_ops.core.arguments import shown
from kafka_ordered_ops.core.cluster.cluster_facts import (
    CommittedOffset,
    CommittedOffsets,
    is_pattern,
)
from kafka_ordered_ops.core.cluster.names import check_topic_names
from kafka_ordered_ops.core.errors import CommitRefusedError, ConfigError, WindowGroupError
from kafka_ordered_ops.core.offset_map.ours import is_offset_map
from kafka_ordered_ops.core.offset_map.reading import MetadataKind, metadata_kind
from kafka_ordered_ops.core.types import TopicPartition

#: Partitions named in one error.
_NAMED_MAX = 8

#: Called with partitions that a member is about to give up; it may still commit them.
OnRevoke = Callable[[frozenset[TopicPartition]], None]

#: Commits of a member: offsets, or offsets with metadata, which is stored byte for byte.
Commits: TypeAlias = Mapping[TopicPartition, int | CommittedOffset]


def committed_offsets(commits: Commits) -> dict[TopicPartition, CommittedOffset]:
    """Return the commits with metadata; it is empty for plain offsets."""
    return {
        tp: CommittedOffset(commit) if isinstance(commit, int) else commit
        for tp, commit in commits.items()
    }


@dataclass(frozen=True, slots=True)
class MembershipChange:
    """Partitions gained and lost since the last change.

    Handle `lost` first: a partition in both was given away and has come back, and others may have moved its offset.
    """

    gained: frozenset[TopicPartition] = frozenset()
    #: Revoked or lost: commits for them are refused.
    lost: frozenset[TopicPartition] = frozenset()


class Membership:
    """The partitions of one member, and their changes since the last call of `take`."""

    def __init__(self) -> None:
        self.assignment: frozenset[TopicPartition] = frozenset()
        self._gained: frozenset[TopicPartition] = frozenset()
        self._lost: frozenset[TopicPartition] = frozenset()

    def gain(self, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions."""
        added = frozenset(partitions)
        self.assignment |= added
        self._gained |= added

    def lose(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove partitions. A partition whose gain was not reported yet is not reported at all."""
        removed = frozenset(partitions)
        self.assignment -= removed
        self._lost |= removed - self._gained
        self._gained -= removed

    def known(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Return the partitions among these that were reported as gained."""
        return frozenset(partitions) - self._gained

    def take(self) -> MembershipChange | None:
        """Return the changes since the last call; None if there are none."""
        if not (self._gained or self._lost):
            return None
        change = MembershipChange(self._gained, self._lost)
        self._gained = self._lost = frozenset()
        return change

    def check_assigned(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Raise `CommitRefusedError` for partitions that the member does not own: brokers do not check this."""
        if absent := sorted(set(partitions) - self.assignment):
            raise CommitRefusedError(
                f"group {group_id}: {_named(absent)} are not assigned to this member (any more), so it must not commit "
                "them. Drop these partitions: their owner continues from the last stored commit",
                group_id=group_id,
            )


def check_member_topics(topics: Iterable[str]) -> list[str]:
    """Return the topics of a member, sorted; raise `ConfigError` if there are none, or for a pattern."""
    names = sorted({*topics}) if not isinstance(topics, str) else [topics]
    if not names:
        raise ConfigError("a member of a group needs at least one topic")
    if patterns := [name for name in names if is_pattern(name)]:
        raise ConfigError(
            f"a member of a group subscribes to names, not to patterns such as {shown(patterns[0])}: look up the topics "
            "that it matches, and pass their names"
        )
    check_topic_names(names, what="topics")
    return names


def check_not_of_windows(
    group_id: str, committed: CommittedOffsets, *, keeps_maps: bool = False
) -> None:
    """Raise `WindowGroupError` if commits of the group hold the progress of windows, or of Parallel Consumer.

    `keeps_maps`: the member reads and commits the offset maps of Parallel Consumer, so it may join such a group.
    """
    for of_whom, holds in (("windows", is_offset_map), ("Parallel Consumer", _is_parallel)):
        if keeps_maps and holds is _is_parallel:
            continue
        owned = sorted(
            tp for tp, commit in committed.items() if commit is not None and holds(commit.metadata)
        )
        if owned:
            raise WindowGroupError(
                f"group {group_id} is a group of {of_whom}: its commits of {_named(owned)} hold their progress beyond the "
                "committed offset, which a live member's commits would destroy. Choose another group_id for the live "
                "reader",
                group_id=group_id,
                partitions=tuple(map(str, owned)),
            )


def _is_parallel(metadata: bytes) -> bool:
    return metadata_kind(metadata) is MetadataKind.PARALLEL_CONSUMER


def _named(partitions: Collection[TopicPartition]) -> str:
    names = [str(tp) for tp in partitions]
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return ", ".join(names[:_NAMED_MAX]) + more
