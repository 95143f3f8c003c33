"""The timestamps that scans have read, so that no record's timestamp is read twice.

Kafka cannot fetch timestamps alone. To find out-of-order records, the log must be read from the first record past the
cutoff to the end. A time map stores the result as *chunks*: a range of offsets with the least and the greatest
timestamp of its records. The next window then decides whole chunks by two comparisons. It reads again only chunks that
straddle its cutoff, and records written since. Where the broker's index proved that everything is older than an
interval, there is one chunk without a least time. A map belongs to one topic, identified by its id: a later topic of
the same name has other records at these offsets.

A chunk describes the visible records in its range that no window has taken. Taken records in between do not count, so
that out-of-order records do not split a map into fragments. Bounds stay valid for any part of a chunk's range. When
taken offsets become open again (an abandoned window, progress moved back), the map must therefore store their known
times (`TimeMap.between`: a window only took records of its own times, and late records). Otherwise it must forget the
bounds around them (`TimeMap.forgetting`), and those chunks are read again.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Any, Final, Literal

import numpy as np
from msgspec import Meta

from kafka_ordered_ops.core.errors import invariant
from kafka_ordered_ops.core.offset_set import EMPTY_SET, Int64Array, OffsetSet, distinct
from kafka_ordered_ops.core.strict_json import JsonError, Stored
from kafka_ordered_ops.core.time_ranges import TimeRange, TimeSplit, rows_by_label
from kafka_ordered_ops.core.types import INT64_MAX, INT64_MIN

#: Version of the JSON in the ledger. Readers refuse other versions.
_VERSION: Final = 1

#: Chunks stored for one partition. A chunk takes about 30 bytes in the ledger, so a partition's map has about
#: 128 KiB. It is rewritten whenever a scan extends it.
CHUNKS_MAX: Final = 4_096

_START, _END, _LEAST, _GREATEST = range(4)


@dataclass(frozen=True, slots=True)
class DealtChunks:
    """The offsets of a map by the window that their times belong to."""

    #: By window number; records that no window asks for under `NOBODY`.
    by_window: dict[int, OffsetSet]
    #: The offsets of chunks whose bounds belong to several windows: they must be read.
    straddling: OffsetSet

    def of(self, window: int) -> OffsetSet:
        """Return the offsets that are known to belong to a window."""
        return self.by_window.get(window, EMPTY_SET)


class TimeMap:
    """Immutable; `rows` is int64 of shape (chunks, 4): start, end, least and greatest timestamp (ms)."""

    __slots__ = ("rows", "topic_id")

    def __init__(self, rows: Int64Array | None = None, topic_id: str = "") -> None:
        self.rows: Int64Array = np.empty((0, 4), dtype=np.int64) if rows is None else rows
        #: The id of the topic that the map describes; empty if unknown.
        self.topic_id = topic_id
        invariant(
            bool(np.all(self.rows[:, _START] < self.rows[:, _END]))
            and bool(np.all(self.rows[:-1, _END] <= self.rows[1:, _START])),
            "chunks of a time map are sorted, disjoint and not empty",
        )

    @property
    def covered(self) -> OffsetSet:
        """The offsets that are not read to compare them with a cutoff outside of their chunk's bounds."""
        return _offsets(self.rows)

    @classmethod
    def below(cls, offsets: OffsetSet, time_ms: int) -> TimeMap:
        """Return a map in which the records of these offsets are stamped before a time."""
        return cls.between(offsets, TimeRange(INT64_MIN, time_ms))

    @classmethod
    def between(cls, offsets: OffsetSet, times: TimeRange) -> TimeMap:
        """Return a map in which the records of these offsets have these times."""
        bounds = offsets.bounds
        rows = np.empty((len(bounds), 4), dtype=np.int64)
        rows[:, :2] = bounds
        rows[:, _LEAST], rows[:, _GREATEST] = times.since_ms, times.before_ms - 1
        return cls(rows)

    def of_topic(self, topic_id: str) -> TimeMap:
        """Return the same map for this topic."""
        return TimeMap(self.rows, topic_id)

    def dealt(self, split: TimeSplit) -> DealtChunks:
        """Return the covered offsets by the window that takes them, and the offsets that must be read to decide."""
        if not len(self.rows):
            return DealtChunks({}, EMPTY_SET)
        labels, same = split.common(self.rows[:, _LEAST], self.rows[:, _GREATEST])
        of_one, labels = self.rows[same], labels[same]
        return DealtChunks(
            by_window={label: _offsets(of_one[rows]) for label, rows in rows_by_label(labels)},
            straddling=_offsets(self.rows[~same]),
        )

    def first_askers(self, offsets: OffsetSet, split: TimeSplit) -> dict[int, OffsetSet]:
        """Return the offsets whose bounds allow several windows, by the first of these windows."""
        ranges_of: dict[int, list[tuple[int, int]]] = {}
        for start, end, least_ms, greatest_ms in self.within(offsets).rows.tolist():
            if askers := split.meeting(TimeRange(least_ms, min(greatest_ms, INT64_MAX - 1) + 1)):
                ranges_of.setdefault(min(askers), []).append((start, end))
        return {window: OffsetSet.of(*ranges) for window, ranges in ranges_of.items()}

    def meeting(self, times: TimeRange) -> OffsetSet:
        """Return the offsets of chunks whose bounds allow a record of these times."""
        meets = (self.rows[:, _LEAST] < times.before_ms) & (
            self.rows[:, _GREATEST] >= times.since_ms
        )
        return _offsets(self.rows[meets])

    def first_reaching(self, time_ms: int, *, from_offset: int) -> OffsetSet:
        """Return the first chunk at or above an offset whose bounds allow a record stamped at or after a time."""
        at = int(np.searchsorted(self.rows[:, _END], from_offset, side="right"))
        reaching = self.rows[at:, _GREATEST] >= time_ms
        if not reaching.any():
            return EMPTY_SET
        start, end = self.rows[at + int(np.argmax(reaching)), :2].tolist()
        return OffsetSet.of((start, end))

    def within(self, offsets: OffsetSet) -> TimeMap:
        """Return the part of the map for these offsets."""
        if not len(self.rows):
            return self
        points = distinct(np.concatenate((self.rows[:, :2].ravel(), offsets.boundaries)))
        starts, ends = points[:-1], points[1:]
        chunk = np.searchsorted(self.rows[:, _START], starts, side="right") - 1
        inside = (chunk >= 0) & (starts < self.rows[chunk, _END]) & offsets.mask(starts)
        bounds = self.rows[chunk[inside]][:, 2:]
        return self._with(np.column_stack((starts[inside], ends[inside], bounds)))

    def without(self, offsets: OffsetSet) -> TimeMap:
        """Return the map without these offsets."""
        if not (self and offsets):
            return self
        return self.within(self.covered - offsets)

    def trimmed(self, done: OffsetSet) -> TimeMap:
        """Return the map without done offsets at the start of chunks, and without chunks that are entirely done."""
        if not self:
            return self
        starts = self.rows[:, _START]
        at = np.searchsorted(done.boundaries, starts, side="right")
        inside = at % 2 == 1
        starts = starts.copy()
        starts[inside] = done.boundaries[at[inside]]
        rows = np.column_stack((starts, self.rows[:, 1:]))
        return self._with(rows[starts < self.rows[:, _END]])

    def forgetting(self, offsets: OffsetSet) -> TimeMap:
        """Return the map without the bounds of chunks that hold any of these offsets: they are read again.

        The chunks themselves stay, to show that records are waiting there.
        """
        bounds = offsets.boundaries
        first = np.searchsorted(bounds, self.rows[:, _START], side="right")
        last = np.searchsorted(bounds, self.rows[:, _END] - 1, side="right")
        held = (first != last) | (first % 2 == 1)
        rows = self.rows.copy()
        rows[held, _LEAST], rows[held, _GREATEST] = INT64_MIN, INT64_MAX
        return self._with(rows)

    def replaced(self, other: TimeMap) -> TimeMap:
        """Return this map, with the chunks of `other` in place of its own for the same offsets."""
        if not (self and other):
            return self or other
        rest = self.without(other.covered)
        rows = np.concatenate((rest.rows, other.rows))
        return self._with(rows[np.argsort(rows[:, _START], kind="stable")])

    def limited(self, chunks_max: int = CHUNKS_MAX) -> TimeMap:
        """Return at most `chunks_max` chunks: touching neighbours are merged, then the lowest chunks are dropped.

        A dropped chunk costs another scan, and never leads to a wrong decision.
        """
        rows = self.rows
        while len(rows) > chunks_max:
            merged = _merge_pairs(rows)
            if len(merged) == len(rows):
                rows = rows[-chunks_max:]
                break
            rows = merged
        return self if rows is self.rows else self._with(rows)

    def _with(self, rows: Int64Array) -> TimeMap:
        return TimeMap(rows, self.topic_id)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, TimeMap)
            and self.topic_id == other.topic_id
            and bool(np.array_equal(self.rows, other.rows))
        )

    def __hash__(self) -> int:
        return hash(self.rows.tobytes())

    def __bool__(self) -> bool:
        return len(self.rows) > 0

    def __repr__(self) -> str:
        return f"TimeMap({len(self.rows)} chunks over {self.covered!r})"

    def to_json(self) -> Any:
        """Return versioned JSON: columns as flat lists, starts as differences, which is short and readable."""
        return {
            "version": _VERSION,
            "topic_id": self.topic_id,
            "starts": np.diff(self.rows[:, _START], prepend=0).tolist(),
            "lengths": (self.rows[:, _END] - self.rows[:, _START]).tolist(),
            "least_ms": self.rows[:, _LEAST].tolist(),
            "greatest_ms": self.rows[:, _GREATEST].tolist(),
        }

    @classmethod
    def from_json(cls, value: Any) -> TimeMap:
        """Parse the JSON of `to_json`; raise `JsonError` if it is invalid."""
        stored = _Stored.parse(value, "times")
        columns = stored.starts, stored.lengths, stored.least_ms, stored.greatest_ms
        if len({len(column) for column in columns}) != 1:
            raise JsonError("the columns of a time map differ in length")
        # Summed in Python: a sum in int64 may overflow.
        starts = list(accumulate(stored.starts))
        ends = [start + length for start, length in zip(starts, stored.lengths, strict=True)]
        if starts and not 0 <= min(starts) <= max(starts) <= max(ends) <= INT64_MAX:
            raise JsonError("chunks of a time map beyond the offsets of a log")
        rows = np.array([starts, ends, *columns[2:]], dtype=np.int64).T
        try:
            return cls(np.ascontiguousarray(rows), stored.topic_id)
        except AssertionError as error:
            raise JsonError(str(error)) from error


