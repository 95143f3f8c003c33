"""Parts of batches keep their limits, and nothing is lost between them."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops.core.release.parts import part_sizes


@given(
    sizes=st.lists(st.integers(0, 300), max_size=60),
    rows_max=st.integers(1, 70),
    bytes_max=st.integers(1, 2_000),
)
def test_parts_keep_both_limits_and_are_as_large_as_they_allow(
    sizes: list[int], rows_max: int, bytes_max: int
) -> None:
    """A part has one row, or keeps the limits; it and the row after it exceed one of them."""
    rows = pa.record_batch({"value": pa.array([b"x" * size for size in sizes], pa.binary())})
    parts = [*part_sizes(rows, rows_max, bytes_max)]
    assert sum(parts) == len(sizes)
    at = 0
    for size in parts:
        assert 1 <= size <= rows_max
        assert size == 1 or rows.slice(at, size).nbytes <= bytes_max
        more = rows.slice(at, size + 1)
        assert at + size == len(sizes) or size == rows_max or more.nbytes > bytes_max
        at += size
