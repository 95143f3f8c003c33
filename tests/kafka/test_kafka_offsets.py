from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from kafka_ordered_ops import (
    BrokerError,
    BrokerUnreachableError,
    ClientSettings,
    ConfigError,
    LedgerUnavailableError,
    OffsetMapTooLargeError,
)
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.client.librdkafka import TransactionCallError, library
from kafka_ordered_ops.kafka.offsets import committed_offsets
from kafka_ordered_ops.kafka.offsets.committed_offsets import (
    METADATA_BYTES_MAX,
    CommittedOffset,
    read_committed_offsets,
    send_offsets_to_transaction,
)
from kafka_ordered_ops.kafka.offsets.group_offsets import set_committed_offsets
from kafka_ordered_ops.kafka.offsets.outside_commits import OutsideCommits
from tests.conftest import MakeTopic


@pytest.fixture
def settings(bootstrap: str) -> ClientSettings:
    """Nothing but the broker's address."""
    return ClientSettings.from_mapping({"bootstrap.servers": bootstrap})


def begun(settings: ClientSettings, group_id: str) -> Producer:
    """A producer of the group's transactional id, in a transaction."""
    producer = Producer(settings.producer(transactional_id=f"koo.{group_id}"))
    producer.init_transactions(10)
    producer.begin_transaction()
    return producer


def text_of(size: int, rng: random.Random) -> bytes:
    """Random UTF-8 of exactly this many bytes, characters of one to four bytes."""
    text = b""
    while len(text) < size:
        char = rng.choice(["a", "~", "=", "\x01", "é", "€", "\U0001f600"]).encode()
        text += char if len(text) + len(char) <= size else b"z"
    return text


def test_metadata_is_exact_through_a_transaction(
    settings: ClientSettings, topic: MakeTopic, group_id: str
) -> None:
    """Every length up to the limit comes back byte for byte, all partitions in one transaction."""
    rng = random.Random(7)
    sizes = [0, 1, 2, 3, 7, 8, 15, 16, 17, 20, 172, 1_000, 4_094, 4_095, METADATA_BYTES_MAX]
    of = topic(partitions=len(sizes))
    offsets = {
        TopicPartition(of, number): CommittedOffset(number, text_of(size, rng))
        for number, size in enumerate(sizes)
    }
    producer = begun(settings, group_id)
    send_offsets_to_transaction(producer, group_id, offsets, timeout_s=10)
    producer.commit_transaction(10)
    for _ in range(20):  # An over-read shows by chance.
        assert read_committed_offsets(settings, group_id, list(offsets)) == offsets


@pytest.mark.slow
@pytest.mark.parametrize("by_member", [False, True], ids=["transaction", "member"])
def test_offsets_that_no_batch_of_the_broker_holds_are_stored_all(
    settings: ClientSettings, topic: MakeTopic, group_id: str, by_member: bool
) -> None:
    """The coordinator appends a request as one batch of at most 1 MiB: these take three of them, or none."""
    of = topic(partitions=800)
    offsets = {TopicPartition(of, n): CommittedOffset(n, b"m" * 4_000) for n in range(800)}
    if by_member:
        with OutsideCommits(settings, group_id) as outside:
            outside.commit(offsets, timeout_s=10)
    else:
        producer = begun(settings, group_id)
        send_offsets_to_transaction(producer, group_id, offsets, timeout_s=10)
        producer.abort_transaction(10)
        found = read_committed_offsets(settings, group_id, list(offsets))
        assert found == dict.fromkeys(offsets)
        producer.begin_transaction()
        send_offsets_to_transaction(producer, group_id, offsets, timeout_s=10)
        producer.commit_transaction(10)
    assert read_committed_offsets(settings, group_id, list(offsets)) == offsets


