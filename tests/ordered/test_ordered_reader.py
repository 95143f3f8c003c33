"""Bounded ordered reads: the same logs in the model in memory and on a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kafka_ordered_ops import (
    AtTime,
    Earliest,
    HeldLimitError,
    Latest,
    OrderedReader,
    Policy,
    ReadLimits,
    RecordsLostError,
    Relative,
    TopicRecreatedError,
    UnknownTopicError,
    WindowCoveredError,
)
from kafka_ordered_ops.core.types import OnCovered
from kafka_ordered_ops.ordered.engine import RELEASE_RECORDS
from kafka_ordered_ops.output.writing.window_batches import read_batches
from tests.support.broker_world import BrokerWorld
from tests.support.memory_world import MemoryWorld
from tests.support.ordered_support import Clock, Row, all_rows, keyed, ms_rows, opened_at, rows
from tests.support.windows_support import BASE_MS, at
from tests.support.worlds import World


def read(
    world: World, *topics: str, clock: Callable[[], float] = time.time, **options: Any
) -> list[Row]:
    """All records of a bounded read."""
    names = [name if name.startswith("^") else world.named(name) for name in topics]
    with opened_at(clock, world.settings, names, **options) as reader:
        found = all_rows(reader)
        assert reader.is_done
        assert reader.is_live
        assert set(reader.state().column("lag").to_pylist()) <= {0}
    return found


def fill(world: World, topic: str, partitions: int, records: int, seed: int) -> list[list[Row]]:
    """A topic of random timestamps; its records, by partition, of which the last one is empty."""
    random = np.random.default_rng(seed)
    world.create(topic, partitions=partitions)
    logs: list[list[Row]] = []
    for number in range(partitions - 1):
        # Few seconds, so that many are equal; milliseconds would hardly ever be.
        seconds = random.integers(0, 12, records).tolist()
        world.write_content(topic, number, [(second, b"k", b"v", ()) for second in seconds])
        logs.append(rows(world.tp(topic, number), *seconds))
    return [*logs, []]


def test_everything_up_to_the_ends_in_total_order(world: World) -> None:
    """Whatever the timestamps, over topics and partitions, of which some are empty."""
    logs = fill(world, "orders", 4, 60, seed=1) + fill(world, "payments", 2, 90, seed=2)
    found = read(world, "orders", "payments")
    assert found == sorted(row for log in logs for row in log)


def test_the_order_of_partitions_keeps_each_one_s_own(world: World) -> None:
    """Each record counts with the greatest timestamp of its partition so far."""
    logs = fill(world, "orders", 4, 60, seed=3)
    by_key = sorted((key, *row[1:], row) for log in logs for key, row in keyed(log))
    assert read(world, "orders", order="partition") == [one[-1] for one in by_key]


def test_each_topic_starts_at_its_own_place(world: World) -> None:
    """By name or pattern, as text, time or bound; those that are not named start at the earliest record."""
    logs = {}
    for topic in ("earliest", "latest", "time", "span", "offset", "else"):
        world.create(topic, partitions=2)
        for number in (0, 1):
            world.write(topic, number, *range(number, 8))
            logs[topic, number] = rows(world.tp(topic, number), *range(number, 8))
    starts: dict[str, Any] = {
        world.named("earliest"): "earliest",
        world.named("latest"): Latest(),
        world.named("time"): at(4),
        world.named("span"): "-PT3S",
        f"^off.*-{world.named('')[1:]}": "offset:3",
    }
    found = read(
        world,
        "earliest",
        "latest",
        "time",
        "span",
        "else",
        f"^off.*-{world.named('')[1:]}",
        starting_offsets=starts,
        clock=Clock(8),
    )
    wanted = [
        *logs["earliest", 0],
        *logs["earliest", 1],
        *logs["else", 0],
        *logs["else", 1],
        *logs["time", 0][4:],
        *logs["time", 1][3:],
        *logs["span", 0][5:],
        *logs["span", 1][4:],
        *logs["offset", 0][3:],
        *logs["offset", 1][3:],
    ]
    assert found == sorted(wanted)


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("earliest", 0),
        ("latest", 3),
        (AtTime(-5), 0),
        (Relative(10**14), 0),
        (at(10**9), 3),
        ("offset:2", 2),
        ("offset:99", 3),
    ],
)
def test_starts_outside_of_the_log(world: World, start: Any, first: int) -> None:
    """Before its first record is at that one, behind its last one is at its end."""
    world.create("orders")
    world.write("orders", 0, 1, 2, 3)
    found = read(world, "orders", starting_offsets=start)
    assert found == rows(world.tp("orders"), 1, 2, 3)[first:]


def test_transactions_at_the_tail(world: World) -> None:
    """Aborted records and markers are not seen, and the read ends behind them."""
    world.create("orders", partitions=2)
    world.send("one", "orders", 0, 1, 3)
    world.end("one", "commit")
    world.write("orders", 1, 2)
    world.send("two", "orders", 0, 4, 5)
    world.send("two", "orders", 1, 6)
    world.end("two", "abort")
    first, second = world.tp("orders", 0), world.tp("orders", 1)
    visible = [*rows(first, 1), *rows(second, 2), *rows(first, 3, at=1)]
    assert read(world, "orders") == visible
    aborted = [*rows(first, 4, 5, at=3), *rows(second, 6, at=1)]
    assert read(world, "orders", isolation="read_uncommitted") == visible + aborted


def test_an_open_transaction_ends_the_read(world: World) -> None:
    """At the last stable offset: what was written behind it is not read; under read_uncommitted all of it is."""
    world.create("orders", partitions=2)
    first, second = world.tp("orders", 0), world.tp("orders", 1)
    world.write("orders", 0, 1)
    world.send("open", "orders", 0, 2)
    world.write("orders", 0, 3)
    world.write("orders", 1, 2)
    assert read(world, "orders") == [*rows(first, 1), *rows(second, 2)]
    everything = [*rows(first, 1, 2), *rows(second, 2), *rows(first, 3, at=2)]
    assert read(world, "orders", isolation="read_uncommitted") == everything


def test_records_written_while_it_reads_are_not_read(world: World) -> None:
    """The ends are those of the start."""
    world.create("orders")
    world.write("orders", 0, 3, 1)
    with OrderedReader(world.settings, world.named("orders")) as reader:
        world.write("orders", 0, 2)
        assert all_rows(reader) == rows(world.tp("orders"), 3, 1)[::-1]


def test_offsets_that_compaction_has_taken(memory: MemoryWorld) -> None:
    """Holes in the middle and at the end of a log are passed."""
    memory.create("orders", cleanup_policy="compact")
    memory.write_content(
        "orders", 0, [(second, b"k", b"v", ()) for second in (5, 1)] + [(3, b"other", b"v", ())]
    )
    memory.compact("orders", {0})
    tp = memory.tp("orders")
    assert read(memory, "orders") == [*rows(tp, 1, at=1), *rows(tp, 3, at=2)]


def test_odd_timestamps(world: World) -> None:
    """Records without one, the first and the last of all times: in order like others, and none of them late."""
    world.create("orders", partitions=2, message_timestamp_after_max_ms=str(2**63 - 1))
    times = [[-1, 2**62, 0], [5, -1]]
    for number, some in enumerate(times):
        world.write_at_ms("orders", number, some)
    logs = [
        ms_rows(world.tp("orders", number), [one - BASE_MS for one in some])
        for number, some in enumerate(times)
    ]
    assert read(world, "orders") == sorted(row for log in logs for row in log)


def test_a_read_that_stalls_says_so(memory: MemoryWorld) -> None:
    """A cluster that is away in the middle: named, in time, and not taken for the end afterwards."""
    memory.create("orders")
    memory.write("orders", 0, 1, 2)
    with OrderedReader(
        memory.settings, memory.named("orders"), limits=ReadLimits(stall_timeout_s=0.3)
    ) as reader:
        began = time.monotonic()
        with memory.kafka.unreachable(), pytest.raises(Exception, match=r"unreachable|position"):
            list(reader)
        assert time.monotonic() - began < 3
        assert not reader.is_done


def test_records_that_retention_takes_meanwhile(memory: MemoryWorld) -> None:
    """Are a loss, which is named, and never an end."""
    world = memory
    world.create("orders")
    world.write("orders", 0, *range(6))
    with OrderedReader(
        world.settings, world.named("orders"), limits=ReadLimits(stall_timeout_s=2)
    ) as reader:
        world.delete_before("orders", 0, 4)
        with pytest.raises(RecordsLostError) as caught:
            list(reader)
        assert caught.value.lost == {str(world.tp("orders")): [(0, 4)]}
        assert not reader.is_done


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True])
def test_a_topic_that_is_deleted_meanwhile(memory: MemoryWorld, again: bool) -> None:
    """Named; also if there is another one of its name now."""
    memory.create("orders")
    memory.write("orders", 0, *range(RELEASE_RECORDS + 5_000))
    with OrderedReader(memory.settings, memory.named("orders")) as reader:
        assert reader.poll(0) is None
        memory.delete("orders")
        if again:
            memory.create("orders")
        with pytest.raises(TopicRecreatedError if again else UnknownTopicError, match="orders"):
            list(reader)


@pytest.mark.slow
def test_a_slow_consumer_is_no_stall(memory: MemoryWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only reading counts: a quiet turn after a long pause, as by a connection that was dropped meanwhile, is none."""
    memory.create("orders")
    memory.write("orders", 0, *range(RELEASE_RECORDS + 5_000))
    with OrderedReader(
        memory.settings,
        memory.named("orders"),
        order="partition",
        limits=ReadLimits(stall_timeout_s=0.2),
    ) as reader:
        found = [next(iter(reader))]
        time.sleep(0.5)
        with monkeypatch.context() as quiet:
            quiet.setattr(reader._engine._reader, "turn", list)
            while (batch := reader.poll(0)) is not None:
                found.append(batch)
        assert len(all_rows([*found, *reader])) == RELEASE_RECORDS + 5_000


