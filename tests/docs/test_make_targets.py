"""What pages and workflows tell one to run exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from tests.support.pages import ROOT

TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
PAGES = [
    ROOT / ".ci" / "run",
    ROOT / "CONTRIBUTING.md",
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_targets_on_pages_exist(page: Path) -> None:
    """In code: "make sure" is no command."""
    text = page.read_text()
    named = re.findall(r"(?:^|`)make (?:--silent )?([a-z0-9-]+)(?= |$|`)", text, re.MULTILINE)
    assert set(named) <= TARGETS


def test_the_workflow_runs_all_that_must_pass() -> None:
    """Each step of `.ci/run`, and nothing that does not exist."""
    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    matrix = jobs["make"]["strategy"]["matrix"]["target"]
    run = {target for words in matrix for target in words.split()}
    assert run <= TARGETS
    steps = re.findall(r"^ *make ([a-z-]+)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    [parts] = re.findall(r"^test-ci: (.*) ##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    # `make test SLOW=yes` are two of its steps. It builds the native reader, and the workflow checks and tests it as well.
    of_run = {*steps, *parts.split()} - {"setup", "test-ci", "native"}
    assert of_run | {"test-slow", "check-native", "test-native"} == run