@contextmanager
def batches_of(bootstrap: str, bytes_max: int) -> Iterator[None]:
    """A cluster whose batches of offsets are smaller than the default."""
    settings = ClientSettings.from_mapping({"bootstrap.servers": bootstrap})
    # The topic exists as soon as a coordinator was asked for.
    read_committed_offsets(settings, "first", [TopicPartition("any", 0)])
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def change(value: str | None, operation: AlterConfigOpType) -> None:
        entry = ConfigEntry("max.message.bytes", value, incremental_operation=operation)
        topic = ConfigResource(
            ResourceType.TOPIC, "__consumer_offsets", incremental_configs=[entry]
        )
        admin.incremental_alter_configs([topic])[topic].result()

    change(str(bytes_max), AlterConfigOpType.SET)
    try:
        yield
    finally:
        change(None, AlterConfigOpType.DELETE)


@pytest.mark.slow
def test_smaller_batches_suffice_and_a_refusal_names_size_and_setting(
    settings: ClientSettings, bootstrap: str, topic: MakeTopic, group_id: str
) -> None:
    """Of a broker that takes 200,000 bytes all offsets are stored; one that takes 3,000 answers "unknown", and we say why."""
    of = topic(partitions=100)
    offsets = {TopicPartition(of, n): CommittedOffset(n, b"m" * 4_000) for n in range(100)}
    with batches_of(bootstrap, 200_000), OutsideCommits(settings, group_id) as outside:
        outside.commit(offsets, timeout_s=10)
        producer = begun(settings, group_id)
        send_offsets_to_transaction(producer, group_id, offsets, timeout_s=10)
        producer.commit_transaction(10)
    assert read_committed_offsets(settings, group_id, list(offsets)) == offsets
    with batches_of(bootstrap, 3_000):
        refusal: TransactionCallError | None = None
        deadline = time.monotonic() + 30
        while refusal is None:
            producer = begun(settings, group_id)
            try:
                send_offsets_to_transaction(producer, group_id, offsets, timeout_s=10)
            except TransactionCallError as error:
                refusal = error
            finally:
                producer.abort_transaction(10)
            assert time.monotonic() < deadline
    assert re.search(r"the request has \d+ offsets of up to 1\d\d,\d{3} bytes", refusal.text)
    assert "max.message.bytes" in refusal.args[0].str()


