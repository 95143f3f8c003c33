"""Endless reads: the same tail over the model in memory and over a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError

from kafka_ordered_ops import (
    ClientSettings,
    ConfigError,
    KafkaOrderedOpsError,
    RecordsLostError,
    UnknownTopicError,
)
from kafka_ordered_ops.core.cluster.reading import Turn, position_in_log
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import INT64_MAX, Isolation, TopicPartition
from kafka_ordered_ops.kafka.ports import ReaderDoor, open_reader
from kafka_ordered_ops.kafka.read import quiet
from kafka_ordered_ops.kafka.read.explain import check_not_truncated
from kafka_ordered_ops.kafka.read.progress import JUMP_OFFSETS_MIN, Progress
from kafka_ordered_ops.kafka.read.reader import RangeReader
from kafka_ordered_ops.kafka.read.taking import WAIT_SLICE_S
from tests.support.both_worlds import world as world
from tests.support.memory_world import MemoryWorld
from tests.support.windows_support import TIMEOUT_S
from tests.support.worlds import World

COMMITTED, UNCOMMITTED = Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED


def from_(start: int) -> OffsetSet:
    """Everything from an offset on, without an end."""
    return OffsetSet.of((start, INT64_MAX))


class Tail:
    """An endless read, and what came of it so far."""

    def __init__(self, reader: ReaderDoor) -> None:
        self.reader = reader
        self.offsets: dict[TopicPartition, list[int]] = {}
        self.positions: dict[TopicPartition, int] = {}

    def turn(self) -> list[Turn]:
        """One turn, whose facts agree with each other."""
        turns = self.reader.turn()
        for tp, records, position in turns:
            if records is not None:
                assert records.schema == self.reader.schema
                assert set(records["partition"].to_pylist()) == {tp.partition}
                found = [one for one in records["offset"].to_pylist() if one is not None]
                assert found == sorted(set(found))
                assert found[-1] < position
                self.offsets.setdefault(tp, []).extend(found)
            assert self.positions.get(tp, 0) <= position
            self.positions[tp] = position
        return turns

    def until(self, holds: Callable[[], bool]) -> None:
        """Turn after turn, until something holds."""
        deadline = time.monotonic() + TIMEOUT_S
        while not holds():
            assert time.monotonic() < deadline, (self.offsets, self.positions)
            self.turn()

    def until_at(self, tp: TopicPartition, position: int) -> list[int]:
        """Until a partition's position is reached; its offsets so far."""
        self.until(lambda: self.positions.get(tp, 0) >= position)
        assert self.positions[tp] == position
        return self.offsets.get(tp, [])

    def until_error(self, kind: type[KafkaOrderedOpsError]) -> KafkaOrderedOpsError:
        """Until an error of this kind is raised."""
        with pytest.raises(kind) as caught:
            self.until(lambda: False)
        return caught.value


def tail(world: World, *partitions: TopicPartition, isolation: Isolation = COMMITTED) -> ReaderDoor:
    """A reader of partitions from their beginning, without an end."""
    wanted = {tp: from_(0) for tp in partitions}
    # Turns never stall.
    return open_reader(world.settings, "g", isolation, wanted, stall_timeout_s=0.01)


def test_a_tail_follows_a_growing_log(world: World) -> None:
    """Each record once and in order, whenever it was written; quiet turns between are no error."""
    world.create("orders", partitions=2)
    first, second = world.tp("orders", 0), world.tp("orders", 1)
    with tail(world, first, second) as reader:
        tail_ = Tail(reader)
        assert reader.turn() == []
        for count in (3, 5, 6):
            world.write("orders", 0, *range(count))
        assert tail_.until_at(first, 14) == list(range(14))
        while tail_.turn():
            pass  # Events that move nothing may follow.
        world.write("orders", 1, 1, 2)
        assert tail_.until_at(second, 2) == [0, 1]
        world.write("orders", 0, 1)
        assert tail_.until_at(first, 15) == list(range(15))
        assert reader.positions == {first: 15, second: 2}


def test_markers_and_aborted_records_move_the_position(world: World) -> None:
    """At the tail they are all that comes: the position passes them, without records."""
    world.create("orders")
    tp = world.tp("orders")
    with tail(world, tp) as reader:
        tail_ = Tail(reader)
        world.send("one", "orders", 0, 1, 2)
        world.end("one", "commit")
        assert tail_.until_at(tp, 3) == [0, 1]
        world.send("two", "orders", 0, 3, 4, 5)
        world.end("two", "abort")
        assert tail_.until_at(tp, 7) == [0, 1]
        world.write("orders", 0, 6)
        assert tail_.until_at(tp, 8) == [0, 1, 7]


