"""Ordered reads of a live group: what is committed and when, and who reads what after whom."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kafka_ordered_ops import (
    AuthorizationError,
    ClosedError,
    CommitRefusedError,
    CommittedOffsetMissingError,
    ConfigError,
    Earliest,
    OrderedReader,
    WindowGroupError,
)
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.testing.membership import expire_members
from tests.support.memory_world import MemoryWorld
from tests.support.ordered_support import NEVER, Row, Tail, rows
from tests.support.windows_support import TIMEOUT_S
from tests.support.worlds import World


def member(world: World, *topics: str, **options: Any) -> Tail:
    """A member of the group; in the order of partitions, which holds nothing of one partition back."""
    options = {
        "grace": NEVER,
        "group_id": "live",
        "commit_interval_s": 0.01,
        "batch_size": 5,
        **options,
    }
    return Tail(world, *(topics or ("orders",)), **options)


def committed(world: World, topic: str = "orders") -> dict[TopicPartition, int | None]:
    """The offsets of the group."""
    found = world.committed(topic, group_id="live")
    return {tp: None if one is None else one[0] for tp, one in by_tp(found).items()}


def by_tp(found: dict[str, Any]) -> dict[TopicPartition, Any]:
    """By partition instead of its text."""
    parsed = {}
    for text, one in found.items():
        name, _, number = text.rpartition("[")
        parsed[TopicPartition(name, int(number[:-1]))] = one
    return parsed


def until_committed(tail: Tail, world: World, tp: TopicPartition, offset: int) -> None:
    """Polls until the group has committed an offset."""
    tail.until(lambda: committed(world)[tp] == offset)


@contextmanager
def polled(tail: Tail) -> Iterator[None]:
    """Polls in a thread meanwhile; each batch is done with when the next is asked for."""
    stop = threading.Event()

    def poll() -> None:
        while not stop.is_set():
            tail.poll(0.05)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_what_was_returned_is_committed_once_the_next_is_asked_for(world: World) -> None:
    """Never the last batch itself; the next reader goes on there."""
    world.create("orders")
    tp = world.tp("orders")
    with member(world) as tail:
        world.write("orders", 0, 1, 2, 3)
        tail.until(lambda: len(tail.rows) > 0)
        read = len(tail.rows)
        assert (committed(world)[tp] or 0) <= 0
        tail.until(lambda: len(tail.rows) == 3)
        until_committed(tail, world, tp, 3)
        assert read >= 1
    with member(world) as tail:
        world.write("orders", 0, 4)
        tail.until_rows(*rows(tp, 4, at=3))
    assert committed(world)[tp] == 3
    with member(world) as tail:
        tail.until_rows(*rows(tp, 4, at=3))
        until_committed(tail, world, tp, 4)


def test_the_end_of_the_block_commits_what_is_done_with(world: World) -> None:
    """However long the interval; not the last batch, for nobody has said that it was processed."""
    world.create("orders")
    tp = world.tp("orders")
    world.write("orders", 0, *range(12))
    with member(world, commit_interval_s=1_000) as tail:
        tail.until(lambda: len(tail.rows) == 12)
        # By fives: the third batch is not done with.
        assert (committed(world)[tp] or 0) in (0, 5, 10)
    assert committed(world)[tp] == 10


@pytest.mark.slow
def test_an_error_in_the_block_leaves_its_batch(world: World) -> None:
    """The batch that failed is read again, first and whole."""
    world.create("orders")
    tp = world.tp("orders")
    world.write("orders", 0, *range(12))
    tail = member(world)

    def fail() -> None:
        with tail:
            tail.until(lambda: len(tail.rows) == 10)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert committed(world)[tp] == 5
    with member(world) as again:
        again.until_rows(*rows(tp, *range(5, 12), at=5))


def test_an_explicit_commit(world: World) -> None:
    """Of what was returned before the last batch; of everything once a poll has found no more."""
    world.create("orders", partitions=2)
    first, second = world.tp("orders", 0), world.tp("orders", 1)
    world.write("orders", 0, *range(12))
    with member(world, commit_interval_s=1_000, max_out_of_orderness="PT0S") as tail:
        world.write("orders", 1, 20)
        tail.until(lambda: len(tail.rows) >= 10)
        tail.reader.commit()
        assert committed(world)[first] == 5
        # The record of 20 s waits for the first partition.
        tail.until(lambda: len(tail.rows) == 12)
        tail.until(lambda: tail.poll() is None)
        tail.reader.commit()
        assert committed(world) == {first: 12, second: 0}
        tail.reader.commit()
    with pytest.raises(ClosedError, match="block"):
        tail.reader.commit()
    with (
        OrderedReader(world.settings, world.named("orders")) as alone,
        pytest.raises(ConfigError, match="group_id"),
    ):
        alone.commit()
    with pytest.raises(ClosedError, match="block"):
        member(world).reader.commit()


def test_held_records_are_not_committed(world: World) -> None:
    """A record that waits for its place is read again by the next reader, in its place and not as a late one."""
    world.create("orders", partitions=2)
    first, second = world.tp("orders", 0), world.tp("orders", 1)
    world.write("orders", 0, 1, 5, 9)
    with member(world) as tail:
        world.write("orders", 1, 3)
        tail.until_rows(*rows(first, 1), *rows(second, 3))
        until_committed(tail, world, second, 1)
        assert committed(world)[first] == 1
        assert tail.state(first)["held"] == 2
    assert committed(world) == {first: 1, second: 1}
    with member(world) as tail:
        world.write("orders", 1, 7)
        tail.until_rows(*rows(first, 5, at=1), *rows(second, 7, at=1))
        assert tail.late == []


def test_out_of_order_records_hold_the_commit(world: World) -> None:
    """The earliest record in the log may be the last in the order: the commit waits for it."""
    world.create("orders")
    tp = world.tp("orders")
    world.write("orders", 0, 9, 1, 2, 3)
    with member(world, max_out_of_orderness="PT5S") as tail:
        tail.until(lambda: len(tail.rows) == 3)
        tail.until(lambda: tail.poll() is None)
        tail.reader.commit()
        assert committed(world)[tp] == 0
    with member(world, max_out_of_orderness="PT5S") as tail:
        world.write("orders", 0, 20)
        tail.until(lambda: len(tail.rows) == 4)
        assert [row.time for row in tail.rows] == [1_000, 2_000, 3_000, 9_000]
        assert tail.late == []


def test_a_consumer_slower_than_the_interval(world: World) -> None:
    """Between two batches of one release there is a commit, and never one for the batch in hand."""
    world.create("orders")
    tp = world.tp("orders")
    world.write("orders", 0, *range(30))
    with member(world) as tail:
        done = 0
        while done < 30:
            batch = tail.poll(TIMEOUT_S)
            assert batch is not None
            time.sleep(0.02)
            assert (committed(world)[tp] or 0) <= done
            assert (committed(world)[tp] or 0) >= max(0, done - 5)
            done += batch.num_rows


@pytest.mark.slow
def test_two_members_share_and_hand_over(world: World) -> None:
    """Nothing is lost, nobody reads what the other has committed, and each one's records are in order."""
    world.create("orders", partitions=4)
    for number in range(4):
        world.write("orders", number, *range(number, 40, 4))
    tps = [world.tp("orders", number) for number in range(4)]
    with member(world, order="partition") as first:
        first.until(lambda: len(first.rows) >= 30)
        with member(world, order="partition", now=0.0) as second:
            with polled(second):
                first.until(lambda: first.reader.state().num_rows == 2)
                first.until(lambda: second.reader.state().num_rows == 2)
                for number in range(4):
                    world.write("orders", number, *range(100 + number, 140, 4))
                first.until(lambda: len({*first.rows, *second.rows}) >= 4 * 20 - 4)
            before = {row for row in first.rows if row.time < 100_000}
            assert len(before & {*second.rows}) <= 5
        for tail in (first, second):
            for tp in tps:
                mine = [
                    row.offset
                    for row in tail.rows
                    if (row.topic, row.partition) == (tp.topic, tp.partition)
                ]
                assert mine == sorted(set(mine))
        first.until(lambda: first.reader.state().num_rows == 4)
        for number in range(4):
            world.write("orders", number, 200)
        everything = {row for tp in tps for row in _log(tp)}
        first.until(
            lambda: {*first.rows, *second.rows} >= {row for row in everything if row.time < 200_000}
        )


