"""An ordered read as a member of a group: membership, commits, and the user's callbacks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack

from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffset
from kafka_ordered_ops.core.errors import KafkaOrderedOpsError, UnknownTopicError
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.ports import MembershipChange, MembershipDoor, open_member
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.ordered.callbacks import Callbacks
from kafka_ordered_ops.ordered.commits import Commits
from kafka_ordered_ops.ordered.options import Member

_log = logging.getLogger(__name__)


class GroupPart:
    """One member of a group; for the thread that reads.

    Args:
        member: the user's options.
        done_up_to: returns the first unprocessed offset of each partition.
    """

    def __init__(
        self, member: Member, done_up_to: Callable[[], Mapping[TopicPartition, int]]
    ) -> None:
        self._options = member
        self._done_up_to = done_up_to
        self._callbacks = Callbacks(member)
        #: Partitions for which `on_revoked` was called, until the group revokes them.
        self._given_up: frozenset[TopicPartition] = frozenset()
        self._member: MembershipDoor
        self.commits: Commits
        #: The topics of the subscription.
        self.topics: frozenset[str] = frozenset()

    def open(self, stack: ExitStack, settings: ClientSettings, topics: Collection[str]) -> None:
        """Join the group."""
        options, self.topics = self._options, frozenset(topics)
        self._member = stack.enter_context(
            open_member(
                settings,
                options.group_id,
                self.topics,
                on_revoke=self._revoked,
                session_timeout_s=options.session_timeout_s,
                max_poll_interval_s=options.max_poll_interval_s,
                instance_id=options.instance_id,
            )
        )
        self.commits = Commits(self._member, options.commit_interval_s, self._done_up_to)

    @property
    def in_callback(self) -> bool:
        """Whether a callback of the user is running."""
        return self._callbacks.is_running

    def subscribe(self, topics: Collection[str]) -> None:
        """Subscribe to the topics that the patterns match now."""
        wanted = frozenset(topics)
        if not wanted or wanted == self.topics:
            return
        try:
            self._member.subscribe(wanted)
            self.topics = wanted
        except KafkaOrderedOpsError as error:
            if not (error.retriable or isinstance(error, UnknownTopicError)):
                raise
            _log.info("the subscription to new topics is retried: %s", error)

    def poll(self) -> MembershipChange | None:
        """Poll the group; return the changes, after `on_lost` for partitions that were not revoked before."""
        change = self._member.poll()
        if change is not None:
            given_up, self._given_up = self._given_up, self._given_up - change.lost
            positions = self._done_up_to()
            lost = change.lost - given_up
            self._callbacks.lost({tp: positions[tp] for tp in lost if tp in positions})
        return change

    def committed(
        self, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, CommittedOffset | None]:
        """Return the group's committed offsets."""
        return self._member.committed(partitions)

    def report_started(self, starts: Mapping[TopicPartition, int]) -> None:
        """Call `on_assigned` for partitions that are read from now on."""
        self._callbacks.assigned(starts)

    def _revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self._given_up |= partitions
        try:
            positions = self._done_up_to()
            self._callbacks.revoked({tp: positions[tp] for tp in partitions if tp in positions})
        finally:
            self.commits.before_revocation(partitions)
