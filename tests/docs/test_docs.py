"""The snippets that the documentation shows are run as they stand, and the tests that it names exist."""

from __future__ import annotations

import re
import subprocess
import sys
import uuid
from dataclasses import fields
from pathlib import Path

import pytest

from kafka_ordered_ops.core.times import duration_text
from kafka_ordered_ops.relay.limits import Limits, TokenLimits

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def run(name: str, bootstrap: str, topic: str, folder: Path) -> str:
    """Runs one snippet in a folder of its own; what it printed."""
    done = subprocess.run(
        [sys.executable, DOCS / "snippets" / name, bootstrap, topic],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "first_window.py",
        "with_arrow.py",
        "decode_values.py",
        "infer_columns.py",
        "ordered_reader.py",
        "reader_moves.py",
        "reader_options.py",
        "from_kafkars.py",
        "from_kafka_python.py",
        "process_orders.py",
        "process_dead_letters.py",
        "process_group.py",
        "process_and_produce.py",
        "process_idempotent.py",
        "process_window.py",
        "relay_async.py",
        "stage_window.py",
        "only_what_is_left.py",
        "backfill.py",
        "split_window.py",
        "is_it_time.py",
        "upkeep.py",
        "offset_maps.py",
        pytest.param("spark_window.py", marks=[pytest.mark.spark, pytest.mark.slow]),
        pytest.param("spark_backfill.py", marks=[pytest.mark.spark, pytest.mark.long]),
        pytest.param("in_order.py", marks=[pytest.mark.spark, pytest.mark.long]),
        pytest.param("own_sink.py", marks=[pytest.mark.spark, pytest.mark.long]),
        pytest.param("submit_window.py", marks=[pytest.mark.spark, pytest.mark.slow]),
    ],
)
def test_a_snippet_of_the_documentation_runs(bootstrap: str, tmp_path: Path, name: str) -> None:
    """On a topic that the first snippet fills, and with an end in a printed result."""
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    run("fill_topic.py", bootstrap, topic, tmp_path)
    assert run(name, bootstrap, topic, tmp_path).strip()


@pytest.mark.slow
def test_the_snippet_that_goes_on_after_a_crash_may_be_run_again(
    bootstrap: str, tmp_path: Path
) -> None:
    """It asks for the same window, or in the next hour for the next one."""
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    run("fill_topic.py", bootstrap, topic, tmp_path)
    for _ in range(2):
        assert run("process_window.py", bootstrap, topic, tmp_path).startswith("charged")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["test_hourly.py", "test_orders_asset.py"])
def test_the_examples_of_tests_pass(tmp_path: Path, name: str) -> None:
    """They are files of tests, and need no broker."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            DOCS / "snippets" / name,
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_the_example_of_intervals_prints_what_its_page_says(bootstrap: str, tmp_path: Path) -> None:
    """Line by line, in one piece: which record is in which interval, late, or in a gap."""
    printed = run("intervals.py", bootstrap, f"orders-{uuid.uuid4().hex[:8]}", tmp_path)
    assert printed.count("\n") == 4
    assert printed in (DOCS / "intervals.md").read_text()


def unknown_tests(page: str) -> set[tuple[str, str]]:
    """The tests that a page names, and that do not exist."""
    named = set(re.findall(r"`(test_\w+\.py)::(test_\w+)`", page))
    there = {
        (path.name, name)
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"(?m)^def (test_\w+)", path.read_text())
    }
    return named - there


def rows_of(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table of a section."""
    section = re.split(rf"(?m)^#+ {re.escape(heading)}\n", page)[1]
    [table] = re.findall(r"(?m)(?:^\|.*\n)+", section)[:1]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


def test_every_bound_of_a_token_has_a_test() -> None:
    """Each line of the page names tests that exist."""
    page = (DOCS / "relay.md").read_text()
    rows = rows_of(page, "What a token may do")
    assert len(rows) > 8
    assert [one[0] for one in rows if "::test_" not in one[2]] == []
    assert unknown_tests(page) == set()


def test_every_limit_that_can_be_set_is_on_the_page_with_its_value() -> None:
    """Neither more nor fewer, of servers and of tokens."""
    page = (DOCS / "relay.md").read_text()
    rows = [row for row in rows_of(page, "Limits") if row[1]]
    shown = {row[1].strip("`"): row[2].partition(", PT")[0] for row in rows}
    assert shown == {name: shown_limit(value) for name, value in values_of(Limits()).items()}
    bounds = "\n".join(row[1] for row in rows_of(page, "What a token may do"))
    found = dict(re.findall(r"`(\w+)`: ([\d,]*\d(?: h)?)", bounds))
    assert found == {
        name: shown_limit(value).replace("PT1H", "1 h")
        for name, value in values_of(TokenLimits()).items()
    }


def values_of(limits: Limits | TokenLimits) -> dict[str, int | float]:
    """The limits by the names that set them."""
    return {one.metadata["name"]: getattr(limits, one.name) for one in fields(limits)}


def shown_limit(value: int | float) -> str:
    """As the page has it: times as they are given."""
    return f"{value:,}" if isinstance(value, int) else duration_text(round(value * 1_000))


def test_every_line_of_the_threat_model_names_its_test() -> None:
    """Whoever may write somewhere, what it must not be able to do has been tried."""
    page = (DOCS / "guarantees.md").read_text()
    assert unknown_tests(page) == set()
    lines = [line for line in page.splitlines() if re.match(r"\|.*\*\*", line)]
    assert len(lines) > 5
    assert [line for line in lines if "::test_" not in line] == []


def test_the_page_about_tests_says_what_is_there() -> None:
    """Each fault names tests that exist, and no layer has fewer tests than it says, nor many more."""
    page = (DOCS / "tested.md").read_text()
    assert unknown_tests(page) == set()
    assert [row[0] for row in rows_of(page, "Faults") if "::test_" not in row[2]] == []
    for layer, folders, least in rows_of(page, "Layers"):
        count = sum(
            len(re.findall(r"(?m)^(?:async )?def test_", path.read_text()))
            for folder in re.findall(r"`([^`]+)`", folders)
            for path in (ROOT / folder).rglob("test_*.py")
        )
        assert int(least.replace(",", "")) <= count <= 1.3 * int(least.replace(",", "")), layer


def test_every_test_that_the_guarantees_name_exists() -> None:
    """A promise must not outlive the test that holds it; each has one at least."""
    page = (DOCS / "guarantees.md").read_text()
    assert unknown_tests(page) == set()
    promises = re.split(r"(?m)^\d+\. \*\*", page.partition("## By sink")[0])[1:]
    assert len(promises) > 20
    assert [one[:40] for one in promises if "::test_" not in one] == []
