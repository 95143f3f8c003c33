"""Sets of offsets of one partition, as sorted, disjoint, half-open ranges.

`OffsetSet` is a value: every plan, commit or claim has one for each partition, and every decision is algebra on them.
`GrowingOffsetSet` is its mutable counterpart for progress that arrives record by record.

The algebra works on *boundaries*, the flat sorted sequence ``[start, end, start, end, ...]``: an offset is
inside exactly when an odd number of boundaries are at or below it. Any boolean operation on two sets is then the same
sweep: visit every boundary of both, test whether the combination is inside there, and keep the places where the
result changes. Each operation takes O((n + m) log(n + m)), and only visits offsets where the two sets overlap.

Most sets have one range or a few, and a plan makes about thirty of them for every partition: numpy's calls
would take ten times as long as the work. So the boundaries of a small set are a tuple, swept in Python, and
those of a large set an array, swept in numpy.
"""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sortedcontainers import SortedDict

from kafka_ordered_ops.core.errors import invariant
from kafka_ordered_ops.core.numpy_later import np
from kafka_ordered_ops.core.types import INT64_MAX

if TYPE_CHECKING:
    import numpy.typing as npt

Int64Array: TypeAlias = "npt.NDArray[np.int64]"
BoolArray: TypeAlias = "npt.NDArray[np.bool_]"

#: Boundaries of a small set. With twice as many, Python's sweep takes as long as numpy's calls.
_SMALL: Final = 16

_RISE: Final = "boundaries of an offset set rise strictly and are not negative"


