"""The first visible record stamped at or after a cutoff: a record that a window takes after it is out of order.

The broker's index counts transaction markers, which carry the broker's clock, and aborted records. Its answer is
therefore only a lower bound, and the record itself may be anywhere after it. Its place is known from reading
timestamps, or unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kafka_ordered_ops.core.offset_set import Int64Array, OffsetSet, union_of
from kafka_ordered_ops.core.planning.time_map import DealtChunks, TimeMap
from kafka_ordered_ops.core.types import INT64_MAX


@dataclass(frozen=True, slots=True)
class Sought:
    """One window's first record past its cutoff, as far as it is known before any read."""

    cutoff_ms: int
    #: By the index: no such record is below it.
    not_before: int
    #: The first offset at or above it that is done or claimed, and whose record may be stamped so.
    taken_from: int

    def chunk(self, told: TimeMap) -> OffsetSet:
        """Return the first chunk that may hold it, of those that are not read."""
        return told.first_reaching(self.cutoff_ms, from_offset=self.not_before)

    def doubtful(self, told: TimeMap) -> int:
        """Return the first offset that may be it, and is not read."""
        chunk = self.chunk(told)
        in_chunk = max(chunk.first, self.not_before) if chunk else INT64_MAX
        return min(self.taken_from, in_chunk)


def read_again(
    sought: Sequence[Sought], told: TimeMap, chunks: DealtChunks, unknown: OffsetSet
) -> OffsetSet:
    """Return chunks that are read again although they are decided: a window may take out-of-order records after them.

    One for each window, and for most windows none: the chunk that holds the first record past the cutoff
    holds most often earlier ones as well, and must be read anyway.
    """
    found = []
    for number, one in enumerate(sought):
        chunk, taken = one.chunk(told), chunks.of(number)
        ends = [offsets.end for offsets in (taken, unknown) if offsets]
        if chunk and chunk.first < min(one.taken_from, max(ends, default=0)):
            found.append(chunk)
    return union_of(found)


class FirstPast:
    """Finds, for each of several cutoffs, the first fed record that is stamped at or after it."""

    def __init__(self, cutoffs_ms: Sequence[int]) -> None:
        self._cutoffs_ms = np.unique(np.array(cutoffs_ms, dtype=np.int64))
        self._offsets = np.empty(self._cutoffs_ms.size, dtype=np.int64)
        # The cutoffs rise, so the passed ones are first.
        self._passed = 0

    def feed(self, offsets: Int64Array, timestamps_ms: Int64Array) -> None:
        """Feed visible records, at least one, in offset order."""
        if self._passed == self._cutoffs_ms.size:
            return
        passed = int(np.searchsorted(self._cutoffs_ms, timestamps_ms.max(), side="right"))
        if passed <= self._passed:
            return
        new = slice(self._passed, passed)
        greatest_ms = np.maximum.accumulate(timestamps_ms)
        self._offsets[new] = offsets[np.searchsorted(greatest_ms, self._cutoffs_ms[new])]
        self._passed = passed

    def found(self) -> dict[int, int]:
        """Return the offsets by cutoff; a cutoff that no record has passed is not among them."""
        passed = slice(0, self._passed)
        return dict(
            zip(self._cutoffs_ms[passed].tolist(), self._offsets[passed].tolist(), strict=True)
        )


def first_past(found: int | None, *, end: int, doubtful: int, taken: OffsetSet) -> int | None:
    """Return the first visible record stamped at or after a cutoff, or None where it is not known.

    It may lie from `doubtful` on. That makes no difference where the window takes nothing between there and
    the record that was found: the same records are out-of-order records.

    Args:
        found: the first one among the records that were read.
        end: the end of the decided offsets, which is the answer if there is no such record.
        doubtful: the first offset that was not read, and whose record may be stamped at or after the cutoff.
        taken: the offsets that the window takes.
    """
    last = end if found is None else found
    return None if taken.within(doubtful, last) else last
