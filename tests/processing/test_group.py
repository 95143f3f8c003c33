"""Processing of a live group: what is committed, who goes on where, and what a rebalance does to work in flight."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import pytest

from kafka_ordered_ops import (
    CommitRefusedError,
    ConfigError,
    OffsetMapDecodeError,
    TopicRecreatedError,
    UnknownTopicError,
    WindowGroupError,
)
from kafka_ordered_ops.core.cluster.membership import Commits, committed_offsets
from kafka_ordered_ops.core.offset_map import fitting
from kafka_ordered_ops.core.offset_map.parallel_consumer import encode_parallel_consumer_map
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.types import GroupProtocol
from kafka_ordered_ops.processing import Processor
from kafka_ordered_ops.processing import group_source as sources
from kafka_ordered_ops.testing.membership import MemoryMember
from tests.support.broker_world import BrokerWorld
from tests.support.memory_world import MemoryWorld
from tests.support.processing_groups import (
    Worker,
    committed_places,
    places,
    twice,
    wait_until,
)
from tests.support.worlds import World


def until_committed(worker: Worker, world: World, *expected: tuple[int, int]) -> None:
    """Waits until exactly these records are committed as done."""
    worker.until(lambda: committed_places(world) == set(expected))


def test_a_group_goes_on_where_it_was(world: World) -> None:
    """What is done is committed, and not processed again by the next member; new records are."""
    world.create("orders", partitions=2)
    world.write("orders", 0, *range(20))
    world.write("orders", 1, *range(5))
    with Worker(world) as first:
        first.until_done(*places(range(20), range(5)))
        until_committed(first, world, *places(range(20), range(5)))
    world.write("orders", 1, *range(5))
    with Worker(world) as second:
        second.until_done(*places(range(0), range(5, 10)))
        until_committed(second, world, *places(range(20), range(10)))
    assert not twice(first, second)


def test_done_records_above_one_in_flight_are_kept(world: World) -> None:
    """One slow record holds the committed offset, and the map the rest: the next member does that record only."""
    world.create("orders")
    world.write("orders", 0, *range(50))
    options: dict[str, Any] = {"processor": {"ordering": "unordered", "stop_timeout_s": 0.3}}
    with Worker(world, holds=lambda record: record.offset in (7, 30), **options) as first:
        expected = [(0, offset) for offset in range(50) if offset not in (7, 30)]
        until_committed(first, world, *expected)
        first.stop()
    with Worker(world, **options) as second:
        second.until_done((0, 7), (0, 30))
        until_committed(second, world, *places(range(50)))
    assert sorted(second.begun) == [(0, 7), (0, 30)]


def test_the_iterator_ends_the_work_when_it_is_closed(world: World) -> None:
    """What was taken is committed."""
    world.create("orders")
    world.write("orders", 0, *range(3))
    processor = Processor(world.settings)
    results = processor.subscribe(
        world.named("orders"), lambda _: None, group_id=world.named("live")
    )
    offsets = [next(results).record.offset for _ in range(3)]
    results.close()  # type: ignore[attr-defined]
    assert sorted(offsets) == [0, 1, 2]
    assert committed_places(world) == set(places(range(3)))


def test_members_share_and_hand_over_what_is_done(world: World) -> None:
    """A second member comes and goes while both work: every record is processed, and none twice."""
    world.create("orders", partitions=4)
    stop = threading.Event()
    written = [0] * 4

    def write() -> None:
        while not stop.is_set():
            for number in range(4):
                world.write("orders", number, *range(5))
                written[number] += 5
            stop.wait(0.02)

    writer = threading.Thread(target=write)
    with Worker(world, function_s=0.003) as first:
        writer.start()
        try:
            first.until_done((0, 0), (1, 0), (2, 0), (3, 0))
            with Worker(world, function_s=0.003) as second:
                second.until(lambda: len(second.done) > 50)
        finally:
            stop.set()
            writer.join()
        everything = places(*(range(count) for count in written))
        first.until(lambda: set(everything) <= {*first.done, *second.done})
        until_committed(first, world, *everything)
    assert not twice(first, second)


def test_work_in_flight_of_a_revoked_partition_counts_for_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not waited for without an end; its next owner processes it, and nothing else, again."""
    monkeypatch.setattr(
        sources.GroupSource.__init__, "__kwdefaults__", {"revoke_wait_s": 0.2, "timeout_s": 30.0}
    )
    world.create("orders", partitions=2)
    for number in range(2):
        world.write("orders", number, *range(10))
    with Worker(
        world, holds=lambda one: one.offset == 4, processor={"ordering": "unordered"}
    ) as first:
        others = [place for place in places(range(10), range(10)) if place[1] != 4]
        until_committed(first, world, *others)
        with Worker(world) as second:
            second.until(lambda: len(second.done) == 1)
            [moved] = second.done
            second.until(lambda: moved in committed_places(world))
            first.release()
            kept = (1 - moved[0], 4)
            first.until_done(kept)
            until_committed(second, world, *places(range(10), range(10)))
        assert moved not in first.done
    assert twice(first, second) == {moved}


