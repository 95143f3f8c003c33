"""The public API of a Kafka in memory, for tests of code that plans, reads and commits windows."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from kafka_ordered_ops.core.cluster_facts import MEMORY_SCHEME, CommittedOffset, is_memory_name
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.testing import registry
from kafka_ordered_ops.testing.cluster import Cluster, LostAnswers, partition_of_key
from kafka_ordered_ops.testing.log import (
    Entry,
    Headers,
    TransactionFate,
    TransactionState,
    compactable,
)


class RecordState(StrEnum):
    """How a reader under read_committed sees an entry of a log."""

    COMMITTED = "committed"
    #: Part of an open transaction.
    OPEN = "open"
    #: Part of an aborted transaction: never delivered under read_committed.
    ABORTED = "aborted"
    #: The end of a transaction: takes an offset but is not a record.
    MARKER = "marker"


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A stored record, for assertions."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    #: `core.record_schema.CREATE_TIME` or `LOG_APPEND_TIME`.
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    state: RecordState


class InMemoryKafka:
    """A cluster of one broker in this process, for the duration of its `with` block.

    ::

        with InMemoryKafka() as kafka:
            kafka.create_topic("orders", partitions=3)
            kafka.produce("orders", partition=0, timestamp_ms=1_700_000_000_000, value=b"one")
            with OrderedWindows(kafka.settings, group_id="g") as windows:
                ...

    Everything created from `settings` uses it: services, look-ups, readers, `stage_window`. Threads may use it
    at once; other processes cannot. The test controls it with its methods, which also work and see everything
    while the cluster is unreachable. They raise `UnknownTopicError` for topics that do not exist, and `ConfigError`
    for requests that a broker would refuse.

    Args:
        name: the name in settings: ``memory:<name>``; generated if left out.

    Raises:
        ConfigError: an invalid name; on entering, a name in use in this process.
    """

    def __init__(self, name: str | None = None) -> None:
        name = f"kafka-{uuid.uuid4().hex[:12]}" if name is None else name
        if not is_memory_name(name):
            raise ConfigError(
                f"an InMemoryKafka cannot be named {name!r}: use letters, digits, '.', '_' and '-', and not digits "
                "alone"
            )
        self._cluster = Cluster(name)

    def __enter__(self) -> InMemoryKafka:
        registry.register(self._cluster)
        return self

    def __exit__(self, *exc_info: object) -> None:
        registry.unregister(self._cluster)

    @property
    def name(self) -> str:
        """The name after ``memory:`` in settings."""
        return self._cluster.name

    @property
    def bootstrap(self) -> str:
        """The value of ``bootstrap.servers``."""
        return f"{MEMORY_SCHEME}{self.name}"

    @property
    def settings(self) -> dict[str, str]:
        """Client settings for this cluster."""
        return {"bootstrap.servers": self.bootstrap}

    # --- the clock ------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        """The brokers' clock, ms since the epoch: the current time, until you set it. It then stops.

        Brokers use it to stamp transaction markers, records of topics with
        ``message.timestamp.type=LogAppendTime``, and records produced without a timestamp.
        """
        return self._cluster.now_ms()

    @now_ms.setter
    def now_ms(self, now_ms: int) -> None:
        self._cluster.stopped_at_ms = now_ms

    def clock(self) -> float:
        """Return `now_ms` in seconds, for ``OrderedWindows(..., clock=kafka.clock)``."""
        return self.now_ms / 1000

    # --- topics ---------------------------------------------------------------------------------

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic. A topic that is recreated after a deletion has another id.

        These keys of `config` have an effect: ``message.timestamp.type``, ``message.timestamp.after.max.ms`` (an hour by
        default, as in Kafka 4), ``segment.ms`` (seven days), ``cleanup.policy``. Nothing is deleted or compacted
        automatically.
        """
        self._cluster.create_topic(name, partitions, config or {})

    def delete_topic(self, name: str) -> None:
        """Delete a topic and the offsets that groups committed on it."""
        self._cluster.delete_topic(name)

    def add_partitions(self, name: str, partitions: int) -> None:
        """Increase a topic to this number of partitions."""
        self._cluster.add_partitions(name, partitions)

    def topics(self) -> list[str]:
        """Return the sorted names of all topics, including the ledger."""
        return sorted(self._cluster.topics)

    # --- records --------------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        *,
        value: bytes | None = b"",
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers = (),
    ) -> int:
        """Write one record; return its offset.

        Without a partition, the key selects one; without a key, the first. Without a timestamp, the clock
        stamps it.
        """
        return self._produce(topic, value, key, partition, timestamp_ms, headers, None)

    def transaction(self, transactional_id: str | None = None) -> Transaction:
        """Return a transaction, used as a context manager; it commits at the end of its block.

        A transaction left open under the same id is aborted, as by a new producer with that id.
        """
        fate = self._cluster.begin(transactional_id or uuid.uuid4().hex)
        return Transaction(self, self._cluster, fate)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Move a log's start forward to an offset, as ``kafka-delete-records.sh`` does.

        The broker's time index still has the deleted records, and may then give wrong answers.
        """
        self._cluster.delete_records(TopicPartition(topic, partition), before)

    def expire_records(self, topic: str, partition: int, before: int) -> None:
        """Move a log's start forward to an offset, as retention does."""
        self._cluster.delete_records(TopicPartition(topic, partition), before, whole_segments=True)

    def cut_log(self, topic: str, partition: int, end: int) -> None:
        """Lose the end of a log from an offset on, as an unclean election or a power loss does.

        Another leader follows, and later records get the same offsets.
        """
        with self._cluster.changed:
            log = self._cluster.log(TopicPartition(topic, partition))
            log.cut(end)
            log.change_leader()
            self._cluster.changed.notify_all()

    def change_leader(self, topic: str, partition: int) -> None:
        """Move a partition to another leader; nothing is lost."""
        with self._cluster.changed:
            self._cluster.log(TopicPartition(topic, partition)).change_leader()

    def compact(
        self, topic: str, partition: int, offsets: Iterable[int] | None = None
    ) -> list[int]:
        """Remove records from a log; return the holes, which stay.

        With `offsets`, exactly these are removed. Without `offsets`, compaction removes records whose key has a newer
        record, tombstones, records without a key, and the markers of transactions without other records. Nothing at
        or
        above the last stable offset is removed.
        """
        tp = TopicPartition(topic, partition)
        with self._cluster.changed:
            log = self._cluster.log(tp)
            gone = compactable(log) if offsets is None else set(offsets)
            return log.remove(gone)

    def records(
        self, topic: str, partition: int | None = None, *, everything: bool = False
    ) -> list[StoredRecord]:
        """Return the records that a read_committed reader gets, by partition and offset.

        With `everything`, also other records and transaction markers: see their `state`.
        """
        with self._cluster.changed:
            found = self._cluster.entries(topic, partition)
            if not everything:
                found = [
                    (tp, one)
                    for tp, one in found
                    if one.is_visible(Isolation.READ_COMMITTED)
                    and one.offset < self._cluster.log(tp).last_stable_offset
                ]
            return [_record(tp, one) for tp, one in found]

    # --- groups ---------------------------------------------------------------------------------

    def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, int], metadata: bytes | str = b""
    ) -> None:
        """Commit offsets of a group as another program would."""
        self._cluster.commit(group_id, _committed(offsets, metadata))

    def committed(self, group_id: str) -> dict[TopicPartition, CommittedOffset]:
        """Return a group's committed offsets, on all partitions."""
        with self._cluster.changed:
            return dict(sorted(self._cluster.group(group_id).committed.items()))

    def expire_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> None:
        """Forget a group's committed offsets, as Kafka does after a week without members."""
        with self._cluster.changed:
            committed = self._cluster.group(group_id).committed
            for tp in list(committed) if partitions is None else list(partitions):
                committed.pop(tp, None)

    def join(self, group_id: str, client_id: str = "consumer") -> Member:
        """Add a live member to a group until it leaves; a context manager."""
        member_id = f"{client_id}-{uuid.uuid4()}"
        with self._cluster.changed:
            members = self._cluster.group(group_id).members
            members[member_id] = f"{client_id}@/127.0.0.1 ({member_id})"
        return Member(self._cluster, group_id, member_id)

    # --- faults ---------------------------------------------------------------------------------

    def before_commit(self, callback: Callable[[], object]) -> None:
        """Run `callback` once, between the read and the write of the next change of any group's state.

        The callback represents other processes that act while a process is about to commit. If it changes the state of
        the same group, that process's change is not stored but decided again.
        """
        self._cluster.before_commit(callback)

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        """Raise `BrokerUnreachableError` from every call of a client inside the block, at once."""
        with self._cluster.changed:
            self._cluster.unreachable += 1
        try:
            yield
        finally:
            with self._cluster.changed:
                self._cluster.unreachable -= 1

    @contextmanager
    def lose_answers(self, *, stored: bool = True, read_back: bool = True) -> Iterator[None]:
        """Lose the answer to the first commit of every change of a group's state inside the block.

        Its outcome is then read back: with `stored`, the commit is found; otherwise it never arrived and is
        repeated. Without `read_back`, the connection to the cluster is also lost: `CommitUnknownError`, whatever
        was stored.
        """
        before = self._cluster.lost_answers
        self._cluster.lost_answers = LostAnswers(stored, read_back)
        try:
            yield
        finally:
            self._cluster.lost_answers = before

    def _produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers,
        transaction: TransactionFate | None,
    ) -> int:
        with self._cluster.changed:
            if partition is None:
                partition = partition_of_key(key, len(self._cluster.topic(topic).logs))
            return self._cluster.append(
                TopicPartition(topic, partition),
                key=key,
                value=value,
                timestamp_ms=timestamp_ms,
                headers=headers,
                transaction=transaction,
            )


