"""Which window a timestamp belongs to, and from which offset on it is late: piecewise constants over time."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from kafka_ordered_ops.core.errors import invariant
from kafka_ordered_ops.core.numpy_later import np
from kafka_ordered_ops.core.offset_set import BoolArray, Int64Array
from kafka_ordered_ops.core.strict_json import JsonError
from kafka_ordered_ops.core.types import INT64_MAX, INT64_MIN

#: The label of a time that no window asks for.
NOBODY: Final = -1

#: Pieces of late steps kept for one partition. Neighbours merge as soon as progress passes them, so that
#: only a group that leaves gaps for years comes near it; the oldest are then merged.
LATE_STEPS_MAX: Final = 1_024


class TimeRange(NamedTuple):
    """Timestamps from `since_ms` up to, without, `before_ms`."""

    since_ms: int
    before_ms: int

    def meets(self, other: TimeRange) -> bool:
        """Whether some time is in both."""
        return self.since_ms < other.before_ms and other.since_ms < self.before_ms

    def holds(self, other: TimeRange) -> bool:
        """Whether all of the other's times are in this one."""
        return self.since_ms <= other.since_ms and other.before_ms <= self.before_ms


class TimeSplit:
    """For every timestamp the number of the window that takes it, or `NOBODY`.

    `edges` rise; label ``n`` is that of the times below edge ``n``, the last one of all times behind them.
    """

    __slots__ = ("_edges", "_labels")

    def __init__(self, edges: Int64Array, labels: Int64Array) -> None:
        invariant(labels.size == edges.size + 1, "a time split has one more label than edges")
        self._edges = edges
        self._labels = labels

    @classmethod
    def of(cls, wanted: Sequence[Iterable[TimeRange]]) -> TimeSplit:
        """What each window asks for, in the order in which they are served: the first one takes a time."""
        ranges = [(n, one) for n, times in enumerate(wanted) for one in times]
        edges = np.unique(np.array([edge for _, one in ranges for edge in one], dtype=np.int64))
        labels = np.full(edges.size + 1, NOBODY, dtype=np.int64)
        for number, (since_ms, before_ms) in ranges:
            first, last = np.searchsorted(edges, (since_ms, before_ms))
            piece = labels[first + 1 : last + 1]
            piece[piece == NOBODY] = number
        return cls(edges, labels)

    def labels(self, timestamps_ms: Int64Array) -> Int64Array:
        """The window of each timestamp."""
        found: Int64Array = self._labels[np.searchsorted(self._edges, timestamps_ms, side="right")]
        return found

    def common(self, least_ms: Int64Array, greatest_ms: Int64Array) -> tuple[Int64Array, BoolArray]:
        """For pairs of bounds the window of all times between them, and whether there is one such window."""
        first = np.searchsorted(self._edges, least_ms, side="right")
        last = np.searchsorted(self._edges, greatest_ms, side="right")
        changes = np.concatenate(([0], np.cumsum(np.diff(self._labels) != 0)))
        return self._labels[first], changes[first] == changes[last]

    def changes(self, newer: TimeSplit) -> list[tuple[TimeRange, int]]:
        """The times that another split deals otherwise, each with its window in this one."""
        if np.array_equal(self._edges, newer._edges) and np.array_equal(
            self._labels, newer._labels
        ):
            return []
        edges = np.union1d(self._edges, newer._edges)
        starts = np.concatenate(([INT64_MIN], edges))
        ends = np.concatenate((edges, [INT64_MAX]))
        mine, theirs = self.labels(starts), newer.labels(starts)
        changed = (mine != theirs) & (starts < ends)
        rows = np.column_stack((starts[changed], ends[changed], mine[changed])).tolist()
        return [(TimeRange(since_ms, before_ms), label) for since_ms, before_ms, label in rows]

    def meeting(self, times: TimeRange) -> frozenset[int]:
        """The windows of these times."""
        first = np.searchsorted(self._edges, times.since_ms, side="right")
        last = np.searchsorted(self._edges, times.before_ms - 1, side="right")
        return frozenset(self._labels[first : last + 1].tolist()) - {NOBODY}

    def below(self, time_ms: int) -> int | None:
        """The window of all times below this one; None where they belong to several."""
        labels, same = self.common(
            np.array([INT64_MIN], dtype=np.int64), np.array([time_ms - 1], dtype=np.int64)
        )
        return int(labels[0]) if same[0] else None


