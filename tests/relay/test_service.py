"""The relay's service: read, acknowledge, cancel, extend, by one server."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from typing import Any

import pytest

from kafka_ordered_ops import (
    ClosedError,
    ConfigError,
    Earliest,
    Latest,
    LeaseError,
    UnknownTopicError,
    WindowPlan,
)
from kafka_ordered_ops.core.cluster.reading import BATCH_RECORDS
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import GroupProtocol
from kafka_ordered_ops.kafka.ports import open_lookup, read_committed_offsets
from kafka_ordered_ops.processing import Record
from kafka_ordered_ops.relay.engine.server import now_ms
from kafka_ordered_ops.relay.limits import READ_BYTES_MAX
from kafka_ordered_ops.relay.log import log_tp
from kafka_ordered_ops.relay.options import RelayOptions
from kafka_ordered_ops.relay.service import Relay
from kafka_ordered_ops.relay.tokens import Lease, TokenSigner
from tests.support.memory_world import MemoryWorld
from tests.support.relay_servers import (
    acknowledge,
    all_owned,
    patiently,
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


def test_each_record_is_handed_out_once_and_acknowledged(world: World) -> None:
    """Every record comes once, with its contents, and none after it was acknowledged."""
    world.create("orders", 3)
    for partition in range(3):
        world.write("orders", partition, *range(10))

    async def scenario() -> None:
        async with serving(world) as one:
            found = await read_all(one, 30, records_max=7)
            assert sorted(places(found)) == [(p, at) for p in range(3) for at in range(10)]
            assert {record.attempt for each in found for record in each.records} == {1}
            await acknowledge(one, found)
            assert await read(one, wait_s=0.3) == []
            await until(
                lambda: all((at := status_of(one, p)) and at.base == 10 for p in range(3)),
                one.status,
            )

    run(scenario())


@pytest.mark.slow
def test_what_waits_is_known_while_nobody_reads(world: World) -> None:
    """Offsets that are neither acknowledged nor leased count, also those that are written later."""
    world.create("orders")
    world.write("orders", 0, *range(10))

    async def scenario() -> None:
        async with serving(world) as one:
            found = await read_all(one, 4, records_max=4)
            await acknowledge(one, found[:1])
            await until(lambda: (at := status_of(one)) is not None and at.waiting == 6)
            world.write("orders", 0, *range(5))
            await until(lambda: (at := status_of(one)) is not None and at.waiting == 11)
            await one.cancel([(each.lease, None) for each in found[1:]])
            left = 15 - len(found[0].records)
            await until(lambda: (at := status_of(one)) is not None and at.waiting == left)

    run(scenario())


def test_a_cancelled_record_is_free_at_once(world: World) -> None:
    """What a client gives back comes again with the next attempt."""
    world.create("orders")
    world.write("orders", 0, *range(4))

    async def scenario() -> None:
        async with serving(world) as one:
            [first] = await read_all(one, 2, records_max=2)
            await one.cancel([(first.lease, OffsetSet.of((1, 2)))])
            found = await read_all(one, 3)
            attempts = {one.offset: one.attempt for each in found for one in each.records}
            assert attempts == {1: 2, 2: 1, 3: 1}

    run(scenario())


@pytest.mark.slow
def test_a_record_comes_again_after_its_lease_and_never_before(world: World) -> None:
    """An unacknowledged record is handed out again when its lease has ended; an extended lease ends later."""
    world.create("orders")
    world.write("orders", 0, 1, 2)

    async def scenario() -> None:
        async with serving(world) as one:
            short = await read_all(one, 1, records_max=1, lease_s=1.0)
            longer = await read_all(one, 1, records_max=1, lease_s=3.0)
            [until_ms] = await one.extend([longer[0].lease], 5.0)
            again = await read_all(one, 1)
            assert places(again) == places(short) == [(0, 0)]
            assert now_ms() >= short[0].until_ms
            assert until_ms >= longer[0].until_ms + 1_000
            last = await read_all(one, 1)
            assert places(last) == [(0, 1)]
            assert now_ms() >= until_ms

    run(scenario())


def test_a_lease_that_has_ended_cannot_be_extended_but_acknowledged(world: World) -> None:
    """Done wins: an acknowledgement counts whenever it comes, and may be repeated."""
    world.create("orders")
    world.write("orders", 0, 1)

    async def scenario() -> None:
        async with serving(world) as one:
            old = await read_all(one, 1, lease_s=0.5)
            again = await read_all(one, 1)
            with pytest.raises(LeaseError, match="has ended"):
                await one.extend([old[0].lease], 5.0)
            await acknowledge(one, old)
            await acknowledge(one, old)
            await one.cancel([(again[0].lease, None)])
            assert await read(one, wait_s=0.3) == []

    run(scenario())


def test_an_invalid_token_changes_nothing(memory: MemoryWorld) -> None:
    """A forged or foreign token, or offsets outside of a lease, are refused before anything is written."""
    memory.create("orders")
    memory.write("orders", 0, *range(3))

    async def scenario() -> None:
        async with serving(memory) as one:
            [found] = await read_all(one, 2, records_max=2)
            forged = TokenSigner(b"another secret").token_of(
                Lease(found.tp, "topic", "g", "0" * 32, OffsetSet.of((0, 3)), found.until_ms)
            )
            cut = found.lease[:-1]
            for token in (forged, cut, "", "é", "A" * 10_000):
                with pytest.raises(LeaseError):
                    await one.acknowledge([(found.lease, None), (token, None)])
            with pytest.raises(LeaseError, match="offset 2"):
                await one.acknowledge([(found.lease, OffsetSet.of((0, 3)))])
            await one.cancel([(found.lease, None)])
            assert sorted(places(await read_all(one, 3))) == [(0, 0), (0, 1), (0, 2)]

    run(scenario())


def test_each_group_gets_every_record(world: World) -> None:
    """Groups know nothing of each other."""
    world.create("orders", 2)
    world.write("orders", 0, 1, 2)
    world.write("orders", 1, 3)

    async def scenario() -> None:
        async with serving(world) as one:
            for group in ("a", "b"):
                found = await read_all(one, 3, group)
                assert sorted(places(found)) == [(0, 0), (0, 1), (1, 0)]
                await acknowledge(one, found)
            assert await read(one, "a", wait_s=0) == []

    run(scenario())


def test_a_waiting_read_gets_what_is_written(world: World) -> None:
    """A read that waits returns when a record comes; one without records ends in time."""
    world.create("orders")

    async def scenario() -> None:
        async with serving(world) as one:
            assert await read(one, wait_s=0.2) == []
            waiting = asyncio.create_task(read(one, wait_s=30.0))
            await asyncio.sleep(0.1)
            await asyncio.to_thread(world.write, "orders", 0, 1)
            assert places(await waiting) == [(0, 0)]

    run(scenario())


@pytest.mark.slow
def test_a_read_without_a_wait_returns_what_is_there(world: World) -> None:
    """The first one of a new group, and each of many that follow, until there is really nothing."""
    world.create("orders", 2)
    for partition in range(2):
        world.write("orders", partition, *range(30))

    async def scenario() -> None:
        async with serving(world, records_max=8) as one:
            for group in ("a", "b"):
                seen: list[tuple[int, int]] = []
                for at in range(60):
                    found = await read(one, group, records_max=1, wait_s=0.0)
                    assert len(places(found)) == 1, at
                    seen += places(found)
                    await acknowledge(one, found)
                    await asyncio.sleep(0.003 * (at % 5))
                assert len(set(seen)) == 60
                assert await read(one, group, wait_s=0.0) == []
            world.send("open", "orders", 0, 1)
            await asyncio.sleep(0.5)
            # Records of an open transaction are not there.
            assert await read(one, "a", wait_s=0.0) == []
            world.end("open", "commit")
            assert places(await read_all(one, 1, "a", wait_s=0.0)) == [(0, 30)]

    run(scenario())


def test_offsets_without_a_record_hold_nothing_up(world: World) -> None:
    """Markers and aborted records are passed, and the committed offset of the group follows."""
    world.create("orders")
    world.write("orders", 0, 1)
    world.send("one", "orders", 0, 2, 3)
    world.end("one", "abort")
    world.send("two", "orders", 0, 4)
    world.end("two", "commit")
    group = world.named("g")

    async def scenario() -> None:
        async with serving(world, commit_interval_s=0.2) as one:
            found = await read_all(one, 2, group)
            assert places(found) == [(0, 0), (0, 4)]
            await one.acknowledge([(each.lease, OffsetSet.of((4, 5))) for each in found[-1:]])
            await until(lambda: world.committed("orders")[str(world.tp("orders"))] is not None)
            await acknowledge(one, found)
            await until(lambda: (at := status_of(one, 0, group)) is not None and at.base == 6)
            await until(lambda: _committed(world, group) == 6, lambda: _committed(world, group))

    run(scenario())


def test_a_new_group_begins_where_it_is_told(world: World) -> None:
    """At its committed offset; without one, at the starting offsets."""
    world.create("orders")
    world.write("orders", 0, *range(5))
    world.foreign_commit("old", "orders", {0: 3})

    async def scenario() -> None:
        async with serving(world, starting_offsets=Latest()) as one:
            assert places(await read_all(one, 2, world.named("old"))) == [(0, 3), (0, 4)]
            assert await read(one, world.named("new"), wait_s=1.0) == []
            await asyncio.to_thread(world.write, "orders", 0, 9)
            assert places(await read_all(one, 1, world.named("new"))) == [(0, 5)]

    run(scenario())


def test_a_window_is_done_when_all_of_it_is_acknowledged(world: World) -> None:
    """A window hands out exactly its offsets, in all partitions, and says when nothing is left."""
    world.create("orders", 3)
    for partition in range(2):
        world.write("orders", partition, *range(20))
    plan = world.plan("w", 10, starting_offsets=Earliest())
    assert plan is not None

    async def scenario() -> None:
        async with serving(world) as one:
            group = await patiently(lambda: one.open_window(plan, None))
            assert group == await one.open_window(plan, None)
            with pytest.raises(ConfigError, match="other offsets"):
                await one.open_window(_other(world), group)
            found = await read_all(one, 20, group)
            assert sorted(places(found)) == [(p, at) for p in range(2) for at in range(10)]
            assert await one.read(group, records_max=1, wait_s=0, lease_s=5) == ([], False)
            waiting = asyncio.create_task(one.read(group, records_max=1, wait_s=30, lease_s=5))
            await acknowledge(one, found)
            assert await waiting == ([], True)
            assert await one.read(group, records_max=1, wait_s=0, lease_s=5) == ([], True)

    run(scenario())


def test_of_two_windows_with_one_name_the_first_is_opened(world: World) -> None:
    """Calls at the same time, also to two servers: one window is opened, and the caller of the other one learns of it."""
    world.create("orders", 3)
    for partition in range(3):
        world.write("orders", partition, *range(20))
    plans = [world.plan("w", 10, starting_offsets=Earliest()), _other(world)]

    async def opened(at: Relay, plan: WindowPlan | None, group: str) -> object:
        assert plan is not None
        try:
            return await patiently(lambda: at.open_window(plan, group))
        except ConfigError as error:
            return error

    async def scenario() -> None:
        async with relay(world) as one, relay(world) as two:
            await until(lambda: all_owned(one, two))
            for number in range(6):
                servers = (one, (one, two)[number % 2])
                calls = zip(servers, plans, strict=True)
                found = await asyncio.gather(*(opened(*call, f"same-{number}") for call in calls))
                assert f"same-{number}" in found
                [refused] = [each for each in found if isinstance(each, ConfigError)]
                assert "other offsets" in str(refused)

    run(scenario())


def test_no_more_is_held_than_allowed(memory: MemoryWorld) -> None:
    """A server reads on only as records are acknowledged."""
    memory.create("orders")
    memory.write("orders", 0, *range(300))

    async def scenario() -> None:
        async with serving(memory, records_max=20) as one:
            most = 0
            seen: list[tuple[int, int]] = []
            while len(seen) < 300:
                found = await read(one, records_max=7)
                handouts = one._engine.server.partitions[memory.tp("orders")].handouts  # type: ignore[union-attr]
                most = max(most, handouts["g"].held)
                seen += places(found)
                await acknowledge(one, found)
            assert seen == [(0, at) for at in range(300)]
            # One turn of the reader is taken whole.
            assert most <= 300

    run(scenario())


def test_few_records_are_read_ahead_for_a_group_that_takes_few(memory: MemoryWorld) -> None:
    """And leased records keep nothing from being read."""
    memory.create("orders")
    memory.write("orders", 0, *range(15_000))

    async def scenario() -> None:
        async with serving(memory) as one:
            found = await read(one, records_max=1)
            handout = one._engine.server.partitions[memory.tp("orders")].handouts["g"]  # type: ignore[union-attr]
            await until(lambda: handout._number == 0, one.status)
            # Those of the last turn of the reader are taken as well.
            assert handout.held <= 1_000 + BATCH_RECORDS
            found += await read_all(one, 15_000 - 1, records_max=2_000)
            assert places(found) == [(0, at) for at in range(15_000)]

    run(scenario())


def test_a_read_of_large_records_returns_few(memory: MemoryWorld) -> None:
    """Its bytes have a limit, and at least one record comes."""
    memory.create("orders", 2)
    for partition in range(2):
        values = [(at, None, bytes(READ_BYTES_MAX // 4), ()) for at in range(6)]
        memory.write_content("orders", partition, [*values, (6, None, bytes(READ_BYTES_MAX), ())])

    async def scenario() -> None:
        async with serving(memory) as one:
            seen: list[tuple[int, int]] = []
            while len(seen) < 14:
                found = await read(one, records_max=1_000)
                sizes = [len(record.value or b"") for each in found for record in each.records]
                assert sum(sizes) <= READ_BYTES_MAX or len(sizes) == 1
                seen += places(found)
                await acknowledge(one, found)
            assert len(set(seen)) == 14

    run(scenario())


def test_held_records_are_out_of_the_collectors_sight(memory: MemoryWorld) -> None:
    """A full collection stops the server for as long as it looks at them."""
    memory.create("orders")
    memory.write("orders", 0, *range(300))

    async def scenario() -> None:
        async with serving(memory) as one:
            (first,) = await read(one, records_max=1)
            handouts = one._engine.server.partitions[memory.tp("orders")].handouts  # type: ignore[union-attr]
            await until(lambda: handouts["g"].held == 300, one.status)
            gc.collect()
            assert not any(map(gc.is_tracked, handouts["g"]._records.values()))
            assert isinstance(first.records[0], Record)

    run(scenario())


def test_only_the_wanted_topics(world: World) -> None:
    """A read may be for some of the topics; one that is not served is an error."""
    world.create("orders")
    world.create("returns")
    world.write("orders", 0, 1)
    world.write("returns", 0, 2)

    async def scenario() -> None:
        async with serving(world, "orders", "returns") as one:
            names = frozenset({world.named("returns")})
            [found] = await read_all(one, 1, topics=names)
            assert found.tp == world.tp("returns")
            assert one.place_of(found.lease) == (world.named("returns"), "g")
            assert await read(one, topics=names, wait_s=0.2) == []
            with pytest.raises(UnknownTopicError):
                await read(one, topics=frozenset({"else"}))

    run(scenario())


@pytest.mark.slow
def test_a_caller_who_is_gone_holds_no_records(memory: MemoryWorld) -> None:
    """Records that were on their way to a cancelled read are free at once."""
    memory.create("orders")

    async def scenario() -> None:
        async with serving(memory) as one:
            await read(one, wait_s=0)
            for at in range(20):
                waiting = asyncio.create_task(read(one, wait_s=30, lease_s=3_600))
                await asyncio.sleep(0.02)
                memory.write("orders", 0, at)
                await asyncio.sleep(0.0005 * at)
                waiting.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await acknowledge(one, await waiting)
                found = await read_all(one, 1, wait_s=0.1) if waiting.cancelled() else []
                await acknowledge(one, found)
            await until(lambda: (at := status_of(one)) is not None and at.base == 20)

    run(scenario())


def test_invalid_calls(memory: MemoryWorld) -> None:
    """Arguments out of range are refused before anything is done."""
    memory.create("orders")

    async def scenario() -> None:
        async with serving(memory) as one:
            for group in ("", "a\nb", "x" * 300):
                with pytest.raises(ConfigError):
                    await read(one, group)
            for wrong in ({"records_max": 0}, {"lease_s": 0.0}, {"lease_s": float("nan")}):
                with pytest.raises(ConfigError):
                    await read(one, **wrong)
        with pytest.raises(ClosedError):
            await read(one)

    run(scenario())


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts_max": 0},
        {"dead_letter_topic": "orders"},
        {"session_timeout_s": 0},
        {"records_max": 0},
        {"server_name": ""},
        {"server_name": "one", "protocol": GroupProtocol.CONSUMER},
    ],
)
def test_invalid_options(wrong: dict[str, Any]) -> None:
    """A server with impossible options is not made."""
    with pytest.raises(ConfigError):
        RelayOptions(topics=frozenset({"orders"}), **wrong)


def test_a_server_of_topics_that_do_not_exist(world: World) -> None:
    """It does not start, and creates nothing."""

    async def scenario() -> None:
        with pytest.raises(UnknownTopicError):
            async with relay(world, "nowhere"):
                pass

    run(scenario())
    with open_lookup(world.settings) as lookup:
        assert lookup.existing([log_tp(world.tp("nowhere")).topic]) == {}


def _committed(world: World, group: str) -> int | None:
    tp = world.tp("orders")
    found = read_committed_offsets(world.settings, group, [tp])[tp]
    return None if found is None else found.offset


def _other(world: World) -> WindowPlan:
    plan = world.plan("other", 5, group_id="other", starting_offsets=Earliest())
    assert plan is not None
    return plan