def test_an_open_transaction_holds_the_position(world: World) -> None:
    """At the last stable offset, and not under read_uncommitted; its end frees what is behind it."""
    world.create("orders")
    tp = world.tp("orders")
    world.write("orders", 0, 1, 2)
    world.send("open", "orders", 0, 3)
    world.write("orders", 0, 4)
    with (
        tail(world, tp) as reader,
        tail(world, tp, isolation=UNCOMMITTED) as hasty,
    ):
        tail_, hasty_ = Tail(reader), Tail(hasty)
        assert hasty_.until_at(tp, 4) == [0, 1, 2, 3]
        assert tail_.until_at(tp, 2) == [0, 1]
        for _ in range(5):
            tail_.turn()
        assert tail_.positions[tp] == 2
        world.end("open", "commit")
        assert tail_.until_at(tp, 5) == [0, 1, 2, 3]


def test_holes_are_left_out_before_an_open_end(world: World) -> None:
    """Offsets that others have done are skipped; the last range has no end."""
    world.create("orders")
    tp = world.tp("orders")
    world.write("orders", 0, *range(8))
    wanted = {tp: OffsetSet.of((1, 3), (5, INT64_MAX))}
    with open_reader(world.settings, "g", COMMITTED, wanted) as reader:
        tail_ = Tail(reader)
        assert tail_.until_at(tp, 8) == [1, 2, 5, 6, 7]
        world.write("orders", 0, 1)
        assert tail_.until_at(tp, 9) == [1, 2, 5, 6, 7, 8]


def test_partitions_are_added_to_an_open_reader(world: World) -> None:
    """To one without partitions, and with topics that it did not know; each from its own start."""
    world.create("orders", partitions=2)
    world.create("payments")
    first, second, other = world.tp("orders", 0), world.tp("orders", 1), world.tp("payments")
    for tp in (first, second, other):
        world.write("orders" if tp != other else "payments", tp.partition, 1, 2, 3)
    with tail(world) as reader:
        tail_ = Tail(reader)
        assert reader.turn() == []
        reader.add(second, from_(1))
        assert tail_.until_at(second, 3) == [1, 2]
        reader.add(other, OffsetSet.of((0, 2)))
        reader.add(first, OffsetSet.of())
        assert tail_.until_at(other, 2) == [0, 1]
        with pytest.raises(ConfigError, match="stop it"):
            reader.add(second, from_(0))
        reader.add(other, from_(2))
        reader.add(first, from_(0))
        assert tail_.until_at(first, 3) == [0, 1, 2]
        assert tail_.until_at(other, 3) == [0, 1, 2]
        assert reader.positions == {first: 3, second: 3, other: 3}


def test_a_stopped_partition_is_read_again_from_a_new_start(world: World) -> None:
    """Nothing of the assignment before below the new start, and everything from there on, whatever was under way."""
    world.create("orders", partitions=2)
    tp, other = world.tp("orders", 0), world.tp("orders", 1)
    count = 3_000
    world.write_content("orders", 0, [(1, None, b"x" * 100, ())] * count)
    with open_reader(
        world.settings, "g", COMMITTED, {tp: from_(0), other: from_(0)}, batch_records=50
    ) as reader:
        for start in (0, 500, 20, 2_990, 7, 0, 1_500):
            reader.stop(tp)
            reader.stop(tp)
            reader.add(tp, from_(start))
            tail_ = Tail(reader)
            # Not to the end: records of this assignment are under way when it is stopped.
            tail_.until(lambda: len(tail_.offsets.get(tp, ())) >= 10)  # noqa: B023
            found = tail_.offsets[tp]
            assert found == list(range(start, start + len(found)))
            assert reader.positions[tp] == start + len(found)
        reader.stop(tp)
        for _ in range(3):
            assert [turn.tp for turn in reader.turn()] in ([], [other])
        # Read to the end, then again from below: the client's position was past it.
        for _ in range(3):
            reader.add(tp, from_(count - 40))
            assert Tail(reader).until_at(tp, count) == list(range(count - 40, count))
            reader.stop(tp)


def test_nothing_of_an_earlier_round_is_taken_for_a_later_assignment(world: World) -> None:
    """A partition stopped and added between two batches of one round: the rest of the round is not its."""
    world.create("orders", partitions=2)
    first, second = world.tp("orders", 0), world.tp("orders", 1)
    for partition in (0, 1):
        world.write("orders", partition, *range(50))
    both = OffsetSet.of((0, 50))
    found: dict[int, list[int]] = {0: [], 1: []}
    with open_reader(world.settings, "g", COMMITTED, {first: both, second: both}) as reader:
        batches = reader.batches()
        batch = next(batches)
        other = first if batch["partition"][0].as_py() == 1 else second
        reader.stop(other)
        reader.add(other, OffsetSet.of((10, 50)))
        for one in (batch, *batches):
            found[one["partition"][0].as_py() or 0] += map(int, one["offset"].to_numpy())
    assert found[1 - other.partition] == list(range(50))
    assert found[other.partition] == list(range(10, 50))


