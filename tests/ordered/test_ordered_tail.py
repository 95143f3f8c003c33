"""Live tails: what is released when, in the model in memory and on a real broker."""

from __future__ import annotations

import time

import pytest

from kafka_ordered_ops import RecordsLostError
from tests.support.memory_world import MemoryWorld
from tests.support.ordered_support import NEVER, Tail, rows
from tests.support.windows_support import BASE_MS, TIMEOUT_S
from tests.support.worlds import World


def settle(tail: Tail, *, s: float = 0.5) -> None:
    """Polls until nothing has come for a while, and some looks at the logs were made."""
    until = time.monotonic() + s
    while time.monotonic() < until:
        if tail.poll() is not None:
            until = time.monotonic() + s


def test_a_record_waits_until_every_partition_has_passed_it(world: World) -> None:
    """A partition that has brought nothing holds all others back; of equal times the lower partition goes first."""
    world.create("orders", partitions=2)
    first, second = world.tp("orders", 0), world.tp("orders", 1)
    with Tail(world, "orders", grace=NEVER) as tail:
        world.write("orders", 0, 1, 2, 3)
        tail.until_at(first, 3)
        settle(tail)
        assert tail.rows == []
        assert tail.state(first)["held"] == 3
        assert tail.state(second)["holds_back"]
        assert not tail.state(first)["holds_back"]
        world.write("orders", 1, 2)
        expected = rows(first, 1, 2)
        tail.until_rows(*expected, *rows(second, 2))
        world.write("orders", 1, 5)
        tail.until_rows(*expected, *rows(second, 2), *rows(first, 3, at=2))
        assert tail.state(first)["holds_back"]
        assert tail.late == []


@pytest.mark.parametrize(("grace", "slack"), [("PT2S", "PT6S"), ("PT6S", "PT2S")])
def test_a_record_at_the_end_waits_for_the_longer_of_grace_and_out_of_orderness(
    world: World, grace: str, slack: str
) -> None:
    """A record that is within either of them is never late."""
    world.create("orders", partitions=1)
    one = world.tp("orders", 0)
    with Tail(world, "orders", grace=grace, max_out_of_orderness=slack) as tail:
        world.write("orders", 0, 10)
        tail.until_at(one, 1)
        tail.clock.now = 15.0
        settle(tail)
        assert tail.rows == []
        world.write("orders", 0, 9)
        tail.until_at(one, 2)
        tail.clock.now = 20.0
        tail.until_rows(*rows(one, 9, at=1), *rows(one, 10))
        assert tail.late == []


@pytest.mark.slow
def test_an_idle_partition_moves_with_the_clock(world: World) -> None:
    """As far as `grace` before it, and no further; so nothing is late that came within it."""
    world.create("orders", partitions=2)
    first, second = world.tp("orders", 0), world.tp("orders", 1)
    with Tail(world, "orders", grace="PT2S") as tail:
        world.write("orders", 0, 1, 5, 9)
        tail.until_at(first, 3)
        settle(tail)
        assert tail.rows == []
        tail.clock.now = 8.0
        tail.until_rows(*rows(first, 1, 5))
        settle(tail)
        assert len(tail.rows) == 2
        world.write("orders", 1, 7)
        tail.clock.now = 12.0
        tail.until_rows(*rows(first, 1, 5), *rows(second, 7), *rows(first, 9, at=2))
        world.write("orders", 1, 8)
        tail.until_rows(*tail.rows, *rows(second, 8, at=1))
        assert tail.late == rows(second, 8, at=1)
        assert tail.state(second)["late"] == 1


def test_a_partition_that_starts_late_is_waited_for(world: World) -> None:
    """Its first records take their places among those of the others."""
    world.create("orders", partitions=3)
    tps = [world.tp("orders", number) for number in range(3)]
    with Tail(world, "orders", grace=NEVER) as tail:
        for second in (10, 30):
            world.write("orders", 0, second)
            world.write("orders", 1, second + 1)
        tail.until_at(tps[1], 2)
        world.write("orders", 2, 5, 15, 40)
        tail.until_rows(
            *rows(tps[2], 5), *rows(tps[0], 10), *rows(tps[1], 11), *rows(tps[2], 15, at=1),
            *rows(tps[0], 30, at=1),
        )  # fmt: skip
        assert tail.late == []


