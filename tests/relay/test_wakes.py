"""Waiting reads are woken: no timer of the server finds out that there is something for them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kafka_ordered_ops import RelayUnavailableError
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.processing.new_record import Report
from kafka_ordered_ops.core.relay.log_records import Leased, LogRecord
from kafka_ordered_ops.core.types import INT64_MAX, Isolation, TopicPartition
from kafka_ordered_ops.relay.engine import engine as engine_module
from kafka_ordered_ops.relay.engine import groups, upkeep
from kafka_ordered_ops.relay.leases import feed as feed_module
from kafka_ordered_ops.relay.leases import leasing
from kafka_ordered_ops.relay.leases.feed import Fed, Feed
from kafka_ordered_ops.relay.service import Relay
from tests.support.memory_world import MemoryWorld
from tests.support.relay_servers import acknowledge, places, read, run, serving, until, wait_until
from tests.support.worlds import World

#: Instead of the pauses between two looks.
NEVER_S = 600.0
#: Of a read that must not end by itself; a server allows no more.
WAIT_S = 30.0
GROUPS = ("a", "b")


@asynccontextmanager
async def looking_never(
    world: World, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> AsyncIterator[Relay]:
    """A server that does nothing by itself once it owns its partitions."""
    async with serving(world, commit_interval_s=NEVER_S, **options) as one:
        for module, name in (
            (engine_module, "_QUIET_LOOK_S"),
            (engine_module, "_GROUP_EVERY_S"),
            (groups, "_TEND_EVERY_S"),
            (upkeep, "_STATUS_EVERY_S"),
            (upkeep, "_FINISH_EVERY_S"),
            (upkeep, "TOPICS_EVERY_S"),
            (feed_module, "_IDLE_S"),
        ):
            monkeypatch.setattr(module, name, NEVER_S)
        yield one


def test_each_record_wakes_a_reader(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many readers, and records that come one by one, or a few together: each is handed out, and no read ends with nothing."""
    world.create("orders", 3)
    readers, rounds = 8, 25
    seen: dict[str, Counter[tuple[int, int]]] = {group: Counter() for group in GROUPS}

    async def work(one: Relay, group: str) -> None:
        while True:
            found = await read(one, group, records_max=1, wait_s=WAIT_S)
            assert places(found), "a read has waited to its end"
            seen[group].update(places(found))
            await acknowledge(one, found)

    async def scenario() -> None:
        async with looking_never(world, monkeypatch) as one, asyncio.TaskGroup() as tasks:
            workers = [
                tasks.create_task(work(one, group)) for group in GROUPS for _ in range(readers)
            ]
            written: Counter[tuple[int, int]] = Counter()
            for at in range(rounds):
                for partition in range(1 + at % 3):
                    await asyncio.to_thread(world.write, "orders", partition, at)
                    written[partition, sum(where == partition for where, _ in written)] = 1
                await until(lambda: all(seen[group] == written for group in GROUPS), lambda: seen)
            for worker in workers:
                worker.cancel()

    run(scenario())