def test_a_deleted_topic_is_noticed_while_another_is_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client does not report it; after a stop the others are read on."""
    monkeypatch.setattr(quiet, "QUIET_S", 0.3)
    monkeypatch.setattr(quiet, "STILL_QUIET_S", 0.3)
    world.create("orders")
    world.create("payments")
    kept, gone = world.tp("orders"), world.tp("payments")
    world.write("payments", 0, 1)
    with tail(world, kept, gone) as reader:
        tail_ = Tail(reader)
        assert tail_.until_at(gone, 1) == [0]
        world.delete("payments")
        written = 0

        def read_on() -> bool:
            nonlocal written
            world.write("orders", 0, 1)
            written += 1
            return False

        with pytest.raises(UnknownTopicError, match="payments"):
            tail_.until(read_on)
        reader.stop(gone)
        assert tail_.until_at(kept, written) == list(range(written))


def test_a_log_start_past_the_position_is_a_loss(world: World) -> None:
    """With the ranges; not the offsets that are still to be written. All partitions are told, one after another."""
    world.create("orders", partitions=3)
    partitions = [world.tp("orders", number) for number in range(3)]
    for number in range(3):
        world.write("orders", number, *range(10))
    for number in (0, 1):
        world.delete_before("orders", number, 4 + number)
    with tail(world, *partitions) as reader:
        tail_ = Tail(reader)
        told: dict[str, object] = {}
        for _ in range(2):
            error = tail_.until_error(RecordsLostError)
            assert isinstance(error, RecordsLostError)
            [[name, [[start, end]]]] = error.lost.items()
            told[name] = (start, end)
            [tp] = [one for one in partitions if str(one) == name]
            # Raised again for as long as the partition is read: it is never quiet.
            assert tail_.until_error(RecordsLostError).facts == error.facts
            reader.stop(tp)
            reader.add(tp, from_(end))
        assert told == {str(partitions[0]): (0, 4), str(partitions[1]): (0, 5)}
        for number, start in ((0, 4), (1, 5), (2, 0)):
            assert tail_.until_at(partitions[number], 10) == list(range(start, 10))


def test_retention_behind_the_position_loses_nothing(world: World) -> None:
    """A log start that moves while a tail reads on is none of its business."""
    world.create("orders")
    tp = world.tp("orders")
    world.write("orders", 0, *range(10))
    with tail(world, tp) as reader:
        tail_ = Tail(reader)
        assert tail_.until_at(tp, 10) == list(range(10))
        world.delete_before("orders", 0, 10)
        world.write("orders", 0, 1)
        assert tail_.until_at(tp, 11) == list(range(11))


def test_a_start_beyond_the_log_is_a_truncated_log(world: World) -> None:
    """An open end may be far beyond the log's, a start may not; exactly at the end it waits."""
    world.create("orders")
    tp = world.tp("orders")
    world.write("orders", 0, *range(5))
    with tail(world) as reader:
        tail_ = Tail(reader)
        reader.add(tp, from_(9))
        error = tail_.until_error(RecordsLostError)
        assert "truncated" in str(error)
        assert error.facts == {"lost": {str(tp): [(5, 9)]}}
        reader.stop(tp)
        reader.add(tp, from_(5))
        assert reader.turn() == []
        world.write("orders", 0, 1)
        assert tail_.until_at(tp, 6) == [5]


def test_a_large_hole_before_the_open_end_is_jumped(world: World) -> None:
    """Nothing in it is returned, and everything behind it is."""
    world.create("orders")
    tp = world.tp("orders")
    count = JUMP_OFFSETS_MIN + 200
    world.write_content("orders", 0, [(1, None, b"", ())] * count)
    wanted = {tp: OffsetSet.of((0, 100), (count - 50, INT64_MAX))}
    with open_reader(world.settings, "g", COMMITTED, wanted) as reader:
        expected = [*range(100), *range(count - 50, count)]
        assert Tail(reader).until_at(tp, count) == expected


