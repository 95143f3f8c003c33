"""The folders of published windows: named by their times, and one for each window whatever its name was before."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kafka_ordered_ops.core.errors import ConfigError, SinkError, WindowSupersededError
from kafka_ordered_ops.core.strict_json import Fields, JsonError
from kafka_ordered_ops.core.window.bounds import Earliest
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.window import Window, id_digest, safe_name
from kafka_ordered_ops.output import published
from kafka_ordered_ops.output.filesystem import MARKER_NAME
from kafka_ordered_ops.output.writing.staged_output import StagedOutput
from kafka_ordered_ops.windows import OrderedWindows
from tests.output.test_output_owner import kafka as kafka
from tests.output.test_output_owner import one as one
from tests.output.test_output_owner import plan_of, staged
from tests.output.test_output_owner import two as two

ZERO = datetime.fromtimestamp(0, UTC)


def folders(root: Path) -> list[str]:
    """What readers see."""
    return sorted(path.name for path in root.glob("window_id=*"))


def deliver(windows: OrderedWindows, plan: WindowPlan, root: Path) -> StagedOutput:
    """Stages, commits and publishes."""
    output = staged(windows, plan, root)
    windows.commit(plan, output)
    return output


def named_after_its_id(output: StagedOutput) -> StagedOutput:
    """A staged output whose folder has another name than its times give it."""
    other = replace(output, folder=safe_name(output.window_id))
    (Path(output.stage_path) / MARKER_NAME).write_bytes(other.marker())
    return other


def test_a_folder_has_the_window_s_whole_time(one: OrderedWindows, tmp_path: Path) -> None:
    """Start and end of an interval, whatever its id; a pattern of the shell finds a minute."""
    for number in (3, 1, 2):
        window = Window(
            "one",
            ZERO + timedelta(seconds=number),
            Earliest(),
            since=ZERO + timedelta(seconds=number - 1),
        )
        deliver(one, one.plan(window, f"my name {9 - number}"), tmp_path)
    assert folders(tmp_path) == [
        f"window_id=1970-01-01T00-00-0{n - 1}Z_1970-01-01T00-00-0{n}Z-{id_digest(f'my name {9 - n}')}"
        for n in (1, 2, 3)
    ]
    assert len([*tmp_path.glob("window_id=1970-01-01T00-00-02*")]) == 1


def test_a_window_up_to_a_cutoff_has_that_in_its_folder_s_name(
    one: OrderedWindows, tmp_path: Path
) -> None:
    """In the ledger its id stays what it was; who has only the ledger's JSON finds the folder."""
    output = deliver(one, plan_of(one), tmp_path)
    assert folders(tmp_path) == [f"window_id=1970-01-01T00-00-04Z-{id_digest('w')}"]
    record = one.show("w")
    assert record.plan.window_id == "w"
    assert isinstance(record.result, dict)
    found = StagedOutput.found(record.result)
    assert found is not None
    assert found.final_path == output.final_path


@pytest.mark.parametrize("crash_at", [1, 2, 3, 4])
def test_a_crash_while_an_older_folder_is_replaced_loses_nothing(
    one: OrderedWindows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash_at: int
) -> None:
    """It stands elsewhere, so for an instant nothing is visible; publishing again ends with one folder."""
    plan = plan_of(one)
    one.commit(plan, named_after_its_id(staged(one, plan, tmp_path)))
    replay = one.replay("w")
    newer = staged(one, replay, tmp_path)
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
    """Though their folders have other names."""
    plan = plan_of(one)
    newer = staged(one, replace(plan, attempt=plan.attempt + 1), tmp_path)
    named_after_its_id(newer).publish()
    late = staged(one, plan, tmp_path)
    with pytest.raises(WindowSupersededError):
        late.publish()
    assert folders(tmp_path) == [f"window_id={safe_name('w')}"]


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
    assert folders(tmp_path) == [f"window_id=1970-01-01T00-00-04Z-{id_digest('w')}"]


def test_windows_are_found_by_their_ids(one: OrderedWindows, tmp_path: Path) -> None:
    """In the order wanted, under whatever name; a copy of one is refused, since rows would come twice."""
    for name, seconds in (("a", 4), ("b", 8)):
        plan = plan_of(one, name, seconds)
        output = staged(one, plan, tmp_path)
        one.commit(plan, named_after_its_id(output) if name == "a" else output)
    found = published.published(tmp_path, ["b", "a"])
    assert list(found) == ["b", "a"]
    [file] = map(Path, found["a"])
    assert file.parent == tmp_path / f"window_id={safe_name('a')}"
    assert list(published.published(tmp_path)) == ["a", "b"]
    shutil.copytree(file.parent, tmp_path / f"window_id=copy-{id_digest('a')}")
    for ids in (None, ["a"]):
        with pytest.raises(ConfigError, match="both hold window a"):
            published.published(tmp_path, ids)


@pytest.mark.parametrize("folder", ["../x", "x", f"a/b-{id_digest('w')}", id_digest("v")])
def test_a_folder_s_name_from_json_is_checked(folder: str, tmp_path: Path) -> None:
    """It becomes a part of a path."""
    value = {**StagedOutput(str(tmp_path), "w", "c1", 1).to_json(), "folder": folder}
    with pytest.raises(JsonError, match="is not a folder of window w"):
        StagedOutput.from_json(Fields(value, "result"))
