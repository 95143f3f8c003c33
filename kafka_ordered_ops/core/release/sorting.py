"""Put pieces of sorted records into one order.

The order is (key, rank of the partition, offset). Pieces are given in the order in which their records arrived, so a
stable sort by key and rank leaves the records of one partition by offset, and offsets are never compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from kafka_ordered_ops.core.offset_set import Int64Array
from kafka_ordered_ops.core.types import INT64_MAX

#: Records of one batch that is handed out, and their size: few calls, and a small part of what is held.
BATCH_ROWS: Final = 65_536
BATCH_BYTES: Final = 8 * 1024**2


class Piece(NamedTuple):
    """Some records, sorted by (key, rank, offset)."""

    #: What the order goes by first: the timestamp, or the greatest one so far of the partition.
    keys: Int64Array
    #: The partition of all records, or of each, as its number.
    lanes: int | Int64Array
    rows: pa.RecordBatch


class Batch(NamedTuple):
    """Records in order, gathered from their pieces when they are wanted."""

    pieces: Sequence[Piece]
    #: Where each piece begins in their concatenation, and the end of the last one.
    starts: Int64Array
    #: The places in the concatenation, in order.
    order: Int64Array

    @property
    def num_rows(self) -> int:
        """How many records."""
        return int(self.order.size)

    def rows(self) -> pa.RecordBatch:
        """Return the records; any thread may do it."""
        if self.order.size == self.starts[-1]:
            joined = _joined([piece.rows for piece in self.pieces])
            return joined if _is_rising(self.order) else joined.take(self.order)
        by_place = np.argsort(self.order, kind="stable")
        places = self.order[by_place]
        bounds = np.searchsorted(places, self.starts)
        parts = [
            _rows_of(self.pieces[n].rows, places[bounds[n] : bounds[n + 1]] - self.starts[n])
            for n in np.flatnonzero(np.diff(bounds)).tolist()
        ]
        joined = _joined(parts)
        if len(parts) == 1 and _is_rising(self.order):
            return joined
        back = np.empty_like(by_place)
        back[by_place] = np.arange(by_place.size)
        return joined.take(back)

    def keys(self) -> Int64Array:
        """Return the key of each record."""
        return np.concatenate([piece.keys for piece in self.pieces])[self.order]

    def lanes(self) -> Int64Array:
        """Return the number of each record's partition."""
        return np.concatenate([_lanes_of(piece) for piece in self.pieces])[self.order]


def in_order(
    pieces: Sequence[Piece],
    ranks: Int64Array,
    *,
    rows_max: int = BATCH_ROWS,
    bytes_max: int = BATCH_BYTES,
) -> Iterator[Batch]:
    """Yield all records of some pieces in order; `ranks` has each lane's place among the partitions."""
    if not pieces:
        return
    rows = np.array([piece.rows.num_rows for piece in pieces])
    starts = np.concatenate(([0], np.cumsum(rows)))
    order = _sorted(pieces, ranks)
    row_bytes = [-(-piece.rows.nbytes // piece.rows.num_rows) for piece in pieces]
    if int(starts[-1]) <= rows_max and int(np.dot(row_bytes, rows)) <= bytes_max:
        yield Batch(pieces, starts, order)
        return
    bytes_up_to = np.cumsum(np.repeat(row_bytes, rows)[order])
    for first, end in _cuts(bytes_up_to, rows_max, bytes_max):
        yield Batch(pieces, starts, order[first:end])


def count_by_lane(pieces: Sequence[Piece], lanes: int) -> Int64Array:
    """Return how many records each lane has in some pieces."""
    counts = np.zeros(lanes, dtype=np.int64)
    for piece in pieces:
        if isinstance(piece.lanes, int):
            counts[piece.lanes] += piece.keys.size
        else:
            counts += np.bincount(piece.lanes, minlength=lanes)
    return counts


def _sorted(pieces: Sequence[Piece], ranks: Int64Array) -> Int64Array:
    keys = np.concatenate([piece.keys for piece in pieces])
    found = [
        np.full(piece.keys.size, ranks[piece.lanes])
        if isinstance(piece.lanes, int)
        else ranks[piece.lanes]
        for piece in pieces
    ]
    rank = np.concatenate(found)
    least, span = int(keys.min()), int(keys.max()) - int(keys.min())
    lanes = int(rank.max()) + 1
    if span < INT64_MAX // lanes - 1:
        # One number a record sorts several times as fast as two keys.
        return np.argsort((keys - least) * lanes + rank, kind="stable")
    return np.lexsort((rank, keys))


def _cuts(bytes_up_to: Int64Array, rows_max: int, bytes_max: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows that keep both limits; a row larger than the limit is alone."""
    first, rows = 0, len(bytes_up_to)
    while first < rows:
        before = int(bytes_up_to[first - 1]) if first else 0
        fitting = int(np.searchsorted(bytes_up_to, before + bytes_max, side="right"))
        end = max(first + 1, min(fitting, first + rows_max, rows))
        yield first, end
        first = end


def _lanes_of(piece: Piece) -> Int64Array:
    if isinstance(piece.lanes, int):
        return np.full(piece.keys.size, piece.lanes, dtype=np.int64)
    return piece.lanes


def _rows_of(rows: pa.RecordBatch, rising: Int64Array) -> pa.RecordBatch:
    first, count = int(rising[0]), rising.size
    if int(rising[-1]) - first + 1 == count:
        # No copy: where times rise, a batch has runs of each partition.
        return rows.slice(first, count)
    return rows.take(rising)


def _joined(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    columns: list[Any] = [
        pa.concat_arrays([part.column(n) for part in parts]) for n in range(parts[0].num_columns)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=parts[0].schema)


def _is_rising(order: Int64Array) -> bool:
    return order.size < 2 or bool(np.all(order[1:] > order[:-1]))
