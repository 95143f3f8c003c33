"""Servers that are stopped one after the other, or stand still, under clients that go on: nothing is lost, and little delayed."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.broker_world import BrokerWorld
from tests.support.relay_clients import Crowd, Verdict, Witness, Writer
from tests.support.relay_fleet import Fleet, await_true
from tests.support.windows_support import TIMEOUT_S

PARTITIONS = 6
#: Of each partition: more than are written while servers come and go.
EACH = 20_000
#: How long the group waits for a member that is silent.
SESSION_S = 6.0
#: The same of servers that come back under their names: longer than a start on a busy machine.
NAMED_SESSION_S = 30.0


class Traffic:
    """Records that are written, and eight clients that read them all the while."""

    def __init__(self, fleet: Fleet, crowd: Crowd, witness: Witness) -> None:
        self.fleet, self.crowd, self._witness = fleet, crowd, witness

    def verdict(self) -> Verdict:
        """What the clients saw."""
        return self._witness.verdict()


@contextmanager
def traffic(world: BrokerWorld, logs: Path, servers: int, *, are_named: bool) -> Iterator[Traffic]:
    """Servers under traffic; at the end, wait until every record is acknowledged."""
    world.create("orders", PARTITIONS)
    witness, is_over = Witness(PARTITIONS, EACH), threading.Event()
    session_s = NAMED_SESSION_S if are_named else SESSION_S
    options = ["--session-timeout", f"PT{session_s:g}S"]
    with Fleet(world, servers, logs, *options, are_named=are_named) as fleet:
        fleet.await_owned(PARTITIONS)
        with Crowd(fleet.urls, witness, records_max=50, lease_s=20.0) as crowd:
            writing = threading.Thread(
                target=Writer(world, PARTITIONS).keep_writing, args=[EACH, is_over]
            )
            writing.start()
            try:
                yield Traffic(fleet, crowd, witness)
            finally:
                is_over.set()
                writing.join(2 * TIMEOUT_S)
            crowd.wait(4 * TIMEOUT_S)
        assert crowd.failures == []
        assert crowd.unavailable == []
        verdict = witness.verdict()
        assert verdict.faults == [], fleet.log[-5_000:]
        assert "Traceback" not in fleet.log, fleet.log[-5_000:]


@pytest.mark.long
@pytest.mark.parametrize("are_named", [True, False])
def test_rolling_restart(broker: BrokerWorld, tmp_path: Path, are_named: bool) -> None:
    """Each of three servers is stopped and started again; no client sees an error, no record comes during a lease."""
    with traffic(broker, tmp_path, 3, are_named=are_named) as running:
        for number in range(3):
            began_s = time.monotonic()
            assert running.fleet.terminate(number) == 0
            stopped_s = time.monotonic()
            running.fleet.start(number)
            await_true(lambda number=number: running.fleet.owned(number) != set())  # type: ignore[misc]
            running.fleet.await_owned(PARTITIONS)
            ready_s = time.monotonic()
            print(f"stopped in {stopped_s - began_s:.1f} s, back in {ready_s - stopped_s:.1f} s")
        gaps_s = running.verdict().gaps_s
    print(f"without a lease, by partition: {gaps_s} s; more than once: {running.verdict().again}")
    # Nobody waited for a session to end.
    assert max(gaps_s) < (NAMED_SESSION_S if are_named else SESSION_S)


@pytest.mark.long
def test_a_server_that_stands_still(broker: BrokerWorld, tmp_path: Path) -> None:
    """It loses its partitions, and hands out nothing of others when it goes on."""
    with traffic(broker, tmp_path, 2, are_named=False) as running:
        fleet = running.fleet
        await_true(lambda: bool(fleet.owned(0) and fleet.owned(1)))
        fleet.signal(0, signal.SIGSTOP)
        fleet.await_owned(PARTITIONS, 1)
        # Clients and records go on for a while: the other server gives out what this one had read.
        time.sleep(2.0)
        fleet.signal(0, signal.SIGCONT)
        await_true(lambda: bool(fleet.owned(0)))
        fleet.await_owned(PARTITIONS)
        gaps_s = running.verdict().gaps_s
    print(f"without a lease, by partition: {gaps_s} s; more than once: {running.verdict().again}")
