"""The folders of published windows: named after their ids, and one for each window whatever its date was before."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops import (
    ConfigError,
    Earliest,
    SinkError,
    StagedOutput,
    Window,
    WindowPlan,
    WindowSupersededError,
    stage_window,
)
from kafka_ordered_ops.core.strict_json import JsonError
from kafka_ordered_ops.output import published
from kafka_ordered_ops.output.filesystem import MARKER_NAME
from kafka_ordered_ops.windows import OrderedWindows
from tests.output.test_output_owner import kafka as kafka
from tests.output.test_output_owner import one as one
from tests.output.test_output_owner import plan_of, staged
from tests.output.test_output_owner import two as two

ZERO = datetime.fromtimestamp(0, UTC)


def folders(root: Path) -> list[str]:
    """What readers see."""
    return sorted(path.name for path in root.rglob("window_id=*"))


def dated(windows: OrderedWindows, plan: WindowPlan, root: Path) -> StagedOutput:
    """What a job has written for the folder of a date."""
    return stage_window(plan, windows.settings, root, partition_by="date")


def deliver(windows: OrderedWindows, plan: WindowPlan, root: Path) -> StagedOutput:
    """Stages, commits and publishes."""
    output = staged(windows, plan, root)
    windows.commit(plan, output)
    return output


def elsewhere(output: StagedOutput) -> StagedOutput:
    """A staged output that goes to the folder of another date."""
    other = replace(output, partition="date=1969-12-31")
    (Path(output.stage_path) / MARKER_NAME).write_bytes(other.marker())
    return other


def test_windows_without_an_id_sort_by_time(one: OrderedWindows, tmp_path: Path) -> None:
    """A pattern of the shell finds a minute; the folder is named after the id, which the command line shows."""
    ids = []
    for number in (3, 1, 2):
        end = ZERO + timedelta(seconds=number)
        window = Window("one", end, Earliest(), since=end - timedelta(seconds=1))
        ids.append(deliver(one, one.plan(window), tmp_path).window_id)
    assert folders(tmp_path) == [f"window_id={window_id}" for window_id in sorted(ids)]
    assert len([*tmp_path.glob("window_id=1970-01-01T00-00-02*")]) == 1
    table = pq.ParquetDataset(tmp_path).read(["window_id"])
    assert set(table["window_id"].to_pylist()) == set(ids)


@pytest.mark.parametrize("crash_at", [1, 2, 3, 4])
def test_a_crash_while_an_older_folder_is_replaced_loses_nothing(
    one: OrderedWindows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash_at: int
) -> None:
    """It stands elsewhere, so for an instant nothing is visible; publishing again ends with one folder."""
    plan = plan_of(one)
    one.commit(plan, elsewhere(dated(one, plan, tmp_path)))
    replay = one.replay("w")
    newer = dated(one, replay, tmp_path)
    rename, left = os.rename, [crash_at]

    def crashing(*arguments: Any, **folders: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        rename(*arguments, **folders)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", crashing)
        with pytest.raises(KeyboardInterrupt):
            newer.publish()
    assert len(folders(tmp_path)) == (0 if crash_at == 4 else 1)
    newer.publish()
    assert folders(tmp_path) == [Path(newer.final_path).name]


def test_an_older_attempt_does_not_come_beside_a_newer_one(
    one: OrderedWindows, tmp_path: Path
) -> None:
    """Though their folders are those of other dates."""
    plan = plan_of(one)
    newer = dated(one, replace(plan, attempt=plan.attempt + 1), tmp_path)
    elsewhere(newer).publish()
    late = dated(one, plan, tmp_path)
    with pytest.raises(WindowSupersededError):
        late.publish()
    assert folders(tmp_path / "date=1969-12-31") == ["window_id=w"]


def test_the_same_id_of_another_group_is_refused_though_its_times_are_others(
    one: OrderedWindows, two: OrderedWindows, tmp_path: Path
) -> None:
    """Readers ask for a window by its id: before the job, and at the publish of what was staged before."""
    mine, other = plan_of(one), plan_of(two, seconds=6)
    waiting = staged(two, other, tmp_path)
    deliver(one, mine, tmp_path)
    with pytest.raises(SinkError, match="of group group-one"):
        staged(two, other, tmp_path)
    with pytest.raises(SinkError, match="Write to another output"):
        two.commit(other, waiting)
    assert folders(tmp_path) == ["window_id=w"]


def test_windows_are_found_by_their_ids(one: OrderedWindows, tmp_path: Path) -> None:
    """In the order wanted; a copy of one is refused, since rows would come twice."""
    for name, seconds in (("a", 4), ("b", 8)):
        deliver(one, plan_of(one, name, seconds), tmp_path)
    found = published.published(tmp_path, ["b", "a"])
    assert list(found) == ["b", "a"]
    [file] = map(Path, found["a"])
    assert file.parent == tmp_path / "window_id=a"
    assert list(published.published(tmp_path)) == ["a", "b"]
    shutil.copytree(file.parent, tmp_path / "window_id=copy")
    with pytest.raises(ConfigError, match="both hold window a"):
        published.published(tmp_path)
    with pytest.raises(ConfigError, match=r"1 of 1 windows are not published .*: copy"):
        published.published(tmp_path, ["copy"])


@pytest.mark.parametrize("window_id", ["../x", "a/b", ".koo", ""])
def test_an_id_from_json_is_checked(window_id: str, tmp_path: Path) -> None:
    """It becomes a part of a path."""
    value = {**StagedOutput(str(tmp_path), "w", "c1", 1).to_json(), "window_id": window_id}
    with pytest.raises(JsonError, match="window id"):
        StagedOutput.from_json(value)
