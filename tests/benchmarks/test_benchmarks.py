"""What the benchmarks make of their measurements."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import date
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.__main__ import main
from benchmarks.backlog import DAY, DAY_START, stamps_ms
from benchmarks.comparisons import SCALES, comparisons
from benchmarks.goals import Goal, goals, goals_table
from benchmarks.report import write_report
from benchmarks.results import keep_results, read_results
from benchmarks.statistics import Spread, ratio, results_of
from benchmarks.tables import jobs_table, spread_text, table
from kafka_ordered_ops.core.times import time_ms
from tests.support.bench_support import FACTS, measured

SECONDS = st.floats(0.001, 1_000)


@given(st.lists(SECONDS, min_size=1))
def test_a_spread_holds_every_value(values: list[float]) -> None:
    """The median is the usual one, and lies between the least and the greatest."""
    spread = Spread.of(values)
    assert spread is not None
    assert spread == Spread(median(values), min(values), max(values), len(values))
    assert spread.least <= spread.median <= spread.greatest
    assert Spread.of([]) is None


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=9))
def test_a_ratio_compares_within_rounds(rounds: list[tuple[float, float]]) -> None:
    """Each round gives one ratio, round 0 none: a machine that slows down between rounds changes nothing."""
    runs = [
        measured(name, number, seconds)
        for number, pair in enumerate(rounds)
        for name, seconds in zip(("mine", "theirs"), pair, strict=True)
    ]
    mine, theirs = results_of(runs)
    found = ratio(mine, theirs)
    wanted = [one / other for one, other in rounds[1:]]
    assert found == Spread.of(wanted)
    slower = [replace(one, seconds=one.seconds * (one.round + 1)) for one in runs]
    again = ratio(*results_of(slower))
    assert (again is None) == (found is None)
    if found is not None and again is not None:
        assert again.median == pytest.approx(found.median)


def test_a_ratio_needs_the_same_round() -> None:
    """Rounds that only one of them has are left out."""
    runs = [measured("mine", n, 3.0) for n in (1, 2, 3)] + [measured("theirs", 2, 2.0)]
    assert ratio(*results_of(runs)) == Spread(1.5, 1.5, 1.5, 1)


def test_the_first_run_is_in_no_median() -> None:
    """It stands apart, and only the memory that it took counts for all."""
    [found] = results_of(
        [measured("mine", n, seconds) for n, seconds in enumerate((9.0, 1.0, 2.0))]
    )
    assert found.first is not None
    assert (found.first.seconds, found.seconds) == (9.0, Spread(1.5, 1.0, 2.0, 2))
    beyond = found.beyond_s("plan", "commit")
    assert beyond is not None
    assert beyond.median == pytest.approx(0.3)
    assert found.beyond_s("delete") is None
    assert found.memory_bytes == 1024**2


def test_contenders_keep_their_order_and_sizes_apart() -> None:
    """A contender at two sizes is two results."""
    runs = [measured("b", 1, 1.0), measured("a", 1, 1.0), measured("b", 1, 2.0, size=7)]
    assert [(one.contender, one.size) for one in results_of(runs)] == [
        ("b", 100),
        ("a", 100),
        ("b", 7),
    ]


def test_a_table_is_markdown() -> None:
    """Rows of equal length, numbers to the right."""
    assert table(["", "s"], [["a", "1"], ["b", "2"]]).splitlines() == [
        "|  | s |",
        "| --- | ---: |",
        "| a | 1 |",
        "| b | 2 |",
    ]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([], "-"),
        ([1.234], "1.23"),
        ([1.0, 3.0], "2.00 (1.00 to 3.00)"),
    ],
)
def test_a_spread_as_text(values: list[float], text: str) -> None:
    """A single round has no spread to show."""
    assert spread_text(Spread.of(values)) == text


def test_the_table_of_jobs_says_how_many_times_the_base() -> None:
    """By rounds, with the records of a second, and the first run."""
    runs = [measured("base", n, 2.0) for n in range(3)] + [measured("mine", n, 3.0) for n in (1, 2)]
    *_, base, mine = jobs_table(results_of(runs), "base").splitlines()
    assert base.split(" | ")[1:3] == ["2.00 (2.00 to 2.00)", "1.00 (1.00 to 1.00)"]
    assert mine.split(" | ")[2] == "1.50 (1.50 to 1.50)"
    assert base.split(" | ")[-2:] == ["2.0", "2 |"]
    assert mine.split(" | ")[-2:] == ["-", "2 |"]


@pytest.mark.parametrize(
    ("at_least", "strict", "measured_", "met"),
    [
        (False, False, 1.1, True),
        (False, False, 1.11, False),
        (False, True, 1.1, False),
        (False, True, 1.09, True),
        (True, False, 1.1, True),
        (True, False, 1.09, False),
    ],
)
def test_a_goal_at_its_limit(at_least: bool, strict: bool, measured_: float, met: bool) -> None:
    """The limit itself is met, unless the goal is to be better than it."""
    spread = Spread(measured_, measured_, measured_, 1)
    assert Goal("g", 1.1, spread, at_least=at_least, strict=strict).is_met is met


def test_goals_are_of_what_was_measured() -> None:
    """No comparison, no goal; the engine is held against the connector of the same rounds."""
    assert list(goals({})) == []
    runs = [
        measured(name, n, seconds)
        for n in (1, 2)
        for name, seconds in (("connector", 2.0), ("python", 3.0), ("local", 1.0))
    ]
    found = {goal.text: goal for goal in goals({"window": results_of(runs)})}
    assert [(goal.found.median, goal.is_met) for goal in found.values()] == [
        (1.5, False),
        (0.5, True),
        (pytest.approx(0.3), True),
    ]
    assert goals_table(list(found.values())).count("| yes |") == 2


@given(st.integers(0, 3_000), st.integers(0, 9))
def test_a_backlog_is_a_day_and_a_little(count: int, seed: int) -> None:
    """The day's records are the first, a hundredth of them comes after, and each has a time of its own kind."""
    stamps = stamps_ms(count, seed=seed)
    start, end = (time_ms(one, what="t") for one in (DAY_START, DAY_START + DAY))
    assert len(stamps) == count + count // 100
    assert all(start <= one < end for one in stamps[:count])
    assert all(one >= end for one in stamps[count:])


