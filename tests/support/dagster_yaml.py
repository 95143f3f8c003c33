"""Projects of YAML files for tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from dagster.components.testing.utils import DefsFolderSandbox, create_defs_folder_sandbox

#: What Dagster itself does with the newest pydantic, and with its own betas, when it reads YAML.
READS_YAML = [
    pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated"),
    pytest.mark.filterwarnings("ignore:Class `.*CodeReference.*` is currently in beta"),
]


@pytest.fixture
def sandbox() -> Iterator[DefsFolderSandbox]:
    """A project with an empty folder of definitions."""
    with create_defs_folder_sandbox() as made:
        yield made


def run_dg(project: Path, folder: Path, *arguments: str, fails: bool = False) -> str:
    """What a command of Dagster's own has said, in a project, with a home below a folder."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    ran = subprocess.run(
        [Path(sys.executable).with_name("dg"), *arguments],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={
            **os.environ,
            "DAGSTER_HOME": str(home),
            "PYTHONPATH": str(project / "src"),
            "HOME": str(home),
            "NO_COLOR": "1",
            "COLUMNS": "200",
        },
    )
    assert (ran.returncode != 0) is fails, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr
