"""Map timestamps to windows, and to the offset from which they are late: step functions over time."""

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

#: The label of times that no window asks for.
NOBODY: Final = -1

#: Kafka's timestamp of a record that has none.
NO_TIMESTAMP: Final = -1

#: Pieces of late steps kept for one partition. Neighbours merge as progress passes them, so only a group that
#: leaves gaps for years reaches the limit; then the oldest are merged.
LATE_STEPS_MAX: Final = 1_024


class TimeRange(NamedTuple):
    """Timestamps from `since_ms` (inclusive) to `before_ms` (exclusive)."""

    since_ms: int
    before_ms: int

    def meets(self, other: TimeRange) -> bool:
        """Return whether both ranges share a time."""
        return self.since_ms < other.before_ms and other.since_ms < self.before_ms

    def holds(self, other: TimeRange) -> bool:
        """Return whether this range contains the other range."""
        return self.since_ms <= other.since_ms and other.before_ms <= self.before_ms


def without_untimed(times: TimeRange) -> list[TimeRange]:
    """Return the times of an interval without `NO_TIMESTAMP`: no interval takes records without a timestamp."""
    pieces = (
        TimeRange(times.since_ms, min(times.before_ms, NO_TIMESTAMP)),
        TimeRange(max(times.since_ms, NO_TIMESTAMP + 1), times.before_ms),
    )
    return [piece for piece in pieces if piece.since_ms < piece.before_ms]


class TimeSplit:
    """The number of the window that takes each timestamp, or `NOBODY`.

    `edges` are ascending. Label ``n`` belongs to times below edge ``n``, the last label to times from the last edge on.
    """

    __slots__ = ("_edges", "_labels")

    def __init__(self, edges: Int64Array, labels: Int64Array) -> None:
        invariant(labels.size == edges.size + 1, "a time split has one more label than edges")
        self._edges = edges
        self._labels = labels

    @classmethod
    def of(cls, wanted: Sequence[Iterable[TimeRange]]) -> TimeSplit:
        """Split time among windows, in their order: the first window that wants a time takes it."""
        ranges = [(n, times) for n, ranges_of in enumerate(wanted) for times in ranges_of]
        edges = np.unique(np.array([edge for _, times in ranges for edge in times], dtype=np.int64))
        labels = np.full(edges.size + 1, NOBODY, dtype=np.int64)
        for number, (since_ms, before_ms) in ranges:
            first, last = np.searchsorted(edges, (since_ms, before_ms))
            piece = labels[first + 1 : last + 1]
            piece[piece == NOBODY] = number
        return cls(edges, labels)

    def labels(self, timestamps_ms: Int64Array) -> Int64Array:
        """Return the window of each timestamp."""
        labels: Int64Array = self._labels[np.searchsorted(self._edges, timestamps_ms, side="right")]
        return labels

    def common(self, least_ms: Int64Array, greatest_ms: Int64Array) -> tuple[Int64Array, BoolArray]:
        """Return, for pairs of bounds, the window of all times between them, and whether there is only one."""
        first = np.searchsorted(self._edges, least_ms, side="right")
        last = np.searchsorted(self._edges, greatest_ms, side="right")
        changes = np.concatenate(([0], np.cumsum(np.diff(self._labels) != 0)))
        return self._labels[first], changes[first] == changes[last]

    def changes(self, newer: TimeSplit) -> list[tuple[TimeRange, int]]:
        """Return the times that another split assigns differently, each with its window in this split."""
        if np.array_equal(self._edges, newer._edges) and np.array_equal(
            self._labels, newer._labels
        ):
            return []
        edges = np.union1d(self._edges, newer._edges)
        starts = np.concatenate(([INT64_MIN], edges))
        ends = np.concatenate((edges, [INT64_MAX]))
        own, theirs = self.labels(starts), newer.labels(starts)
        changed = (own != theirs) & (starts < ends)
        rows = np.column_stack((starts[changed], ends[changed], own[changed])).tolist()
        return [(TimeRange(since_ms, before_ms), label) for since_ms, before_ms, label in rows]

    def meeting(self, times: TimeRange) -> frozenset[int]:
        """Return the windows of these times."""
        first = np.searchsorted(self._edges, times.since_ms, side="right")
        last = np.searchsorted(self._edges, times.before_ms - 1, side="right")
        return frozenset(self._labels[first : last + 1].tolist()) - {NOBODY}

    def below(self, time_ms: int) -> int | None:
        """Return the window of all times below this time; None if they belong to several."""
        labels, same = self.common(
            np.array([INT64_MIN], dtype=np.int64), np.array([time_ms - 1], dtype=np.int64)
        )
        return int(labels[0]) if same[0] else None


@dataclass(frozen=True, slots=True)
class LateSteps:
    """The offset from which a record is late, by the record's time.

    Each planned window adds a step: its times, and the offset up to which it was decided. A record of these times at or
    above that offset was written after its window was planned. `pieces` are disjoint and rise; where windows overlap,
    the lower offset counts.
    """

    pieces: tuple[tuple[TimeRange, int], ...] = ()

    def with_step(self, offset: int, times: TimeRange) -> LateSteps:
        """Return the steps with one more planned window."""
        return self.with_steps([(offset, times)])

    def with_steps(self, steps: Iterable[tuple[int, TimeRange]]) -> LateSteps:
        """Return the steps with more planned windows; O(n log n) for any number of them."""
        more = [(times, offset) for offset, times in steps]
        if not more:
            return self
        by_start = sorted([*self.pieces, *more])
        cuts = sorted({edge for times, _ in by_start for edge in times})
        pieces: list[tuple[TimeRange, int]] = []
        # Windows that started at or before `since_ms`, the lowest offset first; some may have ended.
        running: list[tuple[int, int]] = []
        at = 0
        for since_ms, before_ms in pairwise(cuts):
            while at < len(by_start) and by_start[at][0].since_ms <= since_ms:
                times, offset = by_start[at]
                heapq.heappush(running, (offset, times.before_ms))
                at += 1
            while running and running[0][1] <= since_ms:
                heapq.heappop(running)
            if running:
                pieces.append((TimeRange(since_ms, before_ms), running[0][0]))
        return LateSteps(_limited(_merged(pieces)))

    def from_offset(self, base: int) -> LateSteps:
        """Return the steps for offsets at or above `base`; lower steps are raised to `base` and merge."""
        if not self.pieces:
            return self
        return LateSteps(_merged([(times, max(offset, base)) for times, offset in self.pieces]))

    def in_interval(self, since_ms: int | None) -> LateSteps:
        """Return the steps of an interval, in which every record stamped before `since_ms` is late.

        An interval takes records of earlier times only if windows were planned for these times. Such a record need not
        be new: an abandoned window may have held it. `None` means a window without a start, whose steps stay the same.
        """
        if since_ms is None or not self.pieces or self.pieces[0][0].since_ms >= since_ms:
            return self
        earlier = (TimeRange(self.pieces[0][0].since_ms, since_ms), 0)
        own = [
            (TimeRange(max(times.since_ms, since_ms), times.before_ms), offset)
            for times, offset in self.pieces
            if times.before_ms > since_ms
        ]
        return LateSteps(_limited(_merged([earlier, *own])))

    def up_to(self, end: int) -> LateSteps:
        """Return the steps of a truncated log: from its end on, every record of a planned time is late."""
        return LateSteps(_merged([(times, min(offset, end)) for times, offset in self.pieces]))

    @property
    def times(self) -> tuple[TimeRange, ...]:
        """The times of all planned windows, as few ranges as possible."""
        return tuple(times for times, _ in _merged([(times, 0) for times, _ in self.pieces]))

    @property
    def end(self) -> int:
        """The offset from which every record of a planned time is late; 0 if no window was planned."""
        return max((offset for _, offset in self.pieces), default=0)

    def cover(self, times: TimeRange) -> bool:
        """Return whether windows were planned for all of these times."""
        return any(planned.holds(times) for planned in self.times)

    def mask(self, offsets: Int64Array, timestamps_ms: Int64Array) -> BoolArray:
        """Return, for each record, whether it is late."""
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
        """Return since, before, offset, since, before, offset, ..."""
        return [n for times, offset in self.pieces for n in (*times, offset)]

    @classmethod
    def from_json(cls, flat: Sequence[int]) -> LateSteps:
        """Parse the JSON of `to_json`; raise `JsonError` if it is invalid."""
        if not flat:
            return NO_STEPS
        if len(flat) % 3 or len(flat) > 3 * LATE_STEPS_MAX:
            raise JsonError(f"late steps are at most {LATE_STEPS_MAX:,} triples")
        pieces = tuple(
            (TimeRange(since, before), offset)
            for since, before, offset in zip(flat[::3], flat[1::3], flat[2::3], strict=True)
        )
        edges = [edge for times, _ in pieces for edge in times]
        if any(a > b for a, b in pairwise(edges)) or any(
            t.since_ms >= t.before_ms for t, _ in pieces
        ):
            raise JsonError("late steps do not rise")
        if min(flat[2::3]) < 0:
            raise JsonError("late steps have a negative offset")
        return cls(pieces)


#: No window was planned: nothing is late.
NO_STEPS: Final = LateSteps()


def rows_by_label(labels: Int64Array) -> Iterator[tuple[int, Int64Array]]:
    """Yield the labels that occur, in order, each with its positions; O(n log n) for any number of labels."""
    order = np.argsort(labels, kind="stable")
    cuts = np.flatnonzero(np.diff(labels[order])) + 1
    for places in np.split(order, cuts) if labels.size else ():
        yield int(labels[places[0]]), places


def _merged(pieces: Sequence[tuple[TimeRange, int]]) -> tuple[tuple[TimeRange, int], ...]:
    """Merge touching neighbours with the same offset."""
    merged: list[tuple[TimeRange, int]] = []
    for times, offset in pieces:
        if merged and merged[-1][1] == offset and merged[-1][0].before_ms == times.since_ms:
            merged[-1] = TimeRange(merged[-1][0].since_ms, times.before_ms), offset
        else:
            merged.append((times, offset))
    return tuple(merged)


def _limited(pieces: tuple[tuple[TimeRange, int], ...]) -> tuple[tuple[TimeRange, int], ...]:
    """Limit to `LATE_STEPS_MAX` pieces: merge the oldest touching pieces, or drop the oldest."""
    limited = list(pieces)
    at = 0
    while len(limited) > LATE_STEPS_MAX and at + 1 < len(limited):
        (low, low_offset), (high, high_offset) = limited[at], limited[at + 1]
        if low.before_ms == high.since_ms:
            # Use the lower offset: records below the higher one that are not done yet were late anyway.
            limited[at : at + 2] = [
                (TimeRange(low.since_ms, high.before_ms), min(low_offset, high_offset))
            ]
        else:
            at += 1
    return tuple(limited[-LATE_STEPS_MAX:])