class _Stored(Stored, frozen=True):
    what = "the time map"

    version: Literal[1]
    topic_id: Annotated[str, Meta(max_length=64)]
    starts: list[int]
    lengths: list[int]
    least_ms: list[int]
    greatest_ms: list[int]


EMPTY_MAP: Final = TimeMap()


def _offsets(rows: Int64Array) -> OffsetSet:
    if not len(rows):
        return EMPTY_SET
    opens = np.concatenate(([True], rows[1:, _START] > rows[:-1, _END]))
    closes = np.concatenate((opens[1:], [True]))
    return OffsetSet(np.column_stack((rows[opens, _START], rows[closes, _END])).ravel())


def _merge_pairs(rows: Int64Array) -> Int64Array:
    """Merge every second touching neighbour into the chunk before it."""
    touching = np.concatenate(([False], rows[1:, _START] == rows[:-1, _END]))
    # Positions within a run of touching chunks: odd positions fold into their left neighbour.
    run_start = np.maximum.accumulate(np.where(touching, 0, np.arange(len(rows))))
    folds = (np.arange(len(rows)) - run_start) % 2 == 1
    merged = rows.copy()
    into = np.flatnonzero(folds) - 1
    source = into + 1
    merged[into, _END] = rows[source, _END]
    merged[into, _LEAST] = np.minimum(rows[into, _LEAST], rows[source, _LEAST])
    merged[into, _GREATEST] = np.maximum(rows[into, _GREATEST], rows[source, _GREATEST])
    unfolded: Int64Array = merged[~folds]
    return unfolded
