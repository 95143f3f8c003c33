"""The picture of a window: well formed and small whatever comes in, nothing outside it, and each hole is seen."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from urllib.parse import unquote

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kafka_ordered_ops.core import sketch
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.picture import (
    BYTES_MAX,
    HEIGHT,
    PARTITIONS_MAX,
    WIDTH,
    window_picture,
)
from kafka_ordered_ops.core.picture_axes import Column, OffsetAxis, TimeAxis
from kafka_ordered_ops.core.picture_panels import COLOURS, INK, RED, TINTS, Dots, RecordSample
from kafka_ordered_ops.core.types import INT64_MAX, INT64_MIN, PlanContent, TopicPartition
from kafka_ordered_ops.core.window.plan import PartitionPlan, WindowPlan
from kafka_ordered_ops.core.window.window import Window
from tests.support.spark_support import part_of, plan_of
from tests.support.strategies import large_offset_sets, offset_sets, window_plans, windows

CUTOFF = datetime(2026, 1, 5, 4, tzinfo=UTC)
SINCE = CUTOFF - timedelta(hours=1)
CUTOFF_MS, SINCE_MS = (round(moment.timestamp() * 1000) for moment in (CUTOFF, SINCE))

SVG = "{http://www.w3.org/2000/svg}"
#: About what a character takes, in shares of the font's size.
CHARACTER = 0.6

moments_ms = st.integers(INT64_MIN, INT64_MAX) | st.integers(SINCE_MS - 10_000, CUTOFF_MS)
taken_sets = (offset_sets | large_offset_sets).filter(bool)


def dots_of(rows: Sequence[tuple[int, int, bool, bool]]) -> Dots:
    """Records by offset, timestamp in ms, straggler and late."""
    columns = list(zip(*rows, strict=True)) or [()] * 4
    whole = [np.array(column, dtype=np.int64) for column in columns[:2]]
    return Dots(whole[0], whole[1], *(np.array(column, dtype=np.bool_) for column in columns[2:]))


@st.composite
def samples(draw: st.DrawFn, plan: WindowPlan) -> RecordSample | None:
    """Some records of a plan, or none that are known."""
    if draw(st.booleans()):
        return None
    dots = {}
    for part in plan:
        if part.taken and draw(st.booleans()):
            offsets = st.integers(part.taken.first, part.taken.end - 1)
            rows = st.tuples(offsets, moments_ms, st.booleans(), st.booleans())
            dots[part.tp] = dots_of(draw(st.lists(rows, max_size=20)))
    counts = st.none() | st.integers(0, 10**9)
    return RecordSample(draw(counts), draw(counts), draw(counts), dots)


@dataclass(frozen=True)
class Drawn:
    """What a picture draws: texts, and the corners of its shapes by colour."""

    texts: list[tuple[float, float, float, str]]
    corners: dict[str, list[tuple[float, float]]]

    @classmethod
    def of(cls, svg: str) -> Drawn:
        drawn = cls([], {})
        drawn._walk(ET.fromstring(svg), 0, 0, 1, {"fill": "", "stroke": "", "font-size": ""})
        return drawn

    def _walk(
        self, node: ET.Element, x: float, y: float, scale: float, style: dict[str, str]
    ) -> None:
        style = {name: node.get(name, value) for name, value in style.items()}
        move = node.get("transform", "")
        if found := re.search(r"translate\((\S+) (\S+)\)", move):
            x, y = x + scale * float(found[1]), y + scale * float(found[2])
        if found := re.search(r"scale\((\S+)\)", move):
            scale *= float(found[1])
        stroke = style["stroke"]
        for at_x, at_y in _corners(node):
            corner = x + scale * at_x, y + scale * at_y
            self.corners.setdefault(stroke or style["fill"], []).append(corner)
        if node.tag == f"{SVG}text":
            text = "".join(node.itertext())
            size = float(style["font-size"])
            length = len(text) * CHARACTER * size
            left = x + float(node.get("x", 0))
            left -= length * {"middle": 0.5, "end": 1.0}.get(node.get("text-anchor", ""), 0.0)
            self.texts.append((left, left + length, y + float(node.get("y", 0)), text))
        for child in node:
            self._walk(child, x, y, scale, style)

    @property
    def words(self) -> str:
        """All that is written."""
        return "\n".join(text for *_, text in self.texts)


def _corners(node: ET.Element) -> Iterator[tuple[float, float]]:
    kind = node.tag.removeprefix(SVG)
    if kind == "rect":
        x, y, width, height = (float(node.get(name, 0)) for name in ("x", "y", "width", "height"))
        yield from ((x, y), (x + width, y + height))
    elif kind == "circle":
        r = float(node.get("r", 0))
        yield from ((-r, -r), (r, r))
    elif kind == "path":
        yield from _path_corners(node.get("d", "").replace(",", " "))
    else:
        assert kind in ("svg", "g", "text", "tspan"), kind


def _path_corners(path: str) -> Iterator[tuple[float, float]]:
    x = y = 0.0
    assert re.fullmatch(r"([MmHhVvlaz][-+0-9. ]*)+", path), path
    for command, numbers in re.findall(r"([MmHhVvlaz])([-+0-9. ]*)", path):
        values = [float(n) for n in re.findall(r"-?\d*\.?\d+", numbers)]
        match command:
            case "M":
                [(x, y)] = [values]
            case "m" | "l":
                for dx, dy in zip(values[::2], values[1::2], strict=True):
                    x, y = x + dx, y + dy
                    yield x, y
            case "H" | "h":
                x = values[0] + (x if command == "h" else 0)
            case "V" | "v":
                y = values[0] + (y if command == "v" else 0)
            case "a":
                for at in range(0, len(values), 7):
                    rx, ry, dx, dy = *values[at : at + 2], *values[at + 5 : at + 7]
                    x, y = x + dx, y + dy
                    # Half a circle or nearly all of it, from or to its left side.
                    left = min(x, x - dx)
                    yield from ((left, y - ry), (left + 2 * rx, y + ry))
        yield x, y


def check(svg: str) -> Drawn:
    """What every picture must be."""
    assert len(svg.encode()) <= BYTES_MAX
    drawn = Drawn.of(svg)
    for x, y in (corner for corners in drawn.corners.values() for corner in corners):
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT
    for left, right, y, text in drawn.texts:
        assert left >= 0, text
        assert right <= WIDTH, text
        assert 9 <= y <= HEIGHT - 3, text
    return drawn


@given(st.data(), window_plans)
def test_any_plan_and_records(data: st.DataObject, plan: WindowPlan) -> None:
    """Whatever they are, it is XML, small, and inside its frame."""
    check(window_picture(plan, data.draw(samples(plan))))


def check_sketch(address: str) -> Drawn:
    """What every sketch must be."""
    assert len(address) <= sketch.LENGTH_MAX
    assert not re.search(r"[\s()]", address), "Markdown ends an address there"
    kind, _, content = address.partition(",")
    assert kind == "data:image/svg+xml"
    assert "#" not in content
    drawn = Drawn.of(unquote(content))
    assert not drawn.texts
    for x, y in (corner for corners in drawn.corners.values() for corner in corners):
        assert 0 <= x <= sketch.WIDTH
        assert 0 <= y <= sketch.HEIGHT
    return drawn


@given(st.data(), window_plans.filter(lambda plan: bool(plan.taken)))
def test_any_plan_and_records_in_a_sketch(data: st.DataObject, plan: WindowPlan) -> None:
    """Whatever they are, it is XML, short, and inside its frame."""
    check_sketch(sketch.sketch_address(plan, data.draw(samples(plan))))


@given(taken_sets, st.integers(30, 620))
@example(OffsetSet.of((0, 1)), 30)
@example(OffsetSet.of((0, 2**62), (2**62 + 1, 2**63 - 1)), 600)
@example(OffsetSet.from_ranges((n, n + 1) for n in range(0, 4000, 2)), 100)
def test_each_hole_is_seen_and_each_range(taken: OffsetSet, width: int) -> None:
    """Where others' offsets lie a column is not full, and where the window's lie one is not empty."""
    axis = OffsetAxis(taken, width)
    columns = axis.columns()
    assert columns.size == width

    def below(start: int, end: int) -> set[int]:
        first = min(int(axis.place(start)), width - 1)
        last = max(int(np.ceil(axis.place(end))), first + 1)
        # One more, for numbers that a float rounds.
        return set(columns[max(first - 1, 0) : last + 1].tolist())

    for start, end in taken:
        assert below(start, end) - {Column.NONE}
    for start, end in taken.complement(taken.first, taken.end):
        assert below(start, end) - {Column.ALL}
    assert axis.place(taken.first) == 0
    assert axis.place(taken.end) == pytest.approx(width)


@given(taken_sets, st.integers(30, 620))
def test_offsets_keep_their_order(taken: OffsetSet, width: int) -> None:
    """A higher offset is never left of a lower one, whatever is cut short."""
    axis = OffsetAxis(taken, width)
    edges = np.array(taken.edges, dtype=np.int64)
    places = axis.centres(edges)
    assert np.all(np.diff(places) >= 0)
    assert np.all((places >= 0) & (places <= width))


@given(windows, st.lists(moments_ms, max_size=30))
def test_times_keep_their_order(window: Window, stamps_ms: list[int]) -> None:
    """A newer time is never below an older one, and each is inside; the oldest that is to scale is no newer."""
    axis = TimeAxis(window, np.array(stamps_ms, dtype=np.int64), 10, 100)
    stamps_ms = sorted([*stamps_ms, window.cutoff_ms])
    places = axis.places(np.array(stamps_ms, dtype=np.int64))
    assert np.all(np.diff(places) <= 0)
    assert np.all((places >= 10) & (places <= 100))
    assert axis.low_ms < axis.high_ms


def interval(*parts: PartitionPlan, since: datetime | None = SINCE) -> WindowPlan:
    """An hour of some partitions."""
    plan = plan_of(parts, window_id="orders/2026-01-05-03:00")
    return replace(plan, window=Window(["orders"], cutoff=CUTOFF, since=since))


def sample_of(plan: WindowPlan, *every: Sequence[tuple[int, int, bool, bool]]) -> RecordSample:
    """All records of the partitions, in the plan's order."""
    dots = {part.tp: dots_of(rows) for part, rows in zip(plan, every, strict=True)}
    stragglers, late = (
        sum(int(getattr(one, name).sum()) for one in dots.values())
        for name in ("stragglers", "late")
    )
    return RecordSample(sum(map(len, every)), stragglers, late, dots)


