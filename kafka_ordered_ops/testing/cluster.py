"""The contents of one cluster: topics with their logs, transactions, groups with their offsets.

One lock guards all of it. A change wakes all waiting threads: for records, for a transaction's end.
"""

from __future__ import annotations

import base64
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from kafka_ordered_ops.core.cluster.cluster_facts import (
    CommittedOffset,
    CommittedOffsets,
    TopicFacts,
    check_partitions_exist,
    unknown_topics,
)
from kafka_ordered_ops.core.cluster.names import is_topic_name
from kafka_ordered_ops.core.errors import ConfigError, WindowFencedError
from kafka_ordered_ops.core.record_schema import LOG_APPEND_TIME
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.testing.log import (
    SEGMENT_MS,
    Entry,
    Headers,
    Message,
    PartitionLog,
    TransactionFate,
    TransactionState,
)

#: Kafka's default for ``message.timestamp.after.max.ms``: a record stamped further ahead is refused.
TIMESTAMP_AFTER_MAX_MS: Final = 3_600_000


@dataclass
class Topic:
    """A topic; a topic that is created again with the same name is another topic."""

    name: str
    topic_id: str
    config: Mapping[str, str]
    logs: list[PartitionLog]

    def grow_to(self, partitions: int) -> None:
        """Add empty partitions."""
        segment_ms = int(self.config.get("segment.ms", SEGMENT_MS))
        self.logs += [PartitionLog(segment_ms) for _ in range(partitions - len(self.logs))]

    @property
    def facts(self) -> TopicFacts:
        """The topic as the cluster describes it."""
        return TopicFacts(self.name, self.topic_id, tuple(range(len(self.logs))))

    @property
    def is_compacted(self) -> bool:
        """Whether only the newest record of a key must be kept."""
        return "compact" in self.config.get("cleanup.policy", "delete").split(",")


@dataclass
class Group:
    """A consumer group."""

    committed: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    #: Offsets of transactions that are open, the oldest first.
    pending: dict[TransactionFate, dict[TopicPartition, CommittedOffset]] = field(
        default_factory=dict
    )
    #: Descriptions of live members, by member id.
    members: dict[str, str] = field(default_factory=dict)
    #: The topics of members that share partitions, and the members that have partitions.
    subscribed: dict[str, frozenset[str]] = field(default_factory=dict)
    owners: dict[TopicPartition, str] = field(default_factory=dict)
    #: Allows one change of the group's state at a time.
    turn: threading.Lock = field(default_factory=threading.Lock)
    #: The number of changes that have begun; shows a change whether another one has begun since.
    epoch: int = 0

    def is_owned(self, tp: TopicPartition) -> bool:
        """Return whether a live member owns a partition."""
        return self.owners.get(tp) in self.members

    def leave(self, member_id: str) -> None:
        """End a membership, and free its partitions. Repeating it changes nothing."""
        self.members.pop(member_id, None)
        self.subscribed.pop(member_id, None)


#: Runs between the read and the write of a change of a group's state.
BeforeCommit = Callable[[], object]


@dataclass(frozen=True, slots=True)
class LostAnswers:
    """The outcome of commits with lost answers."""

    #: Whether the commit arrived.
    stored: bool
    #: Whether its outcome can be read back.
    read_back: bool


class GroupLock:
    """One attempt to change a group's state: only the newest attempt may write."""

    def __init__(self, group: Group, deadline: float, where: str) -> None:
        self._group = group
        self._deadline = deadline
        self._where = where
        self._epoch = 0

    def __enter__(self) -> GroupLock:
        self._acquire()
        self._group.epoch += 1
        self._epoch = self._group.epoch
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._group.turn.release()

    @property
    def is_overtaken(self) -> bool:
        """Whether another change has begun since."""
        return self._group.epoch != self._epoch

    @contextmanager
    def others_first(self) -> Iterator[None]:
        """Let others change the group's state meanwhile, in this thread or in others."""
        self._group.turn.release()
        try:
            yield
        finally:
            # No deadline: the exit of the turn's block releases the lock.
            self._group.turn.acquire()

    def _acquire(self) -> None:
        if not self._group.turn.acquire(timeout=max(self._deadline - time.monotonic(), 0)):
            raise WindowFencedError(
                f"{self._where}: other threads changed the group's state until the deadline. Run the same "
                "window again"
            )


