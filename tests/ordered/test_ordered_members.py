"""Members of live groups: callbacks, static membership, slow members."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import pytest

from kafka_ordered_ops import CallbackError, ClosedError
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.testing.membership import expire_members
from tests.support.broker_world import BrokerWorld
from tests.support.memory_world import MemoryWorld
from tests.support.ordered_support import NEVER, Tail, rows
from tests.support.worlds import World


class Calls:
    """The callbacks of one member, and how often each was called."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[TopicPartition, int]]] = []

    def options(self) -> dict[str, Any]:
        """For a member."""

        def noting(name: str) -> Any:
            return lambda positions: self.note(name, positions)

        return {name: noting(name) for name in ("on_assigned", "on_revoked", "on_lost")}

    def note(self, name: str, positions: Mapping[TopicPartition, int]) -> None:
        """One call."""
        self.seen.append((name, dict(positions)))

    def of(self, name: str) -> dict[TopicPartition, int]:
        """All partitions that a callback was called with, and their last positions."""
        return {tp: at for called, found in self.seen if called == name for tp, at in found.items()}


def member(world: World, calls: Calls | None = None, **options: Any) -> Tail:
    """A member of the group."""
    callbacks = {} if calls is None else calls.options()
    options = {
        "group_id": "live",
        "order": "partition",
        "grace": NEVER,
        "commit_interval_s": 0.01,
        **callbacks,
        **options,
    }
    return Tail(world, "orders", **options)


def committed(world: World, tp: TopicPartition) -> int | None:
    """The group's committed offset."""
    found = world.committed("orders", group_id="live")[str(tp)]
    return None if found is None else found[0]


def both_until(first: Tail, second: Tail, holds: Any) -> None:
    """Polls two members in turn."""

    def polled() -> bool:
        second.poll()
        return bool(holds())

    first.until(polled)


def test_callbacks_are_called_with_positions(world: World) -> None:
    """Assigned with where it starts, revoked with what was returned; then the other member begins there."""
    world.create("orders", partitions=2)
    for number in (0, 1):
        world.write("orders", number, 1, 2, 3)
    mine, theirs = Calls(), Calls()
    with member(world, mine) as first:
        first.until(lambda: len(first.rows) >= 5)
        assert mine.seen[0] == ("on_assigned", dict.fromkeys(mine.seen[0][1], 0))
        assert mine.of("on_assigned") == {world.tp("orders", n): 0 for n in (0, 1)}
        with member(world, theirs) as second:
            both_until(first, second, lambda: theirs.of("on_assigned"))
            assert mine.of("on_revoked") == theirs.of("on_assigned")
            [(tp, position)] = theirs.of("on_assigned").items()
            assert position >= 2
            assert committed(world, tp) == position
    assert mine.of("on_lost") == theirs.of("on_lost") == {}


def test_a_commit_in_on_revoked_is_stored_before_the_partition_moves(world: World) -> None:
    """With an interval that no automatic commit reaches."""
    world.create("orders", partitions=2)
    for number in (0, 1):
        world.write("orders", number, 1, 2, 3)
    stored: dict[TopicPartition, int | None] = {}

    def commit(positions: Mapping[TopicPartition, int]) -> None:
        first.reader.commit()
        stored.update({tp: committed(world, tp) for tp in positions})

    first = member(world, on_revoked=commit, commit_interval_s=1_000)
    with first:
        first.until(lambda: len(first.rows) >= 5)
        with member(world) as second:
            both_until(first, second, lambda: second.reader.state().num_rows == 1)
            [row] = second.reader.state().to_pylist()
            tp = TopicPartition(row["topic"], row["partition"])
            assert stored == {tp: row["start"]}
            assert row["committed"] >= 2


@pytest.mark.parametrize("name", ["on_assigned", "on_revoked"])
def test_an_exception_in_a_callback_ends_the_read(world: World, name: str) -> None:
    """By the callback's name, and with its error as the cause."""
    world.create("orders", partitions=2)

    def fail(_: Mapping[TopicPartition, int]) -> None:
        raise ZeroDivisionError("no")

    calls = Calls()
    options: dict[str, Any] = {name: fail}
    with member(world, calls, **options) as first:
        if name == "on_revoked":
            first.until(lambda: len(calls.of("on_assigned")) == 2)
        with member(world) as second:
            with pytest.raises(CallbackError, match=f"{name} raised ZeroDivisionError") as caught:
                both_until(first, second, lambda: False)
            assert isinstance(caught.value.__cause__, ZeroDivisionError)
            assert caught.value.facts["callback"] == name
            with pytest.raises(ClosedError, match="CallbackError"):
                first.poll()


