"""Real logs with everything in them, and what a plain consumer sees of them."""

from __future__ import annotations

import os
import struct
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from kafka_ordered_ops import ClientSettings, WindowPlan
from kafka_ordered_ops.core import types as core
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import Isolation
from kafka_ordered_ops.kafka.ledger.topic import LEDGER_TOPIC
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.kafka.ports import open_reader
from kafka_ordered_ops.windows import OrderedWindows

_TIMEOUT_S = 60.0


def read_ranges(
    settings: ClientSettings,
    group_id: str,
    isolation: Isolation,
    wanted: Mapping[core.TopicPartition, OffsetSet],
    **options: Any,
) -> Iterator[pa.RecordBatch]:
    """The wanted records, by a reader of their own."""
    with open_reader(settings, group_id, isolation, wanted, **options) as reader:
        yield from reader.batches()


#: (topic, partition, offset) -> timestamp in ms
Records = dict[tuple[str, int, int], int]


class LogWriter:
    """Writes batches of records in random order of time, some in transactions, some of those aborted."""

    def __init__(self, bootstrap: str, random: Random) -> None:
        self.random = random
        config: dict[str, str | int] = {"bootstrap.servers": bootstrap, "linger.ms": 5}
        self._plain = Producer(config)
        self._transactional = Producer({**config, "transactional.id": f"test-{uuid.uuid4().hex}"})
        self._transactional.init_transactions(_TIMEOUT_S)
        self._lookup = Lookup(ClientSettings.from_mapping({"bootstrap.servers": bootstrap}))

    def write(
        self, partitions: Sequence[tuple[str, int]], *, count: int, low_ms: int, high_ms: int
    ) -> None:
        """About `count` visible records with times in [low, high), ties included."""
        left = count
        while left > 0:
            size = min(left, self.random.randint(1, 40))
            kind = self.random.choice(["plain", "commit", "commit", "abort"])
            producer = self._plain if kind == "plain" else self._transactional
            if kind != "plain":
                producer.begin_transaction()
            for _ in range(size):
                topic, partition = self.random.choice(partitions)
                time_ms = self.random.randrange(low_ms, high_ms)
                value = f"{kind} {time_ms}"
                producer.produce(topic, value=value, partition=partition, timestamp=time_ms)
            assert producer.flush(_TIMEOUT_S) == 0
            if kind == "commit":
                producer.commit_transaction(_TIMEOUT_S)
            elif kind == "abort":
                producer.abort_transaction(_TIMEOUT_S)
            if kind != "abort":
                left -= size
        await_markers(self._lookup, [core.TopicPartition(*one) for one in partitions])


def await_markers(lookup: Lookup, partitions: Sequence[core.TopicPartition]) -> None:
    """Until no transaction is open: its markers are written after its end was acknowledged."""
    deadline = time.monotonic() + _TIMEOUT_S
    while (found := lookup.end_offsets(partitions, Isolation.READ_COMMITTED)) != lookup.end_offsets(
        partitions, Isolation.READ_UNCOMMITTED
    ):
        assert time.monotonic() < deadline, f"transactions hold the ends at {found}"
        time.sleep(0.02)


def await_stored(windows: OrderedWindows) -> None:
    """Until the markers of what the group committed are written, in the ledger and with its offsets.

    A single broker that dies before that counts the transaction as complete when it comes back, and never
    writes them.
    """
    with Lookup(windows.settings) as lookup:
        await_markers(lookup, partitions_of(lookup, [LEDGER_TOPIC, "__consumer_offsets"]))


def partitions_of(lookup: Lookup, topics: Sequence[str]) -> list[core.TopicPartition]:
    """All partitions of some topics."""
    facts = lookup.topics(topics)
    return [core.TopicPartition(name, n) for name in facts for n in facts[name].partitions]


def write_afresh(bootstrap: str, topic: str, partition: int, times_ms: Sequence[int]) -> None:
    """Writes with a client that has never heard of the topic: an older one may know the old partitions."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    deadline = time.monotonic() + _TIMEOUT_S
    # Brokers learn of new partitions a moment after they are made. Asked for one topic, they might create it.
    while (
        known := producer.list_topics(timeout=_TIMEOUT_S).topics.get(topic)
    ) is None or partition not in known.partitions:
        assert time.monotonic() < deadline, f"{topic}[{partition}] is not there"
        time.sleep(0.02)
    failures: list[KafkaError] = []
    for time_ms in times_ms:
        producer.produce(
            topic,
            value=b"x",
            partition=partition,
            timestamp=time_ms,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert (producer.flush(_TIMEOUT_S), failures) == (0, [])


def visible_records(bootstrap: str, ends: Mapping[core.TopicPartition, int]) -> Records:
    """What a plain read_committed consumer is given below the end offsets."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"oracle-{uuid.uuid4().hex}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            # The default holds back the news of a log's end for half a second.
            "fetch.wait.max.ms": 10,
        }
    )
    open_ = {(tp.topic, tp.partition) for tp, end in ends.items() if end}
    consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in open_])
    records: Records = {}
    deadline = time.monotonic() + _TIMEOUT_S
    while open_:
        assert time.monotonic() < deadline, f"the oracle did not reach the end of {open_}"
        for message in consumer.consume(1_000, 0.2):
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            assert topic is not None
            assert partition is not None
            assert offset is not None
            end = ends[core.TopicPartition(topic, partition)]
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
            elif offset < end:
                records[topic, partition, offset] = message.timestamp()[1]
            if offset >= end or (error is None and offset == end - 1):
                open_.discard((topic, partition))
    consumer.close()
    return records


def read_plan(settings: ClientSettings, plan: WindowPlan) -> Records:
    """The records of a plan, as its readers get them."""
    records: Records = {}
    with open_reader(settings, plan.group_id, plan.isolation, plan.taken) as reader:
        for batch in reader.batches():
            times_ms = batch.column("timestamp").cast(pa.int64()).to_pylist()
            for row, time_ms in zip(batch.to_pylist(), times_ms, strict=True):
                key = row["topic"], row["partition"], row["offset"]
                assert key not in records, "read twice"
                assert time_ms is not None
                records[key] = time_ms
    return records


def cut_file(data: Path, topic: str, end: int) -> None:
    """Cuts the log of a broker that does not run, and what is derived from it."""
    folder = data / f"{topic}-0"
    [log] = folder.glob("*.log")
    content, at_byte = log.read_bytes(), 0
    # Batches of one record each: base offset, length, and so on.
    while at_byte < len(content):
        offset, length = struct.unpack_from(">qi", content, at_byte)
        if offset == end:
            break
        at_byte += 12 + length
    os.truncate(log, at_byte)
    for derived in (*folder.glob("*index"), *folder.glob("*.snapshot")):
        derived.unlink()
