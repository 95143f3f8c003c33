"""Projects of YAML files for tests."""

from __future__ import annotations

from collections.abc import Iterator

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
