"""A ledger of a test's own, and what another program, or a hand, might do to its records."""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from kafka_ordered_ops import ClientSettings, Earliest
from kafka_ordered_ops.core import types as core
from kafka_ordered_ops.core.group.ledger_rules import LEDGER_PARTITIONS
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.kafka.offsets.committed_offsets import read_committed_offsets
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic
from tests.support.windows_support import TIMEOUT_S, before

Headers = dict[str, str | bytes | None]
#: A record of the ledger by its key: value and headers.
Stored = dict[bytes, tuple[bytes, Headers]]


@pytest.fixture
def ledger(topic: MakeTopic) -> str:
    """A ledger topic of this test's own."""
    return topic(
        f"ledger-{uuid.uuid4().hex[:12]}",
        partitions=LEDGER_PARTITIONS,
        config={"cleanup.policy": "compact"},
    )


@pytest.fixture
def windows(bootstrap: str, group_id: str, ledger: str) -> Iterator[OrderedWindows]:
    """The service, for a fresh group in that ledger."""
    with service(bootstrap, group_id, ledger) as opened:
        yield opened


def service(bootstrap: str, group_id: str, ledger: str, timeout_s: float = 60) -> OrderedWindows:
    """Another process's service for a group."""
    return OrderedWindows(
        {"bootstrap.servers": bootstrap}, group_id, ledger_topic=ledger, timeout_s=timeout_s
    )


def place_of(ledger: str, group_id: str) -> TopicPartition:
    """Where a group's records are: the rule can never change, or ledgers are lost."""
    return TopicPartition(ledger, zlib.crc32(group_id.encode()) % LEDGER_PARTITIONS)


def put(
    bootstrap: str,
    place: TopicPartition,
    key: bytes,
    value: bytes | None,
    headers: Headers | None = None,
) -> None:
    """Writes to the ledger what another program, or a hand, might."""
    failures: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    producer.produce(
        place.topic,
        key=key,
        value=value,
        headers=list((headers or {}).items()),
        partition=place.partition,
        on_delivery=lambda error, _: failures.append(error) if error else None,
    )
    assert (producer.flush(TIMEOUT_S), failures) == (0, [])


def stored(bootstrap: str, place: TopicPartition) -> Stored:
    """The newest record of each key, as a plain consumer finds it up to the uncommitted end as of now."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"look-{uuid.uuid4().hex}",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            # The end is told by an empty answer.
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([TopicPartition(place.topic, place.partition, 0)])
    # A transaction is committed before its markers are written, and a reader of what is committed stops below them.
    with Lookup(ClientSettings.from_mapping({"bootstrap.servers": bootstrap})) as lookup:
        tp = core.TopicPartition(place.topic, place.partition)
        end = lookup.end_offsets([tp], core.Isolation.READ_UNCOMMITTED)[tp]
    found: Stored = {}
    while True:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None, "the ledger's end was not reached"
        if message.error():
            if (message.offset() or 0) >= end:
                break
            continue
        key, value = message.key(), message.value()
        assert isinstance(key, bytes)
        if value is None:
            found.pop(key, None)
        else:
            found[key] = bytes(value), dict(message.headers() or [])
    consumer.close()
    return found


def key_of(group_id: str, kind: str, name: str) -> bytes:
    """The key of the first part of a record of ours."""
    return json.dumps([group_id, kind, name, 0], separators=(",", ":")).encode()


@pytest.fixture
def begun(windows: OrderedWindows, orders: str) -> OrderedWindows:
    """A group with a committed window, an open one, and a time map."""
    windows.commit(windows.plan(before(orders, 1, Earliest()), "done"))
    windows.plan(before(orders, 12), "open")
    return windows


def committed_offset(windows: OrderedWindows, topic: str) -> int | None:
    """The group's committed offset on partition 0."""
    tp = core.TopicPartition(topic, 0)
    found = read_committed_offsets(windows.settings, windows.group_id, [tp], timeout_s=TIMEOUT_S)[
        tp
    ]
    return None if found is None else found.offset
