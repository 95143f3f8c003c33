"""Commit metadata that always fits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops.core.offset_map import fitting
from kafka_ordered_ops.core.offset_map.fitting import fitted_map, is_nearly_full
from kafka_ordered_ops.core.offset_map.parallel_consumer import (
    decode_parallel_consumer_map,
    encode_parallel_consumer_map,
)
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet


@st.composite
def maps(draw: st.DrawFn) -> tuple[int, OffsetSet]:
    """A base, and done offsets above it."""
    base = at = draw(st.integers(0, 2**40))
    ranges = []
    for gap, length in draw(
        st.lists(st.tuples(st.integers(1, 3_000), st.integers(1, 3_000)), max_size=60)
    ):
        ranges.append((at + gap, at + gap + length))
        at += gap + length
    return base, OffsetSet.from_ranges(ranges)


@given(maps(), st.integers(0, 300))
def test_what_fits_are_the_lowest_ranges(one: tuple[int, OffsetSet], limit: int) -> None:
    """Never more than the limit, never an offset that is not done, and all of it where there is room."""
    base, done = one
    metadata, left_out = fitted_map(base, done, limit_bytes=limit)
    kept = decode_parallel_consumer_map(metadata, base).done
    assert len(metadata) <= limit
    assert kept == OffsetSet.from_ranges(done.ranges[: len(done) - left_out])
    if len(whole := encode_parallel_consumer_map(base, done)) <= limit:
        assert (metadata, left_out) == (whole, 0)
    else:
        assert left_out


@given(
    st.permutations(range(1, 80)),
    st.lists(st.integers(1, 20), min_size=1, max_size=20),
    st.integers(0, 20),
)
def test_what_a_commit_has_stays_in_the_next_ones(
    order: list[int], steps: list[int], limit: int
) -> None:
    """Whatever is done next, in any order; and all below the ranges that are left out is in it."""
    at, kept = 0, EMPTY_SET
    for step in steps:
        at += step
        all_done = OffsetSet.of(*((one, one + 1) for one in [0, *order[:at]]))
        base = all_done.first_missing(0)
        done = all_done - OffsetSet.of((0, base))
        metadata, left_out = fitted_map(base, done, committed=kept & done, limit_bytes=limit)
        found = decode_parallel_consumer_map(metadata, base).done
        assert len(metadata) <= limit
        assert (kept & done) <= found <= done
        assert OffsetSet.from_ranges(done.ranges[: len(done) - left_out]) <= found
        kept = found


@given(maps(), st.integers(20, 900), st.booleans())
def test_a_map_is_nearly_full_by_its_size(
    one: tuple[int, OffsetSet], limit: int, was_full: bool
) -> None:
    """The estimate that spares the encoding changes no answer."""
    share = fitting.ROOM_SHARE if was_full else fitting.FULL_SHARE
    size = len(encode_parallel_consumer_map(*one))
    expected = size > int(limit * share)
    assert is_nearly_full(*one, was_full=was_full, limit_bytes=limit) == expected


@pytest.mark.parametrize("was_full", [False, True])
def test_nothing_is_not_full(was_full: bool) -> None:
    """A map without ranges takes no room."""
    assert not is_nearly_full(5, EMPTY_SET, was_full=was_full)
    assert fitted_map(5, EMPTY_SET) == (b"", 0)
