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

from kafka_ordered_ops.core.offset_set import BoolArray, Int64Array
from kafka_ordered_ops.core.release.columns import Columns
from kafka_ordered_ops.core.types import INT64_MAX

#: Records of one batch that is handed out, and their size: few calls, and a small part of what is held.
BATCH_ROWS: Final = 65_536
BATCH_BYTES: Final = 8 * 1024**2
#: A batch from more parts than these is gathered from joined ones, of so many bytes.
_PARTS_MAX: Final = 48
_JOINED_BYTES: Final = 64 * 1024**2
#: Slices that have up to so many times the rows that are wanted are copied whole: that costs less than to sort places.
_NEAR: Final = 2
#: A key; often it is the timestamp, which is no column then.
_KEY_BYTES: Final = 8


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
        if len(self._parts) == 1:
            return _rows_at(self._parts[0], places)
        parts, low, counts = self._spans(places)
        used = np.flatnonzero(counts).tolist()
        if len(used) == 1:
            return _rows_at(self._parts[used[0]], places - self.starts[used[0]])
        if int(counts.sum()) <= _NEAR * places.size:
            slices = [
                self._parts[n].slice(int(low[n] - self.starts[n]), int(counts[n])) for n in used
            ]
            # From a place to the same one among the slices.
            moved = np.cumsum(counts) - counts - low
            return _gathered(slices, places + moved[parts])
        by_place = np.argsort(places, kind="stable")
        rising = places[by_place]
        bounds = np.searchsorted(rising, self.starts)
        chosen = [
            _rows_at(self._parts[n], rising[bounds[n] : bounds[n + 1]] - self.starts[n])
            for n in used
        ]
        back = np.empty_like(by_place)
        back[by_place] = np.arange(by_place.size)
        return _gathered(chosen, back)

    def _spans(self, places: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return each place's part; and for each part the first place, and how many there are up to the last one."""
        parts = np.searchsorted(self.starts, places, side="right") - 1
        low, high = self.starts[1:].copy(), self.starts[:-1] - 1
        np.minimum.at(low, parts, places)
        np.maximum.at(high, parts, places)
        return parts, low, np.maximum(high + 1 - low, 0)

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
    #: What the records are completed to; None: they stay as they are held.
    columns: Columns | None

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
        rows = self.source.take(self.places)
        return rows if self.columns is None else self.columns.whole(rows, self.keys, self.lanes)

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
        return self._at(kept, nbytes)

    def split(self, count: int) -> tuple[Batch, Batch]:
        """Return the first records, and the others."""
        nbytes = self.nbytes * count // self.num_rows
        high = self._at(slice(count, None), self.nbytes - nbytes)
        return self._at(slice(None, count), nbytes), high

    def _at(self, chosen: slice | BoolArray, nbytes: int) -> Batch:
        places, keys, lanes = self.places[chosen], self.keys[chosen], self.lanes[chosen]
        return Batch(self.source, places, keys, lanes, nbytes, self.columns)


def in_order(
    pieces: Sequence[Piece],
    ranks: Int64Array,
    *,
    rows_max: int = BATCH_ROWS,
    bytes_max: int = BATCH_BYTES,
    columns: Columns | None = None,
) -> Iterator[Batch]:
    """Yield all records of some pieces in order; `ranks` has each lane's place among the partitions."""
    if not pieces:
        return
    source = _Rows([piece.rows for piece in pieces])
    keys = np.concatenate([piece.keys for piece in pieces])
    lanes = np.concatenate([_lanes_of(piece) for piece in pieces])
    order = np.arange(keys.size)
    if len(pieces) > 1:
        order = _sorted(keys, ranks[lanes])
        keys, lanes = keys[order], lanes[order]
    places = order
    if any(piece.places is not None for piece in pieces):
        starts = source.starts[:-1]
        found = [start + _places_of(one) for start, one in zip(starts, pieces, strict=True)]
        places = np.concatenate(found)[order]
    cuts = _cuts(pieces, order, rows_max, bytes_max)
    if len(cuts) > 1:
        first, end, _ = cuts[len(cuts) // 2]
        source.join_if_scattered(places[first:end])
    for first, end, nbytes in cuts:
        yield Batch(source, places[first:end], keys[first:end], lanes[first:end], nbytes, columns)


def row_bytes_of(rows: pa.RecordBatch) -> int:
    """Return about the size of one row and its key."""
    # `nbytes` looks into each column, which takes as long as to read some of the rows.
    return -(-rows.get_total_buffer_size() // rows.num_rows) + _KEY_BYTES


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


def _cuts(
    pieces: Sequence[Piece], order: Int64Array, rows_max: int, bytes_max: int
) -> list[tuple[int, int, int]]:
    """Return ranges of rows that keep both limits, and their bytes; a row larger than the limit is alone."""
    rows, nbytes = order.size, sum(piece.nbytes for piece in pieces)
    if rows <= rows_max and nbytes <= bytes_max:
        return [(0, rows, nbytes)]
    row_bytes = np.array([piece.row_bytes for piece in pieces])
    bytes_up_to = np.cumsum(np.repeat(row_bytes, [piece.keys.size for piece in pieces])[order])
    cuts: list[tuple[int, int, int]] = []
    first = before = 0
    while first < rows:
        fitting = int(np.searchsorted(bytes_up_to, before + bytes_max, side="right"))
        end = max(first + 1, min(fitting, first + rows_max, rows))
        up_to = int(bytes_up_to[end - 1])
        cuts.append((first, end, up_to - before))
        first, before = end, up_to
    return cuts


def _lanes_of(piece: Piece) -> Int64Array:
    if isinstance(piece.lanes, int):
        return np.full(piece.keys.size, piece.lanes, dtype=np.int64)
    return piece.lanes


def _places_of(piece: Piece) -> Int64Array:
    return np.arange(piece.keys.size) if piece.places is None else piece.places


def _rows_at(rows: pa.RecordBatch, places: Int64Array) -> pa.RecordBatch:
    # No copy: where times rise, a batch has runs of each partition.
    if _is_run(places):
        return rows.slice(int(places[0]), places.size)
    return _gathered([rows], places)


def _is_run(places: Int64Array) -> bool:
    """Return whether places follow one another."""
    if int(places[-1]) - int(places[0]) + 1 != places.size:
        return False
    return bool(np.all(places[1:] > places[:-1]))


def joined_rows(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of several batches as one batch."""
    return parts[0] if len(parts) == 1 else _gathered(parts, None)


def _gathered(parts: Sequence[pa.RecordBatch], places: Int64Array | None) -> pa.RecordBatch:
    """Return the rows at these places of several batches; None: all, as they lie."""
    schema = parts[0].schema
    rows = sum(part.num_rows for part in parts) if places is None else places.size
    indices: Any = None if places is None else pa.array(places)
    columns: list[Any] = []
    for n, kind in enumerate(cast(list[Any], schema.types)):
        arrays = [part.column(n) for part in parts]
        if all(one.null_count == len(one) for one in arrays):
            # Headers, most of the time.
            columns.append(pa.nulls(rows, kind))
            continue
        joined: Any = arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
        columns.append(joined if indices is None else joined.take(indices))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
