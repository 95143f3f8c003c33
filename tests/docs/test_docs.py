"""The snippets that the documentation shows are run as they stand, and the tests that it names exist."""

from __future__ import annotations

import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

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
        "ordered_reader.py",
        "process_orders.py",
        "process_dead_letters.py",
        "process_group.py",
        "process_and_produce.py",
        "process_window.py",
        "stage_window.py",
        "only_what_is_left.py",
        "backfill.py",
        "split_window.py",
        "is_it_time.py",
        "upkeep.py",
        "offset_maps.py",
        pytest.param("spark_window.py", marks=[pytest.mark.spark, pytest.mark.slow]),
        pytest.param("spark_backfill.py", marks=[pytest.mark.spark, pytest.mark.slow]),
        pytest.param("in_order.py", marks=[pytest.mark.spark, pytest.mark.slow]),
        pytest.param("own_sink.py", marks=[pytest.mark.spark, pytest.mark.slow]),
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


def test_every_test_that_the_guarantees_name_exists() -> None:
    """A promise must not outlive the test that holds it; each has one at least."""
    page = (DOCS / "guarantees.md").read_text()
    named = set(re.findall(r"`(test_\w+\.py)::(test_\w+)`", page))
    there = {
        (path.name, name)
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"(?m)^def (test_\w+)", path.read_text())
    }
    assert named - there == set()
    promises = re.split(r"(?m)^\d+\. \*\*", page.partition("## By sink")[0])[1:]
    assert len(promises) > 20
    assert [one[:40] for one in promises if "::test_" not in one] == []