class Cluster:
    """A cluster of one broker. Every method takes the lock; `changed` is notified after every change."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cluster_id = _new_id()
        self.changed = threading.Condition(threading.RLock())
        self.topics: dict[str, Topic] = {}
        self._groups: dict[str, Group] = {}
        self._transactions: dict[str, TransactionFate] = {}
        #: The time of the broker's clock if it is stopped, ms since the epoch.
        self.stopped_at_ms: int | None = None
        #: The number of active blocks in which every call fails.
        self.unreachable = 0
        self.lost_answers: LostAnswers | None = None
        self._before_commit: list[BeforeCommit] = []

    def now_ms(self) -> int:
        """Return the broker's clock."""
        return round(time.time() * 1000) if self.stopped_at_ms is None else self.stopped_at_ms

    # --- topics ---------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> Topic:
        """Create a topic.

        Raises:
            ConfigError: the topic exists, or the name or the number of partitions is invalid.
        """
        if not is_topic_name(name) or partitions < 1:
            raise ConfigError(
                f"cannot create topic {name!r} with {partitions} partitions: a name has 1 to 249 letters, digits, "
                "'.', '_' or '-', and a topic has at least one partition"
            )
        with self.changed:
            if name in self.topics:
                raise ConfigError(f"topic {name} exists already in {self.name}")
            topic = self.topics[name] = Topic(name, _new_id(), dict(config), [])
            topic.grow_to(partitions)
            return topic

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and the groups' committed offsets on it."""
        with self.changed:
            self.topic(name)
            del self.topics[name]
            for group in self._groups.values():
                for offsets in (group.committed, *group.pending.values()):
                    for tp in [tp for tp in offsets if tp.topic == name]:
                        del offsets[tp]
            self.changed.notify_all()

    def add_partitions(self, name: str, partitions: int) -> None:
        """Increase a topic to a number of partitions; raise `ConfigError` if it has as many or more."""
        with self.changed:
            logs = self.topic(name).logs
            if partitions <= len(logs):
                raise ConfigError(
                    f"topic {name} has {len(logs)} partitions: give more than that, not {partitions}"
                )
            self.topics[name].grow_to(partitions)

    def topic(self, name: str) -> Topic:
        """Return a topic; raise `UnknownTopicError` if it does not exist."""
        with self.changed:
            if name not in self.topics:
                raise unknown_topics([name], self.topics)
            return self.topics[name]

    def log(self, tp: TopicPartition) -> PartitionLog:
        """Return a partition's log; raise `UnknownTopicError` if it does not exist."""
        with self.changed:
            topic = self.topic(tp.topic)
            check_partitions_exist([tp], {tp.topic: topic.facts})
            return topic.logs[tp.partition]

    # --- records --------------------------------------------------------------------------------

    def append(
        self,
        tp: TopicPartition,
        *,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int | None,
        headers: Headers = (),
        transaction: TransactionFate | None = None,
    ) -> int:
        """Write one record and return its offset. Like a broker, the cluster may replace the timestamp by its own time.

        Raises:
            UnknownTopicError: the topic or partition does not exist.
            ConfigError: the topic's settings refuse the record, or its transaction has ended.
        """
        with self.changed:
            log = self.log(tp)
            topic = self.topics[tp.topic]
            if transaction is not None and transaction.state is not TransactionState.OPEN:
                raise ConfigError(
                    f"{tp}: the transaction is {transaction.state}: it accepts no more records"
                )
            if topic.is_compacted and key is None:
                raise ConfigError(f"{tp}: a compacted topic refuses a record without a key")
            offset = log.append(
                _stamped(tp, topic, self.now_ms(), key, value, timestamp_ms, headers), transaction
            )
            self.changed.notify_all()
            return offset

    def entries(self, topic: str, partition: int | None) -> list[tuple[TopicPartition, Entry]]:
        """Return all entries of a topic, or of one partition, by partition and offset."""
        with self.changed:
            numbers = range(len(self.topic(topic).logs)) if partition is None else [partition]
            tps = [TopicPartition(topic, number) for number in numbers]
            return [(tp, entry) for tp in tps for entry in self.log(tp).entries()]

    def delete_records(
        self, tp: TopicPartition, before: int, *, whole_segments: bool = False
    ) -> None:
        """Move a log's start forward; raise `ConfigError` for an offset past its end."""
        with self.changed:
            log = self.log(tp)
            if before > log.high_watermark:
                raise ConfigError(
                    f"{tp} ends at offset {log.high_watermark}: nothing can be deleted up to {before}"
                )
            if whole_segments:
                log.drop_before(before)
            else:
                log.delete_before(before)
            self.changed.notify_all()

    def begin(self, transactional_id: str) -> TransactionFate:
        """Return a new transaction; an open one with the same id is aborted, as by a new producer."""
        with self.changed:
            if (older := self._transactions.get(transactional_id)) is not None:
                self.end(older, TransactionState.ABORTED)
            self._transactions[transactional_id] = TransactionFate()
            return self._transactions[transactional_id]

    def end(self, transaction: TransactionFate, state: TransactionState) -> None:
        """End a transaction, with a marker in each log that it has written to."""
        with self.changed:
            if transaction.state is not TransactionState.OPEN:
                return
            transaction.state = state
            for topic in self.topics.values():
                for log in topic.logs:
                    log.end(transaction, now_ms=self.now_ms())
            for group in self._groups.values():
                offsets = group.pending.pop(transaction, {})
                if state is TransactionState.COMMITTED:
                    group.committed |= offsets
            self.changed.notify_all()

    # --- groups ---------------------------------------------------------------------------------

    def group(self, name: str) -> Group:
        """Return a group; an unused one is empty."""
        with self.changed:
            return self._groups.setdefault(name, Group())

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        transaction: TransactionFate | None = None,
    ) -> None:
        """Store a group's offsets, at once or with a transaction; raise `UnknownTopicError` for unknown partitions."""
        with self.changed:
            for tp in offsets:
                self.log(tp)
            stored = self.group(group)
            if transaction is None:
                stored.committed.update(offsets)
            else:
                stored.pending.setdefault(transaction, {}).update(offsets)
            self.changed.notify_all()

    def committed(
        self, group: str, partitions: Iterable[TopicPartition], *, deadline: float
    ) -> CommittedOffsets | None:
        """Return a group's committed offsets; None if an open transaction delays some of them until the deadline.

        `deadline` is a `time.monotonic` moment.
        """
        tps = list(partitions)
        with self.changed:
            stored = self.group(group)

            def is_settled() -> bool:
                return not any(tp in offsets for offsets in stored.pending.values() for tp in tps)

            if not self.changed.wait_for(is_settled, max(deadline - time.monotonic(), 0)):
                return None
            return {tp: stored.committed.get(tp) for tp in tps}

    # --- callbacks of tests ----------------------------------------------------------------------

    def before_commit(self, callback: BeforeCommit) -> None:
        """Run a callback once, before the next change of a group's state is written."""
        with self.changed:
            self._before_commit.append(callback)

    def due_before_commit(self) -> list[BeforeCommit]:
        """Return the callbacks that must run now; each is returned once."""
        with self.changed:
            due, self._before_commit = self._before_commit, []
            return due


