"""Draws windows from their plans alone: the offsets that each took from a partition, and their times.

Offsets grow to the right, times upwards. A bar shows the offsets that a window took; blank areas belong to other
windows. This is the only module that imports matplotlib (the extra ``plot``), for the command line, the demo and Dagster.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.offset_set import Int64Array, OffsetSet
from kafka_ordered_ops.core.time_ranges import TimeRange
from kafka_ordered_ops.core.times import time_text
from kafka_ordered_ops.core.types import INT64_MAX, INT64_MIN, PlanContent, TopicPartition
from kafka_ordered_ops.core.window.plan import PartitionPlan, WindowPlan

#: File formats, by suffix.
FORMATS: Final = ("pdf", "png", "svg")

PARTITIONS_MAX: Final = 6

#: Neighbouring windows differ in brightness and colour, for colour-blind readers and for print.
COLOURS: Final = (
    "#9aa0a6", "#1f4e9c", "#f2a33a", "#2a9d6f", "#d64550", "#7b4fa3", "#cfa616", "#1ca3c4", "#55585c",
)  # fmt: skip
INK: Final = "#22252a"
_QUIET: Final = "#5b6068"
#: For out-of-order records, and for the end of an offset range.
RED: Final = "#b3261e"
_EDGE: Final = "#b0b4ba"
_GROUND: Final = "#fafafa"
_DASHES: Final = (0, (5, 3))

#: Ranges drawn for one partition and window; with more, the narrowest holes are closed.
_BARS_MAX: Final = 200
_LATE_MAX: Final = 50
_TICKS_MAX: Final = 12
#: Records that are drawn large, with a ring around out-of-order and late ones.
_LARGE_MAX: Final = 200
_SMALL_DPI: Final = 72
_SMALL_COLOURS: Final = 16
_DPI: Final = 120
_SIZE: Final = 9.5
#: The width of a character, in inches.
_CHARACTER: Final = 0.085


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Known records of one partition: drawing reads nothing."""

    offsets: Int64Array
    timestamps_ms: Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Partitions side by side, on one scale of time."""

    heading: str
    #: Each with its colour; at least one.
    windows: Sequence[tuple[WindowPlan, str]]
    partitions: Sequence[TopicPartition]
    #: `None` shows all of these windows.
    times: TimeRange | None = None
    #: Half-open; `None` shows all of these windows.
    offsets: tuple[int, int] | None = None
    #: The labelled times; if empty, those of the windows.
    ticks_ms: Sequence[int] = ()
    records: Mapping[TopicPartition, Records] = field(default_factory=dict)
    height_inches: float = 3.2


def is_installed() -> bool:
    """Return whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def format_of(file: Path) -> str:
    """Return the format of a file's suffix, to be checked before any other work.

    Raises:
        ConfigError: the format is unknown, the folder is missing, or matplotlib is not installed.
    """
    suffix = file.suffix.removeprefix(".").lower()
    if suffix not in FORMATS:
        raise ConfigError(
            f"{file} cannot be drawn: give a name that ends with {', '.join(f'.{name}' for name in FORMATS)}"
        )
    if not os.path.isdir(file.parent):
        raise ConfigError(f"{file} cannot be drawn: there is no folder {file.parent}")
    if not is_installed():
        raise ConfigError("drawing needs matplotlib: pip install 'kafka-ordered-ops[plot]'")
    return suffix


def small_plot(plan: WindowPlan) -> bytes:
    """Draw one window as a PNG of about 4 kB, with few pixels and colours, for stores with many plots."""
    # A dependency of matplotlib.
    from PIL import Image

    image = Image.open(BytesIO(window_plot(plan, "png", dpi=_SMALL_DPI)))
    written = BytesIO()
    image.convert("RGB").quantize(_SMALL_COLOURS).save(written, "PNG", optimize=True)
    return written.getvalue()


def window_plot(plan: WindowPlan, file_format: str, *, dpi: int = _DPI) -> bytes:
    """Draw one window: the partitions with the most taken offsets, those with out-of-order records first.

    Args:
        plan: the window.
        file_format: one of `FORMATS`.
        dpi: pixels per inch of a PNG.
    """
    partition_plans = sorted(
        (part for part in plan if part.taken or part.lost),
        key=lambda part: (not _has_out_of_order(part), -part.taken.count, part.tp),
    )
    partitions = sorted(part.tp for part in partition_plans[:PARTITIONS_MAX])
    row = Row(
        heading=_summary(plan, len(partition_plans)),
        windows=[(plan, COLOURS[1])],
        partitions=partitions,
    )
    return rows_plot(f"Window {plan.window_id}", [row], file_format, dpi=dpi)


