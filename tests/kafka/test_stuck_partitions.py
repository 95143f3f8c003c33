"""The stall time of a read, by partition: one whose leader is away is named while others are read on."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ordered_ops import ClientSettings, ReadTimeoutError
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.ports import ReaderDoor, open_reader
from kafka_ordered_ops.kafka.read import quiet
from tests.conftest import MakeTopic, Produce
from tests.support.readers import READERS
from tests.support.three_brokers import NODES, ThreeBrokers

STALL_S = 3.0
RECORDS = 3_000
#: Many fetches, and few records that wait.
SMALL = {
    "fetch.message.max.bytes": "10000",
    "queued.max.messages.kbytes": "16",
    "queued.min.messages": "20",
    "socket.timeout.ms": "3000",
}


def reader_of(
    bootstrap: str, kind: str, topic: str, partitions: int, count: int, stall_s: float
) -> ReaderDoor:
    """Of so many records of each partition."""
    settings = ClientSettings.of({"bootstrap.servers": bootstrap, "reader": kind, **SMALL})
    wanted = {TopicPartition(topic, part): OffsetSet.of((0, count)) for part in range(partitions)}
    isolation = Isolation.READ_COMMITTED
    return open_reader(settings, "g", isolation, wanted, batch_records=20, stall_timeout_s=stall_s)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("reader", READERS)
def test_a_partition_without_its_leader_is_named(
    brokers: ThreeBrokers, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the stall time, long before the other partitions end; retriable."""
    monkeypatch.setattr(quiet, "EXPLAIN_TIMEOUT_S", 2.0)
    topic = f"stuck-{uuid.uuid4().hex[:8]}"
    # Without other replicas, nobody takes over.
    config = {"min.insync.replicas": "1"}
    new = NewTopic(topic, len(NODES), replica_assignment=[[node] for node in NODES], config=config)
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
    admin.create_topics([new])[topic].result(60)
    brokers.await_whole()
    producer = Producer({"bootstrap.servers": brokers.bootstrap, "batch.num.messages": 20})
    for number in range(RECORDS * len(NODES)):
        producer.produce(topic, bytes(500), partition=number % len(NODES))
        producer.poll(0)
    assert producer.flush(60) == 0
    seen = dict.fromkeys(range(len(NODES)), 0)
    killed_at = moved_at = 0.0
    lost = 1
    with reader_of(brokers.bootstrap, reader, topic, len(NODES), RECORDS, STALL_S) as opened:

        def read() -> None:
            nonlocal killed_at, moved_at
            for batch in opened.batches():
                part = batch["partition"][0].as_py()
                seen[part] += batch.num_rows
                if killed_at and part != lost:
                    moved_at = time.monotonic()
                elif not killed_at and all(seen.values()):
                    assert seen[lost] < RECORDS
                    brokers.kill(NODES[lost])
                    killed_at = time.monotonic()
                time.sleep(0.1)

        with pytest.raises(ReadTimeoutError) as caught:
            read()
    assert f"no position of {topic}[{lost}]@" in str(caught.value)
    assert caught.value.retriable
    assert caught.value.positions.keys() == {f"{topic}[{lost}]"}
    # The others were being read until then.
    assert moved_at - killed_at > STALL_S
    assert all(count < RECORDS for count in seen.values())


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_a_slow_consumer_is_no_stall(
    bootstrap: str, topic: MakeTopic, produce: Produce, reader: str
) -> None:
    """Its own time counts neither for all partitions together nor for one that waits for its turn."""
    name = topic(partitions=3)
    produce([(name, number % 3, None, bytes(500), None, ()) for number in range(180)])
    offsets: dict[int, list[int]] = {part: [] for part in range(3)}
    with reader_of(bootstrap, reader, name, 3, 60, 0.5) as opened:
        for batch in opened.batches():
            column: Any = batch["offset"]
            offsets[batch["partition"][0].as_py()] += column.to_pylist()
            time.sleep(0.8)
    assert offsets == {part: list(range(60)) for part in range(3)}