# --- reporting ------------------------------------------------------------------------------------


def _kept(folder: Path) -> None:
    """Made-up results of every comparison at the smallest scale."""
    for comparison in comparisons(SCALES["smoke"]):
        made = [
            replace(
                measured(one.name, round_, 2.0 + n + round_, size=one.size),
                comparison=comparison.name,
            )
            for n, one in enumerate(comparison.contenders)
            for round_ in range(3)
        ]
        keep_results(folder, FACTS, date(2026, 3, 1), comparison.name, made)


@pytest.mark.slow
def test_a_report_has_every_comparison_and_can_be_made_anew(tmp_path: Path) -> None:
    """The page and its pictures come from the kept results alone, twice the same; no path is in them."""
    _kept(tmp_path)
    write_report(tmp_path)
    first = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert main(["--only-report", "--out", str(tmp_path)]) == 0
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == first
    page = first["tables.md"].decode()
    names = [one.name for one in comparisons(SCALES["smoke"])]
    pictures = set(re.findall(r"\]\(([^)\s]+\.svg)\)", page))
    assert {"window.svg", "tail.svg", "processing.svg"} <= pictures
    assert set(first) == {*pictures, "results.json", "tables.md", "index.md"}
    for name in names:
        assert f"--only {name} " in page
    assert "cores: 2" in page
    assert str(Path.home()) not in page


@pytest.mark.parametrize("asked", [["--repeats", "0"], ["--contender", "nobody"]])
def test_a_run_without_a_measurement_is_refused(asked: list[str], tmp_path: Path) -> None:
    """Before a broker is started, and without a trace."""
    with pytest.raises(SystemExit, match="2"):
        main([*asked, "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")])
    assert list(tmp_path.iterdir()) == []


def test_results_of_one_comparison_replace_only_its_own(tmp_path: Path) -> None:
    """The others stay, each with the facts of its run."""
    _kept(tmp_path)
    before = read_results(tmp_path)
    newer = replace(FACTS, code="1" * 12)
    keep_results(tmp_path, newer, date(2026, 3, 2), "window", [measured("connector", 1, 1.0)])
    after = read_results(tmp_path)
    assert after["window"].facts == newer
    assert len(after["window"].measurements) == 1
    assert {n: one for n, one in after.items() if n != "window"} == {
        n: one for n, one in before.items() if n != "window"
    }


def test_results_of_another_version_are_refused(tmp_path: Path) -> None:
    """A file that cannot be understood is not overwritten."""
    (tmp_path / "results.json").write_text(json.dumps({"version": 2}))
    with pytest.raises(ValueError, match="version 2, not 1"):
        _kept(tmp_path)
