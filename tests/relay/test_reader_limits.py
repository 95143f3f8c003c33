"""What one reader cannot do to the others: bury their records, hold all of them, or take all groups."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from kafka_ordered_ops import AccessDeniedError, Earliest, RelayLimitError
from kafka_ordered_ops.core.cluster.reading import BATCH_RECORDS
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.kafka.ports import read_committed_offsets
from kafka_ordered_ops.relay.engine import group_limits, groups
from kafka_ordered_ops.relay.ports import Delivered, Reader
from kafka_ordered_ops.relay.service import Relay
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


def reader(name: str = "guest", *, counts: bool = True, pending_max: int = 5) -> Reader:
    """A reader with small bounds."""
    return Reader(name, counts, pending_max, groups_max=2, windows_max=2)


GUEST = reader(counts=False, pending_max=100)


def attempts(found: list[Delivered]) -> set[int]:
    """The attempts of records."""
    return {record.attempt for one in found for record in one.records}


def test_a_reader_that_may_not_acknowledge_buries_nothing(world: World) -> None:
    """However often it takes the records: they are there for the others, whose attempts alone count."""
    world.create("orders")
    world.create("dead")
    world.write("orders", 0, 1, 2)

    async def scenario() -> None:
        async with serving(world, attempts_max=2, dead_letter_topic=world.named("dead")) as one:
            for _ in range(4):
                taken = await read_all(one, 2, reader=GUEST)
                assert attempts(taken) == {1}
                await one.cancel([(each.lease, None) for each in taken])
            first = await read_all(one, 2)
            assert attempts(first) == {1}
            await one.cancel([(each.lease, None) for each in first])
            taken = await read_all(one, 2, reader=GUEST)
            assert attempts(taken) == {2}
            await one.cancel([(each.lease, None) for each in taken])
            last = await read_all(one, 2)
            assert attempts(last) == {2}
            await one.cancel([(each.lease, OffsetSet.of((0, 1))) for each in last])
            await one.acknowledge([(each.lease, OffsetSet.of((1, 2))) for each in last])
            await until(lambda: (at := status_of(one)) is not None and at.base == 2)
        [letter] = world.stored("dead")
        headers = {header["key"]: header["value"] for header in letter["headers"]}
        assert (headers["koo.offset"], headers["koo.attempts"]) == (b"0", b"2")

    run(scenario())


def test_attempts_that_do_not_count_are_the_same_after_a_restart(memory: MemoryWorld) -> None:
    """They are in the log, and the snapshot, as those that do."""
    memory.create("orders")
    memory.create("dead")
    memory.write("orders", 0, 1)
    options = {"attempts_max": 2, "dead_letter_topic": memory.named("dead"), "snapshot_records": 5}

    async def scenario() -> None:
        for _ in range(3):
            async with serving(memory, **options) as one:
                for _ in range(4):
                    taken = await read_all(one, 1, reader=GUEST)
                    assert attempts(taken) == {1}
                    await one.cancel([(taken[0].lease, None)])

    run(scenario())


def test_a_reader_holds_no_more_than_it_may(world: World) -> None:
    """Its reads bring what it may still have, then nothing but the reason; the others get the rest."""
    world.create("orders", 2)
    for partition in range(2):
        world.write("orders", partition, *range(10))

    async def scenario() -> None:
        async with serving(world) as one:
            mine = await read_all(one, 5, reader=reader(), records_max=3)
            assert len(places(mine)) == 5
            for wait_s in (0.0, 0.3):
                with pytest.raises(RelayLimitError, match="'pending'"):
                    await read(one, reader=reader(), wait_s=wait_s)
            # In every group, and whoever else reads.
            with pytest.raises(RelayLimitError, match="'guest'"):
                await read(one, "another group", reader=reader(), wait_s=0.0)
            rest = await read_all(one, 15, reader=reader("other", pending_max=100))
            assert not set(places(mine)) & set(places(rest))

    run(scenario())


@pytest.mark.slow
def test_room_is_made_by_all_that_ends_a_lease(world: World) -> None:
    """An acknowledgement, also through another server; giving back; the end of the lease. An extended one goes on."""
    world.create("orders")
    world.write("orders", 0, *range(40))

    async def scenario() -> None:
        async with serving(world) as one:
            found = await read_all(one, 5, reader=reader())
            waiting = asyncio.create_task(read(one, reader=reader(), wait_s=20.0))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            await one.acknowledge([(found[0].lease, OffsetSet.of((0, 2)))])
            [second] = await waiting
            assert places([second]) == [(0, 5), (0, 6)]
            await one.cancel([(found[0].lease, OffsetSet.of((2, 4)))])
            assert places(await read_all(one, 2, reader=reader())) == [(0, 2), (0, 3)]
            with pytest.raises(RelayLimitError):
                await read(one, reader=reader(), wait_s=0.0)

            await acknowledge(one, await read_all(one, 40 - 7, reader=None, records_max=100))
            world.write("orders", 0, *range(10))
            short = await read_all(one, 5, reader=reader("brief"), lease_s=4.0)
            [until_ms] = await one.extend([short[0].lease], 8.0)
            with pytest.raises(RelayLimitError):
                await read(one, reader=reader("brief"), wait_s=4.5)
            found = await read(one, reader=reader("brief"), wait_s=20.0)
            assert places(found)
            assert found[0].until_ms - 60_000 >= until_ms

    run(scenario())


@pytest.mark.slow
def test_a_reader_that_waits_in_vain_keeps_nobody_else_waiting(memory: MemoryWorld) -> None:
    """Reads behind one that may have no more are served."""
    memory.create("orders")
    memory.write("orders", 0, *range(5))

    async def scenario() -> None:
        async with serving(memory) as one:
            await read_all(one, 5, reader=reader())
            full = asyncio.create_task(read(one, reader=reader(), wait_s=2.0))
            await asyncio.sleep(0.05)
            other = asyncio.create_task(read(one, reader=reader("other"), wait_s=20.0))
            await asyncio.sleep(0.05)
            await asyncio.to_thread(memory.write, "orders", 0, 6)
            assert places(await other) == [(0, 5)]
            with pytest.raises(RelayLimitError):
                await full

    run(scenario())


def test_a_reader_that_reads_for_too_many_groups(memory: MemoryWorld) -> None:
    """It is refused, and others begin groups of theirs; when one of its groups is idle, it has room for another."""
    memory.create("orders")
    memory.write("orders", 0, 1)

    async def scenario() -> None:
        async with serving(memory, groups_max=4) as one:
            for group in ("g1", "g2"):
                assert places(await read_all(one, 1, group, reader=reader(pending_max=99)))
            for _ in range(3):
                with pytest.raises(RelayLimitError, match="2 groups of the token 'guest'"):
                    await read(one, "g3", reader=reader(pending_max=99))
            assert places(await read_all(one, 1, "g3", reader=reader("other")))
            # Reading along in a group is nobody's new group.
            await read(one, "g3", reader=reader(pending_max=99), wait_s=0.0)
            assert places(await read_all(one, 1, "g4", reader=None))
            for who in (None, reader("third")):
                with pytest.raises(RelayLimitError, match="4 groups already"):
                    await read(one, "g5", reader=who)

    run(scenario())


def test_a_reader_that_begins_too_many_groups(
    memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has begun stays in the log: idle groups make no room for new names, on any server; but for old ones."""
    monkeypatch.setattr(groups, "_IDLE_S", 0.3)
    monkeypatch.setattr(group_limits, "_LOOK_EVERY_S", 0.0)
    memory.create("orders")
    memory.write("orders", 0, 1)

    async def idle(server: Relay) -> None:
        engine = server._engine
        assert engine is not None
        await until(lambda: not engine.groups._feeds)

    async def scenario() -> None:
        async with serving(memory) as one:
            for group in ("g1", "g2"):
                await read(one, group, reader=reader(pending_max=99))
            await idle(one)
            with pytest.raises(AccessDeniedError, match="has begun 2 groups"):
                await read(one, "g3", reader=reader(pending_max=99))
            await read(one, "g1", reader=reader(pending_max=99), wait_s=0.0)
            await read(one, "g3", reader=reader("other"))
        async with serving(memory) as one:
            with pytest.raises(AccessDeniedError, match="has begun 2 groups"):
                await read(one, "g4", reader=reader(pending_max=99))
            assert await read(one, "g3", reader=reader(pending_max=99), wait_s=0.0) == []

    run(scenario())


