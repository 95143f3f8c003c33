"""Several servers of one relay: they share the partitions, and what one of them knows is in the log."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

from kafka_ordered_ops import RelayUnavailableError
from kafka_ordered_ops.core.types import Isolation
from kafka_ordered_ops.kafka.ports import open_lookup
from kafka_ordered_ops.relay.engine.server import now_ms
from kafka_ordered_ops.relay.log import log_tp
from kafka_ordered_ops.relay.service import Relay
from kafka_ordered_ops.testing.membership import expire_members
from tests.support.memory_world import MemoryWorld
from tests.support.relay_servers import (
    acknowledge,
    all_owned,
    kill,
    places,
    read,
    read_all,
    relay,
    run,
    serving,
    until,
)
from tests.support.relay_servers import status as status_of
from tests.support.worlds import World


async def pair(stack: AsyncExitStack, world: World, **options: Any) -> tuple[Relay, Relay]:
    """Two servers that share the partitions."""
    one = await stack.enter_async_context(relay(world, **options))
    other = await stack.enter_async_context(relay(world, **options))
    await until(
        lambda: (
            all_owned(one, other) and all(any(p.is_mine for p in s.status()) for s in (one, other))
        ),
        lambda: (one.status(), other.status()),
    )
    return one, other


def expire(world: MemoryWorld) -> None:
    """The group finds that its members have died; those that live join again."""
    assert world.settings.memory_name is not None
    expire_members(world.settings.memory_name, world.named("relay"))


def test_an_acknowledgement_may_go_to_any_server(world: World) -> None:
    """What one server handed out is acknowledged, given back and extended by the other."""
    world.create("orders", 2)
    for partition in range(2):
        world.write("orders", partition, *range(5))

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            one, other = await pair(stack, world)
            mine, others = await read_all(one, 5), await read_all(other, 5)
            assert sorted(places([*mine, *others])) == [(p, at) for p in (0, 1) for at in range(5)]
            await other.extend([each.lease for each in mine], 100)
            await acknowledge(other, mine)
            await one.cancel([(each.lease, None) for each in others])
            again = await read_all(other, 5)
            assert sorted(places(again)) == sorted(places(others))
            await acknowledge(one, again)
            for server in (one, other):
                await until(
                    lambda server=server: all(  # type: ignore[misc]
                        (at := status_of(server, p)) is not None and at.base == 5 for p in (0, 1)
                    )
                )
            assert await read(one, wait_s=0.2) == await read(other, wait_s=0.2) == []

    run(scenario())


@pytest.mark.slow
def test_a_killed_server_delays_its_records_by_their_leases(memory: MemoryWorld) -> None:
    """The other server hands out what was free at once, and what was leased when the leases have ended."""
    memory.create("orders", 2)
    for partition in range(2):
        memory.write("orders", partition, *range(10))

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            one, other = await pair(stack, memory)
            leased = await read_all(one, 4, records_max=4, lease_s=3)
            done = await read_all(one, 2, records_max=2, lease_s=3)
            await acknowledge(one, done)
            kill(one)
            expire(memory)
            found = await read_all(other, 14)
            assert now_ms() < leased[0].until_ms
            again = await read_all(other, 4)
            assert sorted(places(again)) == sorted(places(leased))
            assert now_ms() >= leased[0].until_ms
            assert {record.attempt for each in again for record in each.records} == {2}
            everything = [*done, *found, *again]
            assert len(set(places(everything))) == len(places(everything)) == 20

    run(scenario())


@pytest.mark.long
def test_a_replaced_server_hands_out_nothing(memory: MemoryWorld) -> None:
    """A server that has not heard that it was replaced writes leases, and none of them reaches a client."""
    memory.create("orders")

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            one = await stack.enter_async_context(serving(memory))
            warm = asyncio.create_task(read(one, wait_s=6, lease_s=30))
            await until(lambda: _has_handout(one, memory))
            # It goes on, but for reading the log and hearing from its group.
            engine = one._engine
            assert engine is not None
            replay = engine._replay
            held: list[Any] = []
            apply, replay._apply = replay._apply, held.append  # type: ignore[method-assign, assignment]
            engine._follow_group = lambda: None  # type: ignore[method-assign]
            expire(memory)
            other = await stack.enter_async_context(relay(memory))
            await until(lambda: any(p.is_mine for p in other.status()))
            memory.write("orders", 0, *range(20))
            await until(lambda: bool(engine.server.leasing._open))
            found = await read_all(other, 20)
            await acknowledge(other, found)
            assert not warm.done()
            replay._apply = apply  # type: ignore[method-assign]
            for some in held:
                engine.post(partial(apply, some))
            assert await warm == []
            assert len(places(found)) == 20
            await acknowledge(other, found)

    run(scenario())


@pytest.mark.slow
def test_a_frozen_server_hands_out_nothing(memory: MemoryWorld) -> None:
    """A server that stood still while it was replaced gives nothing to the clients that still wait for it."""
    memory.create("orders")

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            one = await stack.enter_async_context(serving(memory))
            warm = asyncio.create_task(read(one, wait_s=5, lease_s=30))
            await until(lambda: _has_handout(one, memory))
            engine = one._engine
            assert engine is not None
            is_frozen = True

            def freeze() -> None:
                while is_frozen:
                    time.sleep(0.01)

            engine.post(freeze)
            other = await stack.enter_async_context(relay(memory))
            expire(memory)
            await until(lambda: any(p.is_mine for p in other.status()))
            memory.write("orders", 0, *range(20))
            found = await read_all(other, 20)
            is_frozen = False
            assert await warm == []
            assert sorted(places(found)) == [(0, at) for at in range(20)]

    run(scenario())


@pytest.mark.slow
def test_a_restarted_server_knows_everything(world: World) -> None:
    """Leases and acknowledgements outlive all servers."""
    world.create("orders")
    world.write("orders", 0, *range(10))

    async def scenario() -> None:
        async with serving(world) as one:
            found = await read_all(one, 3, records_max=3, lease_s=60)
            await acknowledge(one, found)
            leased = await read_all(one, 2, records_max=2, lease_s=8)
        async with serving(world) as one:
            assert places(await read_all(one, 5)) == [(0, at) for at in range(5, 10)]
            again = await read_all(one, 2)
            assert places(again) == places(leased)
            assert now_ms() >= leased[0].until_ms
            await acknowledge(one, leased)
            assert await read(one, wait_s=0.2) == []

    run(scenario())


@pytest.mark.slow
def test_the_log_stays_short(world: World) -> None:
    """The log is cut behind snapshots, and a server that starts after a cut knows everything."""
    world.create("orders")
    world.write("orders", 0, *range(200))
    log = log_tp(world.tp("orders"))

    def log_start() -> int:
        with open_lookup(world.settings) as lookup:
            return lookup.log_starts([log])[log]

    async def scenario() -> None:
        async with serving(world, snapshot_records=50) as one:
            leased = await read_all(one, 1, records_max=1)
            for _ in range(199):
                await acknowledge(one, await read_all(one, 1, records_max=1))
            await until(lambda: log_start() > 300, log_start)
        async with serving(world) as one:
            assert await read(one, wait_s=0.2) == []
            await one.cancel([(leased[0].lease, None)])
            assert places(await read_all(one, 1)) == places(leased)

    run(scenario())
    with open_lookup(world.settings) as lookup:
        end = lookup.end_offsets([log], Isolation.READ_UNCOMMITTED)[log]
    assert end - log_start() < 200


def test_a_server_that_is_behind_a_cut_catches_up(memory: MemoryWorld) -> None:
    """A server whose place in the log was cut away reads on from the snapshot."""
    memory.create("orders", 2)
    for partition in range(2):
        memory.write("orders", partition, *range(60))

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            one, other = await pair(stack, memory, snapshot_records=20)
            feed = other._engine._replay._feed  # type: ignore[union-attr]
            read_on = feed._read
            held = asyncio.Event()
            on_turn = feed._on_turn

            def wait(fed: Any, noted: Any) -> None:
                while not held.is_set():
                    time.sleep(0.01)
                on_turn(fed, noted)

            feed._on_turn = wait
            assert read_on is not None
            found = await read_all(one, 60, records_max=1)
            await acknowledge(one, found)
            mine = next(p.partition for p in one.status() if p.is_mine)
            log = log_tp(memory.tp("orders", mine))
            with open_lookup(memory.settings) as lookup:
                await until(lambda: lookup.log_starts([log])[log] > 20)
            held.set()
            await until(lambda: (at := status_of(other, mine)) is not None and at.base == 60)

    run(scenario())


def test_a_closed_server_says_so(memory: MemoryWorld) -> None:
    """Whoever waits when a server ends is told to call another one."""
    memory.create("orders")

    async def scenario() -> None:
        one = relay(memory)
        await one.start()
        await until(lambda: one.is_ready)
        waiting = asyncio.create_task(read(one, wait_s=30))
        await asyncio.sleep(0.2)
        await one.close()
        with pytest.raises(RelayUnavailableError):
            await waiting

    run(scenario())


def _has_handout(server: Relay, world: World) -> bool:
    engine = server._engine
    return engine is not None and "g" in engine.server.partitions[world.tp("orders")].handouts