class OffsetSet:
    """An immutable set of offsets (int64, not negative)."""

    __slots__ = ("_edges",)

    #: The boundaries: a tuple exactly when they are at most `_SMALL`, so that equal sets have equal ones.
    _edges: tuple[int, ...] | Int64Array

    def __init__(self, boundaries: Int64Array | None = None) -> None:
        """Take strictly rising boundaries ``[start, end, ...]``; use `of` or `from_ranges` for loose ranges."""
        if boundaries is None:
            self._edges = ()
            return
        _check_pairs(boundaries.size)
        if boundaries.size <= _SMALL:
            self._edges = _checked(boundaries.tolist())
            return
        invariant(boundaries[0] >= 0 and bool(np.all(boundaries[:-1] < boundaries[1:])), _RISE)
        boundaries = boundaries.astype(np.int64, copy=False)
        boundaries.flags.writeable = False
        self._edges = boundaries

    @classmethod
    def of(cls, *ranges: tuple[int, int]) -> OffsetSet:
        """Return the union of half-open ranges, in any order; empty ranges are ignored."""
        return cls.from_ranges(ranges)

    @classmethod
    def from_ranges(cls, ranges: Iterable[tuple[int, int]]) -> OffsetSet:
        """Return the union of half-open ranges, in any order, overlapping or touching."""
        filled = [pair for pair in ranges if pair[0] < pair[1]]
        if len(filled) > _SMALL // 2:
            return _union(np.array(filled, dtype=np.int64))
        filled.sort()
        edges: list[int] = []
        for start, end in filled:
            if edges and start <= edges[-1]:
                edges[-1] = max(edges[-1], end)
            else:
                edges += (start, end)
        return _small(_checked(edges))

    @classmethod
    def from_offsets(cls, offsets: Int64Array) -> OffsetSet:
        """Return exactly these offsets, in any order."""
        if not offsets.size:
            return EMPTY_SET
        unique = distinct(offsets)
        breaks = np.flatnonzero(np.diff(unique) > 1)
        starts = unique[np.concatenate(([0], breaks + 1))]
        ends = unique[np.concatenate((breaks, [unique.size - 1]))] + 1
        return cls(np.column_stack((starts, ends)).ravel())

    @classmethod
    def from_edges(cls, edges: Sequence[int]) -> OffsetSet:
        """Return the set of strictly rising boundaries ``[start, end, ...]``, as plain integers."""
        if len(edges) > _SMALL:
            return cls(np.array(edges, dtype=np.int64))
        _check_pairs(len(edges))
        return _small(_checked(edges))

    @property
    def boundaries(self) -> Int64Array:
        """``[start, end, start, end, ...]``, strictly rising, read-only."""
        if not isinstance(self._edges, tuple):
            return self._edges
        boundaries = np.array(self._edges, dtype=np.int64)
        boundaries.flags.writeable = False
        return boundaries

    @property
    def edges(self) -> Sequence[int]:
        """The boundaries as plain integers."""
        return self._edges if isinstance(self._edges, tuple) else self._edges.tolist()

    @property
    def bounds(self) -> Int64Array:
        """The ranges as an array of shape (number of ranges, 2), read-only."""
        return self.boundaries.reshape(-1, 2)

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The ranges as plain tuples, lowest first."""
        edges = self.edges
        return list(zip(edges[::2], edges[1::2], strict=True))

    @property
    def count(self) -> int:
        """The number of offsets in the set: at least the number of records, since a log has gaps."""
        starts, ends = self._edges[::2], self._edges[1::2]
        if isinstance(starts, tuple):
            return sum(ends) - sum(starts)
        return int((ends - starts).sum())

    @property
    def first(self) -> int:
        """The lowest offset."""
        if not len(self._edges):
            invariant(False, "an empty offset set has no first offset")
        return int(self._edges[0])

    @property
    def end(self) -> int:
        """The offset after the highest one."""
        if not len(self._edges):
            invariant(False, "an empty offset set has no end")
        return int(self._edges[-1])

    def first_missing(self, at_or_after: int = 0) -> int:
        """Return the lowest offset at or after `at_or_after` that is not in the set."""
        index = bisect_right(self._edges, at_or_after)
        return int(self._edges[index]) if index % 2 else at_or_after

    def mask(self, offsets: Int64Array) -> BoolArray:
        """Return, for each offset, whether it is in the set."""
        inside: BoolArray = (np.searchsorted(self._edges, offsets, side="right") & 1).astype(bool)
        return inside

    def covers(self, first: int, last: int) -> bool:
        """Return whether one range has both offsets, and so all between them."""
        low = bisect_right(self._edges, first)
        return low % 2 == 1 and low == bisect_right(self._edges, last)

    def within(self, start: int, end: int) -> OffsetSet:
        """Return the part in [start, end)."""
        edges = self._edges
        if not len(edges) or start >= end or not (start < edges[-1] and edges[0] < end):
            return EMPTY_SET
        if start <= edges[0] and edges[-1] <= end:
            return self
        low, high = bisect_right(edges, start), bisect_left(edges, end)
        # With an odd number of boundaries before it, a bound is inside a range, which is cut there.
        first, last = [start] * (low % 2), [end] * (high % 2)
        if high - low > _SMALL:
            # The explicit type keeps integers: an empty list is an array of floats.
            parts = (first, self.boundaries[low:high], last)
            return OffsetSet(np.concatenate(parts, dtype=np.int64, casting="unsafe"))
        return OffsetSet.from_edges([*first, *map(int, edges[low:high]), *last])

    def __contains__(self, offset: int) -> bool:
        return bool(bisect_right(self._edges, offset) & 1)

    def __or__(self, other: OffsetSet) -> OffsetSet:
        if not len(self._edges):
            return other
        return self._combine(other, operator.or_) if len(other._edges) else self

    def __and__(self, other: OffsetSet) -> OffsetSet:
        own, theirs = self._edges, other._edges
        if not (len(own) and len(theirs)):
            return EMPTY_SET
        low, high = max(int(own[0]), int(theirs[0])), min(int(own[-1]), int(theirs[-1]))
        left, right = self.within(low, high), other.within(low, high)
        if not (len(left._edges) and len(right._edges)):
            return EMPTY_SET
        for part, whole in ((left, right), (right, left)):
            if len(whole) == 1 and (whole.first, whole.end) == (low, high):
                return part
        return left._combine(right, operator.and_)

    def __sub__(self, other: OffsetSet) -> OffsetSet:
        own = self._edges
        if not (len(own) and len(other._edges)):
            return self
        near = other.within(int(own[0]), int(own[-1]))
        return self._combine(near, operator.gt) if len(near._edges) else self

    def __le__(self, other: OffsetSet) -> bool:
        return not self - other

    def _combine(self, other: OffsetSet, operation: Callable[[Any, Any], Any]) -> OffsetSet:
        """Return the result of the sweep; `operation` takes two truth values, or two arrays of them."""
        left, right = self._edges, other._edges
        if isinstance(left, tuple) and isinstance(right, tuple):
            edges, inside = [], False
            for point in sorted({*left, *right}):
                now = operation(bisect_right(left, point) & 1, bisect_right(right, point) & 1)
                if now != inside:
                    edges.append(point)
                    inside = now
            return OffsetSet.from_edges(edges)
        points = distinct(np.concatenate((left, right), dtype=np.int64))
        changes = np.diff(operation(self.mask(points), other.mask(points)), prepend=False)
        return OffsetSet(points[changes])

    def __bool__(self) -> bool:
        return len(self._edges) > 0

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._edges) // 2

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self.ranges)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OffsetSet):
            return NotImplemented
        if len(self._edges) <= _SMALL or len(other._edges) <= _SMALL:
            return self.edges == other.edges
        return bool(np.array_equal(self._edges, other._edges))

    def __hash__(self) -> int:
        return hash(self._edges if isinstance(self._edges, tuple) else self._edges.tobytes())

    def __reduce__(self) -> tuple[Any, ...]:
        return OffsetSet, (self.boundaries,)

    def __repr__(self) -> str:
        ranges_text = ", ".join(f"[{start}, {end})" for start, end in self.ranges[:8])
        return f"OffsetSet({ranges_text}{f', ... {len(self)} ranges' if len(self) > 8 else ''})"


def _check_pairs(count: int) -> None:
    invariant(count % 2 == 0, f"{count} boundaries do not pair up to ranges")


def _checked(edges: Sequence[int]) -> tuple[int, ...]:
    """Return the boundaries of a small set."""
    rise = all(map(operator.lt, edges, edges[1:]))
    invariant(not edges or (rise and edges[0] >= 0 and edges[-1] <= INT64_MAX), _RISE)
    return tuple(edges)


def _small(edges: tuple[int, ...]) -> OffsetSet:
    """Return a small set of checked boundaries."""
    offsets = OffsetSet.__new__(OffsetSet)
    offsets._edges = edges
    return offsets


def distinct(offsets: Int64Array) -> Int64Array:
    """Return offsets in order, each once.

    A stable sort only merges ascending runs; numpy's `unique` and `union1d` hash every number, a hundred times slower.
    """
    points = np.sort(offsets, kind="stable")
    once: Int64Array = points[np.diff(points, prepend=-1) != 0]
    return once


def _union(pairs: Int64Array) -> OffsetSet:
    """Return the union of many ranges, none of them empty."""
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    reach = np.maximum.accumulate(pairs[:, 1])
    opens = np.concatenate(([True], pairs[1:, 0] > reach[:-1]))
    starts = pairs[opens, 0]
    ends = reach[np.concatenate((np.flatnonzero(opens)[1:] - 1, [len(pairs) - 1]))]
    return OffsetSet(np.column_stack((starts, ends)).ravel())


EMPTY_SET: Final = OffsetSet()


def union_of(sets: Iterable[OffsetSet]) -> OffsetSet:
    """Return the union of many sets in one sweep."""
    filled = [offsets for offsets in sets if offsets]
    if len(filled) < 2:
        return filled[0] if filled else EMPTY_SET
    if sum(len(offsets) for offsets in filled) <= _SMALL // 2:
        return OffsetSet.from_ranges([pair for offsets in filled for pair in offsets])
    return _union(np.concatenate([offsets.bounds for offsets in filled]))


def coarsened(offsets: OffsetSet, ranges_max: int) -> OffsetSet:
    """Return the offsets in at most `ranges_max` ranges: gaps between ranges are filled as needed."""
    if len(offsets) <= ranges_max:
        return offsets
    firsts = np.arange(ranges_max) * len(offsets) // ranges_max
    lasts = np.append(firsts[1:], len(offsets)) - 1
    bounds = offsets.bounds
    return OffsetSet(np.column_stack((bounds[firsts, 0], bounds[lasts, 1])).ravel())


class GrowingOffsetSet:
    """A set for progress that arrives out of order; it grows range by range, O(log n) each."""

    def __init__(self, initial: OffsetSet = EMPTY_SET) -> None:
        self._ends: SortedDict[int, int] = SortedDict(initial.ranges)

    def add(self, start: int, end: int | None = None) -> None:
        """Add the range [start, end), or the one offset `start`."""
        end = start + 1 if end is None else end
        if start >= end:
            return
        # The range that begins at or before `start` may overlap or touch the new range.
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
        """Return the lowest offset at or after `at_or_after` that is not in the set."""
        at = self._ends.bisect_right(at_or_after) - 1
        if at < 0:
            return at_or_after
        return max(at_or_after, int(self._ends.peekitem(at)[1]))

    def freeze(self) -> OffsetSet:
        """Return the current set as a value."""
        return OffsetSet(np.array(list(self._ends.items()), dtype=np.int64).ravel())
