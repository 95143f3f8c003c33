"""What is done of one partition: below a committed offset everything, and ranges beyond it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from kafka_ordered_ops.core.offset_set import EMPTY_SET, Int64Array, OffsetSet

#: With so many done records that nobody asked about, they are summed up: memory does not grow with what is done.
_DONE_MAX: Final = 2**16


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was done at one moment."""

    #: All offsets below it are done.
    base: int
    #: Done offsets above the base.
    beyond: OffsetSet


class _Open(NamedTuple):
    """Records that were read and are not done."""

    #: Rising; what follows is not in it yet.
    offsets: Int64Array
    arrived: list[Int64Array]
    done: list[int]

    def summed_up(self) -> _Open:
        """Return the same in one array."""
        left = np.concatenate([self.offsets, *self.arrived])
        if self.done:
            left = np.setdiff1d(left, np.array(self.done, dtype=np.int64), assume_unique=True)
        return _Open(left, [], [])


class Progress:
    """Which offsets are done, between where reading began and where it is. Not safe for threads; its owner locks it.

    A signal's handler may ask for a snapshot while its own thread takes one.

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
        #: Replaced as a whole: a handler may come between any two lines.
        self._open = _Open(np.empty(0, dtype=np.int64), [], [])

    def read(self, offsets: Int64Array, position: int) -> None:
        """Take note of records that were read, and of where reading is."""
        if offsets.size:
            self._open.arrived.append(offsets)
        self.position = max(self.position, position)

    def done(self, offsets: Iterable[int]) -> None:
        """Take note of records that are done."""
        done = self._open.done
        done.extend(offsets)
        if len(done) >= _DONE_MAX:
            self._open = self._open.summed_up()

    @property
    def open(self) -> int:
        """How many records were read and are not done."""
        offsets, arrived, done = self._open
        return offsets.size + sum(one.size for one in arrived) - len(done)

    def snapshot(self) -> Snapshot:
        """Return what is done now."""
        left = self._open = self._open.summed_up()
        read = OffsetSet.of((0, self.position)) - OffsetSet.from_offsets(left.offsets)
        done = read | self._ahead
        base = done.first_missing(0)
        self._ahead = self._ahead - OffsetSet.of((0, self.position))
        return Snapshot(base, done - OffsetSet.of((0, base)))
