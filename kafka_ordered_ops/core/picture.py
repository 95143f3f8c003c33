"""A small picture of a window as SVG: which offsets it took of each partition, and what was stamped when.

To the right the offsets, upwards the time; a dot is a record. Tinted is what the window took, and blank what
lies in between and belongs to other windows. `kafka-ordered-ops demo` draws with the same colours and shapes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

import numpy as np

from kafka_ordered_ops.core.picture_axes import Column, TimeAxis
from kafka_ordered_ops.core.picture_panels import (
    COLOUR,
    DASHES,
    EDGE,
    GROUND,
    INK,
    QUIET,
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
from kafka_ordered_ops.core.times import time_text
from kafka_ordered_ops.core.types import PlanContent
from kafka_ordered_ops.core.window.plan import WindowPlan

WIDTH: Final = 720
HEIGHT: Final = 240
#: A host keeps it in its database, base64 and all.
BYTES_MAX: Final = 12_000
PARTITIONS_MAX: Final = 6

_DOTS_MAX: Final = 1_000
#: Rings are drawn over one another where they are more.
_RINGS_MAX: Final = 150
#: Dots are put on half pixels, which makes their paths short.
_SUBPIXELS: Final = 2
#: Rings nearer than that, in parts of a pixel, would be a blot.
_RING_GRID: Final = 8

_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 708, 64, 192
#: Lines of text below the panels.
_OFFSETS, _FOOT = 206, 232
_FRAME: Final = Frame(_LEFT, _RIGHT, _TOP, _BOTTOM, PARTITIONS_MAX)

#: About what a character takes, in shares of the font's size.
_CHARACTER: Final = 0.6
_SMALL: Final = 9.5
_LARGE: Final = 12.5


def window_picture(plan: WindowPlan, sample: RecordSample | None = None) -> str:
    """A window as SVG of `WIDTH` x `HEIGHT` pixels and at most `BYTES_MAX` bytes, on a ground of its own.

    At most `PARTITIONS_MAX` partitions are shown, those with most to see: stragglers and late records, then
    offsets.

    Args:
        plan: the window.
        sample: some of its records; None where they are not known, which leaves the offsets.
    """
    dots_max, text = _DOTS_MAX, ""
    while not text or (len(text.encode()) > BYTES_MAX and dots_max):
        text = _drawn(plan, sample, dots_max)
        dots_max //= 2
    return text


def _drawn(plan: WindowPlan, sample: RecordSample | None, dots_max: int) -> str:
    panels = panels_of(plan, sample, _FRAME, dots_max)
    times = time_axis(plan, panels, _FRAME)
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="{_SMALL}" fill="{QUIET}">',
        f'<rect x=".5" y=".5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8" fill="#fff" stroke="{EDGE}"/>',
        f'<text x="12" y="21" font-size="{_LARGE}" font-weight="bold" fill="{INK}">{_heading(plan, sample)}</text>',
        *_legend(panels, sample),
        *(line for panel in panels for line in _ground(panel, topics=len(plan.topics))),
        *(_time_lines(plan, panels, times) if panels else ()),
        *(line for panel in panels for line in _records(panel, times, dots_max)),
        *_foot(plan, panels),
        "</svg>",
    ]
    return "".join(drawn)


# --- texts -----------------------------------------------------------------------------------------


def _heading(plan: WindowPlan, sample: RecordSample | None) -> str:
    # An id is printable; what is not would be no XML.
    window_id = "".join(one if one.isprintable() else "?" for one in plan.window_id)
    partitions = len(plan.taken)
    if not partitions:
        covered = plan.content is PlanContent.COVERED
        what = (
            "other windows have delivered its records" if covered else "there was nothing to take"
        )
    elif sample is None or sample.records is None:
        what = f"{_number(plan.offsets, 'offset')} of {_number(partitions, 'partition')}"
    else:
        what = f"{_number(sample.records, 'record')} of {_number(partitions, 'partition')}"
    room = _room(WIDTH - 24, _LARGE) - len(f"window : {what}")
    return escape(f"window {_clipped(window_id, room)}: {what}")


def _legend(panels: Sequence[Panel], sample: RecordSample | None) -> Iterator[str]:
    """What the shapes mean, above and below the panels; only those that are to be seen."""
    yield from _in_a_row(18, 38, _marks(panels, sample))
    yield from _in_a_row(_LEFT + 5, _FOOT - 3, _swatches(panels))


def _in_a_row(x: float, y: float, entries: Iterator[tuple[str, str]]) -> Iterator[str]:
    for shape, text in entries:
        yield f'<g transform="translate({x:g} {y:g})">{shape}<text x="9" y="3.5">{text}</text></g>'
        x += 9 + len(text) * _CHARACTER * _SMALL + 14


def _marks(panels: Sequence[Panel], sample: RecordSample | None) -> Iterator[tuple[str, str]]:
    counted = (sample.stragglers, sample.late) if sample is not None else (None, None)
    stragglers, late = ("" if count is None else f"{count:,} " for count in counted)
    if any(len(panel.dots) for panel in panels):
        yield f'<circle r="2.5" fill="{COLOUR}"/>', "record"
    if any(panel.dots.stragglers.any() for panel in panels):
        noun = "straggler" if counted[0] == 1 else "stragglers"
        yield _square(), f"{stragglers}{noun}, behind a cut by offset"
    elif any(panel.cut is not None for panel in panels):
        yield f'<path d="M0-6v12" stroke="{RED}"/>', "a cut by offset would end here"
    if any(panel.dots.late.any() for panel in panels):
        yield _circle(), f"{late}late, written after their window was planned"


def _swatches(panels: Sequence[Panel]) -> Iterator[tuple[str, str]]:
    swatch = '<rect x="-5" y="-5" width="10" height="10" fill="{}" stroke="{}"/>'
    if panels:
        yield swatch.format(TINTS[Column.ALL], TINTS[Column.ALL]), "offsets taken"
    if any(len(panel.part.taken) > 1 for panel in panels):
        yield swatch.format(GROUND, EDGE), "offsets of other windows"


def _square() -> str:
    return f'<path d="M-4-4h8v8h-8z" fill="none" stroke="{RED}" stroke-width="1.3"/>'


def _circle() -> str:
    return f'<circle r="4.5" fill="none" stroke="{INK}" stroke-width="1.3"/>'


def _foot(plan: WindowPlan, panels: Sequence[Panel]) -> Iterator[str]:
    notes = []
    if (more := len(plan.taken) - len(panels)) > 0:
        notes.append(f"and {_number(more, 'partition')} more")
    if lost := sum(part.lost.count for part in plan):
        notes.append(f"{_number(lost, 'offset')} lost to retention")
    if notes:
        yield f'<text x="{_RIGHT}" y="{_FOOT}" text-anchor="end">{", ".join(notes)}</text>'
    if panels:
        yield f'<text x="{_LEFT - 8}" y="{_OFFSETS}" text-anchor="end">offset</text>'


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _clipped(text: str, length: int) -> str:
    """A text of at most so many characters: its beginning and its end."""
    if len(text) <= length:
        return text
    end = length // 2
    return f"{text[: length - end - 1]}…{text[len(text) - end :]}"


def _room(width: float, size: float = _SMALL) -> int:
    """How many characters there is room for."""
    return max(math.floor(width / (_CHARACTER * size)), 1)


# --- shapes ----------------------------------------------------------------------------------------


def _ground(panel: Panel, *, topics: int) -> Iterator[str]:
    """What is the window's and what is not, the panel's frame, and its texts."""
    height = _BOTTOM - _TOP
    yield (
        f'<rect x="{panel.left}" y="{_TOP}" width="{panel.width}" height="{height}" fill="{GROUND}"/>'
    )
    columns = panel.axis.columns().tolist()
    for kind, tint in TINTS.items():
        if path := runs(columns, kind):
            at = f'transform="translate({panel.start} {(_TOP + _BOTTOM) // 2})"'
            yield f'<path {at} d="{path}" stroke="{tint}" stroke-width="{height}"/>'
    yield f'<path d="M{panel.left} {_TOP}V{_BOTTOM}H{panel.right}" fill="none" stroke="{EDGE}"/>'
    for cut in panel.axis.cuts:
        yield (
            f'<path d="M{panel.start + cut - 4:.1f} {_BOTTOM + 4}l4-8m4 0l-4 8" stroke="{QUIET}" fill="none"/>'
        )
    if panel.cut is not None:
        yield f'<path d="M{panel.cut:.1f} {_TOP}V{_BOTTOM}" stroke="{RED}"/>'
    yield from _panel_texts(panel, topics=topics)


def _panel_texts(panel: Panel, *, topics: int) -> Iterator[str]:
    tp, taken = panel.part.tp, panel.part.taken
    room = _room(panel.width + _FRAME.gap / 2)
    name = f"partition {tp.partition}" if topics == 1 else str(tp)
    ranges = "" if len(taken) == 1 else f" in {len(taken):,} ranges"
    titles = (f"{name}: {_number(taken.count, 'offset')}{ranges}", name)
    title = next((title for title in titles if len(title) <= room), _clipped(name, room))
    middle = panel.left + panel.width / 2
    yield f'<text x="{middle:g}" y="{_TOP - 6}" text-anchor="middle">{escape(title)}</text>'
    first, end = (_clipped(str(offset), room) for offset in (taken.first, taken.end))
    # Below one another where they would touch.
    below = 0 if len(first) + len(end) + 2 <= room else 11
    yield f'<text x="{panel.left}" y="{_OFFSETS}">{first}</text>'
    yield f'<text x="{panel.right}" y="{_OFFSETS + below}" text-anchor="end">{end}</text>'


def _time_lines(plan: WindowPlan, panels: Sequence[Panel], times: TimeAxis) -> Iterator[str]:
    """A dashed line at each of the window's times, and what is written beside them."""
    since_ms = plan.window.since_ms
    marks = [("cutoff", times.cutoff_ms)] + ([] if since_ms is None else [("since", since_ms)])
    path = "".join(
        f"M{panel.left} {times.place(time_ms):.1f}H{panel.right}"
        for _, time_ms in marks
        for panel in panels
    )
    dashes = " ".join(map(str, DASHES))
    yield f'<path d="{path}" stroke="{INK}" stroke-width=".8" stroke-dasharray="{dashes}"/>'
    has_dots = any(len(panel.dots) for panel in panels)
    if since_ms is None and has_dots:
        marks.append(("", times.low_ms))
    for name, time_ms in marks:
        yield from _time_label(name, time_ms, times)
    for is_cut, y in ((times.is_cut_above, _TOP + 9), (times.is_cut_below, _BOTTOM - 9)):
        if is_cut:
            yield f'<path d="M{_LEFT - 4} {y + 1}l8-4m0 4l-8 4" stroke="{QUIET}" fill="none"/>'
    if times.is_cut_below:
        yield f'<text x="{_LEFT - 8}" y="{_BOTTOM}" text-anchor="end">older</text>'


