"""Merge pieces of sorted records into one order.

The order is (key, rank of the partition, offset). Pieces are in the order in which their records arrived, so a
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

#: Records of one returned batch, and their size: few calls, and a small part of the held records.
BATCH_ROWS: Final = 65_536
BATCH_BYTES: Final = 8 * 1024**2
#: A batch from more parts than `_PARTS_MAX` is gathered from joined parts of `_JOINED_BYTES`.
_PARTS_MAX: Final = 48
_JOINED_BYTES: Final = 64 * 1024**2
#: Slices with up to this multiple of the wanted rows are copied whole: that takes less time than sorting places.
_NEAR: Final = 2
#: The size of a key. Often it is the timestamp, which then is not a held column.
_KEY_BYTES: Final = 8


class Piece(NamedTuple):
    """Some records, sorted by (key, rank, offset)."""

    #: The first part of the order: the timestamp, or the greatest timestamp of the partition so far.
    keys: Int64Array
    #: The number of the partition, of all records or of each one.
    lanes: int | Int64Array
    rows: pa.RecordBatch
    #: The approximate size of one row: measuring rows takes as long as reading them.
    row_bytes: int
    #: The index of each record among the rows; None if the rows are in order.
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
        """The approximate size of the records."""
        return self.keys.size * self.row_bytes


class _Rows:
    """The rows of several pieces, addressed as one batch."""

    def __init__(self, parts: Sequence[pa.RecordBatch]) -> None:
        self._set(parts)
        self._offsets: Int64Array | None = None

    def _set(self, parts: Sequence[pa.RecordBatch]) -> None:
        self._parts = parts
        self.starts = np.concatenate(([0], np.cumsum([part.num_rows for part in parts])))

    def take(self, places: Int64Array) -> pa.RecordBatch:
        """Return the rows at these places; thread-safe."""
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
            # Convert places among all parts to places among the slices.
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
        """Return the part of each place; and for each part, its first place, and the length of the span to its last one."""
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
        """Join parts if rows like these come from very many of them: taking rows takes time for each part."""
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
    """Records in order; the rows are gathered on demand."""

    source: _Rows
    #: The records, as places in the source.
    places: Int64Array
    keys: Int64Array
    lanes: Int64Array
    #: The approximate size of their Arrow data.
    nbytes: int
    #: Completes held rows to all columns; None if the rows stay as they are held.
    columns: Columns | None

    @property
    def num_rows(self) -> int:
        """The number of records."""
        return int(self.places.size)

    @property
    def row_bytes(self) -> int:
        """The approximate size of one row."""
        return -(-self.nbytes // self.num_rows)

    def rows(self) -> pa.RecordBatch:
        """Return the records; thread-safe."""
        rows = self.source.take(self.places)
        return rows if self.columns is None else self.columns.whole(rows, self.keys, self.lanes)

    def offset_min_of(self, lane: int) -> int | None:
        """Return the lowest offset of a lane's records; None if it has none."""
        places = self.places[self.lanes == lane]
        return int(self.source.offsets(places).min()) if places.size else None

    def keys_and_offsets(self, lane: int) -> tuple[Int64Array, Int64Array]:
        """Return the keys and offsets of a lane's records."""
        is_of_lane = self.lanes == lane
        return self.keys[is_of_lane], self.source.offsets(self.places[is_of_lane])

    def without(self, lane: int) -> Batch:
        """Return the records of the other lanes."""
        is_other = self.lanes != lane
        if is_other.all():
            return self
        nbytes = self.nbytes * int(np.count_nonzero(is_other)) // self.num_rows
        return self._at(is_other, nbytes)

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
    """Yield all records of the pieces in order; `ranks` has each lane's place among the partitions."""
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
        by_piece = [start + _places_of(piece) for start, piece in zip(starts, pieces, strict=True)]
        places = np.concatenate(by_piece)[order]
    cuts = _cuts(pieces, order, rows_max, bytes_max)
    if len(cuts) > 1:
        first, end, _ = cuts[len(cuts) // 2]
        source.join_if_scattered(places[first:end])
    for first, end, nbytes in cuts:
        yield Batch(source, places[first:end], keys[first:end], lanes[first:end], nbytes, columns)


def row_bytes_of(rows: pa.RecordBatch) -> int:
    """Return the approximate size of one row and its key."""
    # `nbytes` looks into each column, which takes as long as reading some of the rows.
    return -(-rows.get_total_buffer_size() // rows.num_rows) + _KEY_BYTES


def count_by_lane(pieces: Sequence[Piece], lanes: int) -> Int64Array:
    """Return the number of records of each lane in the pieces."""
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
        # One number per record sorts several times as fast as two keys.
        return np.argsort((keys - least) * partitions + ranks, kind="stable")
    return np.lexsort((ranks, keys))


def _cuts(
    pieces: Sequence[Piece], order: Int64Array, rows_max: int, bytes_max: int
) -> list[tuple[int, int, int]]:
    """Return ranges of rows within both limits, and their bytes; a row larger than the limit has its own range."""
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
    # A slice is no copy. With ascending times, a batch has runs of each partition.
    if _is_run(places):
        return rows.slice(int(places[0]), places.size)
    return _gathered([rows], places)


def _is_run(places: Int64Array) -> bool:
    """Return whether places are consecutive."""
    if int(places[-1]) - int(places[0]) + 1 != places.size:
        return False
    return bool(np.all(places[1:] > places[:-1]))


def joined_rows(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of several batches as one batch."""
    return parts[0] if len(parts) == 1 else _gathered(parts, None)


def _gathered(parts: Sequence[pa.RecordBatch], places: Int64Array | None) -> pa.RecordBatch:
    """Return the rows at these places of several batches; None means all rows, in their order."""
    schema = parts[0].schema
    rows = sum(part.num_rows for part in parts) if places is None else places.size
    indices: Any = None if places is None else pa.array(places)
    columns: list[Any] = []
    for n, kind in enumerate(cast(list[Any], schema.types)):
        arrays = [part.column(n) for part in parts]
        if all(array.null_count == len(array) for array in arrays):
            # Usually the headers.
            columns.append(pa.nulls(rows, kind))
            continue
        joined: Any = arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
        columns.append(joined if indices is None else joined.take(indices))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
