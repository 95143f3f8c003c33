"""The snippets that the documentation shows are run as they stand."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

import pytest

SNIPPETS = Path(__file__).parent.parent / "docs" / "snippets"


def run(name: str, bootstrap: str, topic: str, folder: Path) -> str:
    """Runs one snippet in a folder of its own; what it printed."""
    done = subprocess.run(
        [sys.executable, SNIPPETS / name, bootstrap, topic],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "name",
    [
        "stage_window.py",
        "only_what_is_left.py",
        pytest.param("spark_window.py", marks=[pytest.mark.spark, pytest.mark.slow]),
        pytest.param("own_sink.py", marks=[pytest.mark.spark, pytest.mark.slow]),
    ],
)
def test_a_snippet_of_the_documentation_runs(bootstrap: str, tmp_path: Path, name: str) -> None:
    """On a topic that the first snippet fills, and with an end in a printed result."""
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    run("fill_topic.py", bootstrap, topic, tmp_path)
    assert run(name, bootstrap, topic, tmp_path).strip()