def test_a_turn_ends_soon_without_records(world: World) -> None:
    """With partitions where nothing comes, and without any; outside its block there is none."""
    world.create("orders")
    tp = world.tp("orders")
    with tail(world, tp) as reader:
        reader.turn()
        for stopped in (False, True):
            if stopped:
                reader.stop(tp)
            began = time.monotonic()
            for _ in range(10):
                assert reader.turn() == []
            assert time.monotonic() - began < 10 * (WAIT_SLICE_S + 0.4)
    with pytest.raises(AssertionError, match="block"):
        reader.turn()
    with pytest.raises(AssertionError, match="block"):
        reader.add(tp, from_(0))


def test_a_cluster_that_is_away_makes_no_turn_fail_or_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows whether it comes back; the question about topics is bounded as well."""
    monkeypatch.setattr(quiet, "QUIET_S", 0.1)
    monkeypatch.setattr(quiet, "LOOK_TIMEOUT_S", 0.3)
    settings = ClientSettings.of("127.0.0.1:1")
    wanted = {TopicPartition("t", 0): from_(0)}
    with RangeReader(settings, "g", COMMITTED, wanted, stall_timeout_s=0.01) as reader:
        began = time.monotonic()
        for _ in range(10):
            assert reader.turn() == []
        assert time.monotonic() - began < 10


def test_an_unreachable_model_makes_no_turn_fail() -> None:
    """As with brokers, the tail goes on where it was."""
    world = MemoryWorld()
    with world:
        world.create("orders")
        world.write("orders", 0, 1)
        tp = world.tp("orders")
        with tail(world, tp) as reader:
            with world.kafka.unreachable():
                assert reader.turn() == []
            assert Tail(reader).until_at(tp, 1) == [0]


def test_a_topic_that_never_was_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quiet reader asks the cluster whether its topics exist, those added later as well."""
    monkeypatch.setattr(quiet, "QUIET_S", 0.3)
    with tail(world) as reader:
        reader.add(world.tp("nothing"), from_(0))
        assert "nothing" in str(Tail(reader).until_error(UnknownTopicError))


# --- decisions, without a cluster ---------------------------------------------------------------------

TP = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("wanted", "position", "log", "goes_on_at"),
    [
        ([(0, 10), (50, INT64_MAX)], 10, (40, 90), 50),
        ([(5, INT64_MAX)], 5, (0, 5), 5),
        ([(5, INT64_MAX)], 7, (0, 9), 7),
        ([(0, 10), (50, 60)], 10, (50, 60), 50),
    ],
)
def test_reading_goes_on_behind_a_gap_where_nothing_was_wanted(
    wanted: list[tuple[int, int]], position: int, log: tuple[int, int], goes_on_at: int
) -> None:
    """The log may begin anywhere up to the next wanted offset, and an open end may be past the log's."""
    found = position_in_log(TP, OffsetSet.of(*wanted), position, log_start=log[0], log_end=log[1])
    assert found == goes_on_at


@pytest.mark.parametrize(
    ("wanted", "position", "log", "lost"),
    [
        ([(0, 10), (50, INT64_MAX)], 3, (60, 90), [(3, 10), (50, 60)]),
        ([(5, INT64_MAX)], 8, (0, 6), [(6, 8)]),
        ([(5, INT64_MAX)], 5, (20, 20), [(5, 20)]),
        ([(0, 30)], 3, (5, 20), [(3, 5), (20, 30)]),
    ],
)
def test_wanted_offsets_outside_of_the_log_are_lost(
    wanted: list[tuple[int, int]],
    position: int,
    log: tuple[int, int],
    lost: list[tuple[int, int]],
) -> None:
    """Below the log start; beyond its end for a bounded read; and up to the position of a tail past its end."""
    with pytest.raises(RecordsLostError) as caught:
        position_in_log(TP, OffsetSet.of(*wanted), position, log_start=log[0], log_end=log[1])
    assert caught.value.lost == {str(TP): lost}


def test_a_log_that_was_cut_and_has_grown_again_is_told_by_the_client_alone() -> None:
    """Only an open read makes it an error: a window compares the log with its plan."""
    truncated = KafkaError(
        KafkaError._AUTO_OFFSET_RESET,
        "Partition log truncation detected at offset 9: Local: Partition log truncation detected",
    )
    other = KafkaError(KafkaError._AUTO_OFFSET_RESET, "fetch failed: Broker: Offset out of range")
    endless = Progress(TP, from_(3), has_own_position=True)
    bounded = Progress(TP, OffsetSet.of((3, 9)), has_own_position=True)
    check_not_truncated(endless, other)
    check_not_truncated(bounded, truncated)
    with pytest.raises(RecordsLostError, match=r"t\[0\]: the log was truncated below offset 3"):
        check_not_truncated(endless, truncated)
