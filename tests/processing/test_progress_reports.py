"""How far processing is: what a plan's run reports, and the state of a live group's partitions."""

from __future__ import annotations

import threading
import time

import pytest

from kafka_ordered_ops import ConfigError, Window, WindowPlan
from kafka_ordered_ops.core.processing.partition_counts import PartitionCounts
from kafka_ordered_ops.processing import Processor
from tests.support.processing_groups import Worker, wait_until
from tests.support.windows_support import at
from tests.support.worlds import World

RECORDS = 60


@pytest.fixture
def plan(world: World) -> WindowPlan:
    """A plan of two partitions."""
    world.create("orders", partitions=2)
    for number in range(2):
        world.write("orders", number, *range(RECORDS // 2))
    window = Window(world.named("orders"), cutoff=at(RECORDS), starting_offsets="earliest")
    return world.windows().plan(window)


def test_a_run_reports_its_progress_up_to_the_end(world: World, plan: WindowPlan) -> None:
    """Offsets done never fall; reports are at most five a second, and the last one has all offsets."""
    reports: list[tuple[int, int]] = []
    threads: set[threading.Thread] = set()

    def progress(done: int, known: int) -> None:
        threads.add(threading.current_thread())
        reports.append((done, known))

    began = time.monotonic()
    processor = Processor(world.settings, max_concurrency=2)
    results = list(processor.run(plan, lambda record: time.sleep(0.02), progress=progress))
    took_s = time.monotonic() - began
    assert len(results) == RECORDS
    assert reports == sorted(reports)
    assert {known for _, known in reports} == {plan.offsets}
    assert reports[-1] == (plan.offsets, plan.offsets)
    assert 3 <= len(reports) <= took_s * 5 + 2
    assert threading.current_thread() not in threads


def test_a_report_that_raises_ends_the_run_with_its_error(world: World, plan: WindowPlan) -> None:
    """It is not lost in a thread."""

    def progress(done: int, known: int) -> None:
        raise RuntimeError("no terminal")

    with pytest.raises(RuntimeError, match="no terminal"):
        list(Processor(world.settings).run(plan, lambda record: None, progress=progress))


def test_progress_is_a_function(world: World, plan: WindowPlan) -> None:
    """Or refused by name."""
    with pytest.raises(ConfigError, match="progress"):
        Processor(world.settings).run(plan, lambda record: None, progress="yes")  # type: ignore[arg-type]


def test_partitions_of_a_plan_have_what_is_left_of_it(world: World, plan: WindowPlan) -> None:
    """And none are shown afterwards."""
    hold = threading.Event()
    processor = Processor(world.settings)
    results = processor.run(plan, lambda one: one.offset != 20 or hold.wait(60))
    for _ in range(RECORDS - 2):
        next(results)
    name = world.named("orders")
    expected = tuple(PartitionCounts(name, number, 20, 1, 1) for number in range(2))
    assert processor.partitions == expected
    hold.set()
    assert len(list(results)) == 2
    assert processor.partitions == ()


def test_partitions_of_a_group_have_their_lag(world: World) -> None:
    """One record in flight: what is committed, the gap, and what is left to the end of the log."""
    world.create("orders", partitions=2)
    world.write("orders", 0, *range(10))
    name = world.named("orders")
    with Worker(world, holds=lambda one: one.offset == 4) as worker:
        worker.until(lambda: len(worker.done) == 9)
        expected = (PartitionCounts(name, 0, 4, 1, 1), PartitionCounts(name, 1, 0, 0, 0))
        wait_until(lambda: worker.processor.partitions == expected)
        worker.processor.pause()
        world.write("orders", 1, *range(7))
        expected = (expected[0], PartitionCounts(name, 1, 0, 0, 7))
        wait_until(lambda: worker.processor.partitions == expected)
        worker.processor.resume()
        worker.release()
        expected = (PartitionCounts(name, 0, 10, 0, 0), PartitionCounts(name, 1, 7, 0, 0))
        wait_until(lambda: worker.processor.partitions == expected)


def test_a_group_gets_batches(world: World) -> None:
    """The function gets lists of records of one partition, and each record has its value."""
    world.create("orders", partitions=2)
    for number in range(2):
        world.write("orders", number, *range(20))
    sizes: list[int] = []
    with Processor(world.settings, ordering="unordered", max_concurrency=1) as processor:

        def function(records: list[object]) -> list[int]:
            sizes.append(len(records))
            assert len({one.partition for one in records}) == 1  # type: ignore[attr-defined]
            return [one.offset for one in records]  # type: ignore[attr-defined]

        results = processor.subscribe(
            world.named("orders"), function, group_id=world.named("live"), batch_size=8
        )
        found = [next(results) for _ in range(40)]
        results.close()  # type: ignore[attr-defined]
    assert all(one.value == one.record.offset for one in found)
    assert len({(one.record.partition, one.record.offset) for one in found}) == 40
    assert 1 < max(sizes) <= 8
