"""The comparison ``offsets-show``, on its own broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.offsets_show import OFFSETS_SHOW, Progress
from benchmarks.results import read_results


@pytest.mark.long
def test_every_kind_of_group_is_shown(tmp_path: Path) -> None:
    """All of its partitions."""
    asked = ["--only", OFFSETS_SHOW, "--scale", "smoke", "--repeats", "1"]
    assert main([*asked, "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]) == 0
    [kept] = read_results(tmp_path / "out").values()
    assert {one.contender for one in kept.measurements} == set(Progress)
    assert all(one.records == one.size for one in kept.measurements)