def hour(count: int) -> list[tuple[int, int, bool, bool]]:
    """Records of the window's hour in the order of their times, at the offsets from 0."""
    return [(n, SINCE_MS + n * 3_600_000 // count, False, False) for n in range(count)]


def dots_in(drawn: Drawn) -> list[tuple[float, float]]:
    """Where dots are, from left to right, without that of the legend."""
    return sorted({(x, y) for x, y in drawn.corners.get(COLOURS[1], []) if y > 60})


def test_what_a_window_took_and_what_it_left() -> None:
    """A dot for each record, rings around stragglers and late ones, a line where a cut by offset would end."""
    plan = interval(part_of("orders", 0, OffsetSet.of((0, 12), (15, 16)), head_end=12))
    rows = [*hour(11), (11, SINCE_MS - 60_000, False, True), (15, CUTOFF_MS - 1, True, False)]
    drawn = check(window_picture(plan, sample_of(plan, rows)))
    assert len(dots_in(drawn)) == 13
    for told in (
        "window orders/2026-01-05-03:00: 13 records of 1 partition",
        "partition 0: 13 offsets in 2 ranges",
        "1 straggler, behind a cut by offset",
        "1 late, written after their window was planned",
        "offsets of other windows",
        "since",
        "03:00:00Z",
        "cutoff",
        "04:00:00Z",
    ):
        assert told in drawn.words
    [line] = {x for x, y in drawn.corners[RED] if y == 192}
    *_, last, straggler = dots_in(drawn)
    assert last[0] < line < straggler[0]
    assert any(
        abs(x - straggler[0]) < 6 and abs(y - straggler[1]) < 6 for x, y in drawn.corners[RED]
    )
    late = max(dots_in(drawn), key=lambda dot: dot[1])
    assert any(abs(x - late[0]) < 6 and abs(y - late[1]) < 6 for x, y in drawn.corners[INK])


def test_without_records_the_offsets_are_shown() -> None:
    """The same ranges and lines, and no dot; nothing is said of records."""
    plan = interval(part_of("orders", 0, OffsetSet.of((0, 12), (15, 16)), head_end=12))
    drawn = check(window_picture(plan))
    assert not dots_in(drawn)
    assert "13 offsets of 1 partition" in drawn.words
    assert "a cut by offset would end here" in drawn.words
    assert "record" not in drawn.words


def test_records_of_long_ago_do_not_press_the_others_into_a_line() -> None:
    """Late ones of another year lie at the edge, beside the word for it; the hour keeps its height."""
    plan = interval(part_of("orders", 0, OffsetSet.of((0, 42))))
    rows = [*hour(40), (40, 0, False, True), (41, -(2**62), False, True)]
    drawn = check(window_picture(plan, sample_of(plan, rows)))
    heights = [y for _, y in dots_in(drawn)[:40]]
    assert max(heights) - min(heights) > 90
    assert "older" in drawn.words


def test_a_hole_of_a_million_offsets_does_not_either() -> None:
    """A straggler far behind the others leaves them their room."""
    plan = interval(
        part_of("orders", 0, OffsetSet.of((0, 40), (1_000_000, 1_000_001)), head_end=40)
    )
    rows = [*hour(40), (1_000_000, CUTOFF_MS - 1, True, False)]
    drawn = check(window_picture(plan, sample_of(plan, rows)))
    places = [x for x, _ in dots_in(drawn)[:40]]
    assert max(places) - min(places) > 500


@pytest.mark.parametrize(
    ("stamps_ms", "since"),
    [
        ([SINCE_MS] * 9, SINCE),
        ([SINCE_MS] * 9, None),
        ([-1] * 9, None),
        ([-(2**63), -5, -1, 0, 2**62], None),
        ([SINCE_MS - n**5 for n in range(60)], None),
        ([CUTOFF_MS - 1], None),
    ],
)
def test_odd_times(stamps_ms: list[int], since: datetime | None) -> None:
    """Equal, negative and absurd times are drawn like any other."""
    plan = interval(part_of("orders", 0, OffsetSet.of((0, len(stamps_ms)))), since=since)
    rows = [(n, stamp, False, False) for n, stamp in enumerate(stamps_ms)]
    drawn = check(window_picture(plan, sample_of(plan, rows)))
    assert len(dots_in(drawn)) == len(stamps_ms)


def test_a_cutoff_far_ahead_of_the_records() -> None:
    """A catch-up a month after the last record shows the records, and the cutoff beyond them."""
    plan = interval(part_of("orders", 0, OffsetSet.of((0, 40))), since=None)
    plan = replace(plan, window=replace(plan.window, cutoff=CUTOFF + timedelta(days=30)))
    drawn = check(window_picture(plan, sample_of(plan, hour(40))))
    heights = [y for _, y in dots_in(drawn)]
    assert max(heights) - min(heights) > 70
    assert "2026-02-04" in drawn.words


def test_a_million_records_of_a_hundred_partitions() -> None:
    """The partitions with most to see, by number; stragglers are seen among a million; how many more there are."""
    ragged = OffsetSet.from_ranges((n, n + 1) for n in range(0, 20_000, 2))
    parts = [part_of("orders", n, ragged, head_end=19_990) for n in range(100)]
    plan = interval(*parts)
    rng = np.random.default_rng(1)
    offsets = ragged.bounds[:, 0].copy()
    times = np.sort(rng.integers(SINCE_MS, CUTOFF_MS, offsets.size))
    wanted = [7, 70, 71, 72, 90, 99]
    none = np.zeros(offsets.size, dtype=np.bool_)
    dots = {part.tp: Dots(offsets, times, none, none) for part in parts}
    for number in wanted:
        dots[TopicPartition("orders", number)] = Dots(offsets, times, offsets >= 19_990, none)
    sample = RecordSample(1_000_000, 30, 0, dots)
    drawn = check(window_picture(plan, sample))
    titles = re.findall(r"^partition (\d+)", drawn.words, re.MULTILINE)
    assert list(map(int, titles)) == wanted
    assert "1,000,000 records of 100 partitions" in drawn.words
    assert "and 94 partitions more" in drawn.words
    assert "30 stragglers, behind a cut by offset" in drawn.words
    # Each panel has dots, and its stragglers have squares.
    for left in range(84, 700, 105):
        assert any(left < x < left + 97 for x, _ in dots_in(drawn))
        assert any(left < x < left + 105 for x, y in drawn.corners[RED] if 64 < y < 190)


def test_many_late_records_leave_room_for_the_others() -> None:
    """Rings are drawn first, and the rest of the window is seen all the same."""
    plan = interval(part_of("orders", 0, OffsetSet.of((0, 4_000))))
    rows = [*hour(2_000), *((n, SINCE_MS - n, False, True) for n in range(2_000, 4_000))]
    drawn = check(window_picture(plan, sample_of(plan, rows)))
    assert sum(x < 300 for x, _ in dots_in(drawn)) > 100


@pytest.mark.parametrize(
    ("window_id", "shown"),
    [
        ('<b>&"', 'window <b>&"'),
        ("é" * 512, "é…é"),
        ("\x00\ud800", "window ??"),
        ("2026-01-05T03:00", "window 2026-01-05T03:00"),
    ],
)
def test_any_window_id(window_id: str, shown: str) -> None:
    """It is written as it is, or shortened in the middle; what no XML may hold is not."""
    drawn = check(window_picture(replace(interval(), window_id=window_id)))
    assert shown in drawn.words


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (PlanContent.EMPTY, "there was nothing to take"),
        (PlanContent.COVERED, "other windows have delivered its records"),
    ],
)
def test_a_window_that_takes_nothing(content: PlanContent, told: str) -> None:
    """It says so."""
    plan = replace(interval(part_of("orders", 0, OffsetSet())), content=content)
    assert told in check(window_picture(plan)).words