def test_a_group_holds_its_share_of_the_memory(memory: MemoryWorld) -> None:
    """Records that nobody acknowledges take no memory from the other groups; what is acknowledged makes room."""
    memory.create("orders")
    memory.write_content("orders", 0, [(at, None, bytes(2_000), ()) for at in range(6_000)])
    groups_read = ["a", "b", "c", "d"]

    async def scenario() -> None:
        async with serving(memory, held_bytes_max=16_000_000) as one:
            for group in groups_read:
                await read_all(one, 1, group, records_max=1)
            engine = one._engine
            assert engine is not None
            handouts = engine.server.partitions[memory.tp("orders")].handouts
            await until(lambda: {each.bytes_max for each in handouts.values()} == {4_000_000})
            for group in groups_read:
                found = await read_all(one, 1_900, group, records_max=1_000)
                while more := await read(one, group, wait_s=0.0):
                    found += more
                # What was read at once is held, though it is more.
                assert handouts[group].held <= BATCH_RECORDS
                await acknowledge(one, found)
                assert await read(one, group, wait_s=5.0)

    run(scenario())


def test_a_read_of_some_topics_begins_nothing_in_the_others(world: World) -> None:
    """Its reader may have no right to them: neither their log nor the group's commits change."""
    for topic in ("orders", "payments"):
        world.create(topic)
        world.write(topic, 0, 1, 2)
    group = world.named("g")
    mine = frozenset({world.named("orders")})

    async def scenario() -> None:
        async with serving(world, "orders", "payments", commit_interval_s=0.1) as one:
            found = await read_all(one, 2, group, topics=mine)
            assert {each.tp for each in found} == {world.tp("orders")}
            await acknowledge(one, found)
            tps = [world.tp("orders"), world.tp("payments")]
            await until(
                lambda: read_committed_offsets(world.settings, group, tps)[tps[0]] is not None
            )
            engine = one._engine
            assert engine is not None
            other = engine.server.partitions[tps[1]]
            assert group not in other.state.groups
            assert not other.handouts
            assert read_committed_offsets(world.settings, group, tps)[tps[1]] is None
            # Whoever asks for both gets both.
            assert {each.tp for each in await read_all(one, 2, group)} == {tps[1]}

    run(scenario())


