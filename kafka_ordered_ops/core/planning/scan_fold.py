"""Fold the timestamps of a scan into the input of a plan: each window's offsets, and a time map of the rest.

Records are fed in offset order. *Excluded* records are records that no window asks for. Invisible offsets (transaction
markers, aborted records, compacted gaps) count with the record before them. A window therefore takes the markers
after its records, progress never waits for a marker, and a transactional log does not need a range for every marker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from kafka_ordered_ops.core.offset_set import (
    EMPTY_SET,
    BoolArray,
    Int64Array,
    OffsetSet,
    coarsened,
)
from kafka_ordered_ops.core.planning.first_past import FirstPast
from kafka_ordered_ops.core.planning.time_map import TimeMap
from kafka_ordered_ops.core.time_ranges import NOBODY, TimeSplit, rows_by_label
from kafka_ordered_ops.core.types import INT64_MIN
from kafka_ordered_ops.core.window.plan import EARLIER_RANGES_MAX

#: Excluded records in a chunk: small enough that a straddling chunk is cheap to read again, large enough
#: that a day of a busy partition fits `CHUNKS_MAX`.
CHUNK_RECORDS: Final = 1_024


@dataclass(frozen=True, slots=True)
class ScanStop:
    """When a scan may end before the end offset (maximum out-of-orderness).

    It ends at the first visible record at or above `from_offset` that is stamped at or after `at_or_after_ms` but before
    `future_ms`: one record stamped in the year 2100 must not end a scan.
    """

    at_or_after_ms: int
    from_offset: int
    future_ms: int


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The decisions of one partition's scan."""

    #: Scanned offsets that were not known, by window number; under `NOBODY`, the offsets left for later windows.
    by_window: dict[int, OffsetSet]
    #: Bounds of the excluded records.
    time_map: TimeMap
    #: Offsets at or above this one were not read (maximum out-of-orderness); None if all were read.
    stopped_at: int | None
    #: Visible records read.
    records: int
    #: By cutoff: the first visible record read that is stamped at or after it, if there is one.
    first_past: Mapping[int, int]
    #: Ranges with all records stamped before their window's start, and some offsets between them.
    earlier: OffsetSet

    def of(self, window: int) -> OffsetSet:
        """Return the scanned offsets of a window."""
        return self.by_window.get(window, EMPTY_SET)


class ScanFold:
    """One partition's scan; feed batches in offset order, then `finish`.

    `known` are offsets of other chunks, which are decided already; the result leaves them out. For each of
    `cutoffs_ms`, the fold finds the first record stamped at or after it. `sinces_ms` are the starts of the windows: for
    each, the fold finds the window's records stamped before it.
    """

    def __init__(
        self,
        wanted: OffsetSet,
        split: TimeSplit,
        stop: ScanStop | None = None,
        known: OffsetSet = EMPTY_SET,
        cutoffs_ms: Sequence[int] = (),
        sinces_ms: Sequence[int | None] = (),
    ) -> None:
        self._first_past = FirstPast(cutoffs_ms)
        # By label; the last one is for `NOBODY`.
        starts_ms = [INT64_MIN if since_ms is None else since_ms for since_ms in (*sinces_ms, None)]
        self._starts_ms = np.array(starts_ms, dtype=np.int64)
        self._has_starts = max(starts_ms) > INT64_MIN
        self._earlier = EMPTY_SET
        self._wanted = wanted
        self._known = known
        self._split = split
        self._stop = stop
        # Runs of records of one window: the start of each run, and its window. No records exist at the offsets before
        # the first record: the first window takes these offsets.
        self._run_starts: list[Int64Array] = [np.zeros(1, dtype=np.int64)]
        self._run_labels: list[Int64Array] = [np.zeros(1, dtype=np.int64)]
        self._label = 0
        self._chunks: list[tuple[int, int, int, int]] = []
        self._chunk_records = 0
        self._stopped_at: int | None = None
        self._records = 0

    @property
    def stopped(self) -> bool:
        """Whether the scan may end."""
        return self._stopped_at is not None

    def feed(self, offsets: Int64Array, timestamps_ms: Int64Array) -> None:
        """Feed visible records of the wanted set, in offset order."""
        if self.stopped or not offsets.size:
            return
        if self._stop is not None:
            offsets, timestamps_ms = self._cut_at_stop(self._stop, offsets, timestamps_ms)
            if not offsets.size:
                return
        self._records += offsets.size
        self._first_past.feed(offsets, timestamps_ms)
        labels = self._split.labels(timestamps_ms)
        changes = np.flatnonzero(np.diff(labels, prepend=self._label))
        self._run_starts.append(offsets[changes])
        self._run_labels.append(labels[changes])
        self._label = int(labels[-1])
        if self._has_starts:
            self._add_earlier(offsets, timestamps_ms < self._starts_ms[labels])
        excluded = labels == NOBODY
        self._fold_chunks(offsets, timestamps_ms, excluded & ~self._known.mask(offsets))

    def finish(self) -> ScanResult:
        """Return the result; wanted offsets after the last record count with it."""
        end = self._wanted.end if self._wanted else 0
        if self._stopped_at is not None:
            end = self._stopped_at
        starts, labels = np.concatenate(self._run_starts), np.concatenate(self._run_labels)
        ends = np.concatenate((starts[1:], [end]))
        # Known offsets belong to their chunk's window. Here, one without a record would count with the record before it.
        looked_at = (self._wanted - self._known) & OffsetSet.of((0, end))
        if self._chunks:
            # Markers after the last excluded record are known too, and need no further read.
            start, chunk_end, least, greatest = self._chunks[-1]
            known_to = int(ends[labels == NOBODY][-1])
            self._chunks[-1] = (start, max(chunk_end, known_to), least, greatest)
        rows = np.array(self._chunks, dtype=np.int64).reshape(-1, 4)
        return ScanResult(
            by_window={
                label: _set_of(starts[runs], ends[runs]) & looked_at
                for label, runs in rows_by_label(labels)
            },
            time_map=TimeMap(rows).without(self._known).limited(),
            stopped_at=self._stopped_at,
            records=self._records,
            first_past=self._first_past.found(),
            earlier=self._earlier,
        )

    def _add_earlier(self, offsets: Int64Array, is_earlier: BoolArray) -> None:
        at = np.flatnonzero(is_earlier)
        if not at.size:
            return
        breaks = np.flatnonzero(np.diff(at) > 1)
        firsts, lasts = at[np.append(0, breaks + 1)], at[np.append(breaks, at.size - 1)]
        ranges = OffsetSet(np.column_stack((offsets[firsts], offsets[lasts] + 1)).ravel())
        self._earlier = coarsened(self._earlier | ranges, EARLIER_RANGES_MAX)

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

    def _fold_chunks(
        self, offsets: Int64Array, timestamps_ms: Int64Array, excluded: BoolArray
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
                # Leave no gap between chunks: offsets there are invisible, or taken by one of these windows.
                start, _, old_least, old_greatest = self._chunks[-1]
                self._chunks[-1] = (start, first, old_least, old_greatest)
            self._chunks.append((first, end, least, greatest))
            self._chunk_records = piece.size


def _set_of(starts: Int64Array, ends: Int64Array) -> OffsetSet:
    """Return the ranges of one label. They do not touch: neighbouring runs never have the same label."""
    filled = starts < ends
    return OffsetSet(np.column_stack((starts[filled], ends[filled])).ravel())
