"""What the Kafka connector is told to read, and the tables that tell its records apart: in memory, no Spark."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import WindowPlan
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.time_ranges import NO_STEPS, LateSteps, TimeRange
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.ordered.records.pieces import Piece, pieces_of
from kafka_ordered_ops.spark.read.connector_loads import Load, Runs, loads_of, needs_runs
from tests.support.spark_support import part_of, plan_of

#: Offsets up to here are tried one by one.
_END = 400


@st.composite
def plans(draw: st.DrawFn) -> list[WindowPlan]:
    """Windows that share out random runs of offsets of some partitions, some of them for nobody."""
    windows = draw(st.integers(1, 4))
    parts: list[list[object]] = [[] for _ in range(windows)]
    for partition in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, 50))
        mine: list[list[tuple[int, int]]] = [[] for _ in range(windows)]
        for length, owner in draw(
            st.lists(st.tuples(st.integers(1, 40), st.integers(-1, windows - 1)), max_size=12)
        ):
            if owner >= 0:
                mine[owner].append((start, start + length))
            start += length
        for taken, own in zip(mine, parts, strict=True):
            own.append(part_of("orders", partition, OffsetSet.from_ranges(taken)))
    return [plan_of(own, window_id=f"w{n}") for n, own in enumerate(parts)]  # type: ignore[arg-type]


def owners(plans: list[WindowPlan]) -> dict[tuple[TopicPartition, int], str]:
    """Whose each offset is, one by one."""
    return {
        (part.tp, offset): plan.window_id
        for plan in plans
        for part in plan
        for start, end in part.taken
        for offset in range(start, end)
    }


def found_by(runs: Runs, tp: TopicPartition, offset: int) -> tuple[list[str], int]:
    """The windows whose runs hold an offset, looked up as the join does, and the comparisons it took."""
    (origin, first_bin) = next(
        (row["origin"], row["first_bin"])
        for row in runs.partitions.to_pylist()
        if (row["topic"], row["partition"]) == (tp.topic, tp.partition)
    )
    bin_ = first_bin + ((offset - origin) >> runs.shift)
    candidates = [row for row in runs.rows.to_pylist() if row["bin"] == bin_]
    names = dict(
        zip(*runs.windows.select(["share", "window_id"]).to_pydict().values(), strict=True)
    )
    inside = [row for row in candidates if row["start"] <= offset < row["end"]]
    return [names[row["share"]] for row in inside], len(candidates)


def read_of(loads: list[Load]) -> Counter[tuple[TopicPartition, int]]:
    """How often each offset is read."""
    return Counter(
        (tp, offset)
        for load in loads
        for tp, (start, end) in load.items()
        for offset in range(start, end)
    )


@given(plans(), st.integers(1, 60), st.integers(1, 4))
def test_loads_read_what_is_wanted_once_and_leave_out_large_holes(
    plans: list[WindowPlan], hole: int, most: int
) -> None:
    """Every wanted offset is in one load; with room for all loads, no hole of the least size is read."""
    pieces = pieces_of(plans)
    loads = loads_of(pieces, hole_offsets_min=hole, loads_max=most)
    read = read_of(loads)
    wanted = owners(plans)
    assert len(loads) <= most
    assert set(wanted) <= set(read)
    assert set(read.values()) <= {1}
    everything = loads_of(pieces, hole_offsets_min=hole, loads_max=1_000)
    for load in everything:
        for tp, (start, end) in load.items():
            inside = [(tp, offset) in wanted for offset in range(start, end)]
            assert inside[0]
            assert inside[-1]
            assert "0" * hole not in "".join(str(int(one)) for one in inside)


@given(plans(), st.integers(1, 60), st.integers(1, 4))
def test_the_largest_holes_are_left_out_first(
    plans: list[WindowPlan], hole: int, most: int
) -> None:
    """Of one partition's holes that are left out, none is smaller than one that is read for want of loads."""
    for piece in pieces_of(plans):
        left_out: list[int] = []
        read: list[int] = []
        loads = loads_of([piece], hole_offsets_min=hole, loads_max=most)
        segments = sorted(load[piece.tp] for load in loads)
        for (_, end), (start, _) in zip(piece.wanted.ranges, piece.wanted.ranges[1:], strict=False):
            is_read = any(low < end and start < high for low, high in segments)
            (read if is_read else left_out).append(start - end)
        assert all(size >= hole for size in left_out)
        if len(loads) < most:
            assert all(size < hole for size in read)
        assert max(read, default=0) < hole or max(read) <= min(left_out, default=_END)


