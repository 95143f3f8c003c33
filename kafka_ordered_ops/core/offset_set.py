"""Sets of offsets of one partition, as sorted, disjoint, half-open ranges.

`OffsetSet` is a value: everything a plan, a commit or a claim says about a partition is one of these, and
every decision is algebra on them. `GrowingOffsetSet` is its mutable twin for progress that arrives record
by record.

The algebra works on *boundaries*, the flat sorted array ``[start, end, start, end, ...]``: an offset is
inside exactly when an odd number of boundaries lie at or below it. Any boolean operation on two sets is
then the same sweep: look at every boundary of both, ask whether the combination is inside there, and keep
the places where the answer changes. O((n + m) log(n + m)), in numpy, whatever the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from sortedcontainers import SortedDict

from kafka_ordered_ops.core.errors import invariant

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_NO_BOUNDARIES: Final[Int64Array] = np.empty(0, dtype=np.int64)


class OffsetSet:
    """An immutable set of offsets (int64, not negative)."""

    __slots__ = ("_boundaries",)

    def __init__(self, boundaries: Int64Array = _NO_BOUNDARIES) -> None:
        """Takes strictly rising boundaries ``[start, end, ...]``; use `of` or `from_ranges` for loose ranges."""
        invariant(
            boundaries.size % 2 == 0, f"{boundaries.size} boundaries do not pair up to ranges"
        )
        invariant(
            boundaries.size == 0 or (boundaries[0] >= 0 and bool(np.all(np.diff(boundaries) > 0))),
            "boundaries of an offset set rise strictly and are not negative",
        )
        boundaries = boundaries.astype(np.int64, copy=False)
        boundaries.flags.writeable = False
        self._boundaries = boundaries

    @classmethod
    def of(cls, *ranges: tuple[int, int]) -> OffsetSet:
        """The union of half-open ranges, in any order; empty ones vanish."""
        return cls.from_ranges(ranges)

    @classmethod
    def from_ranges(cls, ranges: Iterable[tuple[int, int]]) -> OffsetSet:
        """The union of half-open ranges, in any order, overlapping or touching."""
        pairs = np.array([pair for pair in ranges if pair[0] < pair[1]], dtype=np.int64).reshape(
            -1, 2
        )
        if not len(pairs):
            return EMPTY_SET
        pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
        reach = np.maximum.accumulate(pairs[:, 1])
        opens = np.concatenate(([True], pairs[1:, 0] > reach[:-1]))
        starts = pairs[opens, 0]
        ends = reach[np.concatenate((np.flatnonzero(opens)[1:] - 1, [len(pairs) - 1]))]
        return cls(np.column_stack((starts, ends)).ravel())

    @classmethod
    def from_offsets(cls, offsets: Int64Array) -> OffsetSet:
        """Exactly these offsets, in any order."""
        if not offsets.size:
            return EMPTY_SET
        unique = np.unique(offsets)
        breaks = np.flatnonzero(np.diff(unique) > 1)
        starts = unique[np.concatenate(([0], breaks + 1))]
        ends = unique[np.concatenate((breaks, [unique.size - 1]))] + 1
        return cls(np.column_stack((starts, ends)).ravel())

    @property
    def boundaries(self) -> Int64Array:
        """``[start, end, start, end, ...]``, strictly rising, read-only."""
        return self._boundaries

    @property
    def bounds(self) -> Int64Array:
        """The ranges as an array of shape (number of ranges, 2), read-only."""
        return self._boundaries.reshape(-1, 2)

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The ranges as plain tuples, lowest first."""
        flat: list[int] = self._boundaries.tolist()
        return list(zip(flat[::2], flat[1::2], strict=True))

    @property
    def count(self) -> int:
        """How many offsets are in the set: an upper bound for records, since a log has gaps."""
        return int((self._boundaries[1::2] - self._boundaries[::2]).sum())

    @property
    def first(self) -> int:
        """The lowest offset."""
        invariant(bool(self), "an empty offset set has no first offset")
        return int(self._boundaries[0])

    @property
    def end(self) -> int:
        """The offset after the highest one."""
        invariant(bool(self), "an empty offset set has no end")
        return int(self._boundaries[-1])

    def first_missing(self, at_or_after: int = 0) -> int:
        """The lowest offset at or after `at_or_after` that is not in the set."""
        index = int(np.searchsorted(self._boundaries, at_or_after, side="right"))
        return int(self._boundaries[index]) if index % 2 else at_or_after

    def mask(self, offsets: Int64Array) -> BoolArray:
        """For each offset whether it is in the set."""
        inside: BoolArray = (np.searchsorted(self._boundaries, offsets, side="right") & 1).astype(
            bool
        )
        return inside

    def within(self, start: int, end: int) -> OffsetSet:
        """The part in [start, end)."""
        return self & OffsetSet.of((start, end))

    def complement(self, start: int, end: int) -> OffsetSet:
        """The offsets of [start, end) that are not in the set."""
        return OffsetSet.of((start, end)) - self

    def __contains__(self, offset: int) -> bool:
        return bool(np.searchsorted(self._boundaries, offset, side="right") & 1)

    def __or__(self, other: OffsetSet) -> OffsetSet:
        return self._combine(other, np.logical_or)

    def __and__(self, other: OffsetSet) -> OffsetSet:
        return self._combine(other, np.logical_and)

    def __sub__(self, other: OffsetSet) -> OffsetSet:
        return self._combine(other, np.greater)

    def __le__(self, other: OffsetSet) -> bool:
        return not self - other

    def _combine(
        self, other: OffsetSet, operation: Callable[[BoolArray, BoolArray], Any]
    ) -> OffsetSet:
        points = np.union1d(self._boundaries, other._boundaries)
        if not points.size:
            return EMPTY_SET
        inside = operation(self.mask(points), other.mask(points))
        return OffsetSet(points[np.diff(inside, prepend=False)])

    def __bool__(self) -> bool:
        return self._boundaries.size > 0

    def __len__(self) -> int:
        """How many ranges."""
        return self._boundaries.size // 2

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self.ranges)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OffsetSet):
            return NotImplemented
        return bool(np.array_equal(self._boundaries, other._boundaries))

    def __hash__(self) -> int:
        return hash(self._boundaries.tobytes())

    def __reduce__(self) -> tuple[Any, ...]:
        return OffsetSet, (self._boundaries,)

    def __repr__(self) -> str:
        shown = ", ".join(f"[{start}, {end})" for start, end in self.ranges[:8])
        return f"OffsetSet({shown}{f', ... {len(self)} ranges' if len(self) > 8 else ''})"


