"""The picture of a window in less than a thousand characters: for pages that show no more at a glance.

The same shapes and colours without a word: see `picture.window_picture` for what they mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from kafka_ordered_ops.core.offset_set import Int64Array
from kafka_ordered_ops.core.picture_axes import Column, TimeAxis
from kafka_ordered_ops.core.picture_panels import (
    COLOUR,
    DASHES,
    INK,
    RED,
    TINTS,
    Frame,
    Panel,
    RecordSample,
    panels_of,
    runs,
    spread,
    time_axis,
)
from kafka_ordered_ops.core.window.plan import WindowPlan

WIDTH: Final = 350
HEIGHT: Final = 72
PARTITIONS_MAX: Final = 3
#: Of the address.
LENGTH_MAX: Final = 960

_FRAME: Final = Frame(3, WIDTH - 3, 0, HEIGHT, PARTITIONS_MAX, gap=8)
#: As many are tried first; then fewer and fewer, until there is room for all.
_DOTS_MAX: Final = 90
_DOTS_STEP: Final = 6
#: Of stragglers, and of late records, in each panel.
_RINGS_MAX: Final = 2
#: What tints may take of the length; a window in many ranges is drawn in broader columns.
_TINTS_LENGTH_MAX: Final = 160
#: No shape is drawn on a grid finer than this.
_GRID: Final = 1
_RING_GRID: Final = 7

#: Markdown ends an address at a space, and browsers begin another part of it at a ``#``.
_ESCAPED: Final = str.maketrans({"%": "%25", " ": "%20", "#": "%23"})


def sketch_address(plan: WindowPlan, sample: RecordSample | None = None) -> str:
    """The sketch as a ``data:`` address of at most `LENGTH_MAX` characters, which Markdown takes as it is.

    Args:
        plan: the window; it takes anything.
        sample: some of its records; None where they are not known, which leaves the offsets.
    """
    dots_max, address = _DOTS_MAX, ""
    while not address or (len(address) > LENGTH_MAX and dots_max):
        svg = "".join(_drawn(plan, sample, dots_max))
        address = f"data:image/svg+xml,{svg.translate(_ESCAPED)}"
        dots_max -= _DOTS_STEP
    return address


def _drawn(plan: WindowPlan, sample: RecordSample | None, dots_max: int) -> Iterator[str]:
    # Commas in place of spaces: one character in an address, and not three.
    panels = panels_of(plan, sample, _FRAME, dots_max)
    times = time_axis(plan, panels, _FRAME)
    yield (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{HEIGHT}' fill='none'>"
        f"<path fill='white' d='M0,0h{WIDTH}v{HEIGHT}H0z'/>"
    )
    yield f"<path stroke='{TINTS[Column.ALL]}' stroke-width='{HEIGHT}' d='{_tints(panels)}'/>"
    since_ms = plan.window.since_ms
    edges = [times.cutoff_ms] + ([] if since_ms is None else [since_ms])
    lines = "".join(f"M0,{times.place(edge):.0f}h{WIDTH}" for edge in edges)
    yield f"<path stroke='{INK}' stroke-dasharray='{DASHES[0]},{DASHES[1]}' d='{lines}'/>"
    squares = _ringed(panels, times, "stragglers", dots_max)
    circles = _ringed(panels, times, "late", dots_max)
    # Of the ringed ones those that have a ring: a late record without one would look as if it were not late.
    ringed = np.array(sorted({*squares, *circles}), dtype=np.int64).reshape(-1, 2)
    dots = [*(_plain(panel, times) for panel in panels), ringed]
    if path := "".join(f"m{dx}{_pair(dy)}h0" for dx, dy in _steps(dots)):
        yield f"<path stroke='{COLOUR}' stroke-width='3' stroke-linecap='round' d='{path}'/>"
    if squares:
        yield f"<path stroke='{RED}' d='{''.join(f'M{x - 4},{y - 4}h8v8h-8z' for x, y in squares)}'/>"
    if circles:
        # One arc nearly all the way round is shorter than two.
        path = "".join(f"M{x - 4},{y}a4,4,0,1,1,0,1z" for x, y in circles)
        yield f"<path stroke='{INK}' d='{path}'/>"
    yield "</svg>"


def _tints(panels: Sequence[Panel]) -> str:
    """Where the window took anything, as exactly as there is room for."""
    columns = np.full(WIDTH, Column.NONE)
    for panel in panels:
        own = panel.axis.columns()
        columns[panel.start : panel.start + own.size] = own
    breadth = 1
    while True:
        # A hole is a hole where it fills a broad column.
        rows = np.append(columns, np.full(-columns.size % breadth, Column.NONE))
        broad = rows.reshape(-1, breadth).max(axis=1) != Column.NONE
        shown = np.where(np.repeat(broad, breadth)[:WIDTH], Column.ALL, Column.NONE)
        path = runs(shown.tolist(), Column.ALL).replace(" ", ",")
        if len(path) <= _TINTS_LENGTH_MAX:
            return path.replace(",0h", f",{HEIGHT // 2}h", 1)
        breadth *= 2


def _plain(panel: Panel, times: TimeAxis) -> Int64Array:
    """Where records are that have no ring."""
    dots = panel.dots.where(~(panel.dots.stragglers | panel.dots.late))
    return panel.places(dots, times, scale=1, grid=_GRID)


def _ringed(
    panels: Sequence[Panel], times: TimeAxis, kind: str, dots_max: int
) -> list[tuple[int, int]]:
    """Where rings of a kind are."""
    found: list[tuple[int, int]] = []
    for panel in panels:
        dots = panel.dots.where(getattr(panel.dots, kind))
        places = panel.places(dots, times, scale=1, grid=_RING_GRID)
        found += map(tuple, spread(places, min(_RINGS_MAX, dots_max)).tolist())
    return found


def _steps(places: Sequence[Int64Array]) -> Iterator[tuple[int, int]]:
    """From each place to the next, and to the first one."""
    together = np.concatenate([*places, np.empty((0, 2), dtype=np.int64)])
    yield from np.diff(together, axis=0, prepend=0).tolist()


def _pair(second: int) -> str:
    """The second of two numbers: a sign parts them as well as a comma."""
    return f",{second}" if second >= 0 else f"{second}"
