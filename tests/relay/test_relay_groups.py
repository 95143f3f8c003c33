"""The log of a topic belongs to one relay group: servers of two never take partitions from each other for ever."""

from __future__ import annotations

import asyncio

import pytest

from kafka_ordered_ops import ConfigError
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.relay.log_records import Acknowledged, Opened, Owned, encode
from kafka_ordered_ops.kafka.ports import open_internal_topics, open_lookup
from kafka_ordered_ops.relay.engine import claims
from kafka_ordered_ops.relay.log import PREFIX
from kafka_ordered_ops.relay.options import RelayOptions
from kafka_ordered_ops.relay.service import Relay
from tests.support.broker_world import BrokerWorld
from tests.support.memory_world import MemoryWorld
from tests.support.relay_servers import (
    acknowledge,
    all_owned,
    places,
    read_all,
    relay,
    run,
    serving,
    until,
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions of another group are waited for half a second."""
    monkeypatch.setattr(claims, "PATIENCE_S", -5.5)


async def refused(server: Relay) -> str:
    """The error that ended a server."""
    await until(lambda: server.ended_by is not None, server.status)
    assert isinstance(server.ended_by, ConfigError)
    return str(server.ended_by)


def test_a_server_of_another_group_is_refused(memory: MemoryWorld) -> None:
    """It ends, and says which group serves the topic; that one is not disturbed."""
    memory.create("orders", 2)
    for partition in range(2):
        memory.write("orders", partition, *range(10))
    other = memory.named("other")

    async def scenario() -> None:
        async with serving(memory) as one:
            found = await read_all(one, 5, records_max=5)
            before = [partition.owner for partition in one.status()]
            async with relay(memory, relay_group=other) as wrong:
                message = await refused(wrong)
                assert f"--relay-group {memory.named('relay')}" in message
                assert other in message
            found += await read_all(one, 20 - len(places(found)))
            assert len(set(places(found))) == 20
            assert [partition.owner for partition in one.status()] == before
            assert one.ended_by is None

    run(scenario())


@pytest.mark.slow
def test_a_group_is_renamed_when_its_servers_are_gone(broker: BrokerWorld) -> None:
    """The new group knows everything, also after it cut the log, and the old name is refused from then on."""
    broker.create("orders")
    broker.write("orders", 0, *range(10))
    renamed = broker.named("renamed")

    async def scenario() -> None:
        async with serving(broker) as one:
            done = await read_all(one, 4, records_max=4)
            await acknowledge(one, done)
            leased = await read_all(one, 2, records_max=2)
        async with serving(broker, relay_group=renamed, snapshot_records=5) as one:
            found = await read_all(one, 4)
            assert not {*places(found)} & {*places(done), *places(leased)}
            await acknowledge(one, leased)
            await acknowledge(one, found)
            engine = one._engine
            assert engine is not None
            await until(lambda: engine.server.partitions[broker.tp("orders")].snapshot_at > 0)
            async with relay(broker) as old:
                assert f"--relay-group {renamed}" in await refused(old)

    run(scenario())


def test_a_log_of_before_is_taken_over(memory: MemoryWorld) -> None:
    """A log without a group belongs to the first one that serves it."""
    memory.create("orders")
    memory.write("orders", 0, *range(4))

    name = memory.named("orders")
    with open_lookup(memory.settings) as lookup, open_internal_topics(memory.settings) as topics:
        topics.ensure(PREFIX + name, 1, {})
        topic_id = lookup.topics([name])[name].topic_id
    old = (
        Owned(7, "before", topic_id),
        Opened("g", 0),
        Acknowledged("g", OffsetSet.of((0, 2))),
    )
    for record in old:
        memory.kafka.produce(PREFIX + name, partition=0, value=encode(record))

    async def scenario() -> None:
        async with serving(memory) as one:
            assert places(await read_all(one, 2)) == [(0, 2), (0, 3)]
            async with relay(memory, relay_group="other") as wrong:
                await refused(wrong)

    run(scenario())


def test_two_groups_that_begin_together(memory: MemoryWorld) -> None:
    """One of them serves in the end, and the other one has ended."""
    memory.create("orders")
    memory.write("orders", 0, *range(4))

    async def scenario() -> None:
        one, other = relay(memory), relay(memory, relay_group="other")
        await asyncio.gather(one.start(), other.start())
        try:
            await until(lambda: (one.ended_by is None) != (other.ended_by is None))
            left = one if one.ended_by is None else other
            await until(lambda: all_owned(left))
            assert len(places(await read_all(left, 4))) == 4
        finally:
            await one.close()
            await other.close()

    run(scenario())


def test_a_name_that_the_log_cannot_hold() -> None:
    """It is refused at once."""
    with pytest.raises(ConfigError, match="relay_group"):
        RelayOptions(topics=frozenset({"orders"}), relay_group="x" * 256)
