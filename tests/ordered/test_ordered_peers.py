"""What other ordered readers of Kafka fail at: the trials of `research/peers.md`, bounded and as live tails."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kafka_ordered_ops import ClientSettings, OrderedReader, Ordering
from tests.conftest import MakeTopic
from tests.support import wire
from tests.support.ordered_support import NEVER, Tail, all_rows, rows
from tests.support.windows_support import BASE_MS
from tests.support.worlds import World


def test_strictly_alternating_timestamps(world: World) -> None:
    """Two partitions, eight records: by time, not partition by partition."""
    world.create("orders", partitions=2)
    first, second = world.tp("orders", 0), world.tp("orders", 1)
    world.write("orders", 0, 0, 2, 4, 6)
    world.write("orders", 1, 1, 3, 5, 7)
    wanted = sorted(rows(first, 0, 2, 4, 6) + rows(second, 1, 3, 5, 7))
    with OrderedReader(world.settings, world.named("orders")) as reader:
        assert all_rows(reader) == wanted
    with Tail(world, "orders", grace=NEVER) as tail:
        # The last one waits: another of the first partition may come before it.
        tail.until_rows(*wanted[:-1])
        assert tail.reader.is_live


@pytest.mark.long
def test_no_order_break_among_many(bootstrap: str, topic: MakeTopic) -> None:
    """200,000 strictly increasing records over four partitions, bounded and as a tail, ten times each."""
    name = topic(partitions=4)
    count, batch = 200_000, 1_000
    for start in range(0, count, batch * 4):
        for number in range(4):
            times = range(start + number, start + batch * 4, 4)
            wire.write_batch(bootstrap, name, [BASE_MS + one for one in times], partition=number)
    settings = ClientSettings.of(bootstrap)
    for _ in range(5):
        with OrderedReader(settings, name) as reader:
            check_rising([batch["timestamp"].to_numpy() for batch in reader], count)
        with OrderedReader(settings, name, follow=True, order=Ordering(grace=NEVER)) as reader:
            found: list[np.ndarray[Any, Any]] = []
            while sum(some.size for some in found) < count - 3:
                if (got := reader.poll(1)) is not None:
                    assert not any(got["late"].to_pylist())
                    found.append(got["timestamp"].to_numpy())
            assert reader.is_live
            check_rising(found, sum(some.size for some in found))


def check_rising(found: list[np.ndarray[Any, Any]], count: int) -> None:
    """All of them, each later than the one before."""
    times = np.concatenate(found).astype(np.int64)
    assert times.size == count
    assert (np.diff(times) > 0).all()


def test_a_topic_written_in_a_transaction_becomes_live(world: World) -> None:
    """The marker at its end is no record, and the partition is at its end all the same."""
    world.create("orders")
    world.send("one", "orders", 0, 1, 2, 3, 4, 5)
    world.end("one", "commit")
    with Tail(world, "orders", grace=NEVER) as tail:
        tail.until_live()
        tail.until_rows(*rows(world.tp("orders"), 1, 2, 3, 4, 5))
        assert tail.state(world.tp("orders"))["position"] == 6


def test_time_that_goes_back_in_one_partition(world: World) -> None:
    """By time: what comes too late is flagged, or in order within a bound. By partition: as it is. Live each time."""
    world.create("orders")
    tp = world.tp("orders")
    world.write("orders", 0, 100, 50, 200, 60)
    at, back, high, far_back = rows(tp, 100, 50, 200, 60)
    with Tail(world, "orders", grace=NEVER) as tail:
        tail.until_live()
        tail.until(lambda: len(tail.rows) == 4)
        assert [row for row in tail.rows if row not in tail.late] == sorted(
            {*tail.rows} - {*tail.late}
        )
        world.write("orders", 0, 30)
        tail.until(lambda: len(tail.rows) == 5)
        assert rows(tp, 30, at=4)[0] in tail.late
    with Tail(world, "orders", grace=NEVER, max_out_of_orderness="PT150S") as tail:
        tail.until_live()
        # Up to 150 s before the greatest timestamp; none of them was late.
        tail.until(lambda: len(tail.rows) == 2)
        assert [row.time for row in tail.rows] == [30_000, 50_000]
        assert tail.late == []
    with Tail(world, "orders", grace=NEVER, order="partition") as tail:
        tail.until_live()
        tail.until_rows(at, back, high, far_back, *rows(tp, 30, at=4))
        assert tail.late == []
    with OrderedReader(world.settings, world.named("orders")) as reader:
        assert [row.offset for row in all_rows(reader)] == [4, 1, 3, 0, 2]


def test_committed_reads_with_an_open_transaction_at_the_end(world: World) -> None:
    """Live at once, and the open part comes when it is committed."""
    world.create("orders")
    tp = world.tp("orders")
    world.write("orders", 0, 1, 2)
    world.send("open", "orders", 0, 3)
    with Tail(world, "orders", grace=NEVER) as tail:
        tail.until_live()
        tail.until_rows(*rows(tp, 1, 2))
        assert tail.state(tp)["lag"] == 0
        world.end("open", "commit")
        tail.until_rows(*rows(tp, 1, 2, 3))
    with OrderedReader(world.settings, world.named("orders")) as reader:
        assert all_rows(reader) == rows(tp, 1, 2, 3)