def test_several_topics_and_lost_records() -> None:
    """Partitions have their topics' names, and what retention took is told."""
    lost = replace(part_of("orders", 3, OffsetSet.of((7, 9))), lost=OffsetSet.of((0, 7)))
    plan = interval(lost, part_of("payments." + "x" * 240, 0, OffsetSet.of((0, 5))))
    words = check(window_picture(plan)).words
    assert "orders[3]: 2 offsets" in words
    assert re.search(r"payments\.x+…x+\[0\]", words)
    assert "7 offsets lost to retention" in words


def test_a_sketch_of_what_a_window_took_and_what_it_left() -> None:
    """Dots, a square, a circle and a hole, as in the large picture; without records the hole alone."""
    plan = interval(part_of("orders", 0, OffsetSet.of((0, 12), (15, 16)), head_end=12))
    rows = [*hour(11), (11, SINCE_MS - 60_000, False, True), (15, CUTOFF_MS - 1, True, False)]
    drawn = check_sketch(sketch.sketch_address(plan, sample_of(plan, rows)))
    assert len(set(drawn.corners[COLOURS[1]])) == 13
    straggler = max(drawn.corners[COLOURS[1]])
    assert any(abs(x - straggler[0]) < 6 for x, _ in drawn.corners[RED])
    edges = sorted({x for x, _ in drawn.corners[TINTS[Column.ALL]]})
    assert len(edges) == 4, "two ranges"
    assert edges[2] - edges[1] > 50
    bare = check_sketch(sketch.sketch_address(plan))
    assert RED not in bare.corners
    assert sorted({x for x, _ in bare.corners[TINTS[Column.ALL]]}) == edges