def test_lost_partitions_are_reported(memory: MemoryWorld) -> None:
    """Of a member that the group removed; it joins again."""
    memory.create("orders")
    tp = memory.tp("orders")
    calls = Calls()
    with member(memory, calls) as tail:
        memory.write("orders", 0, 1)
        tail.until(lambda: len(tail.rows) == 1)
        expire_members(memory.kafka.name, memory.named("live"))
        tail.until(lambda: bool(calls.of("on_lost")))
        assert calls.of("on_lost") == {tp: 1}
        assert calls.of("on_revoked") == {}
        tail.until(lambda: [name for name, _ in calls.seen].count("on_assigned") == 2)


def test_an_exception_in_on_lost_ends_the_read(memory: MemoryWorld) -> None:
    """By name; what was lost is no longer committed."""
    memory.create("orders")

    def fail(_: Mapping[TopicPartition, int]) -> None:
        raise ZeroDivisionError("no")

    with member(memory, Calls(), on_lost=fail) as tail:
        memory.write("orders", 0, 1)
        tail.until(lambda: len(tail.rows) == 1)
        expire_members(memory.kafka.name, memory.named("live"))
        with pytest.raises(CallbackError, match="on_lost raised ZeroDivisionError"):
            tail.until(lambda: False)
        with pytest.raises(ClosedError, match="CallbackError"):
            tail.poll()


@pytest.mark.slow
def test_a_slow_member_leaves_and_joins_again(
    broker: BrokerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """The next poll reports it, and reads on from the last commit."""
    broker.create("orders")
    tp = broker.tp("orders")
    calls = Calls()
    with member(broker, calls, session_timeout_s=6, max_poll_interval_s=6) as tail:
        broker.write("orders", 0, 1)
        tail.until(lambda: len(tail.rows) == 1)
        tail.until(lambda: committed(broker, tp) == 1)
        time.sleep(8)
        with caplog.at_level(logging.WARNING):
            tail.until(lambda: bool(calls.of("on_lost")))
        assert calls.of("on_lost") == {tp: 1}
        assert "max.poll.interval.ms" in caplog.text
        tail.until(lambda: [name for name, _ in calls.seen].count("on_assigned") == 2)
        broker.write("orders", 0, 2)
        tail.until(lambda: len(tail.rows) == 2)
        assert tail.rows == rows(tp, 1, 2)


@pytest.mark.slow
def test_rolling_restarts_of_static_members_move_nothing(broker: BrokerWorld) -> None:
    """Each restarts within its session, gets its partitions back, and the other keeps its own all the time."""
    broker.create("orders", partitions=4)
    calls = {name: Calls() for name in ("a", "b")}
    tails = {name: member(broker, calls[name], instance_id=name) for name in calls}
    tails["a"].__enter__()
    tails["b"].__enter__()
    try:
        both_until(
            tails["a"],
            tails["b"],
            lambda: all(tail.reader.state().num_rows == 2 for tail in tails.values()),
        )
        for name, other in (("a", "b"), ("b", "a")):
            had = set(tails[name].reader.state()["partition"].to_pylist())
            before = len(calls[other].seen)
            tails[name].__exit__(None, None, None)
            tails[name] = member(broker, calls[name], instance_id=name)
            tails[name].__enter__()
            both_until(
                tails[other],
                tails[name],
                lambda name=name: tails[name].reader.state().num_rows == 2,
            )
            assert set(tails[name].reader.state()["partition"].to_pylist()) == had
            assert len(calls[other].seen) == before
    finally:
        for tail in tails.values():
            tail.__exit__(None, None, None)


@pytest.mark.slow
def test_cooperative_members_keep_what_does_not_move(broker: BrokerWorld) -> None:
    """When one without a name restarts, the other is asked for no partition that it keeps."""
    broker.create("orders", partitions=4)
    calls = Calls()
    with member(broker, calls) as stays:
        # Else both may join at once, and nothing is given up.
        stays.until(lambda: stays.reader.state().num_rows == 4)
        for _ in range(2):
            with member(broker) as other:
                both_until(stays, other, lambda other=other: other.reader.state().num_rows == 2)
                assert stays.reader.state().num_rows == 2
            stays.until(lambda: stays.reader.state().num_rows == 4)
    revoked = [len(found) for name, found in calls.seen if name == "on_revoked"]
    assert revoked == [2, 2]
    assert calls.of("on_lost") == {}
