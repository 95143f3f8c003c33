"""What Dagster loads: everything in the folder of definitions."""

from __future__ import annotations

from pathlib import Path

from dagster import Definitions, definitions, load_from_defs_folder


@definitions
def defs() -> Definitions:
    """All of the project."""
    return load_from_defs_folder(path_within_project=Path(__file__).parent)