@pytest.mark.slow
def test_an_open_transaction_holds_back_and_is_shown(world: World) -> None:
    """The clock moves no partition past one; its records come in order when it ends."""
    world.create("orders", partitions=2)
    first, second = world.tp("orders", 0), world.tp("orders", 1)
    world.send("long", "orders", 1, 2)
    with Tail(world, "orders", grace="PT1S", now=100.0) as tail:
        world.write("orders", 0, 1, 3)
        tail.until_at(first, 2)
        settle(tail)
        assert tail.rows == []
        state = tail.state(second)
        assert (state["holds_back"], state["position"], state["held"]) == (True, 0, 0)
        assert state["live"]
        world.end("long", "commit")
        tail.until_rows(*rows(first, 1), *rows(second, 2), *rows(first, 3, at=1))
        assert tail.late == []
        settle(tail)
        assert tail.state(second)["lag"] == 0
    with Tail(world, "orders", grace="PT1S", now=100.0, isolation="read_uncommitted") as tail:
        world.send("other", "orders", 1, 4)
        tail.until_rows(
            *rows(first, 1), *rows(second, 2), *rows(first, 3, at=1), *rows(second, 4, at=2)
        )


def test_an_aborted_transaction_holds_back_no_longer(world: World) -> None:
    """Its records never come."""
    world.create("orders", partitions=2)
    first = world.tp("orders", 0)
    world.send("long", "orders", 1, 2)
    with Tail(world, "orders", grace="PT1S", now=100.0) as tail:
        world.write("orders", 0, 1, 3)
        tail.until_at(first, 2)
        world.end("long", "abort")
        tail.until_rows(*rows(first, 1, 3))
        assert tail.reader.is_live


def test_old_partitions_are_released_by_the_first_look(memory: MemoryWorld) -> None:
    """Not a whole grace or interval after the start: an idle log is known to be idle at once."""
    memory.create("orders", partitions=3)
    memory.write("orders", 0, 1, 2)
    began = time.monotonic()
    with Tail(memory, "orders", grace="PT10S", now=10_000.0) as tail:
        tail.until_rows(*rows(memory.tp("orders", 0), 1, 2))
    assert time.monotonic() - began < 0.7


def test_a_clock_s_error_blocks_nothing_and_is_flagged(world: World) -> None:
    """A record of the year 2100 comes at once, as a late one; those after it are in order."""
    far_s = 4_102_444_800 - BASE_MS / 1000
    world.create("orders", partitions=2, message_timestamp_after_max_ms=str(2**63 - 1))
    first, second = world.tp("orders", 0), world.tp("orders", 1)
    with Tail(world, "orders", grace=NEVER) as tail:
        world.write("orders", 0, far_s)
        tail.until_rows(*rows(first, far_s))
        assert tail.late == tail.rows
        assert tail.state(first)["timestamp"] is None
        world.write("orders", 0, 1, 3)
        world.write("orders", 1, 2, 4)
        expected = [*rows(first, 1, at=1), *rows(second, 2), *rows(first, 3, at=2)]
        tail.until_rows(*rows(first, far_s), *expected)
        assert len(tail.late) == 1


def test_a_clock_s_error_keeps_its_place_in_a_partition(world: World) -> None:
    """In the order of partitions it comes between its neighbours, and moves nothing on."""
    far_s = 4_102_444_800 - BASE_MS / 1000
    world.create("orders", message_timestamp_after_max_ms=str(2**63 - 1))
    tp = world.tp("orders")
    with Tail(world, "orders", grace=NEVER, order="partition") as tail:
        world.write("orders", 0, 1, far_s, 2)
        tail.until_rows(*rows(tp, 1, far_s, 2))
        assert tail.late == []


def test_records_without_a_time(world: World) -> None:
    """They are older than all others: late where something has been released, and never lost."""
    world.create("orders", partitions=2)
    first, second = world.tp("orders", 0), world.tp("orders", 1)
    none_s = (-1 - BASE_MS) / 1000
    with Tail(world, "orders", grace=NEVER) as tail:
        world.write_at_ms("orders", 0, [-1])
        world.write_at_ms("orders", 1, [-1])
        tail.until(lambda: len(tail.rows) == 2)
        assert sorted(tail.rows) == [*rows(first, none_s), *rows(second, none_s)]
        world.write("orders", 0, 1)
        world.write("orders", 1, 1)
        tail.until(lambda: len(tail.rows) == 3)
        world.write_at_ms("orders", 1, [-1])
        tail.until(lambda: len(tail.rows) == 4)
        assert tail.rows[-1] == tail.late[-1] == rows(second, none_s, at=2)[0]


