"""Sorted runs of held records on disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Protocol, cast

import numpy as np
import pyarrow as pa

from kafka_ordered_ops.core.offset_set import Int64Array
from kafka_ordered_ops.core.release.lanes import Bound
from kafka_ordered_ops.core.release.sorting import Piece, count_by_lane, row_bytes_of

#: Columns of a run beside those of the records.
KEY_COLUMN: Final = "_koo_key"
LANE_COLUMN: Final = "_koo_lane"


class SpilledBatches(Protocol):
    """A run on disk, as batches that rise from one to the next."""

    @property
    def num_batches(self) -> int:
        """How many batches."""

    @property
    def nbytes(self) -> int:
        """The size on disk."""

    def batch(self, number: int) -> pa.RecordBatch:
        """Read one batch."""

    def remove(self) -> None:
        """Free the disk; may be called twice."""


class Spill(Protocol):
    """Where records go that memory may not hold; raises `SpillError` when it fails."""

    def write(self, batches: Iterator[pa.RecordBatch]) -> SpilledBatches:
        """Write batches as one run."""


class SpilledRun:
    """A run of several partitions on disk; one batch of it is loaded at a time.

    Args:
        batches: the records, sorted, with their keys and lanes.
        first_key: at or below all keys.
        counts: for each lane, how many records it has.
        offsets_min: for each lane that has records, an offset at or below theirs.
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
        """How many records have not been taken."""
        return int(self.counts.sum())

    @property
    def nbytes(self) -> int:
        """The size on disk."""
        return self._batches.nbytes

    def count_of(self, lane: int) -> int:
        """Return how many records of a lane have not been taken."""
        return int(self.counts[lane]) if lane < self.counts.size else 0

    def load(self, bound: Bound) -> None:
        """Load the next batch if none is loaded, and it may have records below a bound."""
        if self._head is None and self.first_key <= bound.key and self._has_more:
            batch = self._batches.batch(self._next)
            self._next += 1
            keys = cast(Int64Array, batch.column(KEY_COLUMN).to_numpy())
            lanes = batch.column(LANE_COLUMN).to_numpy().astype(np.int64)
            rows = batch.drop_columns([KEY_COLUMN, LANE_COLUMN])
            self._head = Piece(keys, lanes, rows, row_bytes_of(rows))
            self.first_key = int(keys[0])

    def last_loaded(self, ranks: Int64Array) -> Bound | None:
        """Return the place of the last record that is loaded, if more follow it."""
        if self._head is None or not self._has_more:
            return None
        return Bound(int(self._head.keys[-1]), int(ranks[self._head.lanes][-1]))

    def take(self, bound: Bound, ranks: Int64Array) -> Iterator[Piece]:
        """Take what lies below a bound of what is loaded."""
        if self._head is None:
            return
        keys, lanes = self._head.keys, cast(Int64Array, self._head.lanes)
        low = int(np.searchsorted(keys, bound.key, side="left"))
        high = int(np.searchsorted(keys, bound.key, side="right"))
        # Among records with the bound's key ranks rise.
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
        # What a lane has left is here or further on: with none left, these were dropped.
        kept = self.counts[piece.lanes] > 0
        if kept.all():
            return piece
        lanes = cast(Int64Array, piece.lanes)
        rows = piece.rows.filter(pa.array(kept))
        return Piece(piece.keys[kept], lanes[kept], rows, piece.row_bytes)
