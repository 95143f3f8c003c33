"""The acknowledged offsets of one group in one partition, which arrive one by one or in ranges, in any order."""

from __future__ import annotations

from typing import Final

from kafka_ordered_ops.core.offset_set import OffsetSet, union_of

#: Joining this many sets takes about as long as looking up an offset in each of them.
_LOOKED_UP_MAX: Final = 8
#: Without look-ups, as when the log is replayed, joining more sets at once is faster.
_ARRIVED_MAX: Final = 128
#: A set is joined with the one below it when it has at least a quarter as many ranges.
_GROWTH: Final = 4


class AcknowledgedOffsets:
    """A growing set in layers, each with far fewer ranges than the one below it.

    Joining two sets takes time for each range of both. With layers, each range is joined a few times, however many
    there are.
    """

    def __init__(self) -> None:
        self._layers: list[OffsetSet] = []
        self._arrived: list[OffsetSet] = []

    def add(self, offsets: OffsetSet) -> None:
        """Add offsets."""
        self._arrived.append(offsets)
        if len(self._arrived) >= _ARRIVED_MAX:
            self._join()

    def left(self, offsets: OffsetSet) -> OffsetSet:
        """Return the offsets that are not in the set."""
        if len(self._arrived) > _LOOKED_UP_MAX:
            self._join()
        for layer in (*self._layers, *self._arrived):
            if not offsets:
                break
            offsets = offsets - layer
        return offsets

    def __contains__(self, offset: int) -> bool:
        return any(offset in layer for layer in (*self._layers, *self._arrived))

    @property
    def all(self) -> OffsetSet:
        """All acknowledged offsets."""
        if len(self._layers) > 1 or self._arrived:
            self._layers = [union_of([*self._layers, *self._arrived])]
            self._arrived.clear()
        return union_of(self._layers)

    def _join(self) -> None:
        joined = union_of(self._arrived)
        self._arrived.clear()
        while self._layers and _GROWTH * len(joined) >= len(self._layers[-1]):
            joined = union_of([self._layers.pop(), joined])
        self._layers.append(joined)