def test_out_of_order_records_within_the_bound(world: World) -> None:
    """With a bound records are released before the end, and none is late within it."""
    world.create("orders", partitions=2)
    world.write("orders", 0, 0, 2, 1, 3, 5, 4)
    world.write("orders", 1, 1, 0, 3, 2)
    both = [
        *rows(world.tp("orders", 0), 0, 2, 1, 3, 5, 4),
        *rows(world.tp("orders", 1), 1, 0, 3, 2),
    ]
    for bound in ("PT1S", timedelta(seconds=1)):
        assert read(world, "orders", max_out_of_orderness=bound) == sorted(both)


@pytest.mark.parametrize("tiny", [{"held_records_max": 7}, {"held_bytes_max": 3_000}])
def test_what_memory_may_not_hold_waits_on_disk(
    world: World, tiny: dict[str, Any], tmp_path: Any
) -> None:
    """The result is the same, and nothing is left behind."""
    logs = fill(world, "orders", 3, 5_000, seed=4)
    found = read(world, "orders", temporary_folder=tmp_path / "made", **tiny)
    assert found == sorted(row for log in logs for row in log)
    assert list((tmp_path / "made").iterdir()) == []


def test_without_a_disk_the_error_names_the_partition(world: World) -> None:
    """And what to change."""
    fill(world, "orders", 3, 5_000, seed=5)
    with (
        OrderedReader(
            world.settings,
            world.named("orders"),
            limits=ReadLimits(held_records_max=50, spilled_bytes_max=0),
        ) as reader,
        pytest.raises(HeldLimitError, match=r"orders-.*\[\d\] holds them back") as caught,
    ):
        list(reader)
    assert "orders" in caught.value.facts["partition"]
    assert caught.value.facts["records"] > 50