def _log(tp: TopicPartition) -> list[Row]:
    number = tp.partition
    return rows(tp, *range(number, 40, 4), *range(100 + number, 140, 4))


def test_partitions_are_given_up_in_the_middle_of_a_release(memory: MemoryWorld) -> None:
    """The group sees a live member between two batches, and what is left of a lost partition is not returned."""
    memory.create("orders", partitions=2)
    for number in (0, 1):
        memory.write("orders", number, *range(number, 40, 2))
    with member(memory, order="partition") as first:
        assert first.poll(TIMEOUT_S) is not None
        with member(memory, order="partition") as second:
            deadline = time.monotonic() + TIMEOUT_S
            while second.reader.state().num_rows == 0:
                assert time.monotonic() < deadline
                second.poll()
                assert first.poll(0) is not None
            [lost] = {row["partition"] for row in second.reader.state().to_pylist()}
            had = [row for row in first.rows if row.partition == lost]
            assert len(had) < 20
            first.until(lambda: len([row for row in first.rows if row.partition != lost]) >= 19)
            assert [row for row in first.rows if row.partition == lost] == had
            second.until(lambda: len(second.rows) >= 20 - len(had))
            assert second.rows[0].offset <= len(had)
            assert {row.offset for row in (*had, *second.rows)} == set(range(20))


