"""The first visible record stamped at or after a cutoff: records that a window takes after it are out of order.

The broker's index also counts aborted records and transaction markers, which carry the broker's clock. Its answer is
therefore only a lower bound: the record itself may be anywhere after it. Only reading timestamps finds the record.
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
    """What is known before any read about one window's first record past its cutoff."""

    cutoff_ms: int
    #: The index's lower bound: no such record is below it.
    not_before: int
    #: The first offset at or above `not_before` that is done or claimed, and whose record may be past the cutoff.
    taken_from: int

    def chunk(self, unread: TimeMap) -> OffsetSet:
        """Return the first chunk that may hold the record, among the chunks that are not read."""
        return unread.first_reaching(self.cutoff_ms, from_offset=self.not_before)

    def doubtful(self, unread: TimeMap) -> int:
        """Return the first offset that is not read and may be the record."""
        chunk = self.chunk(unread)
        in_chunk = max(chunk.first, self.not_before) if chunk else INT64_MAX
        return min(self.taken_from, in_chunk)


def read_again(
    sought: Sequence[Sought], decided: TimeMap, chunks: DealtChunks, unknown: OffsetSet
) -> OffsetSet:
    """Return chunks that are read again although they are decided: a window may take out-of-order records after them.

    There is at most one for each window, and usually none: the chunk with the first record past the cutoff usually
    holds earlier records as well, and must be read anyway.
    """
    again = []
    for number, window in enumerate(sought):
        chunk, taken = window.chunk(decided), chunks.of(number)
        ends = [offsets.end for offsets in (taken, unknown) if offsets]
        if chunk and chunk.first < min(window.taken_from, max(ends, default=0)):
            again.append(chunk)
    return union_of(again)


class FirstPast:
    """Find, for each of several cutoffs, the first fed record that is stamped at or after it."""

    def __init__(self, cutoffs_ms: Sequence[int]) -> None:
        self._cutoffs_ms = np.unique(np.array(cutoffs_ms, dtype=np.int64))
        self._offsets = np.empty(self._cutoffs_ms.size, dtype=np.int64)
        # The cutoffs are sorted, so the passed ones come first.
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
        """Return the offsets by cutoff, without cutoffs that no record has passed."""
        passed = slice(0, self._passed)
        return dict(
            zip(self._cutoffs_ms[passed].tolist(), self._offsets[passed].tolist(), strict=True)
        )


def first_past(first_read: int | None, *, end: int, doubtful: int, taken: OffsetSet) -> int | None:
    """Return the first visible record stamped at or after a cutoff, or None if it is unknown.

    It may be any offset from `doubtful` on. That makes no difference if the window takes nothing between `doubtful`
    and `first_read`: the same records are out of order.

    Args:
        first_read: the first such record among the records that were read.
        end: the end of the decided offsets, which is returned if there is no such record.
        doubtful: the first offset that was not read, and whose record may be stamped at or after the cutoff.
        taken: the offsets that the window takes.
    """
    last = end if first_read is None else first_read
    return None if taken.within(doubtful, last) else last
