"""Pause, resume and seek, and positions that are outside of their logs."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kafka_ordered_ops import ClosedError, ConfigError, OrderedReader, ReadLimits, RecordsLostError
from kafka_ordered_ops.core.types import TopicPartition
from tests.support.broker_world import BrokerWorld
from tests.support.ordered_support import NEVER, Row, Tail, all_rows, rows
from tests.support.windows_support import at
from tests.support.worlds import World


def pair(world: World) -> tuple[TopicPartition, TopicPartition]:
    """The two partitions of a topic."""
    world.create("orders", partitions=2)
    return world.tp("orders", 0), world.tp("orders", 1)


# --- pause ------------------------------------------------------------------------------------------


def test_a_paused_partition_holds_the_exact_order(world: World) -> None:
    """No record passes its place; after it resumes, the order is that of an undisturbed read."""
    first, second = pair(world)
    with Tail(world, "orders", grace=NEVER, max_out_of_orderness="PT0S") as tail:
        world.write("orders", 0, 1, 4)
        world.write("orders", 1, 2, 6)
        tail.until_rows(*rows(first, 1), *rows(second, 2), *rows(first, 4, at=1))
        tail.reader.pause((first.topic, 0))
        assert tail.reader.paused == {first}
        world.write("orders", 0, 5, 9)
        world.write("orders", 1, 7, 8)
        tail.until_at(second, 4)
        for _ in range(5):
            assert tail.poll() is None
        assert tail.state(first)["paused"]
        assert tail.state(first)["held"] == 0
        tail.reader.resume(first)
        tail.until(lambda: len(tail.rows) == 7)
        assert [row.time for row in tail.rows[3:]] == [5_000, 6_000, 7_000, 8_000]
        assert tail.late == []
        assert tail.reader.paused == frozenset()


def test_a_partition_that_steps_out_is_late_when_it_resumes(world: World) -> None:
    """The others go on without it, and its records follow as late ones."""
    first, second = pair(world)
    with Tail(world, "orders", grace=NEVER) as tail:
        world.write("orders", 0, 1, 3)
        world.write("orders", 1, 2)
        tail.until_rows(*rows(first, 1), *rows(second, 2))
        # The record of 3 s is held: it waits for the second partition.
        tail.until(lambda: tail.state(first)["held"] == 1)
        tail.reader.pause(first, hold=False)
        world.write("orders", 1, 7, 8)
        tail.until(lambda: len(tail.rows) == 4)
        assert tail.rows[2:] == rows(second, 7, 8, at=1)
        tail.reader.resume(first)
        tail.until(lambda: len(tail.rows) == 5)
        assert tail.late == rows(first, 3, at=1)


def test_a_pause_takes_out_of_order_records_back(world: World) -> None:
    """Records that were returned are not read again, although held ones before them are."""
    first, _ = pair(world)
    options: dict[str, Any] = {"grace": NEVER, "max_out_of_orderness": "PT5S"}
    with Tail(world, "orders", **options) as tail:
        world.write("orders", 0, 9, 5, 1, 2, 10)
        world.write("orders", 1, 8)
        tail.until(lambda: len(tail.rows) == 2)
        tail.reader.pause(first)
        assert tail.state(first)["position"] == 0
        tail.reader.resume(first)
        world.write("orders", 0, 20)
        world.write("orders", 1, 21)
        tail.until(lambda: len(tail.rows) >= 6)
        assert [row.time for row in tail.rows] == [1_000, 2_000, 5_000, 8_000, 9_000, 10_000]
        assert tail.late == []


@pytest.mark.slow
def test_what_waits_for_a_paused_partition_is_bounded(world: World) -> None:
    """Reading stops when memory is full, and the disk is not used."""
    first, second = pair(world)
    options: dict[str, Any] = {"held_records_max": 1_000, "grace": NEVER}
    with Tail(world, "orders", **options) as tail:
        world.write("orders", 0, 1)
        world.write("orders", 1, 1)
        tail.until(lambda: len(tail.rows) >= 1)
        tail.reader.pause(first)
        world.write("orders", 1, *(2 + n / 1_000 for n in range(6_000)))
        tail.until(lambda: tail.state(second)["held"] > 1_000)
        for _ in range(5):
            tail.poll()
        assert tail.state(second)["held"] < 5_000
        assert tail.reader._engine._release.held.nbytes_on_disk == 0
        tail.reader.resume(first)
        world.write("orders", 0, 100)
        tail.until(lambda: len(tail.rows) == 6_002)
        assert tail.late == []


def test_a_pause_in_a_read_up_to_the_end(world: World, tmp_path: Any) -> None:
    """The end waits for the partition, also when its records were on disk and partly returned."""
    first, second = pair(world)
    world.write("orders", 0, *range(0, 4_000, 2))
    world.write("orders", 1, *range(1, 4_001, 2))
    limits = ReadLimits(held_records_max=500, temporary_folder=tmp_path)
    with OrderedReader(
        world.settings, world.named("orders"), limits=limits, batch_size=100
    ) as reader:
        found: list[Row] = []
        while len(found) < 1_000:
            if (batch := reader.poll(1)) is not None:
                found += all_rows([batch])
        reader.pause(first)
        for _ in range(3):
            more = reader.poll(0.2)
            assert more is None or more.num_rows < 2
            found += all_rows([] if more is None else [more])
        reader.resume(first)
        found += all_rows(reader)
        assert reader.is_done
    assert [row.time for row in found] == [1_000 * n for n in range(4_000)]
    assert second.partition == 1


def test_only_partitions_that_are_read_are_paused(world: World) -> None:
    """Others are named, and so is a call outside of the block."""
    first, _ = pair(world)
    reader = OrderedReader(world.settings, world.named("orders"), follow=True)
    with pytest.raises(ClosedError, match="block"):
        reader.pause(first)
    with reader:
        for wrong, named in (
            (lambda: reader.pause((first.topic, 7)), r"\[7\]"),
            (lambda: reader.pause("orders"), "pause has 'orders'"),  # type: ignore[arg-type]
            (lambda: reader.pause(), "no partition"),
            (lambda: reader.pause(first, hold=1), "hold"),  # type: ignore[arg-type]
            (lambda: reader.resume((first.topic, -1)), "partition"),
            (lambda: reader.seek(first.topic, 9, 0), r"\[9\]"),
            (lambda: reader.seek(first.topic, 0, "soon"), "soon"),
            (lambda: reader.seek(first.topic, 0, -1), "offset"),
            (lambda: reader.seek(first.topic, 0, "committed"), "committed"),
        ):
            with pytest.raises(ConfigError, match=named):
                wrong()
        assert reader.paused == frozenset()


# --- seek -------------------------------------------------------------------------------------------


def test_a_seek_begins_the_order_anew(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Earlier records are returned again, in order and not as late ones; held ones go."""
    first, second = pair(world)
    with Tail(world, "orders", grace=NEVER) as tail:
        world.write("orders", 0, 1, 3, 5, 9)
        world.write("orders", 1, 2, 6)
        tail.until(lambda: len(tail.rows) == 5)
        assert tail.state(first)["held"] == 1
        with caplog.at_level(logging.WARNING):
            assert tail.reader.seek(first.topic, 0, 1) == 1
            assert tail.state(first)["held"] == 0
            assert tail.state(first)["start"] == 1
            tail.rows.clear()
            tail.until(lambda: len(tail.rows) >= 2)
        assert tail.rows == rows(first, 3, 5, at=1)
        assert tail.late == []
        assert tail.reader.restarts == 1
        assert "order of the records restarts" in caplog.text
        world.write("orders", 1, 10)
        tail.until(lambda: len(tail.rows) >= 3)
        assert tail.rows[2:] == rows(first, 9, at=3)
        assert second.partition == 1