def test_what_is_free_again_wakes_a_reader(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that is cancelled, and one that ends."""
    world.create("orders")

    async def scenario() -> None:
        async with looking_never(world, monkeypatch) as one:
            await asyncio.to_thread(world.write, "orders", 0, 1)
            held = await read(one, wait_s=WAIT_S, lease_s=60.0)
            waiting = asyncio.create_task(read(one, wait_s=WAIT_S, lease_s=0.5))
            # It ends without a lease that another one holds.
            assert not (await read(one, wait_s=0.05))
            await one.cancel([(held[0].lease, None)])
            assert [record.attempt for each in await waiting for record in each.records] == [2]
            again = await read(one, wait_s=WAIT_S)
            assert [record.attempt for each in again for record in each.records] == [3]

    run(scenario())


def test_a_read_whose_lease_came_too_late_waits_on(
    memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records are free when that lease ends, and what came while it was written found nobody who waits."""
    memory.create("orders")

    async def scenario() -> None:
        async with looking_never(memory, monkeypatch) as one:
            engine = one._engine
            assert engine is not None
            log, held = engine.server.log, list[Any]()
            append = log.append

            def append_later(tp: TopicPartition, record: LogRecord, report: Report) -> None:
                if isinstance(record, Leased) and not held:
                    held.append(lambda: append(tp, record, report))
                else:
                    append(tp, record, report)

            monkeypatch.setattr(log, "append", append_later)
            waiting = asyncio.create_task(read(one, wait_s=WAIT_S, lease_s=0.7))
            memory.write("orders", 0, 1)
            await until(lambda: bool(held))
            # Nothing that is read wakes it any more.
            handout = engine.server.partitions[memory.tp("orders")].handouts["g"]
            await until(lambda: handout.is_known)
            with monkeypatch.context() as patch:
                patch.setattr(leasing, "_LEASE_LEFT_MS_MIN", 1e9)
                engine.post(held[0])
                await until(lambda: len(engine.server.waiting.of("g")) == 1)
            assert [record.attempt for each in await waiting for record in each.records] == [2]

    run(scenario())


def test_a_server_that_ends_wakes_its_readers(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are to call another server; the thread that works with Kafka has ended by then."""
    world.create("orders")

    async def scenario() -> None:
        async with looking_never(world, monkeypatch) as one:
            waiting = asyncio.create_task(read(one, wait_s=WAIT_S))
            engine = one._engine
            assert engine is not None
            await until(lambda: len(engine.server.waiting.of("g")) == 1)
            await one.close()
            with pytest.raises(RelayUnavailableError, match="has ended"):
                await waiting
            assert not engine._thread.is_alive()

    run(scenario())


def test_an_idle_server_rests(memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """While readers wait and nothing comes, it waits as well: it does not look again and again."""
    memory.create("orders")

    async def scenario() -> None:
        async with looking_never(memory, monkeypatch) as one:
            waiting = [asyncio.create_task(read(one, wait_s=WAIT_S)) for _ in range(20)]
            engine = one._engine
            assert engine is not None
            await until(lambda: len(engine.server.waiting.of("g")) == 20)
            await until(lambda: engine._quiet_s() > 1.0)
            turns: list[None] = []
            turn = engine._turn

            def counted() -> None:
                turns.append(None)
                turn()

            monkeypatch.setattr(engine, "_turn", counted)
            memory.write("orders", 0, 1)
            [found] = await asyncio.wait_for(_first(waiting), WAIT_S)
            assert places(await found) == [(0, 0)]
            await until(lambda: engine._quiet_s() > 1.0)
            count = len(turns)
            await asyncio.sleep(0.3)
            assert len(turns) - count <= 1
            for one_of_them in waiting:
                one_of_them.cancel()

    run(scenario())


async def _first(waiting: list[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    return done


def test_an_order_wakes_a_feed_without_anything_to_read(
    memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins to read, stops, begins again, and is closed."""
    monkeypatch.setattr(feed_module, "_IDLE_S", NEVER_S)
    memory.create("orders")
    memory.write("orders", 0, 1, 2)
    positions: list[int] = []

    def on_turn(fed: list[Fed], noted: Any) -> None:
        positions.extend(one.position for one in fed if one.records is not None)
        noted()

    feed = Feed(
        memory.settings,
        "g",
        Isolation.READ_UNCOMMITTED,
        on_turn=on_turn,
        on_failure=lambda *_: None,
    )
    tp = memory.tp("orders")
    for count in range(1, 4):
        feed.add(tp, OffsetSet.of((0, INT64_MAX)))
        wait_until(lambda count=count: len(positions) == count)  # type: ignore[misc]
        feed.stop(tp)
    feed.close(wait=True)
    assert not feed._thread.is_alive()
