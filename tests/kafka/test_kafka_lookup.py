from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from kafka_ordered_ops import BrokerUnreachableError, ClientSettings, ConfigError, UnknownTopicError
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.lookup import Lookup
from tests.conftest import MakeTopic

COMMITTED, UNCOMMITTED = Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED


@pytest.fixture
def settings(bootstrap: str) -> ClientSettings:
    """Nothing but the broker's address."""
    return ClientSettings.from_mapping({"bootstrap.servers": bootstrap})


@pytest.fixture
def lookup(settings: ClientSettings) -> Iterator[Lookup]:
    """A look-up on the broker, closed at the end."""
    with Lookup(settings) as lookup:
        yield lookup


def write(bootstrap: str, topic: str, stamps: list[int]) -> None:
    """One record for each timestamp, into partition 0."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for stamp in stamps:
        producer.produce(topic, b"v", partition=0, timestamp=stamp)
    assert producer.flush(10) == 0


def test_topics_are_described_with_id_and_partitions(lookup: Lookup, topic: MakeTopic) -> None:
    """Several topics in one call; each has its own id."""
    one, three = topic(), topic(partitions=3)
    facts = lookup.topics([one, three])
    assert facts[three].partitions == (0, 1, 2)
    assert facts[one].partitions == (0,)
    assert facts[one].topic_id != facts[three].topic_id
    assert len(lookup.cluster_id()) > 10


@pytest.mark.slow
def test_unknown_topics_are_named_all_at_once_and_not_created(
    lookup: Lookup, bootstrap: str, topic: MakeTopic
) -> None:
    """The error holds every missing name and the nearest existing one; no asking creates a topic."""
    name, other = topic(), f"absent-{uuid.uuid4().hex}"
    with pytest.raises(UnknownTopicError, match=f"nearest: {name}") as caught:
        lookup.topics([name, name + "x", other])
    assert sorted(caught.value.topics) == sorted([name + "x", other])
    with pytest.raises(UnknownTopicError):
        lookup.end_offsets([TopicPartition(other, 0)], COMMITTED)
    with pytest.raises(UnknownTopicError):
        lookup.matching([other])
    time.sleep(0.5)
    assert other not in AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics


def test_an_unknown_partition_of_a_known_topic_is_told(lookup: Lookup, topic: MakeTopic) -> None:
    """The error says how many partitions there are."""
    name = topic(partitions=2)
    with pytest.raises(UnknownTopicError, match="has 2 partitions"):
        lookup.log_starts([TopicPartition(name, 0), TopicPartition(name, 2)])


def test_patterns_match_whole_names_and_never_internal_topics(
    lookup: Lookup, topic: MakeTopic
) -> None:
    """A leading ^ makes a pattern; plain names stand for themselves; exclusions take both forms."""
    first, second = sorted([topic(), topic()])
    assert lookup.matching([f"^{first[:-2]}.*", second]) == [first, second]
    assert lookup.matching([first, second], exclude=[f"^{second}"]) == [first]
    for patterns in ([f"^{first[:-2]}"], ["^__.*"], []):
        with pytest.raises(UnknownTopicError, match="no topic matches"):
            lookup.matching(patterns)
    with pytest.raises(ConfigError, match="not a regular expression"):
        lookup.matching(["^("])


def test_offsets_by_time_and_ends(lookup: Lookup, bootstrap: str, topic: MakeTopic) -> None:
    """The first offset at or after a time, though earlier stamps follow it; None when there is none."""
    name = topic(partitions=2)
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)
    write(bootstrap, name, [1_000, 5_000, 2_000, 9_000])
    both = [first, second]
    assert lookup.log_starts(both) == {first: 0, second: 0}
    assert lookup.end_offsets(both, COMMITTED) == {first: 4, second: 0}
    assert lookup.first_at_or_after(both, 0, COMMITTED) == {first: 0, second: None}
    assert lookup.first_at_or_after(both, 2_000, COMMITTED) == {first: 1, second: None}
    assert lookup.first_at_or_after(both, 5_001, COMMITTED) == {first: 3, second: None}
    assert lookup.first_at_or_after(both, 9_001, COMMITTED) == {first: None, second: None}


def test_a_negative_time_is_never_sent(lookup: Lookup) -> None:
    """To the broker, -1 to -3 mean something else altogether."""
    for stamp in (-1, -2, -3, -4):
        with pytest.raises(AssertionError, match="negative"):
            lookup.first_at_or_after([TopicPartition("x", 0)], stamp, COMMITTED)


def test_an_open_transaction_holds_the_committed_end_back(
    lookup: Lookup, settings: ClientSettings, bootstrap: str, topic: MakeTopic
) -> None:
    """Under read_committed the end is the last stable offset, else the high watermark."""
    name = topic()
    tp = TopicPartition(name, 0)
    write(bootstrap, name, [1, 2, 3])
    producer = Producer(settings.producer(transactional_id=f"koo.{name}"))
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(name, b"pending", timestamp=50)
    producer.flush(10)
    try:
        assert lookup.end_offsets([tp], COMMITTED) == {tp: 3}
        assert lookup.end_offsets([tp], UNCOMMITTED) == {tp: 4}
        assert lookup.first_at_or_after([tp], 40, COMMITTED) == {tp: None}
        assert lookup.first_at_or_after([tp], 40, UNCOMMITTED) == {tp: 3}
    finally:
        producer.abort_transaction(10)


@pytest.mark.long
def test_a_thousand_partitions_are_one_call(lookup: Lookup, topic: MakeTopic) -> None:
    """All partitions of a large topic are answered together."""
    name = topic(partitions=1_000)
    partitions = [TopicPartition(name, number) for number in range(1_000)]
    lookup.log_starts(partitions)  # Waits for a thousand leaders.
    assert lookup.end_offsets(partitions, COMMITTED) == dict.fromkeys(partitions, 0)


def test_live_members_are_named(lookup: Lookup, bootstrap: str, topic: MakeTopic) -> None:
    """An unknown group has none, a live one its members, an empty one none again."""
    name, group_id = topic(), f"group-{uuid.uuid4().hex}"
    assert lookup.group_members(group_id) == []
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group_id, "client.id": "somebody"}
    )
    consumer.subscribe([name])
    deadline = time.monotonic() + 30
    while not consumer.assignment() and time.monotonic() < deadline:
        consumer.poll(0.1)
    (member,) = lookup.group_members(group_id)
    assert member.startswith("somebody@")
    consumer.close()
    assert lookup.group_members(group_id) == []


@pytest.mark.long
def test_an_unreachable_broker_ends_at_the_deadline() -> None:
    """The error comes, can be retried, and carries the reason."""
    settings = ClientSettings.from_mapping({"bootstrap.servers": "127.0.0.1:1"})
    asks: list[Callable[[Lookup], object]] = [
        lambda lookup: lookup.cluster_id(),
        lambda lookup: lookup.matching(["^x"]),
        lambda lookup: lookup.group_members("g"),
    ]
    for ask in asks:
        with (
            Lookup(settings, timeout_s=1.0) as lookup,
            pytest.raises(BrokerUnreachableError, match="refused") as caught,
        ):
            ask(lookup)
        assert caught.value.retriable
