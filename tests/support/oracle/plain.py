"""What plain clients see: the records of a log, where it begins and ends, and what a group has committed."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, TopicCollection
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient

from kafka_ordered_ops.testing import InMemoryKafka, TransactionState
from kafka_ordered_ops.testing.log import PartitionLog

TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Row:
    """A record in a log."""

    time_ms: int
    value: bytes | None
    #: Whether a reader of committed records is given it; None: its transaction is open.
    committed: bool | None


@dataclass(frozen=True, slots=True)
class LogSeen:
    """One partition's log at a moment."""

    start: int
    #: What a reader of committed records ends at.
    stable_end: int
    end: int
    #: By offset; also those of aborted and of open transactions, but no markers.
    rows: Mapping[int, Row]


@dataclass(frozen=True, slots=True)
class TopicSeen:
    """A topic at a moment."""

    topic_id: str
    logs: Mapping[int, LogSeen]


class Plain(Protocol):
    """Plain clients of one cluster."""

    def topics(self, names: Iterable[str]) -> dict[str, TopicSeen]:
        """The topics of these names that exist, with all that is in their logs."""
        ...

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """The offsets that a group has committed, by topic and partition."""
        ...


class MemoryPlain:
    """The hands of a test on an in-memory cluster, which see everything."""

    def __init__(self, kafka: InMemoryKafka) -> None:
        self._kafka = kafka

    def topics(self, names: Iterable[str]) -> dict[str, TopicSeen]:
        """The topics of these names that exist, with all that is in their logs."""
        cluster = self._kafka._cluster
        with cluster.changed:
            there = [cluster.topics[name] for name in names if name in cluster.topics]
            return {
                topic.name: TopicSeen(
                    topic.topic_id, {n: _of_memory(log) for n, log in enumerate(topic.logs)}
                )
                for topic in there
            }

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """The offsets that a group has committed, by topic and partition."""
        found = self._kafka.committed(group)
        return {(tp.topic, tp.partition): one.offset for tp, one in found.items()}


class BrokerPlain:
    """Plain confluent-kafka clients on a real cluster."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def topics(self, names: Iterable[str]) -> dict[str, TopicSeen]:
        """The topics of these names that exist, with all that is in their logs."""
        # Without a name, because asking about one topic can create it.
        there = self._admin.list_topics(timeout=TIMEOUT_S).topics
        found = {}
        for name in names:
            if name not in there:
                continue
            described = self._admin.describe_topics(TopicCollection([name]))[name].result(TIMEOUT_S)
            numbers = [one.id for one in described.partitions]
            # Twice: the second time tells what transactions that ended in between have come to.
            everything = self._read(name, numbers, "read_uncommitted")
            committed = self._read(name, numbers, "read_committed")
            found[name] = TopicSeen(
                # As Kafka's own tools print it: the client uses the other base64 alphabet.
                str(described.topic_id).replace("+", "-").replace("/", "_"),
                {n: _log_seen(everything[n], committed[n]) for n in numbers},
            )
        return found

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """The offsets that a group has committed, by topic and partition."""
        # Place by place: without them, offsets that are pending for the first time are left out, without a word.
        places = [
            Place(name, number)
            for name, topic in self._admin.list_topics(timeout=TIMEOUT_S).topics.items()
            if not name.startswith("__")
            for number in topic.partitions
        ]
        asked = ConsumerGroupTopicPartitions(group, places)
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            answer = self._admin.list_consumer_group_offsets([asked], require_stable=True)[group]
            found = answer.result(TIMEOUT_S).topic_partitions or []
            # A commit counts as soon as it is decided; until its markers are written its offsets are pending.
            pending = [one for one in found if one.error is not None]
            if not pending:
                break
            assert time.monotonic() < deadline, f"offsets of {group} stay pending: {pending}"
            time.sleep(0.02)
        return {(one.topic, one.partition): one.offset for one in found if one.offset >= 0}

    def _read(
        self, topic: str, numbers: Iterable[int], isolation: str
    ) -> dict[int, tuple[int, int, dict[int, Row]]]:
        """From log start to end: (start, end, records by offset) of each partition."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": f"plain-{uuid.uuid4().hex}",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "isolation.level": isolation,
                # The default holds back the news of a log's end for half a second.
                "fetch.wait.max.ms": 10,
            }
        )
        found: dict[int, tuple[int, int, dict[int, Row]]] = {}
        for number in numbers:
            place = Place(topic, number)
            low, high = consumer.get_watermark_offsets(place, timeout=TIMEOUT_S)
            found[number] = (low, high, {})
        consumer.assign([Place(topic, n, low) for n, (low, _, _) in found.items()])
        left = set(found)
        deadline = time.monotonic() + TIMEOUT_S
        while left:
            assert time.monotonic() < deadline, f"a plain consumer did not reach the end of {left}"
            if (message := consumer.poll(0.2)) is not None:
                error, at, offset = message.error(), message.partition(), message.offset()
                assert at is not None
                assert offset is not None
                low, _, rows = found[at]
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    # Where a reader of this isolation ends, whatever the watermark says.
                    found[at] = (low, offset, rows)
                    left.discard(at)
                elif at in left:
                    rows[offset] = Row(message.timestamp()[1], message.value(), True)
        consumer.close()
        return found


def _log_seen(
    everything: tuple[int, int, dict[int, Row]], committed: tuple[int, int, dict[int, Row]]
) -> LogSeen:
    start, end, rows = everything
    stable_start, stable_end, visible = committed
    told = {
        offset: Row(
            row.time_ms,
            row.value,
            None if offset >= stable_end else offset in visible or offset < stable_start,
        )
        for offset, row in rows.items()
    }
    return LogSeen(max(start, stable_start), stable_end, end, {**told, **visible})


def _of_memory(log: PartitionLog) -> LogSeen:
    fates = {TransactionState.COMMITTED: True, TransactionState.ABORTED: False}
    rows = {
        one.offset: Row(
            one.message.timestamp_ms,
            one.message.value,
            True if one.transaction is None else fates.get(one.transaction.state),
        )
        for one in log.entries()
        if not one.is_marker
    }
    return LogSeen(log.log_start, log.last_stable_offset, log.high_watermark, rows)
