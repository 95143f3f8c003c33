"""The limits of a batch, and excluded topics."""

from __future__ import annotations

from typing import Any

import pytest

from kafka_ordered_ops import OrderedReader, ReadLimits
from tests.support.broker_world import BrokerWorld
from tests.support.ordered_support import NEVER, Tail, all_rows, rows
from tests.support.windows_support import TIMEOUT_S
from tests.support.worlds import World


@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_a_batch_has_at_most_so_many_records(world: World, size: int) -> None:
    """Each but the last is full when all records are there, and nothing is lost between them."""
    world.create("orders", partitions=2)
    world.write("orders", 0, *range(0, 40, 2))
    world.write("orders", 1, *range(1, 41, 2))
    with OrderedReader(world.settings, world.named("orders"), batch_size=size) as reader:
        batches = list(reader)
    assert [batch.num_rows for batch in batches[:-1]] == [size] * (40 // size - (40 % size == 0))
    assert [row.time for row in all_rows(batches)] == [1_000 * n for n in range(40)]


def test_a_batch_has_at_most_so_many_bytes(broker: BrokerWorld) -> None:
    """Whatever the sizes of its records are; a larger record has its own batch."""
    broker.create("orders")
    sizes = [10, 10, 5_000, 10, 3_000, 3_000, 50_000, 10, 10, 9_000, *([20] * 300)]
    broker.write_content(
        "orders", 0, [(float(n), None, b"x" * size, ()) for n, size in enumerate(sizes)]
    )
    with OrderedReader(
        broker.settings, broker.named("orders"), limits=ReadLimits(batch_bytes_max=10_000)
    ) as reader:
        batches = list(reader)
    assert all_rows(batches) == rows(broker.tp("orders"), *range(len(sizes)))
    for batch in batches:
        data: Any = batch
        # The column `late` is added to what was measured.
        assert data.num_rows == 1 or data.nbytes <= 10_000 + data.num_rows
    assert 7 < len(batches) < 40


@pytest.mark.slow
def test_parts_of_a_batch_are_done_with_one_by_one(broker: BrokerWorld) -> None:
    """What was not returned yet is not committed, although it was taken out together."""
    broker.create("orders")
    tp = broker.tp("orders")
    broker.write_content(
        "orders", 0, [(float(n), None, b"x" * (1 + 900 * (n % 10 == 0)), ()) for n in range(100)]
    )
    broker.write("orders", 0, 200)
    options: dict[str, Any] = {"group_id": "live", "commit_interval_s": 0.001, "grace": NEVER}
    with Tail(broker, "orders", batch_bytes_max=1_000, **options) as tail:
        done = 0
        while done < 40:
            batch = tail.poll(TIMEOUT_S)
            assert batch is not None
            found = broker.committed("orders", group_id="live")[str(tp)]
            assert (0 if found is None else found[0]) <= done
            done += batch.num_rows
    committed = broker.committed("orders", group_id="live")[str(tp)]
    assert committed is not None
    with Tail(broker, "orders", **options) as again:
        again.until(lambda: len(again.rows) == 101 - committed[0])
        assert again.rows[0].offset == committed[0] < done
        assert again.late == []


def test_excluded_topics_are_left_out(world: World) -> None:
    """At the start, and when they are created later."""
    for name in ("orders-a", "orders-test"):
        world.create(name)
        world.write(name, 0, 1)
    pattern = f"^orders-.*{world.named('')[1:]}"
    exclude = f"^orders-test.*{world.named('')[1:]}"
    with OrderedReader(world.settings, pattern, exclude=exclude) as reader:
        assert all_rows(reader) == rows(world.tp("orders-a"), 1)
    with Tail(world, pattern, exclude=exclude, grace="PT0S", now=10_000) as tail:
        tail.until_rows(*rows(world.tp("orders-a"), 1))
        world.create("orders-test2")
        world.write("orders-test2", 0, 2)
        world.create("orders-b")
        world.write("orders-b", 0, 3)
        tail.until_rows(*rows(world.tp("orders-a"), 1), *rows(world.tp("orders-b"), 3))