def _time_label(name: str, time_ms: int, times: TimeAxis) -> Iterator[str]:
    texts = [_clipped(text, _room(_LEFT - 8)) for text in time_text(time_ms).split("T")]
    lines = [f'<tspan fill="{INK}">{name}</tspan>'] if name else []
    lines += texts
    at = times.place(time_ms) - 5 * len(lines) + 8
    # Inside the panels' height, and above the word for what is older still.
    lowest = _BOTTOM - 10 * (len(lines) - 1 + times.is_cut_below)
    at = min(max(at, _TOP + 4), lowest)
    for number, line in enumerate(lines):
        yield f'<text x="{_LEFT - 8}" y="{at + 10 * number:.1f}" text-anchor="end">{line}</text>'


def _records(panel: Panel, times: TimeAxis, dots_max: int) -> Iterator[str]:
    """The dots, and the rings around some."""
    if not len(panel.dots):
        return
    size = 5 if len(panel.dots) <= 80 else 3.5 if len(panel.dots) <= 300 else 2.5
    places = panel.places(panel.dots, times, scale=_SUBPIXELS, grid=1)
    path = "".join(f"m{dx} {dy}h0" for dx, dy in np.diff(places, axis=0, prepend=0).tolist())
    scaled = f'<g transform="scale({1 / _SUBPIXELS:g})" fill="none"'
    yield (
        f'{scaled} stroke="{COLOUR}" stroke-width="{size * _SUBPIXELS:g}" stroke-linecap="round">'
        f'<path d="{path}"/></g>'
    )
    rings_max = min(_RINGS_MAX, dots_max) // PARTITIONS_MAX
    # Squares first: a late straggler has both.
    for mask, colour, shape in (
        (panel.dots.stragglers, RED, "m-8-8h16v16h-16z"),
        (panel.dots.late, INK, "m-9 0a9 9 0 1 0 18 0a9 9 0 1 0-18 0z"),
    ):
        found = panel.dots.where(mask)
        places = panel.places(found, times, scale=_SUBPIXELS, grid=_RING_GRID)
        places = spread(places, rings_max)
        if places.size:
            path = "".join(f"M{x} {y}{shape}" for x, y in places.tolist())
            yield f'{scaled} stroke="{colour}" stroke-width="2.6"><path d="{path}"/></g>'
