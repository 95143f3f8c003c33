"""The picture: the log's out-of-order fringe, and how windows cut through it by time and not by offset.

Above, the blizzard week in every partition: each record at its offset and its scheduled time, in the colour
of its window. Below, one cutoff close up, with the place where a look-up by time would have cut the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np

from kafka_ordered_ops.cli.demo.data import Int64Array
from kafka_ordered_ops.cli.demo.output import Published
from kafka_ordered_ops.cli.demo.story import PARTITIONS, BoolArray, Step, Story
from kafka_ordered_ops.core.picture_panels import COLOURS, DASHES, EDGE, GROUND, INK, QUIET, RED
from kafka_ordered_ops.core.times import time_ms

#: For a README at its full width on a sharp screen.
_SIZE_INCHES: Final = (13.0, 9.2)
_DPI: Final = 120

#: What is shown around the week, and around the cutoff that is shown close up.
_WEEK_MARGIN: Final = timedelta(hours=12)
_BEFORE: Final = timedelta(hours=5)
_AFTER: Final = timedelta(hours=3)

_MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class _Records:
    """The columns of the published records that are drawn."""

    window: Int64Array
    partition: Int64Array
    offset: Int64Array
    stamp_ms: Int64Array
    departed_ms: Int64Array
    late: BoolArray
    straggler: BoolArray

    @classmethod
    def of(cls, published: Published, story: Story) -> _Records:
        window, partition, offset, stamp_ms, delay_min = (
            published.int64(name)
            for name in ("window", "partition", "offset", "timestamp", "delay_min")
        )
        return cls(
            window,
            partition,
            offset,
            stamp_ms,
            stamp_ms + delay_min * _MINUTE_MS,
            published.bools("late"),
            published.stragglers(story),
        )

    def where(self, mask: BoolArray) -> _Records:
        return _Records(*(getattr(self, field.name)[mask] for field in fields(self)))

    def between(self, start: datetime, end: datetime) -> _Records:
        stamps = self.stamp_ms
        return self.where((stamps >= _ms(start)) & (stamps < _ms(end)))


def draw(published: Published, story: Story, path: Path) -> None:
    """Draws the published records into a PNG file."""
    import matplotlib as mpl

    # Before pyplot: without a display it would look for one.
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    records = _Records.of(published, story)
    with plt.rc_context({"font.size": 10, "text.color": INK, "axes.edgecolor": EDGE}):
        figure = plt.figure(figsize=_SIZE_INCHES, dpi=_DPI, facecolor="white")
        sides = {"left": 0.07, "right": 0.945}
        above = figure.add_gridspec(1, PARTITIONS, wspace=0.08, top=0.835, bottom=0.545, **sides)
        below = figure.add_gridspec(1, 1, top=0.41, bottom=0.065, **sides)
        _write_titles(figure, len(published), story)
        _draw_week([figure.add_subplot(above[0, n]) for n in range(PARTITIONS)], records, story)
        _draw_cutoff(figure.add_subplot(below[0, 0]), records, story)
        figure.savefig(path)
        plt.close(figure)


def _write_titles(figure: Any, count: int, story: Story) -> None:
    figure.text(0.07, 0.95, "Exact windows over a log that is out of order", size=18, weight="bold")
    figure.text(
        0.07,
        0.916,
        f"{count:,} departures from New York in 2013: written when they left, stamped with the time they were "
        f"scheduled for, taken in {len(story.steps)} windows by that time.",
        size=11,
        color=QUIET,
    )
    _write_heading(figure, 0.875, "The blizzard week: a colour is a window, a dashed line a cutoff")


def _write_heading(figure: Any, height: float, text: str) -> None:
    figure.text(0.07, height, text, size=11.5, weight="bold")


def _draw_week(axes: Sequence[Any], records: _Records, story: Story) -> None:
    """The daily windows with half a day around them, partition by partition."""
    first, last = story.steps[0].cutoff - _WEEK_MARGIN, story.steps[-2].cutoff + _WEEK_MARGIN
    week = records.between(first, last)
    for number, axis in enumerate(axes):
        _scatter(axis, week.where(week.partition == number), size=5)
        for step in story.steps[:-1]:
            axis.axhline(_moment(step.cutoff), color=INK, lw=0.6, ls=(0, DASHES), zorder=1)
        axis.set_title(f"partition {number}", fontsize=9.5, color=QUIET)
        axis.set_ylim(_moment(first), _moment(last))
        axis.locator_params(axis="x", nbins=3)
        axis.set_xlabel("offset", size=9.5, color=QUIET)
        _tidy(axis, "%b %d")
        axis.tick_params(labelleft=number == 0)
    axes[0].set_ylabel("scheduled (UTC)")
    for place, step in enumerate(story.steps[1:-1], start=1):
        axes[-1].annotate(
            f"{step.cutoff - _WEEK_MARGIN:%b %d}",
            (1.04, _moment(step.cutoff - _WEEK_MARGIN)),
            xycoords=("axes fraction", "data"),
            va="center",
            size=9.5,
            weight="bold",
            color=COLOURS[place],
        )


def _draw_cutoff(axis: Any, records: _Records, story: Story) -> None:
    """The cutoff with most to see, in one partition, close up."""
    place, partition = _liveliest(records, story)
    step = story.steps[place]
    part = records.where(records.partition == partition)
    near = part.between(step.cutoff - _BEFORE, step.cutoff + _AFTER)
    near = near.where(np.isin(near.window, (place, place + 1)))
    _scatter(axis, near, size=40)
    axis.axhline(_moment(step.cutoff), color=INK, lw=1.1, ls=(0, DASHES), zorder=1)
    # What a look-up by time answers: the first record stamped at or after the cutoff.
    cut = near.stamp_ms >= step.cutoff_ms
    _draw_line(axis, near, cut, RED, "right", "a cut by offset would end here ")
    unwritten = near.departed_ms >= step.planned_at_ms
    _draw_line(axis, near, unwritten, QUIET, "left", f" planned here, {step.planned_at:%H:%M}")
    stragglers = near.where(near.straggler & (near.window == place))
    late = near.where(near.late & (near.window == place + 1))
    _ring(axis, stragglers, "s", RED)
    _ring(axis, late, "o", INK)
    _write_heading(
        axis.figure,
        0.455,
        f"Close up: the cutoff {step.cutoff:%b %d %H:%M} in partition {partition}",
    )
    axis.set_xlabel("offset", color=QUIET)
    axis.set_ylabel("scheduled (UTC)")
    _tidy(axis, "%H:%M")
    _draw_legend(
        axis, step, story.steps[place + 1], (place, len(stragglers.offset), len(late.offset))
    )


def _draw_line(
    axis: Any, near: _Records, passed: BoolArray, colour: str, side: str, text: str
) -> None:
    """An upright line before the first record for which `passed` holds."""
    if not passed.any():
        return
    at = int(near.offset[passed].min()) - 0.5
    axis.axvline(at, color=colour, lw=1.1, zorder=1)
    axis.annotate(
        text,
        (at, 1.012),
        xycoords=("data", "axes fraction"),
        ha=side,
        va="bottom",
        size=9.5,
        color=colour,
    )


def _draw_legend(axis: Any, step: Step, after: Step, numbers: tuple[int, int, int]) -> None:
    from matplotlib import lines

    place, stragglers, late = numbers

    def entry(label: str, marker: str, size: float, colour: str, *, filled: bool) -> Any:
        face = colour if filled else "none"
        line = lines.Line2D([], [], linestyle="none", label=label, marker=marker)
        line.set(markersize=size, markerfacecolor=face, markeredgecolor=colour)
        return line

    handles = [
        entry(f"window {step.window_id}", "o", 6.5, COLOURS[place], filled=True),
        entry(f"window {after.window_id}", "o", 6.5, COLOURS[place + 1], filled=True),
        entry(
            f"stragglers ({stragglers}): behind that cut, and in their window all the same",
            "s",
            10,
            RED,
            filled=False,
        ),
        entry(
            f"late records ({late}): written after their window was planned, taken by the next",
            "o",
            10,
            INK,
            filled=False,
        ),
    ]
    axis.legend(handles=handles, loc="upper left", frameon=False, labelspacing=0.65, fontsize=10)


def _liveliest(records: _Records, story: Story) -> tuple[int, int]:
    """The daily window and the partition with most stragglers and late records of the next day to see."""
    places = range(1, len(story.steps) - 2)

    def seen(place: int, partition: int) -> tuple[int, int]:
        here = records.where(records.partition == partition)
        stragglers = int((here.straggler & (here.window == place)).sum())
        late = int((here.late & (here.window == place + 1)).sum())
        return min(stragglers, late), stragglers + late

    return max(((k, n) for k in places for n in range(PARTITIONS)), key=lambda kn: seen(*kn))


def _scatter(axis: Any, part: _Records, *, size: float) -> None:
    colours = np.array(COLOURS)[part.window]
    axis.scatter(part.offset, _moments(part.stamp_ms), s=size, c=colours, lw=0, zorder=2)


def _ring(axis: Any, part: _Records, marker: str, colour: str) -> None:
    style = {"marker": marker, "facecolors": "none", "edgecolors": colour, "linewidths": 1.3}
    axis.scatter(part.offset, _moments(part.stamp_ms), s=130, zorder=3, **style)


def _tidy(axis: Any, time_format: str) -> None:
    import matplotlib.dates

    axis.spines[["top", "right"]].set_visible(False)
    axis.set_facecolor(GROUND)
    axis.tick_params(color=EDGE, labelcolor=QUIET, labelsize=9.5)
    axis.yaxis.label.set_color(QUIET)
    dates: Any = matplotlib.dates  # Not typed.
    axis.yaxis.set_major_formatter(dates.DateFormatter(time_format))


def _ms(moment: datetime) -> int:
    return time_ms(moment, what="time")


def _moment(moment: datetime) -> Any:
    return np.datetime64(_ms(moment), "ms")


def _moments(stamps_ms: Int64Array) -> Any:
    return stamps_ms.astype("datetime64[ms]")