def rows_plot(
    title: str, rows: Sequence[Row], file_format: str, *, width_inches: float = 10, dpi: int = _DPI
) -> bytes:
    """Draw rows below one another, as a file of one of `FORMATS`."""
    import matplotlib as mpl

    # Not pyplot, which keeps figures for the whole process and looks for a display.
    from matplotlib.figure import Figure

    heights = [row.height_inches for row in rows]
    figure: Any = Figure((width_inches, sum(heights) + 0.5), dpi=dpi, layout="constrained")
    figure.suptitle(_plain(title, width_inches * 0.6), x=0.01, ha="left", size=15, weight="bold",
                    color=INK, parse_math=False)  # fmt: skip
    for below, row in zip(
        np.atleast_1d(figure.subfigures(len(rows), 1, height_ratios=heights)), rows, strict=True
    ):
        _draw_row(below, row, width_inches)
    written = BytesIO()
    # The same plot gives the same file: no date, no random names.
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(file_format)
    with mpl.rc_context({"svg.hashsalt": title}):
        figure.savefig(written, format=file_format, metadata=undated)
    return written.getvalue()


def _summary(plan: WindowPlan, partitions: int) -> str:
    if not plan.taken:
        covered = plan.content is PlanContent.COVERED
        summary = "other windows have its records" if covered else "there was nothing to take"
    else:
        summary = f"{_number(plan.offsets, 'offset')} of {_number(len(plan.taken), 'partition')}"
        if len(plan.topics) == 1:
            summary += f" of {plan.topics[0]}"
    if lost := sum(part.lost.count for part in plan):
        summary += f", {_number(lost, 'offset')} lost to retention"
    if (more := partitions - PARTITIONS_MAX) > 0:
        summary += f"; {_number(more, 'partition')} more than shown"
    return f"{summary}; group {plan.group_id}"


# --- one row ---------------------------------------------------------------------------------------


def _draw_row(figure: Any, row: Row, width_inches: float) -> None:
    figure.suptitle(_plain(row.heading, width_inches), x=0.01, ha="left", size=11, color=_QUIET, parse_math=False)  # fmt: skip
    if not row.partitions:
        # Without axes the two headings would overlap.
        figure.subplots().set_axis_off()
        return
    times = row.times or _times_of(row)
    panels = figure.subplots(1, len(row.partitions), sharey=True, squeeze=False)[0]
    topics = {tp.topic for tp in row.partitions}
    handles: dict[str, Any] = {}
    # A quarter is for the gaps between them, and for the times.
    inches = 0.75 * width_inches / len(row.partitions)
    for tp, axis in zip(row.partitions, panels, strict=True):
        name = f"partition {tp.partition}" if len(topics) == 1 else str(tp)
        title = _plain(name, inches)
        axis.set_title(title, size=_SIZE, color=_QUIET, parse_math=False)
        handles |= _Panel(axis, row, tp, times, inches).draw()
    ticks = sorted(row.ticks_ms or _edges_of(row))[-_TICKS_MAX:]
    ticks = [tick for tick in ticks if times.since_ms <= tick <= times.before_ms]
    panels[0].set_ylim(0, 1)
    panels[0].set_yticks([_share(tick, times) for tick in ticks], _labels(ticks))
    figure.legend(handles.values(), handles.keys(), loc="outside lower left", ncols=4, frameon=False, fontsize=_SIZE, labelcolor=_QUIET)  # fmt: skip


def _edges_of(row: Row) -> set[int]:
    """Return the times of all windows."""
    pairs = [(plan.window.since_ms, plan.cutoff_ms) for plan, _ in row.windows]
    return {edge for pair in pairs for edge in pair if edge is not None}


