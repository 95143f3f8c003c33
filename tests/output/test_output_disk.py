"""Disks that are full, read-only or limited: errors of this package alone, and no draft stays."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kafka_ordered_ops import SinkError, StagedOutput, WindowPlan, stage_windows
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.garbage_support import plan as plan
from tests.support.garbage_support import staged
from tests.support.garbage_support import windows as windows


@contextmanager
def mounted(path: Path, options: str) -> Iterator[None]:
    """A file system in memory on a folder."""
    path.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system is not permitted here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_disk_that_fills_leaves_no_draft(
    windows: OrderedWindows, plan: WindowPlan, tmp_path: Path, ordered: bool
) -> None:
    """What was written makes room again, and the same window goes through where there is room."""
    with mounted(tmp_path / "small", "size=200k"):
        root = tmp_path / "small" / "root"
        with pytest.raises(SinkError, match=r"part-0000.* cannot be written: .*No space left"):
            stage_windows([plan], windows.settings, root, ordered=ordered, rows_per_file=30)
        left = [path for path in (tmp_path / "small").rglob("*") if path.is_file()]
        assert {path.name for path in left} == {".lock", "owner.json"}
    assert windows.commit(plan, staged(windows, plan, tmp_path)).status is WindowStatus.PUBLISHED


def test_a_read_only_disk_is_a_sink_error(
    windows: OrderedWindows, plan: WindowPlan, tmp_path: Path
) -> None:
    """For staging, looking, publishing and removing."""
    output = staged(windows, plan, tmp_path / "table")
    with mounted(tmp_path / "small", "size=1m,ro"):
        with pytest.raises(SinkError, match="Read-only"):
            staged(windows, plan, tmp_path / "small" / "root")
        elsewhere = StagedOutput.of(plan, tmp_path / "small" / "root")
        assert not elsewhere.exists()
        assert not elsewhere.is_published()
        elsewhere.discard()
        with pytest.raises(SinkError):
            elsewhere.publish()
    assert windows.commit(plan, output).status is WindowStatus.PUBLISHED


def test_a_file_that_may_not_grow_leaves_no_draft(
    windows: OrderedWindows, plan: WindowPlan, tmp_path: Path
) -> None:
    """A quota is no other than a full disk; this one needs no right to mount."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(SinkError, match=r"part-0000.* cannot be written: .*File too large"):
            staged(windows, plan, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {".lock", "owner.json"}
    output = staged(windows, plan, tmp_path / "out")
    assert windows.commit(plan, output).status is WindowStatus.PUBLISHED
