"""Membership of a live consumer group: the group assigns partitions, and other readers read their records.

The consumer here fetches nothing. It keeps the membership alive, reports its partitions, and commits for
them with its generation, so that a replaced member cannot overwrite its successor's commits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import confluent_kafka as ck

from kafka_ordered_ops.core.arguments import check_timeout_s
from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffset
from kafka_ordered_ops.core.cluster.membership import (
    Commits,
    Membership,
    OnRevoke,
    check_member_topics,
    check_not_of_windows,
    committed_offsets,
)
from kafka_ordered_ops.core.cluster.membership import MembershipChange as MembershipChange
from kafka_ordered_ops.core.errors import (
    CommitRefusedError,
    CommitUnknownError,
    KafkaOrderedOpsError,
    invariant,
)
from kafka_ordered_ops.core.types import GroupProtocol, Isolation, TopicPartition
from kafka_ordered_ops.kafka.client import librdkafka
from kafka_ordered_ops.kafka.client.asking import RETRY_PAUSE_S
from kafka_ordered_ops.kafka.client.calls import Deadline, within
from kafka_ordered_ops.kafka.client.errors import (
    UNKNOWN_TOPIC,
    FaultReasons,
    open_client,
    translate,
)
from kafka_ordered_ops.kafka.client.interrupts import interruptible
from kafka_ordered_ops.kafka.client.lifetime import Home
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.kafka.members.live_groups import check_not_in_ledger
from kafka_ordered_ops.kafka.offsets.committed_offsets import OffsetsReader, commit_as_member
from kafka_ordered_ops.kafka.settings import ClientSettings

#: The limit of each request.
TIMEOUT_S: Final = 30.0
#: Kafka's own default: a member that polls less often leaves the group.
MAX_POLL_INTERVAL_S: Final = 300.0
#: Kafka's own default. A thread of the client sends heartbeats, however long its owner works.
SESSION_TIMEOUT_S: Final = 45.0
#: How soon a member notices a rebalance: a moved partition waits for two of these. With the client's default of 3 s it
#: would wait for 6 s, and an empty heartbeat costs a broker almost nothing.
HEARTBEAT_S: Final = 1.0
#: Revokes only partitions that move. The client's default (range) revokes all partitions from all members in every
#: rebalance: with 8 partitions, the arrival of a second member revoked 8 instead of 4. Each time, the held records of
#: these partitions would be dropped and read again.
ASSIGNOR: Final = "cooperative-sticky"
#: How soon the group learns of new partitions of its topics. The client's default of 5 min is long for a live reader.
REFRESH_MS: Final = 10_000
#: Leaving takes milliseconds. While brokers are unavailable, the client waits half a minute, and ignores a Ctrl-C.
LEAVE_S: Final = 1.0
#: A member without partitions leaves after the current rebalance, which ends once all other members have polled.
REBALANCE_S: Final = 10.0
#: An answer takes a fraction of this. No call waits longer for a cluster that does not answer at all.
ANSWER_S: Final = 1.0
#: A commit takes a fraction of this, unless the group rebalances.
_COMMIT_S: Final = 1.0
#: The interval between two checks whether the client has left.
_LEAVE_SLICE_S: Final = 0.02
#: The limit of reading back a commit that timed out.
READ_BACK_S: Final = 5.0
#: The maximum number of events handled in one poll; more events wait for the next poll.
EVENTS_MAX: Final = 100

#: Errors of a member that is not part of the group's current generation.
_REFUSED: Final = frozenset(
    {
        ck.KafkaError.ILLEGAL_GENERATION,
        ck.KafkaError.UNKNOWN_MEMBER_ID,
        ck.KafkaError.REBALANCE_IN_PROGRESS,
        ck.KafkaError.FENCED_INSTANCE_ID,
        ck.KafkaError._ASSIGNMENT_LOST,
        ck.KafkaError.STALE_MEMBER_EPOCH,
        ck.KafkaError.FENCED_MEMBER_EPOCH,
    }
)
#: Events that other calls report: `on_lost` reports partitions; readers report ends of logs and deleted topics.
_REPORTED_ELSEWHERE: Final = frozenset(
    {
        ck.KafkaError._MAX_POLL_EXCEEDED,
        ck.KafkaError._PARTITION_EOF,
        ck.KafkaError._AUTO_OFFSET_RESET,
    }
)

_log = logging.getLogger(__name__)


class GroupMember:
    """A member of a live consumer group. A context manager, for one thread.

    It joins while its owner polls. It returns no records: its partitions are
    paused as soon as they are assigned.

    Args:
        settings: how to reach the cluster.
        group_id: the group to join; a group of windows is refused.
        topics: names of existing topics.
        on_revoke: called inside `poll` with partitions that move to other members, while `commit` still works for
            them. Not called for partitions that are already lost, nor by `close`.
        timeout_s: the limit of each request.
        session_timeout_s: without a heartbeat for this long, the group reassigns the member's partitions. Brokers allow 6 s
            to 30 min. Without effect for the protocol ``consumer``.
        max_poll_interval_s: the longest time between two polls. A slower member leaves the group, and joins again with
            its next poll.
        protocol: how the group assigns its partitions.
        keeps_maps: whether the owner stores offset maps of Parallel Consumer, and may therefore join its groups.
        instance_id: a name that outlives the process (static membership). A member that restarts under its name within the
            session timeout gets its partitions back at once, without a rebalance. An older member with the same name is
            fenced.
    """

    def __init__(
        self,
        settings: ClientSettings,
        group_id: str,
        topics: Iterable[str],
        *,
        on_revoke: OnRevoke | None = None,
        timeout_s: float = TIMEOUT_S,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        max_poll_interval_s: float = MAX_POLL_INTERVAL_S,
        protocol: GroupProtocol = GroupProtocol.CLASSIC,
        keeps_maps: bool = False,
        instance_id: str | None = None,
    ) -> None:
        check_timeout_s(timeout_s, what="timeout_s")
        check_timeout_s(session_timeout_s, what="session_timeout_s")
        check_timeout_s(max_poll_interval_s, what="max_poll_interval_s")
        self._max_poll_interval_s = max_poll_interval_s
        self._settings = settings
        self._group = group_id
        self._topics = check_member_topics(topics)
        self._owner_on_revoke = on_revoke
        self._timeout_s = timeout_s
        self._keeps_maps = keeps_maps
        self._config = settings.consumer(
            group_id=group_id,
            isolation=Isolation.READ_COMMITTED,
            max_poll_interval_ms=str(round(max_poll_interval_s * 1_000)),
            **_sharing(protocol, session_timeout_s),
        )
        self._config.setdefault("topic.metadata.refresh.interval.ms", str(REFRESH_MS))
        if instance_id is not None:
            self._config["group.instance.id"] = instance_id
        self._reasons = FaultReasons(settings.secret_values())
        self._membership = Membership()
        self._offsets = OffsetsReader(settings, group_id)
        self._consumer: ck.Consumer | None = None
        self._is_closing = False
        #: Whether a rebalance has ended with this member.
        self._has_joined = False
        # With the newer protocol, closing the client leaves the group. A static member stays for its next process.
        self._leaves_by_unsubscribing = protocol is GroupProtocol.CLASSIC and instance_id is None
        self._home = Home()

    def __enter__(self) -> GroupMember:
        """Check the group and begin to join it.

        Raises:
            WindowGroupError: the group belongs to windows, by the ledger or by its commits of these topics.
            GroupInUseError: a program of another kind uses the group.
            UnknownTopicError: a topic does not exist.
            BrokerError: the cluster refuses the request or cannot be reached.
        """
        self._home.check("a member of a group")
        self._check_group(self._topics)
        self._consumer = open_client(ck.Consumer, self._config, self._reasons)
        self._subscribe(self._consumer)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the group; without an answer, the session timeout ends the membership. May be called twice.

        Commit before that: closing does not call `on_revoke`.
        """
        if not self._home.is_here:
            return
        self._is_closing = True
        self._offsets.close()
        consumer, self._consumer = self._consumer, None
        if consumer is None:
            return
        try:
            if self._leaves_by_unsubscribing:
                self._unsubscribe(consumer)
        finally:
            leaving = threading.Thread(target=consumer.close, name="leaves-group", daemon=True)
            leaving.start()
            leaving.join(LEAVE_S)

    def _unsubscribe(self, consumer: ck.Consumer) -> None:
        """Leave the group before the client is closed.

        Closing a client without partitions does not leave the group (librdkafka 2.16): the group would wait for the member,
        and store no commit, until the session timeout. An unsubscribed client leaves as soon as no rebalance is in
        progress, and then has no member id. With partitions, or in its first rebalance, closing leaves at any time.
        """
        library = librdkafka.library()
        deadline, is_extended = Deadline.after(LEAVE_S), False
        with suppress(ck.KafkaException):
            consumer.unsubscribe()
            while library.has_member_id(consumer):
                consumer.poll(_LEAVE_SLICE_S)
                if not deadline.is_over:
                    continue
                has_to_wait = self._has_joined and not self._membership.assignment
                if is_extended or not has_to_wait or not library.is_answered(consumer, ANSWER_S):
                    return
                deadline, is_extended = Deadline.after(REBALANCE_S), True

    @property
    def group_id(self) -> str:
        """The group's name."""
        return self._group

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are assigned to this member."""
        return self._membership.assignment

    def poll(self) -> MembershipChange | None:
        """Poll the group; return the changes since the last call, or None. Does not wait.

        Raises:
            UnknownTopicError: a topic was deleted.
            BrokerError: the cluster refuses the credentials, or a right is missing.
            Exception: any error of `on_revoke`; the partitions are revoked nevertheless.
        """
        consumer = self._open_consumer()
        try:
            for _ in range(EVENTS_MAX):
                with interruptible():
                    message = consumer.poll(0)
                if message is None:
                    break
                self._handle(message)
        except ck.KafkaException as error:
            raise self._translated(error, "taking part in the group") from error
        self._reasons.raise_if_hopeless(doing="taking part in the group", where=self._where)
        return self._membership.take()

    def subscribe(self, topics: Iterable[str]) -> None:
        """Replace the subscription; `poll` returns the changes. Raises like entering the context."""
        consumer, wanted = self._open_consumer(), check_member_topics(topics)
        self._check_group(set(wanted) - set(self._topics))
        self._topics = wanted
        self._subscribe(consumer)

    def committed(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """Return the group's committed offsets, metadata exact to the byte; None where it has none.

        Raises the `BrokerError` family, and `LedgerUnavailableError` while another program's transaction is open.
        """
        return self._offsets.read(partitions, timeout_s=self._timeout_s)

    def commit(self, offsets: Commits, *, timeout_s: float | None = None) -> None:
        """Store offsets, and return when they are stored.

        It also works inside `on_revoke`, and in another thread while this one polls.

        A broker answers the requests of a connection one after another. While the group rebalances, the answer to this
        member's join comes first, and waits for all other members. Callers that cannot wait that long pass a `timeout_s`
        below the member's own. An earlier commit never overtakes a later one.

        Raises:
            CommitRefusedError: a partition is not assigned to this member, the member was replaced, or the group is
                rebalancing: poll, and commit the remaining partitions.
            CommitUnknownError: there was no answer in time, and the commit is not stored so far.
            UnknownTopicError: topics were deleted; the other offsets may be stored.
            BrokerError: the cluster refuses the request or cannot be reached.
        """
        consumer, wanted = self._open_consumer(), committed_offsets(offsets)
        if not wanted:
            return
        library = librdkafka.library()
        deadline = within(self._timeout_s if timeout_s is None else timeout_s)
        while True:
            self._membership.check_assigned(self._group, wanted)
            if not library.has_member_id(consumer):
                # Without a member id, the client would commit from outside of the group, which an empty group allows.
                raise self._refused("it was removed from the group")
            error = commit_as_member(consumer, wanted, timeout_s=min(deadline.left_s, _COMMIT_S))
            if error is None:
                return
            is_late = error.code() == ck.KafkaError._TIMED_OUT
            if is_late and not library.is_answered(consumer, ANSWER_S):
                raise CommitUnknownError(
                    f"{self._where}: no answer to a commit of {len(wanted)} partitions, nor to other requests: the cluster "
                    "is unavailable. The commit may still be stored later, which does no harm. Commit again"
                ) from self._translated(error, "committing")
            if error.code() in _REFUSED:
                raise self._refused(f"{error.str()} ({error.name()})")
            if error.code() in UNKNOWN_TOPIC:
                self._check_topics(wanted)
            fault = self._translated(error, "committing")
            if not (fault.retriable or error.code() in UNKNOWN_TOPIC):
                raise fault
            if self._is_stored(wanted, deadline, fault):
                return

    def client_for(self, partitions: Iterable[TopicPartition]) -> ck.Consumer:
        """Return the client, whose generation fences a transaction with offsets of these partitions.

        Raises `CommitRefusedError` if a partition is not assigned to this member.
        """
        self._membership.check_assigned(self._group, partitions)
        return self._open_consumer()

    def _is_stored(
        self,
        wanted: Mapping[TopicPartition, CommittedOffset],
        deadline: Deadline,
        fault: KafkaOrderedOpsError,
    ) -> bool:
        """Read back an unanswered commit; raise `CommitUnknownError` if it is not stored by the deadline."""
        reason: KafkaOrderedOpsError = fault
        try:
            # Also at the deadline, when the answer matters most.
            left_s = max(deadline.left_s, min(self._timeout_s, READ_BACK_S))
            if self._offsets.read(list(wanted), timeout_s=left_s) == wanted:
                return True
        except KafkaOrderedOpsError as error:
            if not error.retriable:
                raise
            reason = error
        if deadline.is_over:
            raise CommitUnknownError(
                f"{self._where}: no answer in time to a commit of {len(wanted)} partitions, and it is not stored so far "
                f"({reason}). The group may be rebalancing. The commit may still be stored later, which does no harm. Poll, "
                "and commit again"
            ) from reason
        time.sleep(min(RETRY_PAUSE_S, deadline.left_s))
        return False

    def _check_topics(self, offsets: Iterable[TopicPartition]) -> None:
        """Raise `UnknownTopicError` for the topics that do not exist: the client's error does not include them."""
        with Lookup(self._settings, timeout_s=self._timeout_s) as lookup:
            lookup.topics({tp.topic for tp in offsets})

    def _subscribe(self, consumer: ck.Consumer) -> None:
        consumer.subscribe(
            self._topics,
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )

    def _check_group(self, names: Iterable[str]) -> None:
        with Lookup(self._settings, timeout_s=self._timeout_s) as lookup:
            topics = lookup.topics(names)
            lookup.check_kind(self._group)
            check_not_in_ledger(
                self._settings, lookup, self._group, self._timeout_s, keeps_maps=self._keeps_maps
            )
        partitions = [
            TopicPartition(name, number) for name in topics for number in topics[name].partitions
        ]
        check_not_of_windows(self._group, self.committed(partitions), keeps_maps=self._keeps_maps)

    def _on_assign(self, consumer: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
        self._has_joined = True
        at_end = [
            ck.TopicPartition(partition.topic, partition.partition, ck.OFFSET_END)
            for partition in partitions
        ]
        consumer.incremental_assign(at_end)
        # At once, while the client still has to look up the end of the log: so it never fetches.
        consumer.pause(at_end)
        self._membership.gain(map(_tp, partitions))

    def _on_revoke(self, _: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
        revoked = frozenset(map(_tp, partitions))
        current = self._membership.known(revoked)
        try:
            if current and self._owner_on_revoke is not None and not self._is_closing:
                self._owner_on_revoke(current)
        finally:
            self._membership.lose(revoked)

    def _on_lost(self, _: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
        self._membership.lose(map(_tp, partitions))

    def _handle(self, message: ck.Message) -> None:
        error = message.error()
        invariant(error is not None, "a member of a group fetches no records")
        if error is None:
            return
        if error.code() == ck.KafkaError._MAX_POLL_EXCEEDED:
            _log.warning(
                "%s: more than %g s passed between two polls, the max.poll.interval.ms of this member. The member left the "
                "group, which reassigns its partitions, and joins again",
                self._where,
                self._max_poll_interval_s,
            )
        if error.code() in _REPORTED_ELSEWHERE:
            return
        fault = self._translated(error, "taking part in the group")
        if not fault.retriable:
            raise fault
        self._reasons.add(error)

    def _open_consumer(self) -> ck.Consumer:
        self._home.check("a member of a group")
        consumer = self._consumer
        if consumer is None:
            raise AssertionError("a GroupMember can be used only inside its `with` block")
        return consumer

    @property
    def _where(self) -> str:
        return f"group {self._group}"

    def _refused(self, why: str) -> CommitRefusedError:
        return CommitRefusedError(
            f"{self._where} refuses a commit of this member: {why}. Nothing was stored. Poll for the current assignment, "
            "and commit its partitions",
            group_id=self._group,
        )

    def _translated(
        self, error: ck.KafkaException | ck.KafkaError, doing: str
    ) -> KafkaOrderedOpsError:
        return translate(error, doing=doing, where=self._where, reasons=self._reasons)


def _sharing(protocol: GroupProtocol, session_timeout_s: float) -> dict[str, Any]:
    """Return the settings of a protocol; the client refuses those of the other one."""
    if protocol is GroupProtocol.CONSUMER:
        return {"group_protocol": str(protocol)}
    return {
        "partition_assignment_strategy": ASSIGNOR,
        "session_timeout_ms": str(round(session_timeout_s * 1_000)),
        "heartbeat_interval_ms": str(round(min(HEARTBEAT_S, session_timeout_s / 3) * 1_000)),
    }


def _tp(partition: ck.TopicPartition) -> TopicPartition:
    return TopicPartition(partition.topic, partition.partition)
