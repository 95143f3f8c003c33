"""The cluster of three that other tests need: it is one, and nothing of it stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.embedded.test_embedded import listens, within
from tests.support.own_network import own_network
from tests.support.three_brokers import NODES, ThreeBrokers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TIMEOUT_S = 60.0
MOVING = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
)


@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill", "pause", "end"])
def test_a_lost_node_is_replaced_and_comes_back(brokers: ThreeBrokers, fault: str) -> None:
    """Its partitions get other leaders, what is written meanwhile is kept, and it is in sync again later."""
    topic = brokers.create(f"lost-{fault}", 6)
    lost = brokers.leader_of(topic, 0)
    getattr(brokers, fault)(lost)
    brokers.await_led(without=lost)
    producer = Producer({"bootstrap.servers": brokers.bootstrap, "enable.idempotence": True})
    for partition in range(6):
        producer.produce(topic, value=b"x", partition=partition, timestamp=0)
    assert producer.flush(TIMEOUT_S) == 0
    brokers.resume(lost) if fault == "pause" else brokers.start_again(lost)
    brokers.await_whole()
    consumer = Consumer({"bootstrap.servers": brokers.bootstrap, "group.id": "g"})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(6)])
    read = consumer.consume(6, TIMEOUT_S)
    consumer.close()
    assert sorted(message.partition() or 0 for message in read) == list(range(6))


def commits(consumer: Consumer) -> bool:
    """Return whether a commit passes: the nodes may still be moving the coordinators of a younger cluster."""
    try:
        consumer.commit(offsets=[TopicPartition("__consumer_offsets", 0, 0)], asynchronous=False)
    except KafkaException as error:
        if error.args[0].code() not in MOVING:
            raise
        return False
    return True


def test_the_coordinators_are_where_they_are_said_to_be(brokers: ThreeBrokers) -> None:
    """The node that the test computes for a group is the one the cluster names."""
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
    groups = [f"group-{number}" for number in range(8)]
    for group_id in groups:
        consumer = Consumer({"bootstrap.servers": brokers.bootstrap, "group.id": group_id})
        assert within(TIMEOUT_S, partial(commits, consumer))
        consumer.close()
    said = admin.describe_consumer_groups(groups)
    found = {group_id: said[group_id].result(TIMEOUT_S).coordinator.id for group_id in groups}
    assert found == {group_id: brokers.coordinator_of_group(group_id) for group_id in groups}
    assert len({*found.values()}) > 1


_PARENT = """
import time
from tests.support.three_brokers import ThreeBrokers
brokers = ThreeBrokers()
brokers.start()
print(brokers.bootstrap, brokers.folder, flush=True)
time.sleep(600)
"""


@pytest.mark.long
def test_the_cluster_ends_with_a_parent_that_was_killed() -> None:
    """After kill -9 of the process that started it, its brokers and their data go."""
    with (
        own_network() as network,
        network.entered(),
        subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE) as parent,
    ):
        assert parent.stdout is not None
        try:
            bootstrap, folder = parent.stdout.readline().decode().split()
            assert [listens(one) for one in bootstrap.split(",")] == [True] * len(NODES)
        finally:
            os.kill(parent.pid, signal.SIGKILL)
        assert within(10, lambda: not any(listens(one) for one in bootstrap.split(",")))
        assert within(10, lambda: not Path(folder).exists())
