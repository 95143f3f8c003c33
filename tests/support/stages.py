"""Where the stages of a folder of outputs are."""

from __future__ import annotations

from pathlib import Path

from kafka_ordered_ops.output.address import control_folder


def control_of(root: Path) -> Path:
    """The folder beside the root that readers do not see."""
    return Path(control_folder(str(root)))


def stages_of(root: Path) -> Path:
    """The folder of all stages."""
    return control_of(root) / "stage"