def test_a_sketch_of_a_window_in_many_ranges() -> None:
    """Holes that are too many for its length are left out, the smallest first; dots keep their room."""
    ranges = [(n, n + 20) for n in range(0, 2_000, 40)] + [(3_000, 4_000)]
    plan = interval(part_of("orders", 0, OffsetSet.from_ranges(ranges)))
    offsets = [offset for start, end in ranges for offset in range(start, end)]
    rows = [(n, SINCE_MS + n * 900, False, False) for n in offsets]
    drawn = check_sketch(sketch.sketch_address(plan, sample_of(plan, rows)))
    assert len(set(drawn.corners[COLOURS[1]])) > 60
    edges = sorted({x for x, _ in drawn.corners[TINTS[Column.ALL]]})
    assert max(b - a for a, b in itertools.pairwise(edges)) > 20


@pytest.mark.parametrize("count", range(1, PARTITIONS_MAX + 3))
def test_partitions_beside_one_another(count: int) -> None:
    """Each has its panel, in order, and none lies over another."""
    plan = interval(*(part_of("orders", n, OffsetSet.of((n, n + 9))) for n in range(count)))
    drawn = check(window_picture(plan))
    shown = min(count, PARTITIONS_MAX)
    titles = [text for *_, text in drawn.texts if text.startswith("partition ")]
    assert [title[: len("partition 0")] for title in titles] == [
        f"partition {n}" for n in range(shown)
    ]
    ends = sorted((left, right) for left, right, y, _ in drawn.texts if y == 58)
    assert len(ends) == shown
    assert all(one[1] <= other[0] + 1 for one, other in itertools.pairwise(ends))
