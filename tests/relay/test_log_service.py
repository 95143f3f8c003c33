"""What the relay's log means for leases and windows, seen by the clients of a server."""

from __future__ import annotations

import pytest

from kafka_ordered_ops import Earliest, LeaseError, RelayError
from kafka_ordered_ops.relay.engine import changes
from kafka_ordered_ops.relay.log import PREFIX
from kafka_ordered_ops.relay.service import Relay
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


def _ends(server: Relay) -> int:
    """How many partitions have read the end of a window."""
    assert server._engine is not None
    partitions = server._engine.server.partitions.values()
    return sum(
        group.finished_at is not None
        for one in partitions
        for group in list(one.state.groups.values())
    )


def test_an_extension_that_is_stored_late_is_refused(
    memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the lease ended while it was being stored, another client may have the records by then."""
    memory.create("orders")
    memory.write("orders", 0, 1)

    async def scenario() -> None:
        async with serving(memory) as one:
            [found] = await read_all(one, 1)
            times = iter([found.until_ms - 2, found.until_ms - 1, found.until_ms])
            monkeypatch.setattr(changes, "now_ms", lambda: next(times))
            with pytest.raises(LeaseError, match="has ended"):
                await one.extend([found.lease], 5.0)
            times = iter([found.until_ms - 2, found.until_ms - 1, found.until_ms - 1])
            assert await one.extend([found.lease], 5.0) == [found.until_ms - 1 + 5_000]

    run(scenario())


def test_a_lease_of_a_topic_that_was_recreated_is_refused(world: World) -> None:
    """Its offsets are other records now, and these are handed out."""
    world.create("orders")
    world.write("orders", 0, *range(3))

    async def scenario() -> None:
        async with serving(world) as one:
            old = await read_all(one, 3)
        world.delete("orders")
        world.delete(PREFIX + "orders")
        world.create("orders")
        world.write("orders", 0, *range(3))
        async with serving(world) as one:
            for call in (
                lambda: acknowledge(one, old),
                lambda: one.cancel([(old[0].lease, None)]),
                lambda: one.extend([old[0].lease], 5.0),
            ):
                with pytest.raises(LeaseError, match="recreated"):
                    await call()
            found = await read_all(one, 3)
            assert sorted(places(found)) == [(0, at) for at in range(3)]

    run(scenario())


def test_a_finished_window_stays_finished(world: World) -> None:
    """Its state is small; a late acknowledgement and another opening change nothing, also after a restart."""
    world.create("orders", 2)
    for partition in range(2):
        world.write("orders", partition, *range(20))
    plan = world.plan("w", 10, starting_offsets=Earliest())
    assert plan is not None

    async def scenario() -> None:
        async with relay(world, snapshot_records=5) as one:
            await until(lambda: one.is_ready and all_owned(one))
            await patiently(lambda: one.open_window(plan, None))
            found = await read_all(one, 20, "w")
            await acknowledge(one, found)
            assert await one.read("w", records_max=1, wait_s=10, lease_s=5) == ([], True)
            await until(lambda: _ends(one) == 2)
            await acknowledge(one, found)
            await one.cancel([(found[0].lease, None)])
            assert await one.open_window(plan, None) == "w"
            assert await one.read("w", records_max=1, wait_s=10, lease_s=5) == ([], True)
        async with serving(world) as other:
            await acknowledge(other, found)
            assert await patiently(lambda: other.open_window(plan, None)) == "w"
            assert await other.read("w", records_max=1, wait_s=10, lease_s=5) == ([], True)
            assert _ends(other) == 2
            await until(lambda: (at := status_of(other, 0, "w")) is not None and at.base == 10)
            # Another group is not concerned.
            assert places(await read(other, records_max=1, wait_s=5))

    run(scenario())


@pytest.mark.parametrize(("value", "named"), [(b"\5newer", "version 5"), (b"{}", "unreadable")])
def test_a_log_that_cannot_be_read_is_an_error_of_its_partition(
    memory: MemoryWorld, value: bytes, named: str
) -> None:
    """Whatever the damage is: the client learns of it, and the other partitions are served."""
    memory.create("orders", 2)
    for partition in range(2):
        memory.write("orders", partition, *range(3))

    async def scenario() -> None:
        async with serving(memory) as one:
            await acknowledge(one, await read_all(one, 2, records_max=1))
        memory.kafka.produce(PREFIX + memory.named("orders"), partition=0, value=value)
        async with relay(memory) as one:
            await until(lambda: one.is_ready)
            found = await read_all(one, 1)
            assert {record.partition for each in found for record in each.records} == {1}
            await acknowledge(one, found)
            with pytest.raises(RelayError, match=named):
                await read_all(one, 1)

    run(scenario())
