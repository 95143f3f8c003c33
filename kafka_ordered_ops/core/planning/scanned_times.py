"""The timestamps of single records that scans have read, kept in the process for its next plans.

A time map stores bounds of a thousand records each. If records are shuffled, every chunk straddles every cutoff, and
each plan reads the timestamps of the whole tail again. Within one process, this is not necessary: the offset and the
timestamp of a record that was visible below the end of a scan never change. They only hold for one log and one
isolation level: with another topic id or another leader, the log may be another one, and its records are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from kafka_ordered_ops.core.offset_set import EMPTY_SET, Int64Array, OffsetSet
from kafka_ordered_ops.core.planning.scan_fold import ScanFold
from kafka_ordered_ops.core.types import Isolation, TopicPartition

#: Memory for the kept times of one service: about four million records of 16 bytes each.
KEPT_BYTES_MAX: Final = 64 * 1024**2


class Log(NamedTuple):
    """Identifies a log whose records do not change: a truncated log has another leader epoch."""

    topic_id: str
    leader_epoch: int
    isolation: Isolation


@dataclass(frozen=True, slots=True)
class ScannedTimes:
    """The visible records of some offsets of one partition."""

    #: All offsets that were read, including offsets without a visible record.
    covered: OffsetSet
    #: int64, ascending
    offsets: Int64Array
    timestamps_ms: Int64Array

    @property
    def nbytes(self) -> int:
        """The memory of the arrays."""
        arrays = (self.offsets, self.timestamps_ms, self.covered.boundaries)
        return sum(array.nbytes for array in arrays)

    def within(self, wanted: OffsetSet) -> ScannedTimes:
        """Return the known times of these offsets."""
        if not (self.covered and wanted):
            return NOTHING
        inside = wanted.mask(self.offsets)
        return ScannedTimes(self.covered & wanted, self.offsets[inside], self.timestamps_ms[inside])

    def joined(self, other: ScannedTimes) -> ScannedTimes:
        """Return these times together with times of other offsets."""
        if not other.covered:
            return self
        offsets = np.concatenate((self.offsets, other.offsets))
        order = np.argsort(offsets, kind="stable")
        times = np.concatenate((self.timestamps_ms, other.timestamps_ms))
        return ScannedTimes(self.covered | other.covered, offsets[order], times[order])


NOTHING: Final = ScannedTimes(EMPTY_SET, np.empty(0, np.int64), np.empty(0, np.int64))


class KeptTimes:
    """The kept times of all partitions; past the limit, the least recently scanned partitions are dropped."""

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        #: The least recently scanned partition first.
        self._of: dict[TopicPartition, tuple[Log, ScannedTimes]] = {}
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """The memory of all kept times."""
        return self._nbytes

    def of(self, tp: TopicPartition, log: Log | None) -> ScannedTimes:
        """Return the known times of a log; `NOTHING` if they are of another log, or if `log` is unknown."""
        known, times = self._of.get(tp, (None, NOTHING))
        return times if log is not None and known == log else NOTHING

    def keep(self, tp: TopicPartition, log: Log | None, times: ScannedTimes) -> None:
        """Replace the kept times of a partition; if they exceed the limit, keep those of the first offsets."""
        self._forget(tp)
        while times.nbytes > self.bytes_max and times.offsets.size:
            end = int(times.offsets[3 * times.offsets.size // 4])
            times = times.within(OffsetSet.of((0, end)))
        if log is None or not times.offsets.size:
            return
        self._of[tp] = (log, times)
        self._nbytes += times.nbytes
        while self._nbytes > self.bytes_max:
            self._forget(next(iter(self._of)))

    def _forget(self, tp: TopicPartition) -> None:
        if (entry := self._of.pop(tp, None)) is not None:
            self._nbytes -= entry[1].nbytes


class Scan:
    """One partition's scan: feeds known records and read records to the fold, in offset order.

    Args:
        fold: takes the records.
        wanted: the offsets to scan.
        known: the known times of these offsets.
    """

    def __init__(self, fold: ScanFold, wanted: OffsetSet, known: ScannedTimes) -> None:
        self.fold = fold
        #: The offsets that must be read.
        self.to_read = wanted - known.covered
        self._known = known
        self._fed = 0
        self._read: list[tuple[Int64Array, Int64Array]] = []
        self._kept_to = 0
        self._keeps = True
        # Known records before the first offset to read may end the scan.
        self._feed_known(self.to_read.first if self.to_read else None)
        if fold.stopped:
            self.to_read = EMPTY_SET

    def take(self, offsets: Int64Array, timestamps_ms: Int64Array, position: int) -> None:
        """Take the records that were read up to a position."""
        known = self._known_up_to(position)
        if self._keeps:
            self._read.append((offsets, timestamps_ms))
            self._kept_to = position
        if known.stop > known.start:
            offsets = np.concatenate((self._known.offsets[known], offsets))
            times = np.concatenate((self._known.timestamps_ms[known], timestamps_ms))
            order = np.argsort(offsets, kind="stable")
            offsets, timestamps_ms = offsets[order], times[order]
        self.fold.feed(offsets, timestamps_ms)

    def finish(self) -> None:
        """Feed the known records after the last position."""
        self._feed_known(None)

    def keep_no_more(self) -> None:
        """Stop keeping the records that are read."""
        self._keeps = False

    def learned(self) -> ScannedTimes:
        """Return the times that were read and kept."""
        if not self._read:
            return NOTHING
        offsets, times = map(np.concatenate, zip(*self._read, strict=True))
        return ScannedTimes(self.to_read & OffsetSet.of((0, self._kept_to)), offsets, times)

    def _feed_known(self, before: int | None) -> None:
        known = self._known_up_to(before)
        self.fold.feed(self._known.offsets[known], self._known.timestamps_ms[known])

    def _known_up_to(self, position: int | None) -> slice:
        """Return the slice of known records before a position that were not fed yet; all of them for None."""
        offsets, start = self._known.offsets, self._fed
        end = offsets.size if position is None else int(np.searchsorted(offsets, position))
        self._fed = max(start, end)
        return slice(start, self._fed)
