"""What is done of a partition, against plain sets."""

from __future__ import annotations

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.processing.progress import Progress
from tests.support.strategies import members

END = 60
offset_sets = st.sets(st.integers(0, END - 1))


@given(
    start=st.integers(0, 20),
    before=offset_sets,
    holes=offset_sets,
    steps=st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=10),
    data=st.data(),
)
def test_a_snapshot_is_what_was_passed_without_what_is_open(
    start: int,
    before: set[int],
    holes: set[int],
    steps: list[tuple[int, bool]],
    data: st.DataObject,
) -> None:
    """Everything below the position but the open records, and what was done before; base and ranges agree with it."""
    before = {offset for offset in before if offset >= start}
    progress = Progress(start, OffsetSet.from_offsets(np.array(sorted(before), dtype=np.int64)))
    position, opened = start, set[int]()
    for length, asks in steps:
        arrived = [
            offset
            for offset in range(position, position + length)
            if offset not in holes and offset not in before
        ]
        position += length
        progress.read(np.array(arrived, dtype=np.int64), position)
        opened |= set(arrived)
        finished = data.draw(st.sets(st.sampled_from(sorted(opened)))) if opened else set()
        opened -= finished
        progress.done(finished)
        assert progress.open == len(opened)
        if not asks:
            continue
        snapshot = progress.snapshot()
        done = (set(range(position)) - opened) | before
        base = next(offset for offset in range(END * 4) if offset not in done)
        assert snapshot.base == base
        assert members(snapshot.beyond) == {offset for offset in done if offset > base}
        assert progress.snapshot() == snapshot, "asking twice changes nothing"


@given(st.integers(0, 50), st.integers(0, 50))
def test_a_position_never_goes_back(first: int, second: int) -> None:
    """A late word of an earlier position changes nothing."""
    progress = Progress(0)
    for position in (first, second):
        progress.read(np.empty(0, dtype=np.int64), position)
    assert progress.snapshot().base == progress.position == max(first, second)


def test_memory_does_not_grow_with_what_is_done() -> None:
    """Though nobody asks for a snapshot."""
    progress = Progress(0)
    tracemalloc.start()
    for position in range(0, 400_000, 1_000):
        progress.read(np.arange(position, position + 1_000, dtype=np.int64), position + 1_000)
        progress.done(range(position, position + 1_000))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 5_000_000
    assert progress.snapshot().base == 400_000
