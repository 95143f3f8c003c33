"""The progress of one partition: everything below a committed offset is done, and ranges above it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from kafka_ordered_ops.core.offset_set import EMPTY_SET, Int64Array, OffsetSet

#: With this many done records since the last snapshot, they are merged, so that memory does not grow with them.
_DONE_MAX: Final = 2**16


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The done offsets at one moment."""

    #: All offsets below it are done.
    base: int
    #: Done offsets above the base.
    beyond: OffsetSet


class _Open(NamedTuple):
    """Records that were read and are not done."""

    #: Ascending; without the changes in `arrived` and `done`.
    offsets: Int64Array
    arrived: list[Int64Array]
    done: list[int]

    def summed_up(self) -> _Open:
        """Return the same records in one array."""
        left = np.concatenate([self.offsets, *self.arrived])
        if self.done:
            left = np.setdiff1d(left, np.array(self.done, dtype=np.int64), assume_unique=True)
        return _Open(left, [], [])


class Progress:
    """The done offsets between the start of reading and its position. Not thread-safe: its owner locks it.

    A signal handler may take a snapshot while its own thread takes one.

    Offsets without a record (transaction markers, aborted records, compacted gaps) are done once reading has passed
    them.

    Args:
        start: the committed offset.
        done: offsets above `start` that were done before.
    """

    def __init__(self, start: int, done: OffsetSet = EMPTY_SET) -> None:
        self.position = start
        #: Done before, and not reached by reading yet.
        self._ahead = done
        #: Replaced as a whole: a signal handler may run between any two lines.
        self._open = _Open(np.empty(0, dtype=np.int64), [], [])

    def read(self, offsets: Int64Array, position: int) -> None:
        """Record the offsets that were read, and the position of reading."""
        if offsets.size:
            self._open.arrived.append(offsets)
        self.position = max(self.position, position)

    def done(self, offsets: Iterable[int]) -> None:
        """Mark records as done."""
        done = self._open.done
        done.extend(offsets)
        if len(done) >= _DONE_MAX:
            self._open = self._open.summed_up()

    @property
    def open(self) -> int:
        """The number of records that were read and are not done."""
        offsets, arrived, done = self._open
        return offsets.size + sum(batch.size for batch in arrived) - len(done)

    def snapshot(self) -> Snapshot:
        """Return the done offsets at this moment."""
        left = self._open = self._open.summed_up()
        read = OffsetSet.of((0, self.position)) - OffsetSet.from_offsets(left.offsets)
        done = read | self._ahead
        base = done.first_missing(0)
        self._ahead = self._ahead - OffsetSet.of((0, self.position))
        return Snapshot(base, done - OffsetSet.of((0, base)))