def test_an_administrator_sets_any_number_of_offsets(
    settings: ClientSettings,
    bootstrap: str,
    topic: MakeTopic,
    group_id: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In as many requests as it takes: a broker refuses all of them in one."""
    of = topic(partitions=100)
    offsets = {TopicPartition(of, n): 7 for n in range(100)}
    with batches_of(bootstrap, 3_000):
        deadline = time.monotonic() + 30
        with suppress(BrokerError):
            while True:
                set_committed_offsets(settings, group_id, offsets, timeout_s=2)
                assert time.monotonic() < deadline
        monkeypatch.setattr(committed_offsets, "REQUEST_BYTES_MAX", 3_000)
        set_committed_offsets(settings, group_id, offsets, timeout_s=10)
    found = read_committed_offsets(settings, group_id, list(offsets))
    assert found == dict.fromkeys(offsets, CommittedOffset(7))


def test_what_a_plain_client_committed_is_read_as_it_is_stored(
    settings: ClientSettings, bootstrap: str, topic: MakeTopic, group_id: str
) -> None:
    """confluent-kafka adds a NUL when it commits; it is there, and nothing behind it."""
    of = topic()
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group_id})
    consumer.commit(
        offsets=[ClientTopicPartition(of, 0, 5, metadata="m" * 172)], asynchronous=False
    )
    consumer.close()
    tp = TopicPartition(of, 0)
    found = read_committed_offsets(settings, group_id, [tp])
    assert found == {tp: CommittedOffset(5, b"m" * 172 + b"\0")}


def test_nothing_committed_is_none(
    settings: ClientSettings, topic: MakeTopic, group_id: str
) -> None:
    """An unknown group, and a partition that it has not committed; no partitions ask nobody."""
    tp, other = TopicPartition(topic(), 0), TopicPartition(topic(), 0)
    assert read_committed_offsets(settings, group_id, [tp]) == {tp: None}
    assert read_committed_offsets(settings, group_id, []) == {}
    producer = begun(settings, group_id)
    send_offsets_to_transaction(producer, group_id, {tp: CommittedOffset(0)}, timeout_s=10)
    producer.commit_transaction(10)
    found = read_committed_offsets(settings, group_id, [tp, other])
    assert found == {tp: CommittedOffset(0, b""), other: None}


def test_one_byte_too_many_is_refused_before_anything_is_sent(
    settings: ClientSettings, topic: MakeTopic, group_id: str
) -> None:
    """The transaction stays usable, and nothing of the refused call is in it."""
    of = topic(partitions=2)
    small, large = TopicPartition(of, 0), TopicPartition(of, 1)
    producer = begun(settings, group_id)
    too_large = {
        small: CommittedOffset(1),
        large: CommittedOffset(1, b"x" * (METADATA_BYTES_MAX + 1)),
    }
    with pytest.raises(OffsetMapTooLargeError, match="4097 bytes"):
        send_offsets_to_transaction(producer, group_id, too_large, timeout_s=10)
    bad = {small: CommittedOffset(1, b"\xff")}
    with pytest.raises(AssertionError, match="UTF-8"):
        send_offsets_to_transaction(producer, group_id, bad, timeout_s=10)
    send_offsets_to_transaction(producer, group_id, {large: CommittedOffset(3)}, timeout_s=10)
    producer.commit_transaction(10)
    found = read_committed_offsets(settings, group_id, [small, large])
    assert found == {small: None, large: CommittedOffset(3)}


def test_an_open_transaction_is_waited_for_and_then_named(
    settings: ClientSettings, topic: MakeTopic, group_id: str
) -> None:
    """A pending offset is never skipped: the read ends with an error, or after the transaction."""
    tp = TopicPartition(topic(), 0)
    producer = begun(settings, group_id)
    send_offsets_to_transaction(producer, group_id, {tp: CommittedOffset(9)}, timeout_s=10)
    with pytest.raises(LedgerUnavailableError, match="open transaction") as caught:
        read_committed_offsets(settings, group_id, [tp], timeout_s=2)
    assert caught.value.retriable
    producer.commit_transaction(10)
    assert read_committed_offsets(settings, group_id, [tp]) == {tp: CommittedOffset(9)}


def test_a_fenced_producer_is_told_with_all_its_facts(
    settings: ClientSettings, topic: MakeTopic, group_id: str
) -> None:
    """The error of the C call carries code, text, and what may be done next."""
    tp = TopicPartition(topic(), 0)
    fenced = begun(settings, group_id)
    newer = begun(settings, group_id)
    with pytest.raises(TransactionCallError) as caught:
        send_offsets_to_transaction(fenced, group_id, {tp: CommittedOffset(1)}, timeout_s=10)
    error = caught.value
    assert error.fatal or error.abortable
    assert error.name in {"_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED"}
    assert error.args[0].code() == error.code
    newer.abort_transaction(10)


def test_a_wrong_client_is_refused_before_its_memory_is_used(settings: ClientSettings) -> None:
    """The check of the client's name stops a consumer where a producer belongs, and a closed client."""
    consumer = Consumer({"bootstrap.servers": "localhost:1", "group.id": "x"})
    for kind in ("producer", "consumer"):
        with pytest.raises(ConfigError, match="confluent-kafka"):
            library().handle_of(consumer, kind)
        consumer.close()


@pytest.mark.slow
def test_an_unreachable_broker_ends_near_the_deadline() -> None:
    """No group coordinator and no broker: the error says which."""
    settings = ClientSettings.from_mapping({"bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(BrokerUnreachableError, match="refused"):
        read_committed_offsets(settings, "g", [TopicPartition("t", 0)], timeout_s=2)
