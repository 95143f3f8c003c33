"""A process that was idle while others forgot windows, on a broker that has compacted even the tombstones away."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta

import pytest
from confluent_kafka import Consumer, TopicPartition

from kafka_ordered_ops import Earliest
from kafka_ordered_ops.core import types as core
from kafka_ordered_ops.core.group.ledger.messages import RecordName, record_key
from kafka_ordered_ops.core.group.ledger_rules import LEDGER_PARTITIONS, ledger_partition
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic, Produce
from tests.support.interval_oracle import stamped
from tests.support.windows_support import TIMEOUT_S, before

#: A broker of the tests looks for something to compact every few seconds.
_COMPACTED_TIMEOUT_S = 90.0


@pytest.mark.long
def test_an_idle_process_sees_what_a_new_one_sees(
    bootstrap: str, group_id: str, topic: MakeTopic, produce: Produce
) -> None:
    """It knew one of the windows as open and one as committed, and neither is there any more."""
    ledger = topic(
        f"ledger-{uuid.uuid4().hex[:12]}",
        partitions=LEDGER_PARTITIONS,
        config={
            "cleanup.policy": "compact",
            "delete.retention.ms": "0",
            "segment.ms": "100",
            "min.cleanable.dirty.ratio": "0.01",
            "max.compaction.lag.ms": "100",
        },
    )
    name = topic()
    produce(stamped(name, *range(40)))

    def process(days: float = 0) -> OrderedWindows:
        return OrderedWindows(
            {"bootstrap.servers": bootstrap},
            group_id,
            ledger_topic=ledger,
            clock=lambda: time.time() + days * 86_400,
        )

    with process() as idle, process() as busy:
        idle.commit(idle.plan(before(name, 5, Earliest()), "committed"))
        plan = idle.plan(before(name, 10), "open")
        assert [one.plan.window_id for one in idle.list()] == ["committed", "open"]
        busy.commit(plan)
        with process(days=10) as later:
            assert later.prune(timedelta(days=1), forget=True) == ["committed", "open"]
        place = ledger_partition(ledger, group_id)
        deadline = time.monotonic() + _COMPACTED_TIMEOUT_S
        number = 0
        old = {record_key(group_id, RecordName("window", one), 0) for one in ("committed", "open")}
        while old & {*keys(bootstrap, place)}:
            assert time.monotonic() < deadline, "nothing was compacted"
            # A segment is rolled by what is written after it.
            busy.abandon(busy.plan(before(name, 11), f"next-{number}").window_id)
            number += 1
            time.sleep(0.5)
        with process() as cold:
            assert idle.list() == cold.list()
            assert idle.state() == cold.state()
        again = idle.plan(before(name, 10), "open")
        assert (again.offsets, again.attempt) == (0, 1)
        assert idle.commit(idle.plan(before(name, 100), "rest")).offsets == 30


def keys(bootstrap: str, place: core.TopicPartition) -> list[bytes]:
    """The keys of all messages that are left in a partition, tombstones too."""
    partition = TopicPartition(place.topic, place.partition, 0)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"look-{uuid.uuid4().hex}",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([partition])
    found = []
    while True:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None, "the end was not reached"
        if message.error():
            break
        found.append(message.key() or b"")
    consumer.close()
    return found
