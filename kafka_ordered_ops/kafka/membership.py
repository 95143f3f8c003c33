"""Membership of a live consumer group: partitions are assigned by the group, records are read by others.

The consumer here fetches nothing. It keeps the membership alive, reports which partitions it has, and commits for
them with its generation, so that a member that was replaced cannot overwrite its successor's commits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import confluent_kafka as ck

from kafka_ordered_ops.core.arguments import check_timeout_s
from kafka_ordered_ops.core.cluster_facts import CommittedOffset
from kafka_ordered_ops.core.errors import (
    CommitRefusedError,
    CommitUnknownError,
    KafkaOrderedOpsError,
    invariant,
)
from kafka_ordered_ops.core.membership import (
    Commits,
    Membership,
    OnRevoke,
    check_member_topics,
    check_not_of_windows,
    committed_offsets,
)
from kafka_ordered_ops.core.membership import MembershipChange as MembershipChange
from kafka_ordered_ops.core.types import GroupProtocol, Isolation, TopicPartition
from kafka_ordered_ops.kafka.client.asking import RETRY_PAUSE_S
from kafka_ordered_ops.kafka.client.calls import Deadline, within
from kafka_ordered_ops.kafka.client.errors import (
    UNKNOWN_TOPIC,
    FaultReasons,
    open_client,
    translate,
)
from kafka_ordered_ops.kafka.client.forks import Home
from kafka_ordered_ops.kafka.client.interrupts import interruptible
from kafka_ordered_ops.kafka.committed_offsets import OffsetsReader, commit_as_member
from kafka_ordered_ops.kafka.ledger.live_groups import check_not_in_ledger
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.kafka.settings import ClientSettings

#: For each request.
TIMEOUT_S: Final = 30.0
#: Kafka's own default. Heartbeats come from a thread of the client, however long its owner works.
SESSION_TIMEOUT_S: Final = 45.0
#: How soon a member notices that the group rebalances: a moved partition waits for two of these. The client's own 3 s
#: would make that 6 s, and an empty heartbeat costs a broker next to nothing.
HEARTBEAT_S: Final = 1.0
#: Only partitions that move are revoked. The client's default (range) revokes all of them from all members at every
#: rebalance: with 8 partitions, the second member's arrival revoked 8 instead of 4. All that an owner holds of a
#: partition, to sort it, would be dropped and read again each time.
ASSIGNOR: Final = "cooperative-sticky"
#: How soon the group learns of new partitions of its topics. The client's own 5 min is long for a live reader.
REFRESH_MS: Final = 10_000
#: Leaving takes milliseconds. While brokers are away the client waits half a minute for it, and ignores a Ctrl-C.
LEAVE_S: Final = 1.0
#: A member without partitions leaves after the rebalance that is under way. It ends when all others have polled.
REBALANCE_S: Final = 10.0
#: An answer takes a fraction of this. Nothing waits longer for a cluster that does not answer at all.
ANSWER_S: Final = 1.0
#: A commit takes a fraction of this, unless the group rebalances.
_COMMIT_S: Final = 1.0
#: Between two looks whether the client has left.
_LEAVE_SLICE_S: Final = 0.02
#: For reading back a commit whose time is over.
READ_BACK_S: Final = 5.0
#: Events handled in one poll: more are left for the next one.
EVENTS_MAX: Final = 100

#: The member is not, or no longer, one of the generation that the group is in.
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
#: Events that other calls report: partitions by `on_lost`, ends of logs and deleted topics by readers.
_TOLD_OTHERWISE: Final = frozenset(
    {
        ck.KafkaError._MAX_POLL_EXCEEDED,
        ck.KafkaError._PARTITION_EOF,
        ck.KafkaError._AUTO_OFFSET_RESET,
    }
)


class GroupMember:
    """A member of a live consumer group. A context manager, for one thread.

    It joins while its owner polls, which it must do at least every five minutes. It returns no records: its partitions are
    paused as soon as they are assigned.

    Args:
        settings: how to reach the cluster.
        group_id: the group to join; a group of windows is refused.
        topics: names of existing topics.
        on_revoke: called inside `poll` with partitions that go to other members, while `commit` still works for
            them. Not called for partitions that are lost already, nor by `close`.
        timeout_s: the limit of each request.
        session_timeout_s: without a heartbeat for so long, the group gives the partitions to others. Brokers allow 6 s
            to 30 min. Of no effect with the protocol ``consumer``.
        protocol: how the group shares its partitions.
        keeps_maps: whether its owner keeps the offset maps of Parallel Consumer, and so may join their groups.
        instance_id: a name that outlives the process (static membership): a member that died and comes back under its name
            within the session time gets its partitions back at once, and the group does not rebalance. An older member of
            the same name is fenced.
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
        protocol: GroupProtocol = GroupProtocol.CLASSIC,
        keeps_maps: bool = False,
        instance_id: str | None = None,
    ) -> None:
        check_timeout_s(timeout_s, what="timeout_s")
        check_timeout_s(session_timeout_s, what="session_timeout_s")
        self._settings = settings
        self._group = group_id
        self._topics = check_member_topics(topics)
        self._owner_on_revoke = on_revoke
        self._timeout_s = timeout_s
        self._keeps_maps = keeps_maps
        self._config = settings.consumer(
            group_id=group_id,
            isolation=Isolation.READ_COMMITTED,
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
        # With the newer protocol, the close leaves by itself. A static member stays for its next process.
        self._leaves_by_unsubscribing = protocol is GroupProtocol.CLASSIC and instance_id is None
        self._home = Home()

    def __enter__(self) -> GroupMember:
        """Check the group and begin to join it.

        Raises:
            WindowGroupError: the group is one of windows, by the ledger or by its commits of these topics.
            GroupInUseError: a program of another kind has the group.
            UnknownTopicError: a topic does not exist.
            BrokerError: the cluster refuses, or cannot be reached.
        """
        self._home.check("a member of a group")
        self._check_group(self._topics)
        self._consumer = open_client(ck.Consumer, self._config, self._reasons)
        self._subscribe(self._consumer)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the group, or without an answer let the session time pass; may be called twice.

        Commit before: it revokes nothing in order.
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

    def _answers(self, consumer: ck.Consumer) -> bool:
        """Return whether the cluster answers, over another connection than those that wait for the group."""
        try:
            consumer.list_topics(self._topics[0], timeout=ANSWER_S)
        except ck.KafkaException:
            return False
        return True

    def _unsubscribe(self, consumer: ck.Consumer) -> None:
        """Leave the group before the client is closed.

        The close of a client without partitions does not leave: the group would wait for the member, and store no commit,
        until its session time is over (librdkafka 2.16). An unsubscribed client leaves as soon as no rebalance is under
        way, and then has no member id. With partitions, or in its first rebalance, the close leaves at any time.
        """
        deadline, is_extended = Deadline.after(LEAVE_S), False
        with suppress(ck.KafkaException):
            consumer.unsubscribe()
            while consumer.memberid():
                consumer.poll(_LEAVE_SLICE_S)
                if not deadline.is_over:
                    continue
                has_to_wait = self._has_joined and not self._membership.assignment
                if is_extended or not has_to_wait or not self._answers(consumer):
                    return
                deadline, is_extended = Deadline.after(REBALANCE_S), True

    @property
    def group_id(self) -> str:
        """The group's name."""
        return self._group

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this member has."""
        return self._membership.assignment

    def poll(self) -> MembershipChange | None:
        """Take part in the group; return what changed since the last call, or None. Does not wait.

        Raises:
            UnknownTopicError: a topic was deleted.
            BrokerError: the cluster refuses the credentials, or a right is missing.
            Exception: whatever `on_revoke` raised; the partitions are given up nevertheless.
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
        """Take part in these topics instead of those before; what changes comes from `poll`. Raises like entering."""
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
        """Store offsets, and return when they are stored. It also works inside `on_revoke`.

        A broker answers the requests of a connection one after another. While the group rebalances, the answer to this
        member's join comes first, and that waits for all other members. `timeout_s` is less than the member's own
        where the caller has better things to do meanwhile; a later commit is never overtaken by an earlier one.

        Raises:
            CommitRefusedError: a partition is not this member's, the member was replaced, or the group is rebalancing:
                poll, and commit what is left.
            CommitUnknownError: no answer in time, and it is not stored so far.
            UnknownTopicError: topics were deleted; the other offsets may be stored.
            BrokerError: the cluster refuses, or cannot be reached.
        """
        consumer, wanted = self._open_consumer(), committed_offsets(offsets)
        if not wanted:
            return
        deadline = within(self._timeout_s if timeout_s is None else timeout_s)
        while True:
            self._membership.check_assigned(self._group, wanted)
            if not consumer.memberid():
                # Without an identity the client would commit as an outsider, which an empty group allows.
                raise self._refused("it was removed from the group")
            error = commit_as_member(consumer, wanted, timeout_s=min(deadline.left_s, _COMMIT_S))
            if error is None:
                return
            if error.code() == ck.KafkaError._TIMED_OUT and not self._answers(consumer):
                raise CommitUnknownError(
                    f"{self._where}: no answer to a commit of {len(wanted)} partitions, nor to other requests: the cluster "
                    "is away. It may still be stored later, which does no harm. Commit again"
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

        Raises `CommitRefusedError` when one is not this member's.
        """
        self._membership.check_assigned(self._group, partitions)
        return self._open_consumer()

    def _is_stored(
        self,
        wanted: Mapping[TopicPartition, CommittedOffset],
        deadline: Deadline,
        fault: KafkaOrderedOpsError,
    ) -> bool:
        """Read back a commit without an answer; raise `CommitUnknownError` if it is not stored by the deadline."""
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
                f"({reason}). The group may be rebalancing. It may still be stored later, which does no harm. Poll, and "
                "commit again"
            ) from reason
        time.sleep(min(RETRY_PAUSE_S, deadline.left_s))
        return False

    def _check_topics(self, offsets: Iterable[TopicPartition]) -> None:
        """Raise `UnknownTopicError` for the topics that do not exist: the client does not name them."""
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
        at_end = [ck.TopicPartition(one.topic, one.partition, ck.OFFSET_END) for one in partitions]
        consumer.incremental_assign(at_end)
        # At once, and the client first has to ask a broker where the end is: nothing is ever fetched.
        consumer.pause(at_end)
        self._membership.gain(map(_tp, partitions))

    def _on_revoke(self, _: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
        revoked = frozenset(map(_tp, partitions))
        known = self._membership.known(revoked)
        try:
            if known and self._owner_on_revoke is not None and not self._is_closing:
                self._owner_on_revoke(known)
        finally:
            self._membership.lose(revoked)

    def _on_lost(self, _: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
        self._membership.lose(map(_tp, partitions))

    def _handle(self, message: ck.Message) -> None:
        error = message.error()
        invariant(error is not None, "a member of a group fetches no records")
        if error is None or error.code() in _TOLD_OTHERWISE:
            return
        fault = self._translated(error, "taking part in the group")
        if not fault.retriable:
            raise fault
        self._reasons.add(error)

    def _open_consumer(self) -> ck.Consumer:
        self._home.check("a member of a group")
        consumer = self._consumer
        if consumer is None:
            raise AssertionError("a GroupMember takes part inside its `with` block")
        return consumer

    @property
    def _where(self) -> str:
        return f"group {self._group}"

    def _refused(self, why: str) -> CommitRefusedError:
        return CommitRefusedError(
            f"{self._where} refuses a commit of this member: {why}. Nothing was stored. Poll for the partitions that it "
            "has now, and commit those",
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


def _tp(one: ck.TopicPartition) -> TopicPartition:
    return TopicPartition(one.topic, one.partition)
