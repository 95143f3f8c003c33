"""Records that were leased too often, and never acknowledged."""

from __future__ import annotations

import pytest

from kafka_ordered_ops import Earliest
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.relay.engine import burying
from tests.support.memory_world import MemoryWorld
from tests.support.relay_servers import (
    acknowledge,
    patiently,
    places,
    read,
    read_all,
    run,
    serving,
    until,
)
from tests.support.relay_servers import status as status_of
from tests.support.worlds import World


def test_a_record_with_too_many_attempts_is_buried(world: World) -> None:
    """After its last attempt a record goes to the dead-letter topic once, and is handed out no more."""
    world.create("orders")
    world.create("dead")
    world.write_content("orders", 0, [(1, b"k", b"bad", ()), (2, b"k", b"good", ())])

    async def scenario() -> None:
        async with serving(world, attempts_max=2, dead_letter_topic=world.named("dead")) as one:
            for attempt in (1, 2):
                found = await read_all(one, 3 - attempt, lease_s=30)
                [bad] = [each for each in found if (0, 0) in places([each])]
                assert bad.records[0].attempt == attempt
                await one.cancel([(bad.lease, OffsetSet.of((0, 1)))])
                await one.acknowledge(
                    [
                        (each.lease, OffsetSet.of((1, 2)))
                        for each in found
                        if (0, 1) in places([each])
                    ]
                )
            await until(lambda: (at := status_of(one)) is not None and at.base == 2)
            assert await read(one, wait_s=0.2) == []
        [letter] = world.stored("dead")
        assert letter["value"] == b"bad"
        headers = {header["key"]: header["value"] for header in letter["headers"]}
        assert (headers["koo.offset"], headers["koo.attempts"]) == (b"0", b"2")

    run(scenario())


def test_a_dead_letter_that_is_refused_is_shown(world: World) -> None:
    """Its record is handed out again, and its dead letter tried after each lease; others are buried meanwhile."""
    world.create("orders")
    world.create("dead", max_message_bytes="3000")
    large = bytes(5_000)
    world.write_content(
        "orders", 0, [(1, b"k", large, ()), (2, b"k", b"bad", ()), (3, b"k", b"", ())]
    )

    async def scenario() -> None:
        async with serving(world, attempts_max=1, dead_letter_topic=world.named("dead")) as one:
            [found] = await read_all(one, 3)
            await one.acknowledge([(found.lease, OffsetSet.of((2, 3)))])
            for attempt, freed in ((2, OffsetSet.of((0, 2))), (3, None)):
                await one.cancel([(found.lease, freed)])
                [found] = await read_all(one, 1)
                assert places([found]) == [(0, 0)]
                assert found.records[0].attempt == attempt
                await until(
                    lambda: (at := status_of(one)) is not None and at.refused_dead_letters == 1
                )
                at = status_of(one)
                assert at is not None
                assert at.problem is not None
                assert f"{world.tp('orders')}@0 of group g" in at.problem
                assert "max.message.bytes" in at.problem
            await acknowledge(one, [found])
            await until(lambda: (at := status_of(one)) is not None and at.base == 3)
            at = status_of(one)
            assert at is not None
            assert (at.refused_dead_letters, at.problem) == (0, None)
        assert [letter["value"] for letter in world.stored("dead")] == [b"bad"]

    run(scenario())


@pytest.mark.slow
def test_a_window_with_a_dead_letter_that_is_refused_goes_on(memory: MemoryWorld) -> None:
    """Whoever reads it gets the record again and again, and not nothing for ever; once it is acknowledged, it is done."""
    memory.create("orders")
    memory.create("dead", max_message_bytes="3000")
    memory.write_content("orders", 0, [(1, b"k", bytes(5_000), ()), (2, b"k", b"", ())])
    plan = memory.plan("w", 10, starting_offsets=Earliest())
    assert plan is not None

    async def scenario() -> None:
        async with serving(memory, attempts_max=1, dead_letter_topic=memory.named("dead")) as one:
            await patiently(lambda: one.open_window(plan, None))
            found = await read_all(one, 2, "w", lease_s=1.0)
            await one.acknowledge([(found[0].lease, OffsetSet.of((1, 2)))])
            for _ in range(2):
                found = await read_all(one, 1, "w", lease_s=1.0)
                assert places(found) == [(0, 0)]
            await acknowledge(one, found)
            assert await one.read("w", records_max=1, wait_s=10, lease_s=5) == ([], True)

    run(scenario())


def test_a_topic_that_takes_the_dead_letter_later(memory: MemoryWorld) -> None:
    """When somebody has repaired the topic, the next end of a lease buries the record."""
    memory.create("orders")
    memory.create("dead", max_message_bytes="3000")
    memory.write_content("orders", 0, [(1, b"k", bytes(5_000), ())])

    async def scenario() -> None:
        async with serving(memory, attempts_max=1, dead_letter_topic=memory.named("dead")) as one:
            [found] = await read_all(one, 1)
            await one.cancel([(found.lease, None)])
            [found] = await read_all(one, 1)
            memory.delete("dead")
            memory.create("dead")
            await one.cancel([(found.lease, None)])
            await until(lambda: (at := status_of(one)) is not None and at.base == 1)
        [letter] = memory.stored("dead")
        headers = {header["key"]: header["value"] for header in letter["headers"]}
        assert headers["koo.attempts"] == b"2"

    run(scenario())


@pytest.mark.slow
def test_brokers_that_are_away_delay_a_dead_letter(
    memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """That is no refusal: the record is not handed out meanwhile."""
    monkeypatch.setattr(burying, "_AGAIN_S", 0.2)
    memory.create("orders")
    memory.create("dead")
    memory.write("orders", 0, 1)

    async def scenario() -> None:
        async with serving(memory, attempts_max=1, dead_letter_topic=memory.named("dead")) as one:
            await read_all(one, 1, lease_s=1.0)
            with memory.kafka.unreachable():
                await until(lambda: "is buried later" in caplog.text)
            await until(lambda: (at := status_of(one)) is not None and at.base == 1)
            at = status_of(one)
            assert at is not None
            assert at.refused_dead_letters == 0
        assert len(memory.stored("dead")) == 1

    run(scenario())
