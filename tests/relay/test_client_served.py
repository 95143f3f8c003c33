"""Clients, HTTP and the service together, on the model and on a real broker."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, aclosing, contextmanager, suppress
from typing import Any

import httpx
import pytest

from kafka_ordered_ops import BrokerError
from kafka_ordered_ops.processing import Record
from kafka_ordered_ops.relay import AsyncRelayClient, RelayClient
from kafka_ordered_ops.relay.http.server import Listening, RelayServer
from tests.support.memory_world import MemoryWorld
from tests.support.relay_server import Running, serving
from tests.support.relay_servers import relay, until
from tests.support.windows_support import TIMEOUT_S
from tests.support.worlds import World

PARTITIONS = 3


@contextmanager
def servers(world: World, count: int = 1, **options: Any) -> Iterator[list[Running]]:
    """Servers of one relay, which own all partitions."""
    with ExitStack() as stack:
        made = [
            stack.enter_context(serving(Listening(port=0), lambda: relay(world, **options)))
            for _ in range(count)
        ]
        wait_until(lambda: owned(made) == PARTITIONS)
        yield made


def owned(running: list[Running]) -> int:
    """How many partitions are handed out by a server that knows it, and is ready."""
    found = set()
    for one in running:
        status = httpx.get(f"{one.url}/v1/status").json()
        if status["ready"]:
            found |= {part["partition"] for part in status["partitions"] if part["is_mine"]}
    return len(found)


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    ends_at = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < ends_at
        time.sleep(0.05)


def place(record: Record) -> tuple[int, int]:
    """Where a record is."""
    return record.partition, record.offset


def filled(world: World, count: int) -> set[tuple[int, int]]:
    """The places of so many records in each partition."""
    world.create("orders", PARTITIONS)
    for partition in range(PARTITIONS):
        world.write("orders", partition, *range(count))
    return {(partition, offset) for partition in range(PARTITIONS) for offset in range(count)}


@pytest.mark.slow
def test_window_over_twenty_workers(world: World) -> None:
    """Twenty workers share the records of a window of three partitions; each ends when all are done."""
    filled(world, 100)
    seen: Counter[tuple[int, int]] = Counter()
    lock = threading.Lock()
    plan = world.windows().preview(world.window(80, starting_offsets="earliest"), "w")

    def work(urls: list[str]) -> None:
        with RelayClient(urls) as client:
            for record in client.records(world.named("w"), records_max=7, wait_s=2.0):
                with lock:
                    seen[place(record)] += 1

    with servers(world) as running, ThreadPoolExecutor(20) as workers:
        urls = [one.url for one in running]
        with RelayClient(urls) as client:
            group = client.window(plan, world.named("w"))
            assert client.window(plan, group) == group
        for done in [workers.submit(work, urls) for _ in range(20)]:
            done.result(TIMEOUT_S)
        with RelayClient(urls) as client:
            assert client.read(group, wait_s=0).done
    wanted = {(partition, offset) for partition in range(PARTITIONS) for offset in range(80)}
    assert seen == Counter(dict.fromkeys(wanted, 1))


@pytest.mark.slow
def test_two_servers(world: World) -> None:
    """A client reads from both, and either takes the acknowledgements of the other."""
    wanted = filled(world, 40)
    with servers(world, 2) as running, ExitStack() as stack:
        clients = [stack.enter_context(RelayClient(one.url)) for one in running]
        both = stack.enter_context(RelayClient([one.url for one in running]))
        seen: Counter[tuple[int, int]] = Counter()
        wait_until(lambda: owned(running) == PARTITIONS)
        turn = 0
        while sum(seen.values()) < len(wanted):
            delivery = both.read("billing", records_max=11, wait_s=5.0)
            assert delivery.leases
            seen.update(place(one) for one in delivery.records)
            clients[turn % 2].acknowledge(*delivery.leases)
            turn += 1
        assert seen == Counter(dict.fromkeys(wanted, 1))
        wait_until(lambda: bases(running[0], "billing") == [40] * PARTITIONS)
        wait_until(lambda: bases(running[1], "billing") == [40] * PARTITIONS)


def bases(running: Running, group: str) -> list[int]:
    """The first offset of each partition that is not acknowledged, as a server knows it."""
    parts = httpx.get(f"{running.url}/v1/groups/{group}").json()["partitions"]
    return [one["base"] for one in sorted(parts, key=lambda one: int(one["partition"]))]


@pytest.mark.slow
def test_cancelled_and_expired_records_come_again(world: World) -> None:
    """What is given back comes at once, what is forgotten after its lease; both say so."""
    filled(world, 1)
    with servers(world) as running, RelayClient(running[0].url) as client:
        given_back = client.read("billing", records_max=1)
        client.cancel(*given_back.leases)
        first: dict[tuple[int, int], int] = {}
        ends_at = time.monotonic() + TIMEOUT_S
        while len(first) < PARTITIONS:
            assert time.monotonic() < ends_at
            found = client.read("billing", records_max=1, lease_s=1.0, wait_s=5.0)
            # Leases may expire before the last partition is served: what counts is the first time.
            for one in found.records:
                first.setdefault(place(one), one.attempt)
        assert first[place(given_back.records[0])] == 2
        again = client.read("billing", wait_s=10.0, records_max=1).records
        assert again[0].attempt >= 2


@pytest.mark.slow
def test_arrow_and_async(world: World) -> None:
    """A hundred reads at a time, as Arrow, get every record once."""
    wanted = filled(world, 100)

    async def scenario(url: str) -> set[tuple[int, int]]:
        seen: set[tuple[int, int]] = set()
        async with AsyncRelayClient(url) as client:

            async def work() -> None:
                while len(seen) < len(wanted):
                    table, _ = await client.read_table("billing", records_max=5, wait_s=0.5)
                    columns: Any = table["partition"].to_pylist(), table["offset"].to_pylist()
                    places = set(zip(*columns, strict=True))
                    assert not places & seen
                    seen.update(places)
                    if places:
                        await client.acknowledge(*map(str, table["lease"].unique().to_pylist()))

            await asyncio.wait_for(asyncio.gather(*(work() for _ in range(50))), TIMEOUT_S)
        return seen

    with servers(world) as running:
        assert asyncio.run(scenario(running[0].url)) == wanted


@pytest.mark.slow
def test_reads_of_an_async_client_that_are_cancelled(world: World) -> None:
    """While they wait, or just as a record comes: it is another one's within the time of a lease."""
    filled(world, 0)

    async def scenario(url: str) -> None:
        seen: list[tuple[int, int]] = []
        async with AsyncRelayClient(url) as client, AsyncRelayClient(url) as other:
            await other.read("billing", wait_s=0.0)
            for at in range(20):
                waiting = [
                    asyncio.create_task(client.read("billing", wait_s=30.0, lease_s=1.0))
                    for _ in range(4)
                ]
                await asyncio.sleep(0.02)
                await asyncio.to_thread(world.write, "orders", at % PARTITIONS, at)
                await asyncio.sleep(0.001 * at)
                for one in waiting:
                    one.cancel()
                for found in await asyncio.gather(*waiting, return_exceptions=True):
                    if not isinstance(found, BaseException):
                        seen += map(place, found.records)
                        await client.acknowledge(*found.leases)
            async with asyncio.timeout(TIMEOUT_S):
                while len(set(seen)) < 20:
                    delivery = await other.read("billing", wait_s=5.0)
                    seen += map(place, delivery.records)
                    await other.acknowledge(*delivery.leases)
        assert len(seen) == 20

    with servers(world) as running:
        asyncio.run(scenario(running[0].url))


