"""Folds the timestamps of a scan into the two things a plan needs: what is excluded, and a time map.

Records are fed in offset order. *Excluded* are those stamped at or after the cutoff. What is neither
visible nor excluded (transaction markers, aborted records, compacted holes) counts with the record before
it, so that every window takes the markers behind its records, and progress never sticks on one; and so
that a transactional log does not need a range for every marker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from kafka_ordered_ops.core.offset_set import EMPTY_SET, Int64Array, OffsetSet
from kafka_ordered_ops.core.time_map import TimeMap

#: Excluded records in a chunk: small enough that a straddling chunk is cheap to read again, large enough
#: that a day of a busy partition fits `CHUNKS_MAX`.
CHUNK_RECORDS: Final = 1_024


@dataclass(frozen=True, slots=True)
class ScanStop:
    """When a scan may end before the end offset (allowed lateness).

    At the first visible record at or above `from_offset`, stamped at or after `at_or_after_ms` but before
    `future_ms`: one record stamped in the year 2100 must not end it.
    """

    at_or_after_ms: int
    from_offset: int
    future_ms: int


@dataclass(frozen=True, slots=True)
class ScanResult:
    """What the scan of one partition decided."""

    #: Offsets of the scanned set that stay for a later window.
    excluded: OffsetSet
    #: Bounds of the excluded records.
    time_map: TimeMap
    #: Scanned offsets at or above this one were not looked at (allowed lateness); None: all were.
    stopped_at: int | None
    #: Visible records looked at.
    records: int


class ScanFold:
    """One partition's scan; feed batches in offset order, then `finish`.

    `known` are offsets that other chunks speak of: the chunks made here leave them out.
    """

    def __init__(
        self,
        wanted: OffsetSet,
        cutoff_ms: int,
        stop: ScanStop | None = None,
        known: OffsetSet = EMPTY_SET,
    ) -> None:
        self._wanted = wanted
        self._known = known
        self._cutoff_ms = cutoff_ms
        self._stop = stop
        self._excluded_since: int | None = None
        self._runs: list[tuple[int, int]] = []
        self._chunks: list[tuple[int, int, int, int]] = []
        self._chunk_records = 0
        self._stopped_at: int | None = None
        self._records = 0

    @property
    def stopped(self) -> bool:
        """Whether nothing more needs to be fed."""
        return self._stopped_at is not None

    def feed(self, offsets: Int64Array, timestamps_ms: Int64Array) -> None:
        """Visible records, in offset order, all in the wanted set."""
        if self.stopped or not offsets.size:
            return
        if self._stop is not None:
            offsets, timestamps_ms = self._cut_at_stop(self._stop, offsets, timestamps_ms)
            if not offsets.size:
                return
        self._records += offsets.size
        excluded = timestamps_ms >= self._cutoff_ms
        self._fold_runs(offsets, excluded)
        self._fold_chunks(offsets, timestamps_ms, excluded)

    def finish(self) -> ScanResult:
        """The result; the rest of the wanted set counts with the last record."""
        end = self._wanted.end if self._wanted else 0
        if self._stopped_at is not None:
            end = self._stopped_at
        if self._excluded_since is not None:
            self._runs.append((self._excluded_since, end))
        if self._runs:
            # Markers behind the last excluded record are known too: nobody needs to look again.
            start, chunk_end, least, greatest = self._chunks[-1]
            self._chunks[-1] = (start, max(chunk_end, self._runs[-1][1]), least, greatest)
        looked_at = self._wanted & OffsetSet.of((0, end)) if end else EMPTY_SET
        excluded = OffsetSet.from_ranges(self._runs) & looked_at
        rows = np.array(self._chunks, dtype=np.int64).reshape(-1, 4)
        return ScanResult(
            excluded=excluded,
            time_map=TimeMap(rows).without(self._known).limited(),
            stopped_at=self._stopped_at,
            records=self._records,
        )

    def _cut_at_stop(
        self, stop: ScanStop, offsets: Int64Array, timestamps_ms: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        ends = (
            (timestamps_ms >= stop.at_or_after_ms)
            & (timestamps_ms < stop.future_ms)
            & (offsets >= stop.from_offset)
        )
        if not ends.any():
            return offsets, timestamps_ms
        at = int(np.argmax(ends))
        self._stopped_at = int(offsets[at])
        return offsets[:at], timestamps_ms[:at]

    def _fold_runs(self, offsets: Int64Array, excluded: np.ndarray) -> None:
        was_excluded = self._excluded_since is not None
        changes = np.flatnonzero(np.diff(excluded, prepend=was_excluded))
        for offset in offsets[changes].tolist():
            if self._excluded_since is None:
                self._excluded_since = offset
            else:
                self._runs.append((self._excluded_since, offset))
                self._excluded_since = None

    def _fold_chunks(
        self, offsets: Int64Array, timestamps_ms: Int64Array, excluded: np.ndarray
    ) -> None:
        times, places = timestamps_ms[excluded], offsets[excluded]
        for at in range(0, places.size, CHUNK_RECORDS):
            piece, piece_times = places[at : at + CHUNK_RECORDS], times[at : at + CHUNK_RECORDS]
            first, end = int(piece[0]), int(piece[-1]) + 1
            least, greatest = int(piece_times.min()), int(piece_times.max())
            if self._chunks and self._chunk_records + piece.size <= CHUNK_RECORDS:
                start, _, old_least, old_greatest = self._chunks[-1]
                self._chunks[-1] = (start, end, min(least, old_least), max(greatest, old_greatest))
                self._chunk_records += piece.size
                continue
            if self._chunks:
                # No gap between chunks: what lies there is invisible, or taken by this very window.
                start, _, old_least, old_greatest = self._chunks[-1]
                self._chunks[-1] = (start, first, old_least, old_greatest)
            self._chunks.append((first, end, least, greatest))
            self._chunk_records = piece.size
