"""Drawings of windows: any plan can be drawn, with bounds, and what a plan says is to be seen."""

from __future__ import annotations

import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings

from kafka_ordered_ops import ConfigError, Window, WindowPlan
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.time_ranges import NO_STEPS, TimeRange
from kafka_ordered_ops.core.types import INT64_MAX, INT64_MIN, PlanContent, TopicPartition
from kafka_ordered_ops.core.window.plan import PartitionPlan
from kafka_ordered_ops.delivery import plots
from kafka_ordered_ops.delivery.plots import COLOURS, INK, RED, Records, Row, rows_plot, window_plot
from tests.support.examples import examples
from tests.support.spark_support import part_of, plan_of
from tests.support.strategies import window_plans

CUTOFF = datetime(2026, 1, 5, 4, tzinfo=UTC)
SINCE = CUTOFF - timedelta(hours=1)
CUTOFF_MS, SINCE_MS = (round(moment.timestamp() * 1000) for moment in (CUTOFF, SINCE))
HOUR_BEFORE = NO_STEPS.with_step(30, TimeRange(SINCE_MS - 3_600_000, SINCE_MS))
ORDERS = TopicPartition("orders", 0)


def hour(parts: Sequence[PartitionPlan]) -> WindowPlan:
    """A window of one hour."""
    return replace(plan_of(parts), window=Window(["orders"], since=SINCE, cutoff=CUTOFF))


def svg_of(content: bytes) -> tuple[set[str], set[str]]:
    """What is written in a drawing, of which matplotlib has a comment each; and its colours."""
    text = content.decode()
    ET.fromstring(text)
    parser = ET.XMLParser(target=ET.TreeBuilder(insert_comments=True))
    every = ET.fromstring(text, parser).iter()
    said = {(one.text or "").strip() for one in every if callable(one.tag)}
    return said, {colour for colour in (*COLOURS, INK, RED) if colour in text}


@pytest.mark.slow
@given(window_plans)
@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(plan_of([]))
@example(plan_of([part_of("orders", 0, OffsetSet.of((INT64_MAX - 3, INT64_MAX)))]))
@example(hour([part_of("orders", 0, OffsetSet.of((0, 1), (INT64_MAX - 1, INT64_MAX)), head_end=1)]))
def test_any_plan_can_be_drawn(plan: WindowPlan) -> None:
    """Small, and without a warning, which would be an error here."""
    drawn = window_plot(plan, "png", dpi=40)
    assert drawn.startswith(b"\x89PNG")
    assert len(drawn) < 100_000


@pytest.mark.slow
@pytest.mark.parametrize("file_format", plots.FORMATS)
def test_a_large_window_is_drawn_small(file_format: str) -> None:
    """A thousand partitions of which the first has half a million ranges: bounded in size, and in time."""
    many = OffsetSet(np.arange(2**61, 2**61 + 1_000_000))
    parts = [part_of("orders", n, OffsetSet.of((n, n + 10))) for n in range(1, 1_000)]
    plan = plan_of([part_of("orders", 0, many, head_end=2**61 + 500_001), *parts])
    started = time.process_time()
    assert len(window_plot(plan, file_format)) < 200_000
    assert time.process_time() - started < 20


@pytest.mark.parametrize("file_format", plots.FORMATS)
def test_the_same_window_is_the_same_file(file_format: str) -> None:
    """So that a drawing in a repository changes only with what it shows."""
    plan = hour([part_of("orders", 0, OffsetSet.of((20, 80)), late=HOUR_BEFORE)])
    assert window_plot(plan, file_format) == window_plot(plan, file_format)


def test_an_hour_with_all_that_there_is_to_see() -> None:
    """Its times, its offsets, out-of-order records and the cut that would lose them, and where records are late."""
    taken = OffsetSet.of((20, 80), (82, 84), (90, 91))
    plan = hour([part_of("orders", 0, taken, head_end=80, late=HOUR_BEFORE)])
    said, colours = svg_of(window_plot(plan, "svg"))
    assert {"partition 0", "20", "91", "2026-01-05", "03:00", "04:00"} <= said
    assert "63 offsets of 1 partition of orders; group orders-hourly" in said
    assert {
        "offsets taken",
        "out-of-order records among them",
        "a cut by offset would end here",
        "late, if of these times",
    } <= said
    assert colours == {COLOURS[1], RED, INK}


@pytest.mark.parametrize("head_end", [91, None])
def test_a_window_without_out_of_order_records_has_no_cut(head_end: int | None) -> None:
    """Nor one of which they are not known."""
    plan = hour([part_of("orders", 0, OffsetSet.of((20, 91)), head_end=head_end)])
    said, colours = svg_of(window_plot(plan, "svg"))
    assert "offsets taken" in said
    assert not said & {"out-of-order records among them", "a cut by offset would end here"}
    assert RED not in colours