class Transaction:
    """A transaction. It commits at the end of its `with` block, or aborts if the block raises."""

    def __init__(self, kafka: InMemoryKafka, cluster: Cluster, fate: TransactionFate) -> None:
        self._kafka = kafka
        self._cluster = cluster
        self._fate = fate
        self._left_open = False

    def __enter__(self) -> Transaction:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if exc_info[0] is not None:
            self.abort()
        elif not self._left_open:
            self.commit()

    @property
    def state(self) -> TransactionState:
        """Open, committed or aborted."""
        return self._fate.state

    def produce(
        self,
        topic: str,
        *,
        value: bytes | None = b"",
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers = (),
    ) -> int:
        """Write one record in the transaction; see `InMemoryKafka.produce`."""
        return self._kafka._produce(topic, value, key, partition, timestamp_ms, headers, self._fate)

    def commit_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int], metadata: bytes | str = b""
    ) -> None:
        """Commit offsets of a group in the transaction, as an exactly-once consumer does."""
        self._cluster.commit(group_id, _committed(offsets, metadata), self._fate)

    def commit(self) -> None:
        """Commit the transaction; its records become visible. Nothing changes an ended transaction."""
        self._cluster.end(self._fate, TransactionState.COMMITTED)

    def abort(self) -> None:
        """Abort the transaction; read_committed readers never get its records."""
        self._cluster.end(self._fate, TransactionState.ABORTED)

    def leave_open(self) -> None:
        """Keep the transaction open when its block ends, until `commit` or `abort`."""
        self._left_open = True


