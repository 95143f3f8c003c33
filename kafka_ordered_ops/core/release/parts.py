"""Cut a batch into parts within a limit of rows and a limit of bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa


def part_sizes(rows: pa.RecordBatch, rows_max: int, bytes_max: int) -> Iterator[int]:
    """Yield the numbers of rows of consecutive parts, as few as possible within both limits.

    A row larger than the limit is a part of its own.
    """
    at, left = 0, rows.num_rows
    while left:
        size = min(left, rows_max)
        if rows.slice(at, size).nbytes > bytes_max:
            size = _fitting(rows, at, size, bytes_max)
        yield size
        at, left = at + size, left - size


def _fitting(rows: pa.RecordBatch, at: int, too_many: int, bytes_max: int) -> int:
    """Return the greatest number of rows that fit, or 1."""
    fitting = 1
    while too_many - fitting > 1:
        middle = (fitting + too_many) // 2
        if rows.slice(at, middle).nbytes > bytes_max:
            too_many = middle
        else:
            fitting = middle
    return fitting
