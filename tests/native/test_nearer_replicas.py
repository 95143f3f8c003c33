"""Replicas in the client's rack, which the native reader reads instead of the leaders'."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from kafka_ordered_ops import ClientSettings
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.ports import open_reader
from tests.native.test_lost_leaders import PARTITIONS, RECORDS, SMALL, fill
from tests.support.readers import needs_native
from tests.support.three_brokers import NODES, ThreeBrokers

pytestmark = [needs_native, pytest.mark.native, pytest.mark.long, pytest.mark.timeout(300)]

NEAR = 2
FAR = 1


def read(
    brokers: ThreeBrokers,
    wanted: dict[TopicPartition, OffsetSet],
    rack: str,
    midway: Callable[[], None],
) -> None:
    """Every record, once and in order; something happens when each partition has begun, and none has ended."""
    settings = ClientSettings.of(
        {"bootstrap.servers": brokers.bootstrap, "reader": "native", "client.rack": rack, **SMALL}
    )
    values: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    is_midway = False
    with open_reader(settings, "g", Isolation.READ_COMMITTED, wanted) as reader:
        for batch in reader.batches():
            column: Any = batch["key"]
            values[batch["partition"][0].as_py()] += [int(key) for key in column.to_pylist()]
            if not is_midway and all(values.values()):
                assert all(len(numbers) < RECORDS for numbers in values.values())
                is_midway = True
                midway()
            elif not is_midway:
                # The queue is short: what has begun waits, until all have.
                time.sleep(0.02)
    assert is_midway
    assert values == {number: list(range(RECORDS)) for number in range(PARTITIONS)}


def test_replicas_in_the_rack_are_read(brokers: ThreeBrokers) -> None:
    """Alone: with all other brokers frozen, every record still comes."""
    topic = f"near-{uuid.uuid4().hex[:8]}"
    wanted = fill(brokers, topic)
    leaders = {brokers.leader_of(topic, number) for number in range(PARTITIONS)}
    assert leaders == {*NODES}

    def freeze_others() -> None:
        for node in NODES:
            if node != NEAR:
                brokers.pause(node)

    # A replica learns with a later fetch up to where it may be read, and from frozen leaders never.
    read(brokers, wanted, brokers.rack(NEAR), lambda: None)
    read(brokers, wanted, brokers.rack(NEAR), freeze_others)


@pytest.mark.parametrize("fault", ["kill", "pause"])
def test_without_the_near_broker_leaders_are_read(brokers: ThreeBrokers, fault: str) -> None:
    """Although they would send the client to the near one again, until they know that it is away."""
    wanted = fill(brokers, f"near-{uuid.uuid4().hex[:8]}")
    read(brokers, wanted, brokers.rack(NEAR), lambda: getattr(brokers, fault)(NEAR))


def test_a_far_leader_is_killed(brokers: ThreeBrokers) -> None:
    """The near replica then follows another leader, or is the leader."""
    topic = f"near-{uuid.uuid4().hex[:8]}"
    wanted = fill(brokers, topic)

    def kill_far() -> None:
        brokers.kill(FAR)
        brokers.await_led(FAR)

    read(brokers, wanted, brokers.rack(NEAR), kill_far)


def test_without_a_broker_in_the_rack_leaders_are_read(brokers: ThreeBrokers) -> None:
    """As without a rack."""
    wanted = fill(brokers, f"near-{uuid.uuid4().hex[:8]}")
    read(brokers, wanted, "elsewhere", lambda: None)
