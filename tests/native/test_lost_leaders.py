"""Leaders that are killed, frozen or ended while the native reader reads from them: every record once, in order."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest
from confluent_kafka import Producer

from kafka_ordered_ops import ClientSettings
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.ports import open_reader
from tests.support.readers import needs_native
from tests.support.three_brokers import ThreeBrokers
from tests.support.windows_support import BASE_MS

pytestmark = [needs_native, pytest.mark.native, pytest.mark.slow, pytest.mark.timeout(300)]

PARTITIONS = 6
RECORDS = 5_000
#: A broker that is frozen holds its partitions up for one time-out of a request.
SMALL = {
    "fetch.max.bytes": "60000",
    "fetch.message.max.bytes": "20000",
    "queued.max.messages.kbytes": "1",
    "socket.timeout.ms": "3000",
}


def fill(brokers: ThreeBrokers, topic: str) -> dict[TopicPartition, OffsetSet]:
    """So many records in each partition, some in transactions; all of their offsets."""
    brokers.create(topic, PARTITIONS)
    config = {"bootstrap.servers": brokers.bootstrap, "batch.num.messages": 100, "linger.ms": 5}
    producer = Producer({**config, "enable.idempotence": True})
    for number in range(RECORDS * PARTITIONS):
        while True:
            try:
                producer.produce(
                    topic,
                    key=b"%d" % (number // PARTITIONS),
                    value=bytes(500),
                    partition=number % PARTITIONS,
                    timestamp=BASE_MS + number,
                )
                break
            except BufferError:
                producer.poll(1)
    assert producer.flush(60) == 0
    return {
        TopicPartition(topic, number): OffsetSet.of((0, RECORDS)) for number in range(PARTITIONS)
    }


@pytest.mark.parametrize(
    "fault", ["kill", *(pytest.param(fault, marks=pytest.mark.long) for fault in ("pause", "end"))]
)
def test_every_record_comes_once_in_order(brokers: ThreeBrokers, fault: str) -> None:
    """Through the partition's new leader, from the first record that was not handed out."""
    topic = f"lost-{uuid.uuid4().hex[:8]}"
    wanted = fill(brokers, topic)
    settings = ClientSettings.of(
        {"bootstrap.servers": brokers.bootstrap, "reader": "native", **SMALL}
    )
    values: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    lost: int | None = None
    with open_reader(settings, "g", Isolation.READ_COMMITTED, wanted) as reader:
        for batch in reader.batches():
            column: Any = batch["key"]
            values[batch["partition"][0].as_py()] += [int(key) for key in column.to_pylist()]
            if lost is None and all(values.values()):
                assert all(len(numbers) < RECORDS for numbers in values.values())
                lost = brokers.leader_of(topic, 0)
                getattr(brokers, fault)(lost)
            elif lost is None:
                # The queue is short: what has begun waits, until all have.
                time.sleep(0.02)
    assert lost is not None
    # Else it would have been no fault.
    assert brokers.leader_of(topic, 0) != lost
    assert values == {number: list(range(RECORDS)) for number in range(PARTITIONS)}
