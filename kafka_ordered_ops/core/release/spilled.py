"""Sorted runs of held records on disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Protocol, cast

import numpy as np
import pyarrow as pa

from kafka_ordered_ops.core.offset_set import Int64Array
from kafka_ordered_ops.core.release.lanes import Bound
from kafka_ordered_ops.core.release.sorting import Piece, count_by_lane, row_bytes_of

#: Columns of a run in addition to the columns of the records.
KEY_COLUMN: Final = "_koo_key"
LANE_COLUMN: Final = "_koo_lane"


class SpilledBatches(Protocol):
    """A run on disk, as batches in ascending order."""

    @property
    def num_batches(self) -> int:
        """The number of batches."""

    @property
    def nbytes(self) -> int:
        """The size on disk."""

    def batch(self, number: int) -> pa.RecordBatch:
        """Read one batch."""

    def remove(self) -> None:
        """Free the disk; may be called twice."""


class Spill(Protocol):
    """Storage for records that do not fit in memory; raises `SpillError` on failure."""

    def write(self, batches: Iterator[pa.RecordBatch]) -> SpilledBatches:
        """Write batches as one run."""


class SpilledRun:
    """A run of several partitions on disk; one batch is loaded at a time.

    Args:
        batches: the records, sorted, with their keys and lanes.
        first_key: a key at or below all keys.
        counts: the number of records of each lane.
        offsets_min: for each lane with records, an offset at or below their offsets.
    """

    def __init__(
        self,
        batches: SpilledBatches,
        *,
        first_key: int,
        counts: Int64Array,
        offsets_min: Mapping[int, int],
    ) -> None:
        self.first_key = first_key
        self.counts = counts
        self.offsets_min = dict(offsets_min)
        self._batches = batches
        self._next = 0
        self._head: Piece | None = None

    @property
    def records(self) -> int:
        """The number of records that have not been taken."""
        return int(self.counts.sum())

    @property
    def nbytes(self) -> int:
        """The size on disk."""
        return self._batches.nbytes

    def count_of(self, lane: int) -> int:
        """Return the number of records of a lane that have not been taken."""
        return int(self.counts[lane]) if lane < self.counts.size else 0

    def load(self, bound: Bound) -> None:
        """Load the next batch if none is loaded and the next one may have records below a bound."""
        if self._head is None and self.first_key <= bound.key and self._has_more:
            batch = self._batches.batch(self._next)
            self._next += 1
            keys = cast(Int64Array, batch.column(KEY_COLUMN).to_numpy())
            lanes = batch.column(LANE_COLUMN).to_numpy().astype(np.int64)
            rows = batch.drop_columns([KEY_COLUMN, LANE_COLUMN])
            self._head = Piece(keys, lanes, rows, row_bytes_of(rows))
            self.first_key = int(keys[0])

    def last_loaded(self, ranks: Int64Array) -> Bound | None:
        """Return the place of the last loaded record, if more records follow it."""
        if self._head is None or not self._has_more:
            return None
        return Bound(int(self._head.keys[-1]), int(ranks[self._head.lanes][-1]))

    def take(self, bound: Bound, ranks: Int64Array) -> Iterator[Piece]:
        """Take the loaded records below a bound."""
        if self._head is None:
            return
        keys, lanes = self._head.keys, cast(Int64Array, self._head.lanes)
        low = int(np.searchsorted(keys, bound.key, side="left"))
        high = int(np.searchsorted(keys, bound.key, side="right"))
        # Among records with the bound's key, ranks are ascending.
        end = low + int(np.searchsorted(ranks[lanes[low:high]], bound.rank, side="right"))
        if not end:
            return
        taken, rest = self._head.split(end)
        self._head = rest if rest.keys.size else None
        piece = self._without_dropped(taken)
        if piece.keys.size:
            self.counts -= count_by_lane([piece], self.counts.size)
            yield piece
        if not self.records:
            self.remove()

    def keys_and_offsets(self, lane: int) -> Iterator[tuple[Int64Array, Int64Array]]:
        """Yield the keys and offsets of a lane's records, batch by batch, without keeping the other columns."""
        if not self.count_of(lane):
            return
        if self._head is not None:
            is_of_lane = self._head.lanes == lane
            yield self._head.keys[is_of_lane], _offsets(self._head.rows)[is_of_lane]
        for number in range(self._next, self._batches.num_batches):
            batch = self._batches.batch(number)
            is_of_lane = batch.column(LANE_COLUMN).to_numpy() == lane
            yield (
                cast(Int64Array, batch.column(KEY_COLUMN).to_numpy())[is_of_lane],
                _offsets(batch)[is_of_lane],
            )

    def drop(self, lane: int) -> None:
        """Forget the records of a lane."""
        if self.count_of(lane):
            self.counts[lane] = 0
            if not self.records:
                self.remove()

    def remove(self) -> None:
        """Free the disk."""
        self._head = None
        self._batches.remove()

    @property
    def _has_more(self) -> bool:
        return self._next < self._batches.num_batches

    def _without_dropped(self, piece: Piece) -> Piece:
        # All records of a lane that are left are here or in later batches: with none left, these were dropped.
        is_left = self.counts[piece.lanes] > 0
        if is_left.all():
            return piece
        lanes = cast(Int64Array, piece.lanes)
        rows = piece.rows.filter(pa.array(is_left))
        return Piece(piece.keys[is_left], lanes[is_left], rows, piece.row_bytes)


def _offsets(rows: pa.RecordBatch) -> Int64Array:
    return cast(Int64Array, rows.column("offset").to_numpy())