@pytest.mark.slow
def test_a_loop_of_an_async_client_that_is_cancelled(world: World) -> None:
    """It acknowledges what is done, and gives back the rest at once, however long the lease is."""
    filled(world, 4)

    async def scenario(url: str) -> None:
        async with AsyncRelayClient(url) as client:
            begun: list[tuple[int, int]] = []

            async def work() -> None:
                async with aclosing(client.records("billing", lease_s=3_600.0)) as loop:
                    async for record in loop:
                        begun.append(place(record))
                        if len(begun) == 3:
                            await asyncio.Event().wait()

            working = asyncio.create_task(work())
            await until(lambda: len(begun) == 3)
            working.cancel()
            with suppress(asyncio.CancelledError):
                await working
            left: dict[tuple[int, int], int] = {}
            async with asyncio.timeout(TIMEOUT_S):
                while len(left) < 4 * PARTITIONS - 2:
                    found = await client.read("billing", wait_s=30.0, lease_s=3_600.0)
                    left |= {place(one): one.attempt for one in found.records}
            assert set(begun[:2]).isdisjoint(left)
            assert left[begun[2]] == 2

    with servers(world) as running:
        asyncio.run(scenario(running[0].url))


def test_a_server_that_is_stopped_answers_those_who_wait(memory: MemoryWorld) -> None:
    """It tells a waiting read to call again, at once: other servers have its partitions by then."""
    filled(memory, 0)
    with servers(memory) as running, ThreadPoolExecutor(1) as worker:
        body = {"group": "billing", "wait_s": 30}
        waiting = worker.submit(httpx.post, f"{running[0].url}/v1/read", json=body, timeout=60)
        wait_until(lambda: "billing" in httpx.get(f"{running[0].url}/v1/status").text)
        began_s = time.monotonic()
        running[0].server.stop()
        answer = waiting.result(TIMEOUT_S)
        assert time.monotonic() - began_s < 2.0
    assert answer.status_code == 503
    assert answer.json()["error"]["retriable"]


def test_a_server_whose_service_has_ended_raises_why(memory: MemoryWorld) -> None:
    """Whoever runs the server learns what ended it, and can start it again."""
    filled(memory, 0)

    def fail() -> None:
        raise BrokerError("fenced")

    async def scenario() -> None:
        service = relay(memory)
        serve = asyncio.create_task(RelayServer(Listening(port=0), lambda: service).serve())
        await until(lambda: service.is_ready)
        assert service._engine is not None
        service._engine.post(fail)
        with pytest.raises(BrokerError, match="fenced"):
            await asyncio.wait_for(serve, TIMEOUT_S)

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_waiting_client_that_left_holds_no_record(memory: MemoryWorld) -> None:
    """A record that is written after the client of a waiting read was gone is for the next one, in its first attempt."""
    filled(memory, 0)
    with servers(memory) as running:
        body = {"group": "billing", "wait_s": 30}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{running[0].url}/v1/read", json=body, timeout=0.5)
        time.sleep(0.3)
        memory.write("orders", 0, 1)
        with RelayClient(running[0].url) as client:
            [record] = client.read("billing").records
            assert record.attempt == 1
