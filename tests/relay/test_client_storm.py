"""Servers behind HTTP that are killed all the time: clients lose nothing, and get nothing too early."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kafka_ordered_ops.core.types import GroupProtocol
from kafka_ordered_ops.embedded import EmbeddedKafka
from tests.support.broker_world import BrokerWorld
from tests.support.relay_clients import Crowd, Witness, Writer
from tests.support.relay_fleet import Fleet, await_true

KILL_EVERY_S = 2.0
LEASE_S = 8.0
#: For what is left when no server is killed any more.
CALM_S = 300.0


class Storm(NamedTuple):
    """How hard it blows."""

    servers: int
    partitions: int
    each: int
    kills_s: float

    def blow(self, world: BrokerWorld, logs: Path, *options: str, are_named: bool) -> None:
        """Kill a server every two seconds, and let the clients finish; check what they saw."""
        world.create("orders", self.partitions)
        witness, writer = Witness(self.partitions, self.each), Writer(world, self.partitions)
        with (
            Fleet(world, self.servers, logs, *options, are_named=are_named) as fleet,
            Crowd(fleet.urls, witness, lease_s=LEASE_S, forgets=0.02) as crowd,
        ):
            kills = self._kill(fleet, writer)
            left, calm_s = witness.left, time.monotonic()
            crowd.wait(CALM_S)
            calm_s = time.monotonic() - calm_s
            status = [fleet.status(number) for number in range(self.servers)]
        verdict = witness.verdict()
        print(
            f"{kills} kills of {self.servers} servers in {self.kills_s:g} s, {self.partitions * self.each} records; at the "
            f"last kill, {left} were left, for {calm_s:.1f} s; {verdict.again} came more than once; "
            f"{len(crowd.unavailable)} calls of clients failed; without a lease: {verdict.gaps_s} s"
        )
        assert crowd.failures == []
        assert verdict.faults == [], (status, fleet.log[-5_000:])
        assert "Traceback" not in fleet.log, fleet.log[-5_000:]

    def _kill(self, fleet: Fleet, writer: Writer) -> int:
        """Kill a server after the other, each of which comes back at once; return how many."""
        kills, began_s = 0, time.monotonic()
        while (so_far_s := time.monotonic() - began_s) < self.kills_s or kills < self.servers:
            # Written all along: there is always something to hand out.
            writer.write(int(self.each * min(so_far_s / self.kills_s, 1.0)) - writer.written)
            time.sleep(max(0.0, began_s + so_far_s + KILL_EVERY_S - time.monotonic()))
            number = kills % self.servers
            if kills % 5:
                # On a busy machine a server takes longer to start than it would live; some are killed nevertheless.
                await_true(lambda number=number: fleet.owned(number) != set())  # type: ignore[misc]
            fleet.kill(number)
            fleet.start(number)
            kills += 1
        writer.write(self.each - writer.written)
        return kills


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("servers", [2, 3])
def test_servers_are_killed_every_two_seconds(
    broker: BrokerWorld, tmp_path: Path, servers: int
) -> None:
    """Eight clients acknowledge half a million records: none comes again before its lease has ended, or when it is done."""
    storm = Storm(servers, partitions=5, each=100_000, kills_s=120.0)
    storm.blow(broker, tmp_path, "--session-timeout", "PT6S", are_named=True)


@pytest.fixture(scope="module")
def soon() -> Iterator[str]:
    """A broker that takes members of the newer protocol for dead after six seconds, not 45."""
    properties = {
        "group.consumer.min.session.timeout.ms": "6000",
        "group.consumer.session.timeout.ms": "6000",
        "group.consumer.min.heartbeat.interval.ms": "1000",
        "group.consumer.heartbeat.interval.ms": "1000",
    }
    with EmbeddedKafka(properties=properties) as kafka:
        yield kafka.bootstrap


@pytest.mark.long
@pytest.mark.parametrize(
    ("protocol", "are_named"),
    [
        (GroupProtocol.CLASSIC, True),
        (GroupProtocol.CLASSIC, False),
        (GroupProtocol.CONSUMER, False),
    ],
)
def test_servers_of_both_protocols_are_killed(
    soon: str, tmp_path: Path, protocol: GroupProtocol, are_named: bool
) -> None:
    """The same in small, with members or brokers sharing the partitions, and with servers that come back under new names."""
    options = ["--group-protocol", str(protocol)]
    if protocol is GroupProtocol.CLASSIC:
        options += ["--session-timeout", "PT6S"]
    world = BrokerWorld(soon)
    with world:
        storm = Storm(servers=3, partitions=5, each=4_000, kills_s=20.0)
        storm.blow(world, tmp_path, *options, are_named=are_named)
