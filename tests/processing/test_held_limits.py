"""How much is held: read, and not done."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kafka_ordered_ops import ConfigError, Window, WindowPlan
from kafka_ordered_ops.processing import Processor, Record
from tests.support.processing_groups import wait_until
from tests.support.windows_support import at
from tests.support.worlds import World

RECORDS = 300
VALUE = b"v" * 1_000


@pytest.fixture
def plan(world: World) -> WindowPlan:
    """A plan of one partition, with ten keys."""
    world.create("orders")
    records: list[Any] = [(second, b"%d" % (second % 10), VALUE, ()) for second in range(RECORDS)]
    world.write_content("orders", 0, records)
    window = Window(world.named("orders"), cutoff=at(RECORDS), starting_offsets="earliest")
    return world.windows().plan(window)


def held_most(world: World, plan: WindowPlan, batch_size: int | None, **options: Any) -> int:
    """Processes all records, and returns how many were held at once, as the function saw it."""
    processor = Processor(world.settings, **options)
    held: list[int] = []

    def function(taken: Record | list[Record]) -> None:
        held.extend(one.held for one in processor.counts)

    results = list(processor.run(plan, function, batch_size=batch_size))
    assert sorted(one.record.offset for one in results) == list(range(RECORDS))
    return max(held)


@pytest.mark.parametrize(
    ("held_records_max", "max_concurrency", "batch_size"),
    [(1, 16, None), (3, 16, None), (2, 1, 10), (7, 4, 100), (50, 16, 5), (1_000, 16, None)],
)
def test_no_more_records_are_held(
    world: World,
    plan: WindowPlan,
    held_records_max: int,
    max_concurrency: int,
    batch_size: int | None,
) -> None:
    """Also if workers and batches could take more: they take what is there, and nothing hangs."""
    options = {"held_records_max": held_records_max, "max_concurrency": max_concurrency}
    assert held_most(world, plan, batch_size, **options) <= held_records_max


@pytest.mark.parametrize("held_bytes_max", [1, 10_000, 2**40])
def test_reading_pauses_with_so_many_bytes(
    world: World, plan: WindowPlan, held_bytes_max: int
) -> None:
    """One turn of reading may go beyond, so that a record larger than the limit is processed, too."""
    turn = 10
    most = held_most(world, plan, None, held_bytes_max=held_bytes_max, held_records_max=4 * turn)
    assert (most - turn) * len(VALUE) < held_bytes_max


def test_results_that_wait_have_the_same_limit(world: World, plan: WindowPlan) -> None:
    """Of bytes, whoever takes them; no record is begun beyond it."""
    processor = Processor(world.settings, held_bytes_max=20 * len(VALUE), max_concurrency=1)
    results = processor.run(plan, lambda record: time.sleep(0.001))
    next(results)
    wait_until(lambda: processor.counts[0].succeeded >= 20)
    time.sleep(0.05)
    [counts] = processor.counts
    # One result was taken, and a worker may have had some records in its hands.
    assert counts.succeeded < 60
    assert len(list(results)) == RECORDS - 1


@pytest.mark.parametrize("name", ["held_records_max", "held_bytes_max"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "many", True, None, 2**62])
def test_limits_that_are_no_limits_are_refused(name: str, value: Any) -> None:
    """By name, before anything is touched."""
    with pytest.raises(ConfigError, match=name):
        Processor("nowhere:1", **{name: value})