@pytest.mark.parametrize(
    ("most", "segments"),
    [
        (1, [(0, 64)]),
        (2, [(0, 12), (42, 64)]),
        (3, [(0, 12), (42, 43), (63, 64)]),
        (9, [(0, 1), (11, 12), (42, 43), (63, 64)]),
    ],
)
def test_loads_go_to_the_largest_holes(most: int, segments: list[tuple[int, int]]) -> None:
    """Holes of 10, 30 and 20 offsets: with one load more, the 30 are left out; then the 20."""
    wanted = OffsetSet.of((0, 1), (11, 12), (42, 43), (63, 64))
    (piece,) = pieces_of([plan_of([part_of("a", 0, wanted)])])
    loads = loads_of([piece], hole_offsets_min=10, loads_max=most)
    assert [load[piece.tp] for load in loads] == segments


@pytest.mark.long
@given(plans())
def test_runs_find_the_window_of_each_offset(plans: list[WindowPlan]) -> None:
    """Looked up by its bin, an offset has its one window, or none; rows and comparisons stay few."""
    pieces = pieces_of(plans)
    if not pieces:
        return
    loads = loads_of(pieces, hole_offsets_min=30, loads_max=3)
    read = read_of(loads)
    runs = Runs.of(pieces, len(read))
    wanted = owners(plans)
    comparisons = 0
    for tp, offset in read:
        found, compared = found_by(runs, tp, offset)
        assert found == ([wanted[tp, offset]] if (tp, offset) in wanted else [])
        comparisons += compared
    count = len({(row["start"], row["share"]) for row in runs.rows.to_pylist()})
    assert runs.rows.num_rows <= 3 * count
    assert comparisons <= 6 * len(read) + count


@given(plans())
def test_a_table_is_made_only_where_it_decides_something(plans: list[WindowPlan]) -> None:
    """Without holes, with one window and nothing late, all that is read is the window's."""
    pieces = pieces_of(plans)
    loads = loads_of(pieces, hole_offsets_min=1, loads_max=1_000)
    windows = {plan.window_id for plan in plans if plan.offsets}
    assert needs_runs(pieces, loads) == (len(windows) > 1)
    whole = loads_of(pieces, hole_offsets_min=1_000, loads_max=1)
    has_holes = any(len(piece.wanted) > 1 for piece in pieces)
    assert needs_runs(pieces, whole) == (has_holes or len(windows) > 1)


def test_late_steps_are_rows_of_their_share() -> None:
    """A share's steps stand under its number, and the least offset of all tells where to look."""
    late = LateSteps().with_step(7, TimeRange(10, 20)).with_step(5, TimeRange(20, 30))
    plan = plan_of(
        [
            part_of("a", 0, OffsetSet.of((0, 9))),
            part_of("a", 1, OffsetSet.of((0, 9)), late=late),
        ]
    )
    pieces = pieces_of([plan])
    runs = Runs.of(pieces, 18)
    assert runs.late_steps.to_pylist() == [
        {"share": 1, "since_ms": 10, "before_ms": 20, "from_offset": 7},
        {"share": 1, "since_ms": 20, "before_ms": 30, "from_offset": 5},
    ]
    assert runs.windows["late_from"].to_pylist() == [None, 5]
    assert needs_runs(pieces, loads_of(pieces, hole_offsets_min=10, loads_max=1))
    bare = Runs.of(pieces_of([plan_of([part_of("a", 0, OffsetSet.of((0, 9)), late=NO_STEPS)])]), 9)
    assert bare.late_steps.num_rows == 0


def test_a_million_runs_make_tables_of_their_size() -> None:
    """Runs that crowd in one place of a long log still make few rows, and no bin without end."""
    offsets = np.concatenate((np.arange(0, 400_000, 2), np.arange(10_000_000, 10_000_100)))
    wanted = OffsetSet.from_offsets(offsets)
    (piece,) = pieces_of([plan_of([part_of("a", 0, wanted)])])
    runs = Runs.of([piece], 10_000_100)
    assert runs.rows.num_rows <= 3 * len(piece.wanted)
    in_bin = np.bincount(runs.rows["bin"].to_numpy())
    assert int((in_bin.astype(np.int64) << runs.shift).sum()) <= 6 * 10_000_100 + (1 << runs.shift)
    assert isinstance(piece, Piece)