@pytest.mark.slow
def test_a_reader_that_opens_too_many_windows(world: World) -> None:
    """Those that are not done count, also after a restart; who opens one of them again, and the others, are not refused."""
    world.create("orders", 2)
    plans = []
    for number in range(5):
        world.write("orders", number % 2, number)
        plan = world.plan(f"w{number}", number + 1, starting_offsets=Earliest())
        assert plan is not None
        plans.append(plan)

    async def refused(one: Relay) -> None:
        for plan in plans[3:]:
            with pytest.raises(RelayLimitError, match="'windows'"):
                await one.open_window(plan, None, reader())
        assert await one.open_window(plans[0], None, reader()) == "w0"

    async def scenario() -> None:
        async with serving(world) as one:
            for plan in plans[:2]:
                await patiently(partial(one.open_window, plan, None, reader()))
            await refused(one)
            assert await one.open_window(plans[2], None, reader("other")) == "w2"
        async with serving(world) as one:
            await patiently(partial(one.open_window, plans[0], None, reader()))
            await refused(one)
            # They are no groups that it has begun.
            for group in ("mine", "mine too"):
                assert await read_all(one, 5, group, reader=reader(pending_max=100))
            await acknowledge(one, await read_all(one, 1, "w0"))
            assert await patiently(partial(one.open_window, plans[3], None, reader())) == "w3"
            with pytest.raises(RelayLimitError, match="'windows'"):
                await one.open_window(plans[4], None, reader())

    run(scenario())