def test_a_seek_to_a_time_and_all_partitions(world: World) -> None:
    """Also after the end: what is read again ends there again."""
    first, second = pair(world)
    world.write("orders", 0, 1, 3, 5)
    world.write("orders", 1, 2, 4, 6)
    with OrderedReader(world.settings, world.named("orders")) as reader:
        assert len(all_rows(reader)) == 6
        assert reader.seek_all(at(4)) == {first: 2, second: 1}
        again = all_rows(reader)
        assert [row.time for row in again] == [4_000, 5_000, 6_000]
        assert reader.seek_all("latest") == {first: 3, second: 3}
        assert all_rows(reader) == []
        assert reader.seek(second.topic, 1, "earliest") == 0
        assert all_rows(reader) == rows(second, 2, 4, 6)


def test_a_seek_in_a_group_is_committed(world: World) -> None:
    """The next member goes on there; a partition of another member is refused."""
    world.create("orders")
    tp = world.tp("orders")
    world.write("orders", 0, 1, 2, 3)
    options: dict[str, Any] = {"group_id": "live", "grace": NEVER, "commit_interval_s": 0.01}
    with Tail(world, "orders", **options) as tail:
        with pytest.raises(ConfigError, match="on_assigned"):
            tail.reader.seek(tp.topic, 0, 1)
        tail.until(lambda: len(tail.rows) == 3)
        tail.reader.seek(tp.topic, 0, 1)
        tail.until(lambda: len(tail.rows) == 5)
        tail.reader.seek(tp.topic, 0, 2)
        tail.reader.commit()
        assert tail.state(tp)["committed"] == 2
    committed = world.committed("orders", group_id="live")[str(tp)]
    assert committed is not None
    assert committed[0] == 2


