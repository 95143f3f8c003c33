"""The two axes of a window's picture: offsets to the right, times upwards; what lies far off is cut short."""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from kafka_ordered_ops.core.offset_set import Int64Array, OffsetSet
from kafka_ordered_ops.core.window.window import Window

FloatArray = npt.NDArray[np.float64]

#: A hole that would fill more than this share of the axis becomes a strip: at most two can.
_HOLE_SHARE_MAX: Final = 0.4
_STRIP: Final = 14

#: Times that are not to scale are put so far beyond those that are.
_BEYOND: Final = 8

#: Of what a catch-up window takes, the oldest share that may not press all else into a line.
_OLDEST_SHARE: Final = 0.02
#: A cutoff that lies further behind the newest record, in spans of the records, is not to scale either.
_AHEAD_MAX: Final = 2


class Column(IntEnum):
    """What the offsets below one pixel are."""

    NONE = 0
    #: The window's and others'.
    MIXED = 1
    ALL = 2


class OffsetAxis:
    """From the first offset that a window takes of a partition up to the last one.

    Args:
        taken: the offsets, at least one.
        width: how many pixels there are for them.
    """

    def __init__(self, taken: OffsetSet, width: int) -> None:
        self._taken = taken
        self._first = taken.first
        bounds = taken.bounds
        extent = taken.end - taken.first
        holes = bounds[1:, 0] - bounds[:-1, 1]
        long = np.flatnonzero(holes > _HOLE_SHARE_MAX * extent)
        ends = np.column_stack((bounds[long, 1], bounds[long + 1, 0])).ravel() - self._first
        self._offsets: FloatArray = np.concatenate(([0], ends, [extent])).astype(np.float64)
        lengths = np.diff(self._offsets)
        # The odd ones are the long holes.
        shown = np.where(np.arange(lengths.size) % 2, 0, lengths)
        steps = shown / shown.sum() * (width - _STRIP * long.size)
        steps[1::2] = _STRIP
        self._pixels: FloatArray = np.concatenate(([0], np.cumsum(steps)))
        self._pixels[-1] = width
        self._width = width

    @property
    def cuts(self) -> list[float]:
        """Where a hole is not to scale: the middles of the strips."""
        return [(a + b) / 2 for a, b in self._pixels[1:-1].reshape(-1, 2).tolist()]

    def place(self, offset: int) -> float:
        """Where an offset begins; one off the axis, at its nearer end."""
        return float(np.interp(offset - self._first, self._offsets, self._pixels))

    def centres(self, offsets: Int64Array) -> FloatArray:
        """Where offsets have their dots."""
        relative = (offsets - self._first).astype(np.float64) + 0.5
        centres: FloatArray = np.interp(relative, self._offsets, self._pixels)
        return centres

    def columns(self) -> npt.NDArray[np.int8]:
        """For each pixel a `Column`: one with a single offset of another window is not `ALL`."""
        edges = np.interp(np.arange(self._width + 1), self._pixels, self._offsets).tolist()
        extent = self._taken.end - self._first
        # Every offset lies in some column, also where many share one, or one has many. In whole numbers of
        # any size: a float may round up to what an array cannot hold.
        starts = [0, *(min(math.floor(edge), extent - 1) for edge in edges[1:-1])]
        ends = [*(min(math.ceil(edge), extent) for edge in edges[1:-1]), extent]
        low = np.array(starts, dtype=np.int64)
        high = np.maximum(np.array(ends, dtype=np.int64), low + 1)
        counts = self._below(high) - self._below(low)
        found = np.where(counts == high - low, Column.ALL, Column.MIXED)
        return np.where(counts == 0, Column.NONE, found).astype(np.int8)

    def _below(self, relative: Int64Array) -> Int64Array:
        """How many of the taken offsets lie below each place."""
        bounds = self._taken.bounds - self._first
        before = np.concatenate(([0], np.cumsum(bounds[:, 1] - bounds[:, 0])))
        at = np.searchsorted(bounds[:, 0], relative, side="right")
        inside = np.minimum(relative, bounds[at - 1, 1]) - bounds[at - 1, 0]
        below: Int64Array = np.where(at > 0, before[at - 1] + inside, 0)
        return below


class TimeAxis:
    """The times of a window and of its records, the newest above.

    To scale are the interval, and as much before it; of a window without a start, what nearly all of its
    records are stamped. What is older, and a cutoff far ahead of the records, lies a little beyond.

    Args:
        window: what was asked for.
        stamps_ms: the records' times, none if they are not known.
        top: the pixel of the newest time.
        bottom: the pixel of the oldest one; it is below `top`.
    """

    def __init__(self, window: Window, stamps_ms: Int64Array, top: float, bottom: float) -> None:
        self.cutoff_ms = window.cutoff_ms
        oldest = int(stamps_ms.min()) if stamps_ms.size else None
        #: The oldest time that is to scale, and the newest.
        self.low_ms, self.high_ms = _scale_of(window, stamps_ms)
        self.is_cut_below = oldest is not None and oldest < self.low_ms
        self.is_cut_above = self.cutoff_ms > self.high_ms
        self._top = top + _BEYOND * self.is_cut_above
        self._bottom = bottom - _BEYOND * self.is_cut_below

    def place(self, time_ms: int) -> float:
        """Where a time lies."""
        return float(self.places(np.array([time_ms], dtype=np.int64))[0])

    def places(self, stamps_ms: Int64Array) -> FloatArray:
        """Where times lie."""
        share = (stamps_ms.astype(np.float64) - self.low_ms) / (self.high_ms - self.low_ms)
        places = self._bottom - np.clip(share, 0, 1) * (self._bottom - self._top)
        places[stamps_ms < self.low_ms] += _BEYOND
        places[stamps_ms > self.high_ms] -= _BEYOND * self.is_cut_above
        return places


def _scale_of(window: Window, stamps_ms: Int64Array) -> tuple[int, int]:
    since_ms, cutoff_ms = window.since_ms, window.cutoff_ms
    oldest = int(stamps_ms.min()) if stamps_ms.size else None
    if since_ms is not None:
        near = stamps_ms[stamps_ms >= 2 * since_ms - cutoff_ms]
        return min([since_ms, int(near.min())] if near.size else [since_ms]), cutoff_ms
    if oldest is None:
        return cutoff_ms - 1, cutoff_ms
    newest = min(int(stamps_ms.max()), cutoff_ms - 1)
    usual = min(int(np.quantile(stamps_ms, _OLDEST_SHARE, method="lower")), newest)
    # Records of one moment have no span: they lie in the middle.
    span_ms = newest - usual or cutoff_ms - newest
    low_ms = max(min(oldest, newest), usual - span_ms // 4) if newest > oldest else newest - span_ms
    is_near = cutoff_ms - newest <= _AHEAD_MAX * span_ms
    return low_ms, cutoff_ms if is_near else newest + span_ms // 8 + 1
