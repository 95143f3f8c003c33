"""The world of scripts on a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.ports import open_lookup, read_committed_offsets
from tests.support.logs import visible_records
from tests.support.windows_support import BASE_MS, TIMEOUT_S, wait_until_gone
from tests.support.wire import commit_offsets, delete_offset, write_batch
from tests.support.worlds import Content, World

#: Longer than any script: a transaction that the broker ends by itself is no part of one.
_TRANSACTION_TIMEOUT_MS = 600_000
#: The cleaner looks for work this often at the latest, and waits for the log's segments to be old enough.
_CLEANER_TIMEOUT_S = 90.0
#: A transaction's marker, of today, opens a segment among records of the tests' time; and a segment that holds
#: nothing any more is dropped at some time of the broker's choice, with what its index remembers.
_ONE_SEGMENT = {"segment.ms": str(2**63 - 1)}


class BrokerWorld(World):
    """A world with names of its own on a broker that others use too."""

    #: A busy machine may be slow to fetch what is there.
    stall_timeout_s = 8.0

    def __init__(self, bootstrap: str, *, suffix: str | None = None) -> None:
        super().__init__({"bootstrap.servers": bootstrap}, suffix=suffix)
        self._bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._created: list[str] = []
        self._producers: dict[str, Producer] = {}
        #: Partitions that each open transaction has written to.
        self._open: dict[str, set[TopicPartition]] = {}
        self._stack.callback(self._end_all)

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        name = self.named(topic)
        # Nothing expires by itself: a record of the tests' time would be deleted within seconds.
        new = NewTopic(
            name, partitions, 1, config={"retention.ms": "-1", **_ONE_SEGMENT, **settings}
        )
        self._admin.create_topics([new])[name].result(TIMEOUT_S)
        self._created.append(name)
        self._await_leaders(name, partitions)

    def delete(self, topic: str) -> None:
        name = self.named(topic)
        facts = self._lookup.topics([name])[name]
        partitions = [TopicPartition(name, number) for number in facts.partitions]
        self._admin.delete_topics([name])[name].result(TIMEOUT_S)
        wait_until_gone(self._bootstrap, name)
        deadline = time.monotonic() + TIMEOUT_S
        for group_id in {self.named(group_id) for group_id, _ in self._services}:
            # What groups have committed there goes as well, some time after it.
            while any(
                read_committed_offsets(
                    self.settings, group_id, partitions, timeout_s=TIMEOUT_S
                ).values()
            ):
                assert time.monotonic() < deadline, f"{group_id} still has offsets of {name}"
                time.sleep(0.05)

    def add_partitions(self, topic: str, partitions: int) -> None:
        name = self.named(topic)
        self._admin.create_partitions([NewPartitions(name, partitions)])[name].result(TIMEOUT_S)
        self._await_leaders(name, partitions)
        for producer in self._producers.values():
            # It would learn of them minutes later.
            deadline = time.monotonic() + TIMEOUT_S
            while (
                len(producer.list_topics(name, timeout=TIMEOUT_S).topics[name].partitions)
                < partitions
            ):
                assert time.monotonic() < deadline, (
                    f"a producer does not know {partitions} partitions"
                )

    def write_content(self, topic: str, partition: int, records: Sequence[Content]) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "enable.idempotence": True})
        for second, key, value, headers in records:
            producer.produce(
                self.named(topic),
                partition=partition,
                timestamp=BASE_MS + round(second * 1000),
                key=key,
                value=value,
                headers=list(headers),
            )
        assert producer.flush(TIMEOUT_S) == 0

    def write_at_ms(self, topic: str, partition: int, times_ms: Sequence[int]) -> None:
        # By hand: a client takes 0 for "now", and may know the partitions of a topic that is gone.
        for time_ms in times_ms:
            write_batch(self._bootstrap, self.named(topic), [time_ms], partition=partition)

    def send(self, transaction: str, topic: str, partition: int, *seconds: float) -> None:
        producer = self._producer(transaction)
        if transaction not in self._open:
            producer.begin_transaction()
            self._open[transaction] = set()
        for second in seconds:
            time_ms = BASE_MS + round(second * 1000)
            producer.produce(self.named(topic), b"x", partition=partition, timestamp=time_ms)
            # One by one: the order of what is written to a log is the script's.
            assert producer.flush(TIMEOUT_S) == 0
        self._open[transaction].add(self.tp(topic, partition))

    def end(self, transaction: str, how: str) -> None:
        written = sorted(self._open.pop(transaction))
        before = self._lookup.end_offsets(written, Isolation.READ_UNCOMMITTED)
        getattr(self._producer(transaction), f"{how}_transaction")(TIMEOUT_S)
        held = {tp for others in self._open.values() for tp in others}
        deadline = time.monotonic() + TIMEOUT_S
        # The call returns when the outcome is decided; the markers are written after it.
        while True:
            ends = self._lookup.end_offsets(written, Isolation.READ_UNCOMMITTED)
            stable = self._lookup.end_offsets(written, Isolation.READ_COMMITTED)
            if all(
                ends[tp] == before[tp] + 1 and (tp in held or stable[tp] == ends[tp])
                for tp in written
            ):
                return
            assert time.monotonic() < deadline, f"{transaction} has no markers: {before}, {ends}"
            time.sleep(0.02)

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        at = ClientPartition(self.named(topic), partition, offset)
        # The client may not have looked at the topic since it was recreated, or since the partition was added.
        self._admin.list_topics(at.topic, timeout=TIMEOUT_S)
        [done] = self._admin.delete_records([at]).values()
        done.result(TIMEOUT_S)

    def compact(self, topic: str, offsets: set[int]) -> None:
        tp = self.tp(topic)
        ends = self._lookup.end_offsets([tp], Isolation.READ_COMMITTED)
        deadline = time.monotonic() + _CLEANER_TIMEOUT_S
        while gone := {key[2] for key in visible_records(self._bootstrap, ends)} & offsets:
            assert time.monotonic() < deadline, f"the cleaner has not removed {gone}"
            time.sleep(0.5)

    def foreign_commit(
        self, group_id: str, topic: str, offsets: Mapping[int, int], metadata: bytes = b""
    ) -> None:
        named = {number: (offset, metadata) for number, offset in offsets.items()}
        commit_offsets(self._bootstrap, self.named(group_id), self.named(topic), named)

    def expire(self, group_id: str, topic: str, *partitions: int) -> None:
        for number in partitions:
            delete_offset(self._bootstrap, self.named(group_id), self.named(topic), number)

    def join(self, group_id: str, client_id: str) -> Callable[[], None]:
        member = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": self.named(group_id),
                "client.id": client_id,
                "enable.auto.commit": False,
            }
        )
        member.subscribe([self.named("orders")])
        deadline = time.monotonic() + TIMEOUT_S
        while not member.assignment():
            assert time.monotonic() < deadline, f"{client_id} could not join {group_id}"
            member.poll(0.1)
        return member.close

    def _producer(self, transaction: str) -> Producer:
        if transaction not in self._producers:
            producer = Producer(
                {
                    "bootstrap.servers": self._bootstrap,
                    "transactional.id": self.named(transaction),
                    "transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS,
                }
            )
            producer.init_transactions(TIMEOUT_S)
            self._producers[transaction] = producer
        return self._producers[transaction]

    def _await_leaders(self, name: str, partitions: int) -> None:
        with open_lookup(self.settings, timeout_s=TIMEOUT_S) as lookup:
            deadline = time.monotonic() + TIMEOUT_S
            while len(lookup.topics([name])[name].partitions) != partitions:
                assert time.monotonic() < deadline, f"{name} has not {partitions} partitions"
                time.sleep(0.02)
            lookup.log_starts([TopicPartition(name, number) for number in range(partitions)])

    def _end_all(self) -> None:
        for transaction in list(self._open):
            # Whatever failed before is the failure to be told of.
            with suppress(KafkaException, AssertionError):
                self.end(transaction, "abort")
        if self._created:
            for deleted in self._admin.delete_topics(self._created).values():
                # The test may have deleted it.
                with suppress(KafkaException):
                    deleted.result(TIMEOUT_S)