EMPTY_SET: Final = OffsetSet()


def union_of(sets: Iterable[OffsetSet]) -> OffsetSet:
    """The union of many sets in one sweep."""
    arrays = [one.bounds for one in sets if one]
    if not arrays:
        return EMPTY_SET
    return OffsetSet.from_ranges(map(tuple, np.concatenate(arrays).tolist()))


class GrowingOffsetSet:
    """A set that grows range by range; O(log n) for each, for progress that arrives out of order."""

    def __init__(self, initial: OffsetSet = EMPTY_SET) -> None:
        self._ends: SortedDict[int, int] = SortedDict(initial.ranges)

    def add(self, start: int, end: int | None = None) -> None:
        """Adds the range [start, end), or the one offset `start`."""
        end = start + 1 if end is None else end
        if start >= end:
            return
        # The range that begins at or before ours may reach into it, or touch it.
        at = self._ends.bisect_right(start) - 1
        if at >= 0:
            left, left_end = self._ends.peekitem(at)
            if left_end >= start:
                start, end = left, max(end, left_end)
        for key in list(self._ends.irange(start, end)):
            end = max(end, self._ends.pop(key))
        self._ends[start] = end

    def __contains__(self, offset: int) -> bool:
        at = self._ends.bisect_right(offset) - 1
        return at >= 0 and bool(self._ends.peekitem(at)[1] > offset)

    def first_missing(self, at_or_after: int = 0) -> int:
        """The lowest offset at or after `at_or_after` that is not in the set."""
        at = self._ends.bisect_right(at_or_after) - 1
        if at < 0:
            return at_or_after
        return max(at_or_after, int(self._ends.peekitem(at)[1]))

    def freeze(self) -> OffsetSet:
        """The set as it is now, as a value."""
        return OffsetSet(np.array(list(self._ends.items()), dtype=np.int64).ravel())
