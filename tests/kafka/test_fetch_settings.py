"""What librdkafka's reader asks brokers for: few bytes for few offsets, and seldom where nothing comes."""

from __future__ import annotations

import json
import random

import pytest
from confluent_kafka import Producer

from kafka_ordered_ops import ClientSettings
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import INT64_MAX, Isolation, TopicPartition
from kafka_ordered_ops.kafka.read.reader import RangeReader
from tests.conftest import MakeTopic


@pytest.mark.slow
def test_a_read_of_few_offsets_fetches_few_bytes(
    bootstrap: str, topic: MakeTopic, group_id: str
) -> None:
    """Of a thousand records in the middle of a log: little more than their size, as a plan of single chunks reads them."""
    settings = ClientSettings.of(bootstrap)
    name, size = topic(), 500
    # Batches as other clients write them.
    producer = Producer(settings.producer(batch_size=16_384))
    for _ in range(20_000):
        producer.produce(name, random.randbytes(size), partition=0)
    assert producer.flush(30) == 0
    few = {TopicPartition(name, 0): OffsetSet.of((9_000, 10_000))}
    received: list[int] = []

    def count_bytes(text: str) -> None:
        received.append(sum(one["rxbytes"] for one in json.loads(text)["brokers"].values()))

    reader = RangeReader(settings, group_id, Isolation.READ_COMMITTED, few)
    reader._config |= {"statistics.interval.ms": "10", "stats_cb": count_bytes}  # type: ignore[dict-item]
    with reader:
        assert sum(batch.offsets.size for batch in reader.timestamps()) == 1_000
        before = len(received)
        while len(received) < before + 20:
            reader._open_consumer().poll(0.05)
    assert received[-1] < 1.6 * 1_000 * size


@pytest.mark.parametrize(("partitions", "wait_ms"), [(1, 100), (300, 300), (3_000, 1_000)])
def test_a_follower_of_many_quiet_partitions_asks_seldom(partitions: int, wait_ms: int) -> None:
    """Each fetch names all of them; a read with an end feels the end within the time of few."""
    every = [TopicPartition("t", number) for number in range(partitions)]
    settings = ClientSettings.of("b")
    own = settings.merged({"fetch.wait.max.ms": 50})
    for by, end, expected in (
        (settings, INT64_MAX, wait_ms),
        (settings, 10**9, 100),
        (own, INT64_MAX, 50),
    ):
        wanted = dict.fromkeys(every, OffsetSet.of((5, end)))
        reader = RangeReader(by, "g", Isolation.READ_COMMITTED, wanted)
        assert reader._config["fetch.wait.max.ms"] == str(expected)