def _times_of(row: Row) -> TimeRange:
    """Return the visible times: from a little below the oldest start to a little beyond the last cutoff."""
    last = max(plan.cutoff_ms for plan, _ in row.windows)
    lows = [
        low
        for plan, _ in row.windows
        for part in plan
        if part.taken and (low := _low_of(plan, part)) is not None
    ]
    first = min(lows, default=last - 8)
    spare = max((last - first) // 4, 1)
    return TimeRange(max(first - spare, INT64_MIN), min(last + spare // 4 + 1, INT64_MAX))


def _low_of(plan: WindowPlan, part: PartitionPlan) -> int | None:
    """Return the time from which a window takes records that are not late; `None` means the beginning."""
    if plan.window.since_ms is not None:
        return plan.window.since_ms
    ended = [times.before_ms for times, _ in part.late.pieces if times.before_ms < plan.cutoff_ms]
    return max(ended, default=None)


def _labels(ticks_ms: Sequence[int]) -> list[str]:
    """Return the labels of times, each with its date if it differs from the one below; of midnights only the date."""
    texts = [time_text(tick) for tick in ticks_ms]
    midnight = "T00:00:00Z"
    if all(text.endswith(midnight) for text in texts):
        return [text.removesuffix(midnight) for text in texts]
    labels, below = [], ""
    for text in texts:
        date, sign, clock = text.partition("T")
        short = clock.removesuffix("Z").removesuffix(":00")
        labels.append(short if sign and date == below else f"{date}\n{short}".rstrip())
        below = date
    return labels


def _share(time_ms: int, times: TimeRange) -> float:
    """Return a time's height in a panel, computed in integers as far as possible."""
    within = min(max(time_ms, times.since_ms), times.before_ms)
    return (within - times.since_ms) / (times.before_ms - times.since_ms)


# --- one partition ---------------------------------------------------------------------------------


class _Panel:
    def __init__(
        self, axis: Any, row: Row, tp: TopicPartition, times: TimeRange, inches: float
    ) -> None:
        self._axis, self._row, self._times = axis, row, times
        self._known = row.records.get(tp)
        self._inches = inches
        self._parts = [
            (plan, part, colour)
            for plan, colour in row.windows
            for part in plan
            if part.tp == tp and (part.taken or part.lost)
        ]
        offset_sets = [
            offsets for _, part, _ in self._parts for offsets in (part.taken, part.lost) if offsets
        ]
        if row.offsets is not None:
            self._first, self._end = row.offsets
        else:
            self._first = min((offsets.first for offsets in offset_sets), default=0)
            self._end = max((offsets.end for offsets in offset_sets), default=1)
        #: By its meaning.
        self._handles: dict[str, Any] = {}

    def draw(self) -> dict[str, Any]:
        """Draw everything; return the entries of the legend."""
        axis, extent = self._axis, self._end - self._first
        axis.set_facecolor(_GROUND)
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color(_EDGE)
        axis.tick_params(color=_EDGE, labelcolor=_QUIET, labelsize=_SIZE)
        # Offsets relative to the first one: matplotlib's floats lose digits of large numbers.
        axis.set_xlim(-0.03 * extent, 1.03 * extent)
        first, end = (_plain(str(offset), self._inches) for offset in (self._first, self._end))
        apart = "\n" if len(first) + len(end) + 2 > _room(self._inches) else ""
        axis.set_xticks([0, extent], [first, f"{apart}{end}"])
        for label, side in zip(axis.get_xticklabels(), ("left", "right"), strict=True):
            label.set_horizontalalignment(side)
        for plan, part, colour in self._parts:
            self._draw_window(plan, part, colour, opacity=0.75 if self._known is None else 0.2)
        for edge in _edges_of(self._row):
            if self._times.since_ms <= edge <= self._times.before_ms:
                axis.axhline(_share(edge, self._times), color=INK, lw=0.8, ls=_DASHES)
        if self._known is not None:
            self._draw_records(self._known)
        return self._handles

    def _draw_window(
        self, plan: WindowPlan, part: PartitionPlan, colour: str, *, opacity: float
    ) -> None:
        low = _low_of(plan, part)
        bottom = 0.0 if low is None else _share(low, self._times)
        span = bottom, _share(plan.cutoff_ms, self._times) - bottom
        is_alone = len(self._row.windows) == 1
        meaning = "offsets taken" if is_alone else f"window {_plain(plan.window_id, 2.5)}"
        self._draw_bars(
            part.taken, span, meaning, facecolor=colour, edgecolor=colour, alpha=opacity
        )
        self._draw_bars(part.lost, (0, 1), "offsets lost to retention", facecolor="none", edgecolor=_QUIET, hatch="xx")  # fmt: skip
        # With many partitions the lines of many windows would be unreadable.
        has_lines = is_alone or len(self._row.partitions) == 1
        if has_lines and _has_out_of_order(part) and part.head_end is not None:
            self._draw_line(part.head_end, "a cut by offset would end here", RED)
        if is_alone and _has_out_of_order(part) and part.head_end is not None:
            behind = part.taken.within(part.head_end, part.taken.end)
            self._draw_bars(
                behind, span, "out-of-order records among them", facecolor="none", edgecolor=RED
            )
        if is_alone and part.taken:
            self._draw_late(part)
        elif has_lines:
            self._draw_line(part.decided_end, "the log's end when the window was planned", _QUIET)

    def _draw_bars(
        self, offsets: OffsetSet, span: tuple[float, float], meaning: str, **style: Any
    ) -> None:
        if bars := list(self._bars(offsets)):
            self._handles[meaning] = self._axis.broken_barh(bars, span, lw=0.8, **style)

    def _bars(self, offsets: OffsetSet) -> Iterator[tuple[float, float]]:
        """Yield starts and lengths of the visible ranges, joined over the narrowest holes if they are many."""
        bounds = offsets.within(self._first, self._end).bounds - self._first
        holes = bounds[1:, 0] - bounds[:-1, 1]
        if holes.size >= _BARS_MAX:
            widest = np.sort(np.argpartition(holes, -_BARS_MAX)[-_BARS_MAX:])
            starts, ends = np.append(0, widest + 1), np.append(widest, len(bounds) - 1)
            bounds = np.column_stack((bounds[starts, 0], bounds[ends, 1]))
        for start, end in bounds.tolist():
            yield start, end - start

    def _draw_line(self, offset: int, meaning: str, colour: str) -> None:
        """Draw a vertical line before an offset, if it is visible."""
        if self._first < offset < self._end:
            self._handles[meaning] = self._axis.axvline(offset - self._first, color=colour, lw=1.1)

    def _draw_late(self, part: PartitionPlan) -> None:
        """Draw the area of late records, by time and offset."""
        for times, from_offset in part.late.pieces[-_LATE_MAX:]:
            start = max(from_offset, self._first)
            bottom, top = (_share(edge, self._times) for edge in times)
            if start < part.taken.end and bottom < top:
                self._handles["late, if of these times"] = self._axis.broken_barh(
                    [(start - self._first, part.taken.end - start)],
                    (bottom, top - bottom),
                    facecolor="none",
                    edgecolor=_EDGE,
                    hatch="///",
                    lw=0,
                )

    def _draw_records(self, records: Records) -> None:
        """Draw records as dots in the colours of their windows, out-of-order ones with a square, late ones with a ring."""
        in_sight = (records.offsets >= self._first) & (records.offsets < self._end)
        in_sight &= records.timestamps_ms >= self._times.since_ms
        in_sight &= records.timestamps_ms < self._times.before_ms
        offsets, stamps_ms = records.offsets[in_sight], records.timestamps_ms[in_sight]
        x = offsets - self._first + 0.5
        y = (stamps_ms - self._times.since_ms) / (self._times.before_ms - self._times.since_ms)
        is_large = offsets.size <= _LARGE_MAX
        for plan, part, colour in self._parts:
            taken = part.taken.mask(offsets)
            self._axis.scatter(x[taken], y[taken], s=40 if is_large else 5, c=colour, lw=0, zorder=3)  # fmt: skip
            if not is_large:
                continue
            head_end = INT64_MAX if part.head_end is None else part.head_end
            rings = {
                "out-of-order record, behind that cut": (offsets >= head_end, "s", RED),
                "late record": (part.late.mask(offsets, stamps_ms), "o", INK),
            }  # fmt: skip
            for meaning, (ringed, marker, edge) in rings.items():
                ringed = ringed & taken & (stamps_ms < plan.cutoff_ms)
                if ringed.any():
                    self._handles[meaning] = self._axis.scatter(x[ringed], y[ringed], s=130, marker=marker, facecolors="none", edgecolors=edge, zorder=4)  # fmt: skip


def _has_out_of_order(part: PartitionPlan) -> bool:
    """Return whether the partition may have records taken after one stamped at or after the cutoff."""
    return part.head_end is not None and part.may_have_out_of_order


def _plain(text: str, inches: float) -> str:
    """Return a text shortened to fit, with only the characters of matplotlib's own font."""
    printable = "".join(
        character if character.isprintable() and character < "\u0100" else "?" for character in text
    )
    room = _room(inches)
    return (
        printable
        if len(printable) <= room
        else f"{printable[: room - room // 2 - 1]}…{printable[-(room // 2) :]}"
    )


def _room(inches: float) -> int:
    """Return the number of characters that fit."""
    return int(inches / _CHARACTER)


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
