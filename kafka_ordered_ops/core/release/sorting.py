"""Put pieces of sorted records into one order.

The order is (key, rank of the partition, offset). Pieces are given in the order in which their records arrived, so a
stable sort by key and rank leaves the records of one partition by offset, and offsets are never compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, cast

import numpy as np
import pyarrow as pa

from kafka_ordered_ops.core.offset_set import Int64Array
from kafka_ordered_ops.core.types import INT64_MAX

#: Records of one batch that is handed out, and their size: few calls, and a small part of what is held.
BATCH_ROWS: Final = 65_536
BATCH_BYTES: Final = 8 * 1024**2
#: A batch from more parts than these is gathered from joined ones, of so many bytes.
_PARTS_MAX: Final = 48
_JOINED_BYTES: Final = 64 * 1024**2


class Piece(NamedTuple):
    """Some records, sorted by (key, rank, offset)."""

    #: What the order goes by first: the timestamp, or the greatest one so far of the partition.
    keys: Int64Array
    #: The partition of all records, or of each, as its number.
    lanes: int | Int64Array
    rows: pa.RecordBatch
    #: About the size of one row: to measure rows takes as long as to read them.
    row_bytes: int
    #: Where each record is among the rows; None: they lie as they are.
    places: Int64Array | None = None

    def split(self, count: int) -> tuple[Piece, Piece]:
        """Return the first records, and the others."""
        keys, lanes, rows, row_bytes, places = self
        low, high = slice(None, count), slice(count, None)
        lanes_low, lanes_high = (
            (lanes, lanes) if isinstance(lanes, int) else (lanes[low], lanes[high])
        )
        if places is None:
            first = Piece(keys[low], lanes_low, rows.slice(0, count), row_bytes)
            return first, Piece(keys[high], lanes_high, rows.slice(count), row_bytes)
        first = Piece(keys[low], lanes_low, rows, row_bytes, places[low])
        return first, Piece(keys[high], lanes_high, rows, row_bytes, places[high])

    @property
    def nbytes(self) -> int:
        """About the size of the records."""
        return self.keys.size * self.row_bytes


class _Rows:
    """The rows of some pieces, as if they were one batch."""

    def __init__(self, parts: Sequence[pa.RecordBatch]) -> None:
        self._set(parts)
        self._offsets: Int64Array | None = None

    def _set(self, parts: Sequence[pa.RecordBatch]) -> None:
        self._parts = parts
        self.starts = np.concatenate(([0], np.cumsum([part.num_rows for part in parts])))

    def take(self, places: Int64Array) -> pa.RecordBatch:
        """Return the rows at these places; any thread may do it."""
        if _is_run(places):
            low, high = int(places[0]), int(places[-1])
            first, last = np.searchsorted(self.starts, (low, high), side="right").tolist()
            if first == last:
                part: pa.RecordBatch = self._parts[first - 1]
                return part.slice(low - int(self.starts[first - 1]), places.size)
        by_place = np.argsort(places, kind="stable")
        rising = places[by_place]
        bounds = np.searchsorted(rising, self.starts)
        parts = [
            _rows_of(self._parts[n], rising[bounds[n] : bounds[n + 1]] - self.starts[n])
            for n in np.flatnonzero(np.diff(bounds)).tolist()
        ]
        back = np.empty_like(by_place)
        back[by_place] = np.arange(by_place.size)
        return joined_rows(parts).take(back)

    def offsets(self, places: Int64Array) -> Int64Array:
        """Return the offsets of the rows at these places."""
        if self._offsets is None:
            columns = [cast(Int64Array, part.column("offset").to_numpy()) for part in self._parts]
            self._offsets = np.concatenate(columns)
        return self._offsets[places]

    def join_if_scattered(self, places: Int64Array) -> None:
        """Make few parts of many if rows like these come from very many: taking pays for each part."""
        if len(self._parts) <= _PARTS_MAX:
            return
        counts = np.bincount(np.searchsorted(self.starts, places, side="right"))
        if np.count_nonzero(counts) <= _PARTS_MAX:
            return
        nbytes = np.cumsum([part.nbytes for part in self._parts])
        groups = np.flatnonzero(np.diff(nbytes // _JOINED_BYTES, prepend=-1))
        bounds = [*groups.tolist(), len(self._parts)]
        self._set([joined_rows(self._parts[low:high]) for low, high in pairwise(bounds)])


class Batch(NamedTuple):
    """Records in order, gathered when they are wanted."""

    source: _Rows
    #: The records, as places in the source.
    places: Int64Array
    keys: Int64Array
    lanes: Int64Array
    #: About the size of their Arrow data.
    nbytes: int

    @property
    def num_rows(self) -> int:
        """How many records."""
        return int(self.places.size)

    @property
    def row_bytes(self) -> int:
        """About the size of one row."""
        return -(-self.nbytes // self.num_rows)

    def rows(self) -> pa.RecordBatch:
        """Return the records; any thread may do it."""
        return self.source.take(self.places)

    def offset_min_of(self, lane: int) -> int | None:
        """Return the lowest offset of a lane's records; None: it has none."""
        mine = self.places[self.lanes == lane]
        return int(self.source.offsets(mine).min()) if mine.size else None

    def without(self, lane: int) -> Batch:
        """Return the records of the other lanes."""
        kept = self.lanes != lane
        if kept.all():
            return self
        nbytes = self.nbytes * int(np.count_nonzero(kept)) // self.num_rows
        return Batch(self.source, self.places[kept], self.keys[kept], self.lanes[kept], nbytes)

    def split(self, count: int) -> tuple[Batch, Batch]:
        """Return the first records, and the others."""
        nbytes = self.nbytes * count // self.num_rows
        low, high = slice(None, count), slice(count, None)
        return (
            Batch(self.source, self.places[low], self.keys[low], self.lanes[low], nbytes),
            Batch(
                self.source,
                self.places[high],
                self.keys[high],
                self.lanes[high],
                self.nbytes - nbytes,
            ),
        )


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
    source = _Rows([piece.rows for piece in pieces])
    keys = np.concatenate([piece.keys for piece in pieces])
    lanes = np.concatenate([_lanes_of(piece) for piece in pieces])
    order = _sorted(keys, ranks[lanes])
    places = np.concatenate(
        [start + _places_of(piece) for start, piece in zip(source.starts, pieces, strict=False)]
    )
    keys, lanes, places = keys[order], lanes[order], places[order]
    row_bytes = np.array([piece.row_bytes for piece in pieces])
    parts = np.repeat(np.arange(len(pieces)), [piece.keys.size for piece in pieces])[order]
    bytes_up_to = np.cumsum(row_bytes[parts])
    cuts = list(_cuts(bytes_up_to, rows_max, bytes_max))
    middle = cuts[len(cuts) // 2]
    source.join_if_scattered(places[middle[0] : middle[1]])
    for first, end in cuts:
        nbytes = int(bytes_up_to[end - 1]) - (int(bytes_up_to[first - 1]) if first else 0)
        yield Batch(source, places[first:end], keys[first:end], lanes[first:end], nbytes)


def row_bytes_of(rows: pa.RecordBatch) -> int:
    """Return about the size of one row."""
    return -(-rows.nbytes // rows.num_rows)


def count_by_lane(pieces: Sequence[Piece], lanes: int) -> Int64Array:
    """Return how many records each lane has in some pieces."""
    counts = np.zeros(lanes, dtype=np.int64)
    for piece in pieces:
        if isinstance(piece.lanes, int):
            counts[piece.lanes] += piece.keys.size
        else:
            counts += np.bincount(piece.lanes, minlength=lanes)
    return counts


def _sorted(keys: Int64Array, ranks: Int64Array) -> Int64Array:
    least, span = int(keys.min()), int(keys.max()) - int(keys.min())
    partitions = int(ranks.max()) + 1
    if span < INT64_MAX // partitions - 1:
        # One number a record sorts several times as fast as two keys.
        return np.argsort((keys - least) * partitions + ranks, kind="stable")
    return np.lexsort((ranks, keys))


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


def _places_of(piece: Piece) -> Int64Array:
    return np.arange(piece.keys.size) if piece.places is None else piece.places


def _rows_of(rows: pa.RecordBatch, rising: Int64Array) -> pa.RecordBatch:
    # No copy: where times rise, a batch has runs of each partition.
    return rows.slice(int(rising[0]), rising.size) if _is_run(rising) else rows.take(rising)


def _is_run(places: Int64Array) -> bool:
    """Return whether places follow one another."""
    if int(places[-1]) - int(places[0]) + 1 != places.size:
        return False
    return bool(np.all(places[1:] > places[:-1]))


def joined_rows(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of several batches as one batch."""
    if len(parts) == 1:
        return parts[0]
    columns: list[Any] = [
        pa.concat_arrays([part.column(n) for part in parts]) for n in range(parts[0].num_columns)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=parts[0].schema)
