"""What the pictures of a window have in common: colours, which partitions and records they show, and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np

from kafka_ordered_ops.core.offset_set import BoolArray, Int64Array
from kafka_ordered_ops.core.picture_axes import Column, OffsetAxis, TimeAxis
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.core.window.plan import PartitionPlan, WindowPlan

#: Neighbouring windows differ in light as well as in colour, for readers who see few colours and for print.
COLOURS: Final = (
    "#9aa0a6", "#1f4e9c", "#f2a33a", "#2a9d6f", "#d64550", "#7b4fa3", "#cfa616", "#1ca3c4", "#55585c",
)  # fmt: skip
INK: Final = "#22252a"
QUIET: Final = "#5b6068"
#: Where a cut by offset would end, and the squares around what it would lose.
RED: Final = "#b3261e"
EDGE: Final = "#b0b4ba"
GROUND: Final = "#fafafa"
#: Of the lines at a window's times: long and short.
DASHES: Final = (5, 3)

#: What a window took, and where others took some of it.
TINTS: Final = {Column.ALL: "#dbe5f3", Column.MIXED: "#ecf1f8"}
#: Of a window that is shown alone.
COLOUR: Final = COLOURS[1]


@dataclass(frozen=True, slots=True, eq=False)
class Dots:
    """Some records of one partition, column by column."""

    offsets: Int64Array
    timestamps_ms: Int64Array
    stragglers: BoolArray
    late: BoolArray

    def where(self, mask: BoolArray) -> Dots:
        """Those for which it holds."""
        return self.thinned(np.flatnonzero(mask))

    def thinned(self, places: Int64Array) -> Dots:
        """Those at these places."""
        return Dots(
            self.offsets[places],
            self.timestamps_ms[places],
            self.stragglers[places],
            self.late[places],
        )

    @property
    def ringed(self) -> int:
        """How many are stragglers, or late."""
        return int((self.stragglers | self.late).sum())

    def __len__(self) -> int:
        return self.offsets.size


@dataclass(frozen=True, slots=True, eq=False)
class RecordSample:
    """What is known of a window's records: how many there are, and some of them. None: nobody has counted."""

    records: int | None
    stragglers: int | None
    late: int | None
    #: Offsets are those of the plan.
    dots: Mapping[TopicPartition, Dots]


@dataclass(frozen=True, slots=True)
class Frame:
    """Where in a picture the panels are, in pixels."""

    left: int
    right: int
    top: int
    bottom: int
    partitions_max: int
    #: Between two panels.
    gap: int = 10
    #: Between a panel's edge and what it shows.
    pad: int = 5


@dataclass(frozen=True, slots=True)
class Panel:
    """One partition's place in a picture."""

    part: PartitionPlan
    dots: Dots
    left: int
    width: int
    #: From the left of what the panel shows.
    axis: OffsetAxis
    pad: int

    @property
    def right(self) -> int:
        """The panel's edge."""
        return self.left + self.width

    @property
    def start(self) -> int:
        """Where the axis begins."""
        return self.left + self.pad

    @property
    def cut(self) -> float | None:
        """Where a cut by offset would end, if it is known to lose anything."""
        head_end = self.part.head_end
        if head_end is None or self.part.taken.end <= head_end:
            return None
        return self.start + self.axis.place(head_end)

    def places(self, dots: Dots, times: TimeAxis, *, scale: int, grid: int) -> Int64Array:
        """Where dots are drawn, in parts of a pixel, by x; of those in one cell of a grid of so many parts, one."""
        x = self.start + self.axis.centres(dots.offsets)
        parts = np.column_stack((x, times.places(dots.timestamps_ms))) * scale
        _, first = np.unique(np.round(parts / grid), axis=0, return_index=True)
        places: Int64Array = np.round(parts[first]).astype(np.int64)
        return places


def panels_of(
    plan: WindowPlan, sample: RecordSample | None, frame: Frame, dots_max: int
) -> list[Panel]:
    """The partitions with most to see, stragglers and late records, then offsets; side by side, in order."""
    known = {} if sample is None else sample.dots
    by_sight = sorted(
        (part for part in plan if part.taken),
        key=lambda part: (
            -known[part.tp].ringed if part.tp in known else 0,
            -part.taken.count,
            part.tp,
        ),
    )
    chosen = sorted(by_sight[: frame.partitions_max], key=lambda part: part.tp)
    count = max(len(chosen), 1)
    width = (frame.right - frame.left - frame.gap * (count - 1)) // count
    panels = []
    for place, part in enumerate(chosen):
        axis = OffsetAxis(part.taken, width - 2 * frame.pad)
        dots = _thinned(known.get(part.tp, _NO_DOTS), dots_max // count)
        left = frame.left + place * (width + frame.gap)
        panels.append(Panel(part, dots, left, width, axis, frame.pad))
    return panels


def time_axis(plan: WindowPlan, panels: Sequence[Panel], frame: Frame) -> TimeAxis:
    """The one that all panels share."""
    stamps = [panel.dots.timestamps_ms for panel in panels]
    together = np.concatenate([*stamps, _NO_DOTS.timestamps_ms])
    return TimeAxis(plan.window, together, frame.top + frame.pad, frame.bottom - frame.pad)


def spread(places: Int64Array, count: int) -> Int64Array:
    """At most so many of them, the first and the last ones included."""
    if len(places) <= count:
        return places
    chosen: Int64Array = places[np.linspace(0, len(places) - 1, count).astype(np.int64)]
    return chosen


def runs(columns: Sequence[int], kind: Column) -> str:
    """A path along all columns of a kind, from the first column on; empty where there is none."""
    path: list[str] = []
    at = begun = 0
    for value, run in groupby(columns):
        length = len(list(run))
        if value == kind:
            path.append(f"{'m' if path else 'M'}{at - begun if path else at} 0h{length}")
            begun = at + length
        at += length
    return "".join(path)


def _thinned(dots: Dots, count: int) -> Dots:
    """At most so many, all of them if possible: first those that are ringed, then evenly spread."""
    if len(dots) <= count:
        return dots
    ringed = dots.stragglers | dots.late
    # Most of the room is the others': without them it would look as if there were none.
    first = spread(np.flatnonzero(ringed), max(count // 4, count - int((~ringed).sum())))
    rest = spread(np.flatnonzero(~ringed), count - first.size)
    return dots.thinned(np.sort(np.concatenate((first, rest))))


_NO_DOTS: Final = Dots(
    np.empty(0, dtype=np.int64),
    np.empty(0, dtype=np.int64),
    np.empty(0, dtype=np.bool_),
    np.empty(0, dtype=np.bool_),
)