# --- plans --------------------------------------------------------------------------------------------


def of_plan(world: World, plan: Any, **options: Any) -> pa.Table:
    """All of a plan."""
    with OrderedReader.of_plan(plan, world.settings, **options) as reader:
        return pa.Table.from_batches(reader, reader.schema)


def test_a_plan_s_records_exactly(world: World) -> None:
    """Those of a window that has late records and holes, as `to_arrow` returns them."""
    world.create("orders", partitions=3)
    world.write("orders", 0, 1, 12, 3, 25)
    world.write("orders", 1, 2, 2, 30, 4)
    world.run("w1", 10.0, starting_offsets=Earliest())
    world.write("orders", 0, 5, 15, 13)
    world.write("orders", 1, 14, 7)
    plan = world.plan("w2", 20.0)
    assert plan is not None
    found = of_plan(world, plan)
    window = read_batches(plan, world.settings, folder=str, ordered=True)
    assert found.equals(pa.Table.from_batches(window, found.schema))
    assert set(found.column("late").to_pylist()) == {True, False}
    world.commit("w2")
    again = of_plan(world, plan)
    assert again.equals(found)


def test_an_empty_plan_has_no_records(world: World) -> None:
    """And ends at once."""
    world.create("orders")
    world.write("orders", 0, 50)
    plan = world.plan("w", 10.0, starting_offsets=Earliest())
    assert plan is not None
    assert of_plan(world, plan).num_rows == 0


def test_a_covered_plan(world: World) -> None:
    """Is refused, as `to_batches` does: what is empty here was delivered by another window."""
    world.create("orders")
    world.write("orders", 0, 5, 50)
    world.run("w1", 20.0, starting_offsets=Earliest())
    plan = world.plan("w2", 10.0, policy=Policy(on_covered=OnCovered.SKIP))
    assert plan is not None
    with pytest.raises(WindowCoveredError, match="w2"):
        of_plan(world, plan)


def test_a_plan_whose_records_are_lost(broker: BrokerWorld) -> None:
    """Is no shorter plan."""
    broker.create("orders")
    broker.write("orders", 0, *range(6))
    plan = broker.plan("w", 10.0, starting_offsets=Earliest())
    assert plan is not None
    broker.delete_before("orders", 0, 3)
    with pytest.raises(RecordsLostError):
        of_plan(broker, plan)
