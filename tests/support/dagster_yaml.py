"""Projects of YAML files for tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import dagster as dg
import pytest
from dagster.components.testing.utils import DefsFolderSandbox, create_defs_folder_sandbox

from tests.support.dagster_support import House

TYPE: Final = "kafka_ordered_ops.dagster.OrderedWindowComponent"
HOURLY: Final = {"type": "hourly", "start_date": "2026-01-05-00:00"}

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


@contextmanager
def loaded(
    sandbox: DefsFolderSandbox, attributes: dict[str, Any], **more: Any
) -> Iterator[dg.Definitions]:
    """A project's definitions, made of one YAML file."""
    folder = sandbox.defs_folder_path / "orders"
    folder.mkdir(exist_ok=True)
    (folder / "defs.yaml").write_text(json.dumps({"type": TYPE, "attributes": attributes, **more}))
    with sandbox.build_all_defs() as defs:
        yield defs


def asset_in(defs: dg.Definitions, key: str) -> dg.AssetsDefinition:
    """One of the assets, also where a resource is still missing."""
    [found] = [
        one
        for one in defs.assets or []
        if isinstance(one, dg.AssetsDefinition) and one.key.to_user_string() == key
    ]
    return found


def attributes(house: House, topic: str, group_id: str, **more: Any) -> dict[str, Any]:
    """A component's fields, as few as there may be, and more."""
    needed = {
        "key": "orders",
        "window": {"topics": [topic], "starting_offsets": "earliest"},
        "group_id": group_id,
    }
    return {**needed, "partitions": HOURLY, "output": str(house.output), **more}


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
