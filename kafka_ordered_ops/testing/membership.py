"""The model's membership door: `kafka.membership.GroupMember`, for members in one process.

The members of a group get the partitions of their topics in turn. When a member joins or leaves, the other members
change their partitions at their next poll. A member gains a partition only after its last owner has given it up.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence

from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffset
from kafka_ordered_ops.core.cluster.membership import (
    Commits,
    Membership,
    MembershipChange,
    OnRevoke,
    check_member_topics,
    check_not_of_windows,
    committed_offsets,
)
from kafka_ordered_ops.core.errors import BrokerUnreachableError, CommitRefusedError, invariant
from kafka_ordered_ops.core.group.checks import check_free_for_live
from kafka_ordered_ops.core.group.ledger_rules import LEDGER_TOPIC
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.testing.cluster import Cluster, Group
from kafka_ordered_ops.testing.ledger import MemoryLedger, read_committed_offsets
from kafka_ordered_ops.testing.registry import reach


class MemoryMember:
    """A member of a group of the model. A context manager; see `kafka.membership.GroupMember` for the errors."""

    def __init__(
        self,
        name: str,
        group_id: str,
        topics: Iterable[str],
        *,
        on_revoke: OnRevoke | None,
        timeout_s: float,
        keeps_maps: bool,
    ) -> None:
        self._name = name
        self._group = group_id
        self._topics = check_member_topics(topics)
        self._on_revoke = on_revoke
        self._timeout_s = timeout_s
        self._keeps_maps = keeps_maps
        self._membership = Membership()
        self._id = ""
        self._is_open = False

    def __enter__(self) -> MemoryMember:
        cluster = reach(self._name)
        with cluster.changed:
            self._check_group(cluster, self._topics)
            self._join(cluster.group(self._group))
        self._is_open = True
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the group; may be called twice."""
        self._is_open = False
        try:
            cluster = reach(self._name)
        except BrokerUnreachableError:
            return
        with cluster.changed:
            cluster.group(self._group).leave(self._id)

    @property
    def group_id(self) -> str:
        """The group's name."""
        return self._group

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions of this member."""
        return self._membership.assignment

    def poll(self) -> MembershipChange | None:
        """Take part in the group; return the changes since the last call, or None."""
        self._check_open()
        try:
            cluster = reach(self._name)
        except BrokerUnreachableError:
            # As with brokers: the client does not report that they are unreachable.
            return self._membership.take()
        with cluster.changed:
            group = cluster.group(self._group)
            if self._id not in group.members:
                self._membership.lose(self.assignment)
                self._join(group)
            revoked = self.assignment - self._share(cluster, group)
        if revoked:
            self._give_up(cluster, revoked)
        with cluster.changed:
            free = {tp for tp in self._share(cluster, group) if not group.is_owned(tp)}
            group.owners.update(dict.fromkeys(free, self._id))
        self._membership.gain(free)
        return self._membership.take()

    def subscribe(self, topics: Iterable[str]) -> None:
        """Subscribe to these topics instead of the previous ones."""
        self._check_open()
        names = check_member_topics(topics)
        cluster = reach(self._name)
        with cluster.changed:
            new = sorted(set(names) - set(self._topics))
            self._check_group(cluster, new)
            self._topics = names
            group = cluster.group(self._group)
            if self._id in group.members:
                group.subscribed[self._id] = frozenset(names)

    def committed(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """Return the group's committed offsets; None for partitions without one."""
        return read_committed_offsets(
            self._name, self._group, partitions, timeout_s=self._timeout_s
        )

    def commit(self, offsets: Commits, *, timeout_s: float | None = None) -> None:
        """Store offsets, at once."""
        cluster = reach(self._name)
        with cluster.changed:
            self.check_may_commit(offsets)
            cluster.commit(self._group, committed_offsets(offsets))

    def check_may_commit(self, partitions: Iterable[TopicPartition]) -> None:
        """Raise `CommitRefusedError` unless this member owns the partitions, and is still in the group."""
        self._check_open()
        self._membership.check_assigned(self._group, partitions)
        cluster = reach(self._name)
        with cluster.changed:
            if self._id not in cluster.group(self._group).members:
                raise CommitRefusedError(
                    f"group {self._group} refuses a commit of this member: it was removed from the group. Nothing was "
                    "stored. Poll for the current assignment, and commit its partitions",
                    group_id=self._group,
                )

    def _check_group(self, cluster: Cluster, topics: Iterable[str]) -> None:
        partitions = [tp for name in topics for tp in _partitions(cluster, name)]
        committed = self.committed(partitions)
        with MemoryLedger(self._name, topic=LEDGER_TOPIC, timeout_s=self._timeout_s) as ledger:
            check_free_for_live(ledger.read(self._group).state, keeps_maps=self._keeps_maps)
        check_not_of_windows(self._group, committed, keeps_maps=self._keeps_maps)

    def _join(self, group: Group) -> None:
        self._id = f"rdkafka-{uuid.uuid4()}"
        group.members[self._id] = f"rdkafka@/127.0.0.1 ({self._id})"
        group.subscribed[self._id] = frozenset(self._topics)

    def _share(self, cluster: Cluster, group: Group) -> frozenset[TopicPartition]:
        """Return this member's share of the topics' partitions, as if all members had polled."""
        share: set[TopicPartition] = set()
        for name in self._topics:
            members = [
                member_id
                for member_id in group.members
                if name in group.subscribed.get(member_id, ())
            ]
            share.update(_partitions(cluster, name)[members.index(self._id) :: len(members)])
        return frozenset(share)

    def _give_up(self, cluster: Cluster, revoked: frozenset[TopicPartition]) -> None:
        known = self._membership.known(revoked)
        try:
            if known and self._on_revoke is not None:
                self._on_revoke(known)
        finally:
            self._membership.lose(revoked)
            with cluster.changed:
                group = cluster.group(self._group)
                for tp in revoked:
                    if group.owners.get(tp) == self._id:
                        del group.owners[tp]

    def _check_open(self) -> None:
        invariant(self._is_open, "a member takes part inside its `with` block")


def expire_members(name: str, group_id: str) -> None:
    """Remove all members from a group of a model, as if they had sent no heartbeats."""
    cluster = reach(name)
    with cluster.changed:
        group = cluster.group(group_id)
        for member_id in list(group.members):
            group.leave(member_id)


def _partitions(cluster: Cluster, topic: str) -> list[TopicPartition]:
    """Return a topic's partitions; raise `UnknownTopicError` if the topic does not exist."""
    return [TopicPartition(topic, number) for number in range(len(cluster.topic(topic).logs))]