@dataclass(frozen=True, slots=True)
class LateSteps:
    """From which offset on a record of which time is late.

    Every frozen window (its times, and the offset up to which it was decided) says: a record at or above
    that offset, stamped in these times, was written after the window that should have held it had been
    planned. `pieces` are disjoint and rise; where windows overlap, the lower offset counts.
    """

    pieces: tuple[tuple[TimeRange, int], ...] = ()

    def with_step(self, offset: int, times: TimeRange) -> LateSteps:
        """The steps with one more frozen window."""
        return self.with_steps([(offset, times)])

    def with_steps(self, steps: Iterable[tuple[int, TimeRange]]) -> LateSteps:
        """The steps with more frozen windows; O(n log n) for any number of them."""
        more = [(times, offset) for offset, times in steps]
        if not more:
            return self
        begun = sorted([*self.pieces, *more])
        cuts = sorted({edge for times, _ in begun for edge in times})
        found: list[tuple[TimeRange, int]] = []
        # Windows that have begun and may not have ended, the lowest offset first.
        running: list[tuple[int, int]] = []
        at = 0
        for since_ms, before_ms in pairwise(cuts):
            while at < len(begun) and begun[at][0].since_ms <= since_ms:
                times, offset = begun[at]
                heapq.heappush(running, (offset, times.before_ms))
                at += 1
            while running and running[0][1] <= since_ms:
                heapq.heappop(running)
            if running:
                found.append((TimeRange(since_ms, before_ms), running[0][0]))
        return LateSteps(_limited(_merged(found)))

    def from_offset(self, base: int) -> LateSteps:
        """The steps for offsets at or above `base`: what lies below makes no difference and merges."""
        if not self.pieces:
            return self
        return LateSteps(_merged([(times, max(offset, base)) for times, offset in self.pieces]))

    def up_to(self, end: int) -> LateSteps:
        """The steps of a log that was cut: from its end on every record of a frozen time is late."""
        return LateSteps(_merged([(times, min(offset, end)) for times, offset in self.pieces]))

    @property
    def times(self) -> tuple[TimeRange, ...]:
        """The times that were ever frozen, as few ranges as possible."""
        return tuple(times for times, _ in _merged([(times, 0) for times, _ in self.pieces]))

    @property
    def end(self) -> int:
        """At or above it every record of a frozen time is late; 0 where nothing was frozen."""
        return max((offset for _, offset in self.pieces), default=0)

    def cover(self, times: TimeRange) -> bool:
        """Whether all these times were frozen."""
        return any(frozen.holds(times) for frozen in self.times)

    def mask(self, offsets: Int64Array, timestamps_ms: Int64Array) -> BoolArray:
        """For each record whether it is late."""
        if not self.pieces:
            return np.zeros(offsets.size, dtype=np.bool_)
        since = np.array([times.since_ms for times, _ in self.pieces], dtype=np.int64)
        before = np.array([times.before_ms for times, _ in self.pieces], dtype=np.int64)
        from_ = np.array([offset for _, offset in self.pieces], dtype=np.int64)
        at = np.searchsorted(since, timestamps_ms, side="right") - 1
        late: BoolArray = (at >= 0) & (timestamps_ms < before[at]) & (offsets >= from_[at])
        return late

    def __bool__(self) -> bool:
        return bool(self.pieces)

    def to_json(self) -> list[int]:
        """Since, before, offset, since, before, offset, ..."""
        return [n for times, offset in self.pieces for n in (*times, offset)]

    @classmethod
    def from_json(cls, flat: Sequence[int]) -> LateSteps:
        """The inverse of `to_json`; raises `JsonError`."""
        if not flat:
            return NO_STEPS
        if len(flat) % 3:
            raise JsonError("late steps are triples")
        pieces = tuple(
            (TimeRange(since, before), offset)
            for since, before, offset in zip(flat[::3], flat[1::3], flat[2::3], strict=True)
        )
        edges = [edge for times, _ in pieces for edge in times]
        if any(a > b for a, b in pairwise(edges)) or any(
            t.since_ms >= t.before_ms for t, _ in pieces
        ):
            raise JsonError("late steps do not rise")
        return cls(pieces)


#: Nothing was frozen yet: nothing is late.
NO_STEPS: Final = LateSteps()


def rows_by_label(labels: Int64Array) -> Iterator[tuple[int, Int64Array]]:
    """The labels that occur, rising, each with the places where it stands; O(n log n) for any number of them."""
    order = np.argsort(labels, kind="stable")
    cuts = np.flatnonzero(np.diff(labels[order])) + 1
    for places in np.split(order, cuts) if labels.size else ():
        yield int(labels[places[0]]), places


def _merged(pieces: Sequence[tuple[TimeRange, int]]) -> tuple[tuple[TimeRange, int], ...]:
    """Touching neighbours of the same offset as one."""
    merged: list[tuple[TimeRange, int]] = []
    for times, offset in pieces:
        if merged and merged[-1][1] == offset and merged[-1][0].before_ms == times.since_ms:
            merged[-1] = TimeRange(merged[-1][0].since_ms, times.before_ms), offset
        else:
            merged.append((times, offset))
    return tuple(merged)


def _limited(pieces: tuple[tuple[TimeRange, int], ...]) -> tuple[tuple[TimeRange, int], ...]:
    """At most `LATE_STEPS_MAX` pieces: the oldest touching ones are merged, or else the oldest dropped."""
    kept = list(pieces)
    at = 0
    while len(kept) > LATE_STEPS_MAX and at + 1 < len(kept):
        (low, low_offset), (high, high_offset) = kept[at], kept[at + 1]
        if low.before_ms == high.since_ms:
            # The lower offset: whatever is left below the other one was written late all the same.
            kept[at : at + 2] = [
                (TimeRange(low.since_ms, high.before_ms), min(low_offset, high_offset))
            ]
        else:
            at += 1
    return tuple(kept[-LATE_STEPS_MAX:])