def test_the_last_commit_waits_for_a_group_that_rebalances(
    memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has the partitions next would process these records again."""
    memory.create("orders")
    memory.write("orders", 0, *range(5))
    commit, refusals = MemoryMember.commit, 3

    def rebalancing(member: MemoryMember, offsets: Commits, **options: Any) -> None:
        nonlocal refusals
        if committed_offsets(offsets)[memory.tp("orders")].offset and refusals:
            refusals -= 1
            raise CommitRefusedError("rebalancing", group_id="live")
        commit(member, offsets, **options)

    monkeypatch.setattr(MemoryMember, "commit", rebalancing)
    with Worker(memory, commit_interval_s=1_000) as worker:
        worker.until_done(*places(range(5)))
    assert not refusals
    assert committed_places(memory) == set(places(range(5)))


def test_partitions_that_are_added_are_read_whole(world: World) -> None:
    """Whatever the starting offsets say of those that were there."""
    world.create("orders")
    world.write("orders", 0, 1, 2)
    with Worker(world, starting_offsets="latest") as worker:
        worker.until(lambda: committed_places(world) == set(places(range(2))))
        world.add_partitions("orders", 2)
        world.write("orders", 1, 1, 2, 3)
        world.write("orders", 0, 3)
        worker.until_done((0, 2), (1, 0), (1, 1), (1, 2))
    assert sorted(worker.begun) == [(0, 2), (1, 0), (1, 1), (1, 2)]


def test_the_starting_offset_is_committed_before_anything_is_done(world: World) -> None:
    """The next owner of a partition does not look for the latest offset of its own."""
    world.create("orders")
    world.write("orders", 0, 1, 2)
    with Worker(world, starting_offsets="latest") as worker:
        until_committed(worker, world, *places(range(2)))
    world.write("orders", 0, 3)
    with Worker(world, starting_offsets="latest") as worker:
        worker.until_done((0, 2))


def test_a_map_that_is_nearly_full_holds_new_records_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records below the highest done one still run, and with room again the others do; other partitions never stop."""
    monkeypatch.setattr(fitting, "FULL_SHARE", 0.003)
    monkeypatch.setattr(fitting, "ROOM_SHARE", 0.002)
    monkeypatch.setattr(sources, "_LOOK_EVERY_S", 0.0)
    world.create("orders", partitions=2)
    holds = {0, 2, 4, 6}
    # As bits, 40 of them take 12 bytes of metadata, the limit; one more takes 16.
    world.write("orders", 0, *range(41))
    with Worker(
        world,
        holds=lambda one: one.partition == 0 and one.offset in holds,
        processor={"ordering": "unordered"},
    ) as worker:
        until_committed(
            worker, world, *((0, offset) for offset in range(41) if offset not in holds)
        )
        # With this one processed, the size has been looked at.
        world.write("orders", 1, 1)
        worker.until_done((1, 0))
        world.write("orders", 0, *range(100))
        world.write("orders", 1, *range(5))
        worker.until_done(*((1, offset) for offset in range(6)))
        assert max(offset for number, offset in worker.begun if number == 0) == 40
        worker.release()
        worker.until_done(*places(range(141), range(6)))
        until_committed(worker, world, *places(range(141), range(6)))
    assert not twice(worker)


def test_a_map_that_does_not_fit_keeps_its_lowest_ranges(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The rest stays in memory, and the log says so once."""
    small = {"committed": EMPTY_SET, "limit_bytes": 12}
    monkeypatch.setattr(fitting.fitted_map, "__kwdefaults__", small)
    monkeypatch.setattr(fitting, "FULL_SHARE", 2.0)
    world.create("orders")
    world.write("orders", 0, *range(100))
    with Worker(
        world,
        holds=lambda one: one.offset % 20 == 0,
        processor={"ordering": "unordered"},
    ) as worker:
        worker.until(lambda: len(worker.done) == 95)
        worker.until(lambda: committed_places(world) == {(0, n) for n in range(1, 40) if n != 20})
        worker.release()
        until_committed(worker, world, *places(range(100)))
    assert not twice(worker)
    told = [one for one in caplog.records if "do not fit" in one.getMessage()]
    assert len(told) == 1


def test_metadata_that_is_no_map_ends_the_work_or_is_ignored(world: World) -> None:
    """By policy; ignored, it is replaced."""
    world.create("orders")
    world.write("orders", 0, *range(5))
    world.foreign_commit("live", "orders", {0: 2}, b"not a map")
    with pytest.raises(OffsetMapDecodeError, match="not a map"), Worker(world) as worker:
        worker.until(lambda: False)
    with Worker(world, on_invalid_metadata="ignore") as worker:
        until_committed(worker, world, *places(range(5)))
    assert sorted(worker.begun) == [(0, 2), (0, 3), (0, 4)]


def test_a_map_past_the_end_of_the_log_is_not_believed(world: World) -> None:
    """It is about another log."""
    world.create("orders")
    world.write("orders", 0, *range(5))
    metadata = encode_parallel_consumer_map(2, OffsetSet.of((4, 9)))
    world.foreign_commit("live", "orders", {0: 2}, metadata)
    with pytest.raises(OffsetMapDecodeError, match="the log ends at 5"), Worker(world) as worker:
        worker.until(lambda: False)


@pytest.mark.parametrize("produce", [None, "transactional"])
def test_a_topic_that_is_created_again_is_not_skipped(world: World, produce: str | None) -> None:
    """Its first records have offsets that the old one's had: the next member begins with them."""
    world.create("orders")
    world.write("orders", 0, *range(20))
    first = Worker(world, produce=produce)
    with suppress(TopicRecreatedError, UnknownTopicError), first:
        until_committed(first, world, *places(range(20)))
        world.delete("orders")
        world.create("orders")
        world.write("orders", 0, *range(30))
        first.until(lambda: False)
    assert isinstance(first.failure, TopicRecreatedError | UnknownTopicError)
    with Worker(world, produce=produce) as second:
        until_committed(second, world, *places(range(30)))
    assert sorted(second.begun) == places(range(30))


def test_a_group_of_windows_is_refused(world: World) -> None:
    """Its progress would be destroyed."""
    world.create("orders")
    world.write("orders", 0, *range(5))
    world.plan("a", 3, group_id="live", starting_offsets="earliest")
    world.commit("a", "live")
    with pytest.raises(WindowGroupError, match="windows"), Worker(world) as worker:
        worker.until(lambda: False)


def test_invalid_arguments_raise_before_anything_is_touched(world: World) -> None:
    """Each is named; a topic that does not exist is found at the start."""
    processor = Processor(world.settings)
    for options in (
        {"topics": ()},
        {"topics": "^orders("},
        {"exclude": 5},
        {"on_produced": print},
        {"produce": "idempotent", "on_produced": 5},
        {"produce": "idempotent", "commit": "transactional"},
        {"group_id": ""},
        {"starting_offsets": "somewhere"},
        {"starting_offsets": None},
        {"isolation": "none"},
        {"on_invalid_metadata": "ask"},
        {"commit_interval_s": -1},
        {"session_timeout_s": 0},
        {"group_protocol": "share"},
    ):
        given: dict[str, Any] = {"topics": "orders", "group_id": "g", **options}
        with pytest.raises(ConfigError):
            processor.subscribe(given.pop("topics"), lambda _: None, **given)
    with pytest.raises(UnknownTopicError):
        next(processor.subscribe(world.named("orders"), lambda _: None, group_id="g"))


@pytest.mark.slow
@pytest.mark.parametrize("protocol", list(GroupProtocol))
def test_both_protocols_share_the_partitions(bootstrap: str, protocol: GroupProtocol) -> None:
    """By members or by brokers: what moves is handed over done, and committed."""
    with BrokerWorld(bootstrap) as world:
        world.create("orders", partitions=4)
        for number in range(4):
            world.write("orders", number, *range(10))
        with Worker(world, group_protocol=protocol) as first:
            first.until_done(*places(*[range(10)] * 4))
            with Worker(world, group_protocol=protocol) as second:

                def both_work() -> bool:
                    for number in range(4):
                        world.write("orders", number, 1)
                    return bool(second.done)

                wait_until(both_work)
            ends = [
                max((o for p, o in [*first.begun, *second.begun] if p == n)) + 1 for n in range(4)
            ]
            everything = places(*map(range, ends))
            first.until(lambda: set(everything) <= {*first.done, *second.done})
        assert set(everything) <= committed_places(world)
    assert not twice(first, second)