# --- out of range ---------------------------------------------------------------------------------------


def test_each_partition_has_its_own_start(world: World) -> None:
    """By offset or by bound; the others as their topic says."""
    first, second = pair(world)
    world.create("rates")
    world.write("rates", 0, 1)
    for number in (0, 1):
        world.write("orders", number, 1, 2, 3)
    with OrderedReader(
        world.settings,
        [world.named("orders"), world.named("rates")],
        starting_offsets={(first.topic, 0): 2, (second.topic, 1): at(2), first.topic: "latest"},
    ) as reader:
        assert sorted(all_rows(reader)) == sorted(
            [*rows(first, 3, at=2), *rows(second, 2, 3, at=1), *rows(world.tp("rates"), 1)]
        )
    mistakes: list[tuple[Any, str]] = [
        ({(first.topic, 9): 0}, r"\[9\]"),
        ({("other", 0): 0}, r"other\[0\]"),
        ({(first.topic, 0): None}, "starting_offsets"),
    ]
    for wrong, named in mistakes:
        with (
            pytest.raises(ConfigError, match=named),
            OrderedReader(world.settings, world.named("orders"), starting_offsets=wrong),
        ):
            pass


@pytest.mark.parametrize(
    ("policy", "below", "above"),
    [("warn", 2, 5), ("earliest", 2, 2), ("latest", 5, 5)],
)
def test_a_start_out_of_range(
    world: World, policy: str, below: int, above: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Reading goes on where the policy says, and a line says so; by default it is an error."""
    world.create("orders")
    tp = world.tp("orders")
    world.write("orders", 0, *range(5))
    world.delete_before("orders", 0, 2)
    for offset, start in ((0, below), (50, above)):
        starts = {(tp.topic, 0): offset}
        with (
            pytest.raises(RecordsLostError, match="on_data_loss"),
            OrderedReader(world.settings, tp.topic, starting_offsets=starts),
        ):
            pass
        caplog.clear()
        with OrderedReader(
            world.settings, tp.topic, starting_offsets=starts, on_data_loss=policy
        ) as reader:
            assert [row.offset for row in all_rows(reader)] == [*range(start, 5)]
            assert reader.state()["start"].to_pylist() == [start]
        assert f"continues at offset {start}" in caplog.text


@pytest.mark.parametrize(("policy", "start"), [("warn", 6), ("earliest", 6), ("latest", 10)])
def test_records_that_are_lost_while_reading(
    broker: BrokerWorld, policy: str, start: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A paused partition whose next records are removed goes on where the policy says."""
    broker.create("orders")
    tp = broker.tp("orders")
    broker.write("orders", 0, *range(3))
    with Tail(broker, "orders", on_data_loss=policy) as tail:
        tail.until_rows(*rows(tp, *range(3)))
        tail.reader.pause(tp)
        broker.write("orders", 0, *range(3, 10))
        broker.delete_before("orders", 0, 6)
        tail.reader.resume(tp)
        tail.until_at(tp, 10)
        broker.write("orders", 0, 20)
        tail.until(lambda: tail.rows[-1].time == 20_000)
        assert [row.offset for row in tail.rows] == [0, 1, 2, *range(start, 11)]
        assert f"continues at offset {start}" in caplog.text


# --- what is known ----------------------------------------------------------------------------------------


def test_the_state_has_the_lag_in_time(world: World) -> None:
    """From the greatest timestamp to now; nothing at the end, or before the first record."""
    first, second = pair(world)
    with Tail(world, "orders", grace=NEVER, now=10.0) as tail:
        world.write("orders", 0, 4)
        tail.until_at(first, 1)
        assert tail.state(first)["time_lag"].total_seconds() == 0
        tail.reader.pause(first)
        world.write("orders", 0, 5)
        tail.until(lambda: tail.state(first)["lag"] >= 1)
        assert tail.state(second)["time_lag"].total_seconds() == 0
        assert tail.state(first)["committed"] is None
