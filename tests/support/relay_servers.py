"""Servers of the relay without HTTP, and what clients do with them."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from kafka_ordered_ops import RelayError
from kafka_ordered_ops.relay.options import RelayOptions
from kafka_ordered_ops.relay.ports import Delivered, PartitionStatus
from kafka_ordered_ops.relay.service import Relay
from tests.support.windows_support import TIMEOUT_S
from tests.support.worlds import World

#: (partition, offset)
Place = tuple[int, int]


def now_ms() -> float:
    """The time of day."""
    return time.time() * 1_000


def relay(world: World, *topics: str, **options: Any) -> Relay:
    """A server of a relay of this world's own."""
    given: dict[str, Any] = {
        "relay_group": world.named("relay"),
        "session_timeout_s": 6.0,
        **options,
    }
    names = frozenset(world.named(one) for one in topics or ("orders",))
    return Relay(world.settings, RelayOptions(topics=names, **given))


@asynccontextmanager
async def serving(world: World, *topics: str, **options: Any) -> AsyncIterator[Relay]:
    """A server that hands out all partitions."""
    async with relay(world, *topics, **options) as one:
        await until(lambda: one.is_ready and all_owned(one))
        yield one


def all_owned(*servers: Relay) -> bool:
    """Whether each partition has exactly one owner among the servers, who knows it and is ready."""
    owned: dict[Place, int] = {}
    for server in servers:
        for one in server.status():
            key = hash(one.topic), one.partition
            owned.setdefault(key, 0)
        if server.is_ready:
            mine = {(hash(one.topic), one.partition) for one in server.status() if one.is_mine}
            for key in mine:
                owned[key] += 1
    return bool(owned) and all(count == 1 for count in owned.values())


@dataclass
class Witness:
    """What all clients saw."""

    #: Of each record: from when to when its leases last.
    leases: dict[Place, list[tuple[float, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    acknowledged: dict[Place, float] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def handed_out(self, place: Place, asked_ms: float, until_ms: float) -> None:
        """A record was handed out by a read that was asked at a time."""
        done_ms = self.acknowledged.get(place)
        if done_ms is not None and done_ms < asked_ms:
            self.faults.append(f"{place} was handed out after it was acknowledged")
        for _, other_until_ms in self.leases[place]:
            if now_ms() < other_until_ms:
                self.faults.append(f"{place} was handed out during another lease of it")
        self.leases[place].append((asked_ms, until_ms))


async def until(holds: Callable[[], bool], what: Callable[[], object] = lambda: "") -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline, what()
        await asyncio.sleep(0.01)


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until something holds, without an event loop."""
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


async def read(
    server: Relay,
    group: str = "g",
    *,
    records_max: int = 100,
    wait_s: float = 10.0,
    lease_s: float = 60.0,
    **given: Any,
) -> list[Delivered]:
    """The records of one read."""
    found, _ = await server.read(
        group, records_max=records_max, wait_s=wait_s, lease_s=lease_s, **given
    )
    return found


async def read_all(server: Relay, count: int, group: str = "g", **given: Any) -> list[Delivered]:
    """Read until so many records are there."""
    found: list[Delivered] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(places(found)) < count:
        assert time.monotonic() < deadline, places(found)
        found += await read(server, group, **{"wait_s": 0.5, **given})
    return found


async def acknowledge(server: Relay, found: Sequence[Delivered]) -> None:
    """All of what was read is done."""
    await server.acknowledge([(one.lease, None) for one in found])


async def patiently(call: Callable[[], Awaitable[Any]]) -> Any:
    """Repeat a call until a server takes it."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return await call()
        except RelayError as error:
            if not error.retriable or time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)


def places(found: Sequence[Delivered]) -> list[Place]:
    """Where records are, in the order in which they came."""
    return [(one.partition, one.offset) for each in found for one in each.records]


def status(server: Relay, partition: int = 0, group: str = "g") -> PartitionStatus | None:
    """What a server knows of a group."""
    for one in server.status():
        if (one.partition, one.group) == (partition, group):
            return one
    return None


def kill(server: Relay) -> None:
    """End a server as SIGKILL does, as far as one can in one process: it cleans nothing up, and stays a member."""
    engine = server._engine
    assert engine is not None
    engine.is_killed = True
    engine.close()
    server._engine = None


def run(scenario: Coroutine[Any, Any, Any]) -> Any:
    """Run a scenario to its end."""
    return asyncio.run(asyncio.wait_for(scenario, 3 * TIMEOUT_S))