def partition_of_key(key: bytes | None, partitions: int) -> int:
    """Return a partition for a key: always the same one, and the first for a record without a key."""
    return 0 if key is None else zlib.crc32(key) % partitions


def _stamped(
    tp: TopicPartition,
    topic: Topic,
    now_ms: int,
    key: bytes | None,
    value: bytes | None,
    timestamp_ms: int | None,
    headers: Headers,
) -> Message:
    if topic.config.get("message.timestamp.type", "CreateTime") == "LogAppendTime":
        return Message(key, value, now_ms, tuple(headers), LOG_APPEND_TIME)
    if timestamp_ms is None:
        timestamp_ms = now_ms
    limit_ms = int(topic.config.get("message.timestamp.after.max.ms", TIMESTAMP_AFTER_MAX_MS))
    if timestamp_ms - now_ms > limit_ms:
        raise ConfigError(
            f"{tp}: a record stamped {timestamp_ms} is {timestamp_ms - now_ms:,} ms ahead of the broker's clock "
            f"({now_ms}), and message.timestamp.after.max.ms allows {limit_ms:,}: a broker refuses it. Set the "
            "topic's limit, or the clock (`now_ms`)"
        )
    return Message(key, value, timestamp_ms, tuple(headers))


def _new_id() -> str:
    """Return a random id in Kafka's text form; it never begins with a dash."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith(
        "-"
    ):
        pass
    return text