def test_retention_past_the_position_is_a_loss(memory: MemoryWorld) -> None:
    """Named, with the ranges; the read does not go on in silence, nor look finished."""
    memory.create("orders", partitions=2)
    memory.write("orders", 0, *range(6))
    with Tail(memory, "orders", grace=NEVER) as tail:
        tail.until_at(memory.tp("orders"), 6)
        with memory.kafka.unreachable():
            memory.write("orders", 0, *range(6))
            memory.delete_before("orders", 0, 9)
        with pytest.raises(RecordsLostError) as caught:
            settle(tail)
        assert caught.value.lost == {str(memory.tp("orders")): [(6, 9)]}
        assert not tail.reader.is_done


def test_the_loss_of_a_group_names_the_verb_that_helps(memory: MemoryWorld) -> None:
    """With the partition and the offset behind what is lost; other partitions stay where they are."""
    memory.create("orders", partitions=2)
    memory.write("orders", 0, *range(6))
    name, group = memory.named("orders"), "live"
    with Tail(memory, "orders", grace=NEVER, group_id=group) as tail:
        tail.until_at(memory.tp("orders"), 6)
        with memory.kafka.unreachable():
            memory.write("orders", 0, *range(6))
            memory.delete_before("orders", 0, 9)
        with pytest.raises(RecordsLostError, match=rf"offsets reset -g \S+ --to {name}:0=9"):
            settle(tail)


def test_retention_behind_the_position_is_none(world: World) -> None:
    """Records that are held have been read."""
    world.create("orders", partitions=2)
    first = world.tp("orders", 0)
    world.write("orders", 0, 1, 2, 3)
    with Tail(world, "orders", grace=NEVER) as tail:
        tail.until_at(first, 3)
        world.delete_before("orders", 0, 3)
        world.write("orders", 1, 4)
        tail.until_rows(*rows(first, 1, 2, 3))


def test_a_tail_outlives_a_cluster_that_is_away(memory: MemoryWorld) -> None:
    """Nothing is raised, nothing is lost, and nothing moves on meanwhile."""
    memory.create("orders", partitions=2)
    first, second = memory.tp("orders", 0), memory.tp("orders", 1)
    with Tail(memory, "orders", grace="PT1S") as tail:
        memory.write("orders", 0, 1, 2)
        tail.until_at(first, 2)
        with memory.kafka.unreachable():
            tail.clock.now = 100.0
            settle(tail)
            assert tail.rows == []
            memory.write("orders", 1, 1.5)
            memory.add_partitions("orders", 3)
        tail.until_rows(*rows(first, 1), *rows(second, 1.5), *rows(first, 2, at=1))
        assert tail.late == []
        tail.until(lambda: len(tail.reader.state()) == 3)


def test_a_tail_starts_where_it_is_told(world: World) -> None:
    """At the end, at a time, and so on, for what exists."""
    world.create("orders", partitions=2)
    first = world.tp("orders", 0)
    world.write("orders", 0, 1, 2, 3)
    for start, wanted in (
        ("latest", []),
        ("-PT2S", rows(first, 2, 3, at=1)),
        ("offset:2", rows(first, 3, at=2)),
    ):
        with Tail(world, "orders", starting_offsets=start, now=4.0, grace="PT0S") as tail:
            tail.clock.now = 4.0
            tail.until(lambda: tail.reader.is_live)
            tail.until(lambda: len(tail.rows) == len(wanted))  # noqa: B023
            settle(tail, s=0.3)
            assert tail.rows == wanted


def test_the_frontier_is_the_clock_s_under_load(world: World) -> None:
    """While one partition is written without a pause, an idle one does not hold it back for longer than `grace`."""
    world.create("orders", partitions=2)
    with Tail(world, "orders", grace="PT0.1S", now=0.0) as tail:
        deadline = time.monotonic() + TIMEOUT_S
        written = 0
        while len(tail.rows) < 20:
            assert time.monotonic() < deadline
            written += 1
            tail.clock.now = written / 10
            world.write("orders", 0, written / 10 - 0.05)
            tail.poll()
        assert tail.rows == sorted(tail.rows)
        assert tail.late == []
