"""Offset sets against plain Python sets."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_ordered_ops.core.offset_set import (
    EMPTY_SET,
    GrowingOffsetSet,
    OffsetSet,
    coarsened,
    union_of,
)
from tests.support.examples import examples
from tests.support.strategies import large_offset_sets, members, offset_sets, ranges


@given(ranges)
def test_a_set_of_ranges_holds_what_the_ranges_hold(pairs: list[tuple[int, int]]) -> None:
    """Overlapping, touching, empty and inverted ranges: their union, in sorted disjoint ranges."""
    built = OffsetSet.from_ranges(pairs)
    assert members(built) == {offset for start, end in pairs for offset in range(start, end)}
    assert all(
        end < start for (_, end), (start, _) in zip(built.ranges, built.ranges[1:], strict=False)
    )


@given(offset_sets, offset_sets)
def test_the_algebra_is_that_of_sets(left: OffsetSet, right: OffsetSet) -> None:
    """Union, intersection, difference, inclusion and equality as Python's sets have them."""
    assert members(left | right) == members(left) | members(right)
    assert members(left & right) == members(left) & members(right)
    assert members(left - right) == members(left) - members(right)
    assert (left <= right) == (members(left) <= members(right))
    assert (left == right) == (members(left) == members(right))
    assert union_of([left, right, EMPTY_SET]) == left | right


#: Of a few ranges to some forty: a small set and a large one are held differently.
of_any_size = st.lists(
    st.tuples(st.integers(0, 400), st.integers(1, 12)).map(lambda one: (one[0], one[0] + one[1])),
    max_size=60,
).map(OffsetSet.from_ranges)


@given(of_any_size, st.integers(1, 20))
def test_a_coarsened_set_is_a_superset_of_few_ranges(offsets: OffsetSet, ranges_max: int) -> None:
    """No range is dropped, nothing outside the set's first and last offset is added, and a small set stays as it is."""
    coarse = coarsened(offsets, ranges_max)
    assert offsets <= coarse
    assert len(coarse) == min(len(offsets), ranges_max)
    if offsets:
        assert (coarse.first, coarse.end) == (offsets.first, offsets.end)


@settings(max_examples=examples(100))
@given(of_any_size, of_any_size, st.integers(0, 420), st.integers(0, 420))
def test_small_and_large_sets_are_of_one_kind(
    left: OffsetSet, right: OffsetSet, low: int, high: int
) -> None:
    """Whatever the sizes on both sides and of the result: the algebra, questions, and equal sets are equal."""
    a, b = members(left), members(right)
    for found, expected in (
        (left | right, a | b),
        (left & right, a & b),
        (left - right, a - b),
        (left.within(low, high), {one for one in a if low <= one < high}),
        (OffsetSet.of((low, high)) - left, set(range(low, high)) - a),
        (union_of([left, right, left]), a | b),
    ):
        assert members(found) == expected
        built = OffsetSet.from_offsets(np.array(sorted(expected), dtype=np.int64))
        assert found == built
        assert hash(found) == hash(built)
        assert OffsetSet.from_edges(found.edges) == OffsetSet(found.boundaries) == found
        assert pickle.loads(pickle.dumps(found)) == found
        assert found.count == len(expected)
        assert [one in found for one in range(430)] == [one in expected for one in range(430)]
        assert found.first_missing(low) == min(set(range(low, 900)) - expected)
        assert not found.boundaries.flags.writeable


@given(large_offset_sets, large_offset_sets, large_offset_sets)
def test_the_laws_of_algebra_hold_up_to_the_largest_offsets(
    a: OffsetSet, b: OffsetSet, c: OffsetSet
) -> None:
    """Associative, commutative, idempotent, distributive: what makes the order of commits not matter."""
    assert (a | b) | c == a | (b | c)
    assert a | b == b | a
    assert a | a == a
    assert a - (b | c) == (a - b) & (a - c)
    assert (a - b) | (a & b) == a
    assert pickle.loads(pickle.dumps(a)) == a
    assert hash(a | b) == hash(b | a)


@given(offset_sets, st.integers(0, 70))
def test_questions_about_single_offsets(offsets: OffsetSet, at: int) -> None:
    """Membership, first missing offset, count, first and end."""
    inside = members(offsets)
    assert (at in offsets) == (at in inside)
    assert offsets.first_missing(at) == min(set(range(at, 200)) - inside)
    assert offsets.count == len(inside)
    assert bool(offsets) == bool(inside)
    if inside:
        assert (offsets.first, offsets.end) == (min(inside), max(inside) + 1)
    every = np.arange(80)
    assert set(every[offsets.mask(every)].tolist()) == inside


@given(offset_sets, st.integers(0, 60), st.integers(0, 60))
def test_what_is_not_in_a_set_and_within(offsets: OffsetSet, start: int, end: int) -> None:
    """Both are about one half-open range, and together make it up."""
    whole = set(range(start, end))
    assert members(offsets.within(start, end)) == members(offsets) & whole
    if start < end:
        assert offsets.covers(start, end - 1) == (whole <= members(offsets))
    assert members(OffsetSet.of((start, end)) - offsets) == whole - members(offsets)


@given(st.lists(st.integers(0, 60)))
def test_a_set_from_single_offsets(offsets: list[int]) -> None:
    """In any order, with repeats."""
    assert members(OffsetSet.from_offsets(np.array(offsets, dtype=np.int64))) == set(offsets)


@given(offset_sets, ranges, st.integers(0, 70))
def test_growing_equals_building(initial: OffsetSet, pairs: list[tuple[int, int]], at: int) -> None:
    """A set grown range by range is the set built at once, and answers the same."""
    growing = GrowingOffsetSet(initial)
    for start, end in pairs:
        growing.add(start, end)
    built = initial | OffsetSet.from_ranges(pairs)
    assert growing.freeze() == built
    assert growing.first_missing(at) == built.first_missing(at)
    assert (at in growing) == (at in built)


def test_growing_by_one_offset() -> None:
    """`add` of one offset adds that one."""
    growing = GrowingOffsetSet()
    growing.add(5)
    growing.add(4)
    assert growing.freeze() == OffsetSet.of((4, 6))


@pytest.mark.parametrize("boundaries", [[1], [3, 2], [1, 1], [0, 2, 2, 3], [-1, 4]])
def test_boundaries_that_do_not_rise_are_a_mistake(boundaries: list[int]) -> None:
    """The value guards its own invariant, also under -O; many boundaries as well as few."""
    for many in ([], list(range(10, 50))):
        with pytest.raises(AssertionError, match="bound"):
            OffsetSet(np.array([*boundaries, *many], dtype=np.int64))
        with pytest.raises(AssertionError, match="bound"):
            OffsetSet.from_edges([*boundaries, *many])


@pytest.mark.parametrize("question", ["first", "end"])
def test_the_ends_of_nothing_are_a_mistake(question: str) -> None:
    """An empty set has neither a first offset nor an end."""
    with pytest.raises(AssertionError, match="empty"):
        getattr(EMPTY_SET, question)


def test_a_long_set_shows_its_length() -> None:
    """A repr fits a log line."""
    assert "40 ranges" in repr(OffsetSet.of(*((n, n + 1) for n in range(0, 80, 2))))
    assert repr(OffsetSet.of((1, 3))) == "OffsetSet([1, 3))"
    assert OffsetSet.of((1, 3)) != "other"
