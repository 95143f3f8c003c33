"""Servers in one process that come and go at random, on the model: nothing is lost, nothing is handed out too early."""

from __future__ import annotations

import asyncio
import random

import pytest

from kafka_ordered_ops import KafkaOrderedOpsError
from kafka_ordered_ops.relay.service import Relay
from kafka_ordered_ops.testing.membership import expire_members
from tests.support.memory_world import MemoryWorld
from tests.support.relay_servers import Witness, kill, now_ms, places, read, relay

#: How long clients and servers behave as they like; after that, servers stay.
_WILD_S = 6.0


class Chaos:
    """Servers, clients, and whoever kills servers."""

    def __init__(self, world: MemoryWorld, seed: int, count: int) -> None:
        self.world, self.choose, self.count = world, random.Random(seed), count
        self.servers: list[Relay] = []
        self.witness = Witness()

    @property
    def is_over(self) -> bool:
        """Whether every record is acknowledged."""
        return len(self.witness.acknowledged) >= self.count

    async def start(self) -> None:
        """One more server."""
        one = relay(self.world, snapshot_records=40, records_max=30)
        await one.start()
        self.servers.append(one)

    async def fate(self) -> None:
        """Kills servers, closes them, starts others, and lets the cluster be away for a moment."""
        ends_at = now_ms() + 1_000 * _WILD_S
        while now_ms() < ends_at:
            await asyncio.sleep(self.choose.uniform(0.1, 0.6))
            match self.choose.randrange(6):
                case 0 | 1 if len(self.servers) > 1:
                    kill(self.servers.pop(self.choose.randrange(len(self.servers))))
                    self.expire()
                case 2 if len(self.servers) > 1:
                    await self.servers.pop(0).close()
                case 3:
                    self.expire()
                case 4:
                    with self.world.kafka.unreachable():
                        await asyncio.sleep(0.1)
                case _ if len(self.servers) < 3:
                    await self.start()

    def expire(self) -> None:
        """The group takes its members for dead; those that live join again."""
        assert self.world.settings.memory_name is not None
        expire_members(self.world.settings.memory_name, self.world.named("relay"))

    async def client(self) -> None:
        """Reads, and acknowledges most of it, or gives it back, or forgets it."""
        while not self.is_over:
            asked_ms = now_ms()
            try:
                found = await read(
                    self.choose.choice(self.servers),
                    records_max=self.choose.randint(1, 12),
                    wait_s=self.choose.choice((0.0, 0.3)),
                    lease_s=1.0,
                )
            except KafkaOrderedOpsError:
                await asyncio.sleep(0.02)
                continue
            for one in found:
                for place in places([one]):
                    self.witness.handed_out(place, asked_ms, one.until_ms)
                what = self.choose.random()
                if what < 0.8:
                    await self.acknowledge(one.lease, places([one]))
                elif what < 0.9:
                    await self.cancel(one.lease, places([one]))

    async def acknowledge(self, lease: str, done: list[tuple[int, int]]) -> None:
        """Acknowledges at any server, until one takes it."""
        while True:
            try:
                await self.choose.choice(self.servers).acknowledge([(lease, None)])
            except KafkaOrderedOpsError:
                await asyncio.sleep(0.02)
                continue
            for place in done:
                self.witness.acknowledged.setdefault(place, now_ms())
            return

    async def cancel(self, lease: str, given_back: list[tuple[int, int]]) -> None:
        """Gives records back, at one server; it may come to nothing."""
        for place in given_back:
            self.witness.leases[place].clear()
        try:
            await self.choose.choice(self.servers).cancel([(lease, None)])
        except KafkaOrderedOpsError:
            return


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_servers_that_come_and_go(memory: MemoryWorld, seed: int) -> None:
    """Every record is acknowledged, none handed out again once it was, nor during a lease."""
    memory.create("orders", 3)
    for partition in range(3):
        memory.write("orders", partition, *range(1_500))

    async def scenario() -> None:
        chaos = Chaos(memory, seed, 4_500)
        for _ in range(2):
            await chaos.start()
        try:
            fate = asyncio.create_task(chaos.fate())
            clients = [asyncio.create_task(chaos.client()) for _ in range(4)]
            await asyncio.wait_for(asyncio.gather(*clients), 90)
            fate.cancel()
        finally:
            for one in chaos.servers:
                await one.close()
        assert chaos.witness.faults == []
        assert len(chaos.witness.acknowledged) == 4_500

    asyncio.run(scenario())
