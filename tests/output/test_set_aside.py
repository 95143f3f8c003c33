"""What was moved aside for a publication whose process died: it is neither replaced by older output, nor lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops.core.errors import SinkError, WindowSupersededError
from kafka_ordered_ops.output.filesystem import LocalFiles
from kafka_ordered_ops.output.staged_output import StagedOutput
from tests.support.objects_support import Killed, named_rows, staged_rows

DATE = "date=2026-11-20"


@pytest.fixture(params=[None, DATE])
def crashed(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, StagedOutput, StagedOutput]:
    """A root where attempt 5 was published and attempt 6 died between its two renames; attempts 4 and 6, staged."""
    root = str(tmp_path / "orders")
    staged_rows(root, [5], attempt=5, partition=request.param).publish()
    older, newer = (staged_rows(root, [n], attempt=n, partition=request.param) for n in (4, 6))
    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles, "rename", _dying_at(newer.final_path))
        with pytest.raises(Killed):
            newer.publish()
    assert named_rows(root) == []
    return root, older, newer


def _dying_at(target: str) -> Callable[[LocalFiles, str, str], None]:
    rename = LocalFiles.rename

    def dying(files: LocalFiles, source: str, to: str) -> None:
        if to == target:
            raise Killed
        rename(files, source, to)

    return dying


def test_an_older_attempt_does_not_take_its_place(
    crashed: tuple[str, StagedOutput, StagedOutput],
) -> None:
    """Readers see again what they saw before, and the newer attempt is published when it comes back."""
    root, older, newer = crashed
    for call in (older.check_ready, older.publish):
        with pytest.raises(WindowSupersededError, match="holds attempt 5"):
            call()
    assert named_rows(root) == [5]
    newer.publish()
    assert named_rows(root) == [6]


def test_a_clean_puts_it_back(crashed: tuple[str, StagedOutput, StagedOutput]) -> None:
    """The attempt that had moved it aside is gone."""
    root, older, newer = crashed
    older.discard()
    assert StagedOutput.clean(root, older_than="PT0S") >= 1
    assert named_rows(root) == [5]
    with pytest.raises(SinkError, match="holds attempt 5"):
        newer.publish()
    assert named_rows(root) == [5]


def test_a_stage_that_has_lost_a_file_is_not_published_and_the_older_output_is_there_again(
    crashed: tuple[str, StagedOutput, StagedOutput],
) -> None:
    """What is visible stays as it is, and here it is what was visible before the crash."""
    root, _, newer = crashed
    os.remove(next(path for path in Path(newer.stage_path).glob("*.parquet")))
    with pytest.raises(SinkError, match="no longer holds what was written"):
        newer.publish()
    assert named_rows(root) == [5]
    [path] = Path(root).glob("**/*.parquet")
    assert pq.read_table(path).column("n").to_pylist() == [5]