class Member:
    """A live member of a consumer group."""

    def __init__(self, cluster: Cluster, group_id: str, member_id: str) -> None:
        self._cluster = cluster
        self._group = group_id
        self.member_id = member_id

    def __enter__(self) -> Member:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.leave()

    def leave(self) -> None:
        """End the membership. Repeating it changes nothing."""
        with self._cluster.changed:
            self._cluster.group(self._group).members.pop(self.member_id, None)


def _committed(
    offsets: Mapping[TopicPartition, int], metadata: bytes | str
) -> dict[TopicPartition, CommittedOffset]:
    data = metadata.encode() if isinstance(metadata, str) else metadata
    return {tp: CommittedOffset(offset, data) for tp, offset in offsets.items()}


def _record(tp: TopicPartition, entry: Entry) -> StoredRecord:
    message = entry.message
    return StoredRecord(
        topic=tp.topic,
        partition=tp.partition,
        offset=entry.offset,
        timestamp_ms=message.timestamp_ms,
        timestamp_type=message.timestamp_type,
        key=message.key,
        value=message.value,
        headers=tuple(message.headers),
        state=_state_of(entry),
    )


def _state_of(entry: Entry) -> RecordState:
    if entry.is_marker:
        return RecordState.MARKER
    if entry.transaction is None:
        return RecordState.COMMITTED
    return RecordState(entry.transaction.state.value)