@pytest.mark.slow
def test_partitions_with_out_of_order_records_come_first() -> None:
    """Of eight the one with an out-of-order record, then those of most offsets; how many are not shown is said."""
    parts = [part_of("orders", n, OffsetSet.of((0, 10 + n)), head_end=10 + n) for n in range(8)]
    parts[0] = replace(parts[0], head_end=9)
    said, _ = svg_of(window_plot(hour(parts), "svg"))
    shown = {one for one in said if one.startswith("partition ")}
    assert shown == {f"partition {n}" for n in (0, 3, 4, 5, 6, 7)}
    assert any("; 2 partitions more than shown;" in one for one in said)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (PlanContent.EMPTY, "there was nothing to take; group orders-hourly"),
        (PlanContent.COVERED, "other windows have its records; group orders-hourly"),
    ],
)
def test_a_window_without_offsets_says_why(content: PlanContent, told: str) -> None:
    """There is no partition to be seen."""
    said, _ = svg_of(window_plot(plan_of([], content=content), "svg"))
    assert told in said


def test_what_was_lost_is_seen() -> None:
    """Also where nothing else was taken."""
    lost = replace(part_of("orders", 0, OffsetSet()), lost=OffsetSet.of((5, 9)))
    said, _ = svg_of(window_plot(hour([lost]), "svg"))
    assert "offsets lost to retention" in said
    assert any("4 offsets lost to retention" in one for one in said)


def test_topics_are_named_where_there_are_several() -> None:
    """A partition's number alone would not tell which it is."""
    plan = plan_of([part_of(topic, 0, OffsetSet.of((0, 9))) for topic in ("orders", "payments")])
    said, _ = svg_of(window_plot(plan, "svg"))
    assert {"orders[0]", "payments[0]"} <= said


def test_names_that_no_font_has() -> None:
    """What cannot be drawn is a question mark, and a dollar begins no formula."""
    plan = replace(hour([part_of("orders", 0, OffsetSet.of((0, 9)))]), window_id="a $x_1$ \n漢 ü")
    said, _ = svg_of(window_plot(plan, "svg"))
    assert "Window a $x_1$ ?? ü" in said


def test_records_that_are_known_anyway_are_judged_by_the_plan() -> None:
    """A square around an out-of-order record, a ring around a late one; a record of no window shown has no dot."""
    part = part_of("orders", 0, OffsetSet.of((28, 36), (38, 39)), head_end=36, late=HOUR_BEFORE)
    offsets = np.arange(27, 39)
    stamps_ms = np.full(offsets.size, SINCE_MS + 1)
    stamps_ms[4] = SINCE_MS - 1
    records = {ORDERS: Records(offsets, stamps_ms)}
    times = TimeRange(SINCE_MS - 10, CUTOFF_MS)
    row = Row(heading="", windows=[(hour([part]), COLOURS[2])], partitions=[ORDERS], times=times)
    rings = {"out-of-order record, behind that cut", "late record"}
    said, _ = svg_of(rows_plot("", [row], "svg"))
    assert not said & rings
    said, _ = svg_of(rows_plot("", [replace(row, records=records)], "svg"))
    assert said >= rings


def test_several_windows_are_told_apart() -> None:
    """Each has its colour and its name, and the log's end at its planning."""
    parts = [
        part_of("orders", 0, OffsetSet.of((0, 9))),
        part_of("orders", 0, OffsetSet.of((9, 20))),
    ]
    windows = [
        (replace(hour([part]), window_id=f"w{n}"), COLOURS[n]) for n, part in enumerate(parts)
    ]
    row = Row(heading="two", windows=windows, partitions=[ORDERS])
    said, colours = svg_of(rows_plot("title", [row, row], "svg"))
    assert {"title", "two", "window w0", "window w1"} <= said
    assert "the log's end when the window was planned" in said
    assert colours >= set(COLOURS[:2])


def test_times_beyond_the_calendar() -> None:
    """A plan may hold any."""
    late = NO_STEPS.with_step(0, TimeRange(INT64_MIN, INT64_MAX))
    part = part_of("orders", 0, OffsetSet.of((0, 9)), late=late)
    row = Row(
        heading="",
        windows=[(hour([part]), COLOURS[0])],
        partitions=[ORDERS],
        times=TimeRange(INT64_MIN, INT64_MAX),
        ticks_ms=[INT64_MIN, INT64_MAX],
    )
    said, _ = svg_of(rows_plot("", [row], "svg"))
    assert f"@{INT64_MAX}" in said


@pytest.mark.parametrize(
    ("name", "message"),
    [("a.gif", r"\.pdf, \.png, \.svg"), ("a", r"\.pdf"), ("gone/a.svg", "there is no folder")],
)
def test_files_that_cannot_be_drawn_are_refused(tmp_path: Path, name: str, message: str) -> None:
    """Before anything is asked or drawn."""
    with pytest.raises(ConfigError, match=message):
        plots.format_of(tmp_path / name)


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its lack is the usual reason."""
    assert plots.format_of(tmp_path / "a.SVG") == "svg"
    monkeypatch.setattr(plots, "is_installed", lambda: False)
    with pytest.raises(ConfigError, match=r"kafka-ordered-ops\[plot\]"):
        plots.format_of(tmp_path / "a.svg")
