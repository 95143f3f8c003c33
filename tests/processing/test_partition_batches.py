"""Batches with ordering="partition": consecutive records, one batch after the other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from threading import Lock
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import Earliest
from kafka_ordered_ops.core.processing.scheduling import Ordering, Scheduler
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.processing import Processor, Record
from tests.support.worlds import World

TP = TopicPartition("t", 0)


@pytest.mark.parametrize("workers", ["threads", "async"])
def test_a_function_gets_consecutive_records_of_one_partition(world: World, workers: str) -> None:
    """All of them, in order, several at once, and never two batches of a partition at the same time."""
    world.create("orders", partitions=3)
    for partition in range(3):
        world.write("orders", partition, *range(50))
    plan = world.plan("w", 1_000, starting_offsets=Earliest())
    assert plan is not None
    batches: dict[int, list[list[int]]] = defaultdict(list)
    busy, lock = set[int](), Lock()
    overlapping: list[int] = []

    def note(records: Sequence[Record]) -> None:
        [partition] = {record.partition for record in records}
        with lock:
            if partition in busy:
                overlapping.append(partition)
            busy.add(partition)
        batches[partition].append([record.offset for record in records])
        busy.discard(partition)

    async def awaited(records: Sequence[Record]) -> None:
        note(records)

    function: Any = awaited if workers == "async" else note
    with Processor(world.settings, ordering="partition", max_concurrency=8) as processor:
        results = list(processor.run(plan, function, batch_size=7))
    assert len(results) == 150
    assert not overlapping
    for partition in range(3):
        assert [offset for batch in batches[partition] for offset in batch] == [*range(50)]
        assert max(map(len, batches[partition])) == 7


def test_a_batch_that_fails_is_tried_again_before_what_follows(world: World) -> None:
    """In its order, even where the back-off differs by record."""
    world.create("orders")
    world.write("orders", 0, *range(20))
    plan = world.plan("w", 1_000, starting_offsets=Earliest())
    assert plan is not None
    calls: list[list[tuple[int, int]]] = []

    def charge(records: Sequence[Record]) -> None:
        calls.append([(record.offset, record.attempt) for record in records])
        if records[0].attempt < 3 and any(record.offset == 7 for record in records):
            raise ValueError("not yet")

    with Processor(
        world.settings,
        ordering="partition",
        backoff=lambda record, _: 0.05 if record.offset % 2 else 0.0,
    ) as processor:
        results = list(processor.run(plan, charge, batch_size=5))
    assert [one.record.offset for one in results] == [*range(20)]
    done = [
        offset for call in calls for offset, _ in call if call[0][1] == 3 or 7 not in dict(call)
    ]
    assert done == [*range(20)]


@given(
    batch_size=st.integers(1, 5),
    added=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    data=st.data(),
)
def test_whatever_fails_the_order_of_a_partition_stays(
    batch_size: int, added: list[int], data: st.DataObject
) -> None:
    """What is taken is consecutive, in order, at most a batch, and begins with the first that is not done."""
    scheduler, next_offset, done = Scheduler(Ordering.PARTITION, batch_size), 0, 0
    waiting = list(added)
    now = 0.0
    while waiting or scheduler.records:
        if waiting and (not scheduler.records or data.draw(st.booleans())):
            count = waiting.pop()
            offsets = range(next_offset, next_offset + count)
            scheduler.add(TP, [Record("t", 0, offset, 0, None, b"") for offset in offsets])
            next_offset += count
        now += 1
        scheduler.wake(now)
        taken = scheduler.take(100)
        if taken is None:
            continue
        lane, records = taken
        assert [one.offset for one in records] == [*range(done, done + len(records))]
        assert len(records) <= batch_size
        assert scheduler.take(100) is None
        if data.draw(st.booleans()):
            for record in records:
                scheduler.retry(lane, record, now + data.draw(st.integers(0, 3)))
        else:
            scheduler.done(lane, records)
            done += len(records)
    assert done == sum(added)
