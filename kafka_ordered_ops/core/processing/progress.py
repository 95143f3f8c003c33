"""What is done of one partition: below a committed offset everything, and ranges beyond it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kafka_ordered_ops.core.offset_set import EMPTY_SET, Int64Array, OffsetSet


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was done at one moment."""

    #: All offsets below it are done.
    base: int
    #: Done offsets above the base.
    beyond: OffsetSet


class Progress:
    """Which offsets are done, between where reading began and where it is. Not safe for threads; its owner locks it.

    Offsets without a record (transaction markers, aborted records, compacted holes) are done once reading has passed
    them.

    Args:
        start: the committed offset.
        done: offsets above it that were done before.
    """

    def __init__(self, start: int, done: OffsetSet = EMPTY_SET) -> None:
        self.position = start
        #: Done before, and not reached by reading.
        self._ahead = done
        #: Read and not done, rising; `_arrived` and `_done` are not in it yet.
        self._open: Int64Array = np.empty(0, dtype=np.int64)
        self._arrived: list[Int64Array] = []
        self._done: list[int] = []

    def read(self, offsets: Int64Array, position: int) -> None:
        """Take note of records that were read, and of where reading is."""
        if offsets.size:
            self._arrived.append(offsets)
        self.position = max(self.position, position)

    def done(self, offsets: Iterable[int]) -> None:
        """Take note of records that are done."""
        self._done.extend(offsets)

    @property
    def open(self) -> int:
        """How many records were read and are not done."""
        return self._open.size + sum(one.size for one in self._arrived) - len(self._done)

    def snapshot(self) -> Snapshot:
        """Return what is done now."""
        left = np.concatenate([self._open, *self._arrived])
        if self._done:
            left = np.setdiff1d(left, np.array(self._done, dtype=np.int64), assume_unique=True)
        self._open, self._arrived, self._done = left, [], []
        read = OffsetSet.of((0, self.position)) - OffsetSet.from_offsets(left)
        done = read | self._ahead
        base = done.first_missing(0)
        self._ahead = self._ahead - OffsetSet.of((0, self.position))
        return Snapshot(base, done - OffsetSet.of((0, base)))