def test_a_refused_commit_is_no_end(memory: MemoryWorld) -> None:
    """A member that was replaced reads on from the last commit when it is back: again, in order, and not late."""
    memory.create("orders")
    tp = memory.tp("orders")
    memory.write("orders", 0, *range(12))
    with member(memory, commit_interval_s=1_000) as tail:
        tail.until(lambda: len(tail.rows) == 12)
        expire_members(memory.kafka.name, memory.named("live"))
        with pytest.raises(CommitRefusedError):
            tail.reader.commit()
        # The commit of the first batch was the last one.
        tail.until(lambda: len(tail.rows) >= 19)
        assert tail.rows[12:] == rows(tp, *range(5, 12), at=5)
        assert tail.late == []


def test_a_fenced_member_reads_on(world: World) -> None:
    """Its commits are refused and tried again; nothing is raised to whoever only reads."""
    world.create("orders")
    tp = world.tp("orders")
    with member(world) as tail:
        tail.until_live()
        group = tail.reader._engine._group
        assert group is not None
        reader_member = group._member
        commit, refused = reader_member.commit, 0

        def refuse(*_: Any, **__: Any) -> None:
            nonlocal refused
            refused += 1
            if refused == 2:
                reader_member.commit = commit  # type: ignore[method-assign]
            raise CommitRefusedError("no", group_id="live")

        reader_member.commit = refuse  # type: ignore[method-assign]
        world.write("orders", 0, 1, 2)
        tail.until_rows(*rows(tp, 1, 2))
        until_committed(tail, world, tp, 2)
        assert refused == 2


def test_an_error_for_good_is_raised_and_not_hidden_by_the_end(memory: MemoryWorld) -> None:
    """By the read; at the end of a block that fails anyway, the failure is what is raised."""
    memory.create("orders")
    memory.write("orders", 0, 1)

    def forbid(tail: Tail) -> None:
        group = tail.reader._engine._group
        assert group is not None
        engine_member = group._member

        def forbidden(*_: Any, **__: Any) -> None:
            raise AuthorizationError("no right")

        engine_member.commit = forbidden  # type: ignore[method-assign]

    def read(error: Exception | None) -> None:
        with member(memory, commit_interval_s=1_000) as tail:
            tail.until_live()
            tail.until(lambda: committed(memory)[memory.tp("orders")] is not None)
            forbid(tail)
            memory.write("orders", 0, 2)
            read = len(tail.rows)
            tail.until(lambda: len(tail.rows) > read)
            tail.until(lambda: tail.poll() is None)
            if error is not None:
                raise error

    with pytest.raises(ZeroDivisionError):
        read(ZeroDivisionError())
    with pytest.raises(AuthorizationError):
        read(None)


def test_a_group_of_windows_is_refused(world: World) -> None:
    """Before anything is read."""
    world.create("orders")
    world.write("orders", 0, 1)
    world.run("w", 100.0, starting_offsets=Earliest())
    with pytest.raises(WindowGroupError, match="another group_id"), member(world, group_id="g"):
        pass


def test_committed_offsets_come_before_starting_offsets(world: World) -> None:
    """Of the partitions that have them; the others start where they are told."""
    world.create("orders", partitions=2)
    first, second = world.tp("orders", 0), world.tp("orders", 1)
    for number in (0, 1):
        world.write("orders", number, 1, 2, 3)
    world.foreign_commit("live", "orders", {0: 1})
    with member(world, starting_offsets="latest") as tail:
        tail.until_live()
        world.write("orders", 1, 9)
        tail.until_rows(*rows(first, 2, 3, at=1))
    assert second.partition == 1


def test_the_first_commit_keeps_the_start(world: World) -> None:
    """A group that began at the end and has read nothing begins there again."""
    world.create("orders")
    tp = world.tp("orders")
    world.write("orders", 0, 1, 2)
    with member(world, starting_offsets="latest") as tail:
        tail.until_live()
    world.write("orders", 0, 3)
    with member(world, starting_offsets="latest") as tail:
        tail.until_rows(*rows(tp, 3, at=2))


def test_a_missing_committed_offset_is_named(world: World) -> None:
    """With the partitions; a partition without records needs none."""
    world.create("orders", partitions=3)
    for number in (0, 2):
        world.write("orders", number, 1)
    with member(world, starting_offsets="committed") as tail:
        with pytest.raises(CommittedOffsetMissingError) as caught:
            tail.until(lambda: False)
        assert caught.value.partitions == tuple(str(world.tp("orders", n)) for n in (0, 2))
