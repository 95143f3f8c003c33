"""What a server holds of a partition: as much as it says."""

from __future__ import annotations

from tests.support.memory_world import MemoryWorld
from tests.support.relay_servers import places, read_all, run, serving, until


def test_what_is_dropped_is_not_counted(memory: MemoryWorld) -> None:
    """While one record is held for long, what passes beside it leaves no bytes behind: reading would end."""
    memory.create("orders")
    headers = (("name", b"x" * 50), ("é", None))
    memory.write_content("orders", 0, [(at, b"key", b"value", headers) for at in range(2_000)])

    async def scenario() -> None:
        async with serving(memory) as one:
            [first] = await read_all(one, 1, records_max=1)
            others = await read_all(one, 1_999, records_max=500)
            assert len(set(places([first, *others]))) == 2_000
            engine = one._engine
            assert engine is not None
            handout = engine.server.partitions[memory.tp("orders")].handouts["g"]
            await one.acknowledge([(each.lease, None) for each in others])
            await until(lambda: handout.held == 1)
            assert 0 < handout._bytes < 1_000

    run(scenario())
