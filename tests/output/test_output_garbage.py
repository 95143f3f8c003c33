"""Whatever stands where outputs go: errors of this package alone, and nothing is deleted that it did not make."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import (
    ConfigError,
    KafkaOrderedOpsError,
    SinkError,
    StagedOutput,
    WindowPlan,
    stage_window,
    stage_windows,
)
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.output.filesystem import LocalFiles, normal_root, remove_stage
from kafka_ordered_ops.output.folders import files_for
from kafka_ordered_ops.output.layout import swap_folder, tag_beginning
from kafka_ordered_ops.output.writing.draft import Draft
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.garbage_support import plan as plan
from tests.support.garbage_support import staged
from tests.support.garbage_support import windows as windows
from tests.support.stages import stages_of


def file(path: Path) -> None:
    """A file of somebody's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("precious")


def folder(path: Path) -> None:
    """A folder of somebody's."""
    path.mkdir(parents=True)
    file(path / "precious")


def empty(path: Path) -> None:
    """A folder of somebody's, with nothing in it."""
    path.mkdir(parents=True)


def link(path: Path) -> None:
    """A link to a folder elsewhere that looks like one of ours."""
    elsewhere = path.parent / f"elsewhere-{path.name.replace('=', '-')}"
    folder(elsewhere)
    (elsewhere / "_window.json").write_text("{}")
    path.symlink_to(elsewhere)


def dangling(path: Path) -> None:
    """A link to nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to("/nowhere/at/all")


def loop(path: Path) -> None:
    """A link to itself."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(path)


def pipe(path: Path) -> None:
    """What blocks whoever opens it to read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)


def marked(content: bytes) -> Callable[[Path], None]:
    """A folder whose marker is none of ours."""

    def make(path: Path) -> None:
        folder(path)
        (path / "_window.json").write_bytes(content)

    return make


def marker_is(make: Callable[[Path], None]) -> Callable[[Path], None]:
    """A folder in which something else stands for the marker."""

    def made(path: Path) -> None:
        path.mkdir(parents=True)
        make(path / "_window.json")

    return made


def snapshot(root: Path) -> dict[str, object]:
    """All that is below a folder, as it is: what it is, and what is in it."""
    found: dict[str, object] = {}
    for parent, folders, names in os.walk(root):
        for name in (*folders, *names):
            path = Path(parent) / name
            mode = os.lstat(path).st_mode
            if path.is_symlink():
                found[str(path)] = (mode, os.readlink(path))
            else:
                found[str(path)] = (mode, path.read_bytes() if path.is_file() else None)
    return found


STAGES = "{stages}"
#: Where in the root, what stands there, and what the error must name.
IN_THE_WAY = [
    pytest.param(place, make, id=f"{place}-{make.__name__}")
    for place, makes in {
        "": [file, dangling, loop],
        STAGES: [file, link, dangling, loop, pipe],
        f"{STAGES}/.lock": [folder, link, dangling, loop],
        "{window}": [file, link, dangling, loop, pipe],
        "{stage}": [file, link, folder, dangling],
        "{final}": [file, link, folder, empty, dangling, loop, pipe],
    }.items()
    for make in makes
]


def _places(output: StagedOutput) -> dict[str, str]:
    return {
        "stages": output.stages_folder,
        "window": output.window_folder,
        "stage": output.stage_path,
        "final": output.final_path,
        "swap": swap_folder(output.root),
        "tag": f"{tag_beginning(output.window_id)}00000000",
    }


@pytest.mark.parametrize(("place", "make"), IN_THE_WAY)
def test_what_is_in_the_way_is_named_before_anything_is_read(
    windows: OrderedWindows,
    plan: WindowPlan,
    tmp_path: Path,
    place: str,
    make: Callable[[Path], None],
) -> None:
    """A `SinkError` that names the place; what stands there stays, and no draft is left behind."""
    root = tmp_path / "root"
    output = StagedOutput.of(plan, root)
    names = _places(output)
    path = Path(os.path.join(root, place.format(**names)).rstrip("/"))
    make(path)
    before = snapshot(tmp_path)
    with pytest.raises(SinkError) as raised:
        staged(windows, plan, root)
    assert str(path.name) in raised.value.message
    assert before.items() <= snapshot(tmp_path).items()
    left = {Path(name).name for name in snapshot(tmp_path).keys() - before.keys()}
    assert not any("draft" in name for name in left)
    assert windows.show("w").status is WindowStatus.PLANNED


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        file, link, folder, empty, dangling, loop, pipe,
        *map(marked, [b"", b"\xff\xfe[1,2", b"[1]", b"null", b"{}", b"[" * 70_000, b" " * 70_000]),
        *map(marker_is, [empty, link, dangling, loop, pipe]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("before_staging", [True, False])
def test_what_stands_in_the_window_s_place_is_never_replaced(
    windows: OrderedWindows,
    plan: WindowPlan,
    tmp_path: Path,
    make: Callable[[Path], None],
    before_staging: bool,
) -> None:
    """Refused before the job where it is there by then, and before the commit else; once it is gone, all goes on."""
    output = StagedOutput.of(plan, tmp_path)
    final = Path(output.final_path)
    if not before_staging:
        output = staged(windows, plan, tmp_path)
    make(final)
    before = snapshot(tmp_path)
    with pytest.raises(SinkError, match="in the way"):
        windows.commit(plan, staged(windows, plan, tmp_path) if before_staging else output)
    with pytest.raises(SinkError):
        output.publish()
    assert before.items() <= snapshot(tmp_path).items()
    assert windows.show("w").status is WindowStatus.PLANNED
    final.rename(tmp_path / "away")
    assert windows.commit(plan, staged(windows, plan, tmp_path)).status is WindowStatus.PUBLISHED


@pytest.mark.parametrize(
    "root",
    [
        "", " ", "\t", "/tmp/a\0b", "/tmp/a\udc80b", "file:///tmp/a%00b", "file:///tmp/%ff", "file://host/a",
        b"/tmp/bytes", 5, None, ["/tmp"], "s3a://lake", "ftp://lake/x",
    ],
)  # fmt: skip
def test_a_root_that_cannot_be_is_refused(
    windows: OrderedWindows, plan: WindowPlan, root: Any
) -> None:
    """By name, before anything is touched or read."""
    with pytest.raises(ConfigError):
        staged(windows, plan, root)
    with pytest.raises(ConfigError):
        stage_windows([plan], windows.settings, root, ordered=False)


def test_a_root_whose_name_is_too_long_is_a_sink_error(
    windows: OrderedWindows, plan: WindowPlan, tmp_path: Path
) -> None:
    """The system's own words are in it."""
    with pytest.raises(SinkError, match="File name too long"):
        staged(windows, plan, tmp_path / ("x" * 300))
    with pytest.raises(ConfigError, match="at most 3,072"):
        staged(windows, plan, f"{tmp_path}/{'y/' * 3000}")
    assert list(tmp_path.iterdir()) == []


def test_a_root_may_be_a_link(windows: OrderedWindows, plan: WindowPlan, tmp_path: Path) -> None:
    """What leads to the table is the user's; what lies in its hidden folder is ours."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "table").symlink_to(tmp_path / "disk")
    output = staged(windows, plan, tmp_path / "table")
    assert windows.commit(plan, output).status is WindowStatus.PUBLISHED
    assert [path.name for path in (tmp_path / "disk").glob("window_id=*")]


@pytest.mark.parametrize(
    ("taken", "replaced"),
    [("root", True), *((taken, flag) for taken in ("stages", "draft") for flag in (False, True))],
)
def test_a_folder_that_is_taken_away_is_a_sink_error(
    windows: OrderedWindows, plan: WindowPlan, tmp_path: Path, taken: str, replaced: bool
) -> None:
    """While a job writes, somebody removes it, or puts a file in its place."""
    root = tmp_path / "root"

    def take_away(done: int, total: int) -> None:
        paths = {
            "root": [root],
            "stages": [stages_of(root)],
            "draft": [*stages_of(root).glob("*/*~draft-*")],
        }
        for path in paths[taken]:
            if path.is_dir():
                shutil.rmtree(path)
                if replaced:
                    file(path)

    with pytest.raises(SinkError):
        stage_window(plan, windows.settings, root, rows_per_file=30, progress=take_away)
    assert windows.show("w").status is WindowStatus.PLANNED


def test_a_root_that_is_removed_while_a_job_writes_is_created_again(
    windows: OrderedWindows, plan: WindowPlan, tmp_path: Path
) -> None:
    """The stage is beside it."""
    root = tmp_path / "root"

    def take_away(done: int, total: int) -> None:
        shutil.rmtree(root, ignore_errors=True)

    output = stage_window(plan, windows.settings, root, progress=take_away)
    shutil.rmtree(root)
    assert windows.commit(plan, output).status is WindowStatus.PUBLISHED
    assert output.is_published()


def test_an_error_of_the_job_is_told_though_cleaning_fails(
    windows: OrderedWindows,
    plan: WindowPlan,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What went wrong first is the error; what could not be removed is in the log."""

    def stuck(self: LocalFiles, path: str) -> None:
        raise OSError(errno.EIO, "Input/output error", path)

    def stop(done: int, total: int) -> None:
        raise RuntimeError("the job's own")

    monkeypatch.setattr(LocalFiles, "remove", stuck)
    with pytest.raises(RuntimeError, match="the job's own"):
        stage_window(plan, windows.settings, tmp_path, progress=stop)
    assert "cannot be removed" in caplog.text


@pytest.mark.parametrize("plans", [[], "w", [None], ["w"]])
def test_plans_that_are_none_are_refused(
    windows: OrderedWindows, tmp_path: Path, plans: Any
) -> None:
    """And a plan in the place of a list of plans; nothing is touched."""
    with pytest.raises(ConfigError):
        stage_windows(plans, windows.settings, tmp_path / "root")
    assert not (tmp_path / "root").exists()


def test_one_plan_is_no_list_of_plans(
    windows: OrderedWindows, plan: WindowPlan, tmp_path: Path
) -> None:
    """A plan is a sequence, too: of its partitions."""
    not_a_list: Any = plan
    with pytest.raises(ConfigError, match="must be a list of window plans"):
        stage_windows(not_a_list, windows.settings, tmp_path / "root")


def test_settings_may_be_a_mapping(
    windows: OrderedWindows, plan: WindowPlan, tmp_path: Path
) -> None:
    """As `OrderedWindows` takes them; a wrong key is named, and nothing is touched."""
    with pytest.raises(ConfigError, match=r"no\.such\.key"):
        stage_window(plan, {"bootstrap.servers": "x", "no.such.key": 1}, tmp_path / "root")
    with pytest.raises(ConfigError, match="bootstrap"):
        stage_window(plan, {}, tmp_path / "root")
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("make", [link, dangling])
def test_removing_never_follows_a_link(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """The link itself goes where it is to be removed; what it leads to stays, its marker too."""
    path = tmp_path / "stage"
    make(path)
    before = snapshot(tmp_path)
    remove_stage(files_for(str(tmp_path)), str(path))
    after = snapshot(tmp_path)
    assert before.keys() - after.keys() == {str(path)}


# --- whatever there is ------------------------------------------------------------------------

MAKES = [
    file, folder, empty, link, dangling, loop, pipe, marked(b"[1]"), marked(b""),
    marker_is(link), marker_is(pipe), marker_is(folder),
]  # fmt: skip
PLACES = (
    "{stages}",
    "{stages}/.lock",
    "{stages}/precious",
    "{window}",
    "{window}/precious",
    "{window}/precious-1",
    "{swap}",
    "{swap}/precious",
    "{swap}/{tag}",
    "{swap}/{tag}~0",
    "{stage}",
    "{stage}/precious",
    "{stage}/_window.json",
    "{final}",
    "{final}/precious",
    "{final}/_window.json",
)


@pytest.mark.slow
@given(
    garbage=st.lists(
        st.tuples(st.sampled_from(PLACES), st.sampled_from(MAKES)), min_size=1, max_size=4
    ),
    step=st.integers(0, 4),
)
def test_whatever_there_is_errors_are_named_and_it_stays(
    garbage: list[tuple[str, Callable[[Path], None]]], step: int
) -> None:
    """Garbage appears at any step of staging, publishing, replaying and removing."""
    with tempfile.TemporaryDirectory() as name:
        root = normal_root(f"{name}/root")
        before: dict[str, object] = {}
        output = StagedOutput(root, "w", "c", 1, group_id="g")
        draft, newer = Draft(output), Draft(StagedOutput(root, "w", "c", 2, group_id="g"))

        def write(one: Draft) -> None:
            one.make()
            pq.write_table(pa.table({"n": [1, 2]}), f"{one.path}/part-00000.parquet")
            one.seal({"records": 2, "files": 1})
            one.land()

        def stages() -> None:
            write(draft)

        def publishes() -> None:
            output.check_ready()
            output.publish()

        def replays() -> None:
            write(newer)
            newer.output.publish()

        def removes() -> None:
            output.discard()
            draft.drop()

        for number, action in enumerate((stages, publishes, replays, removes)):
            if number == step:
                before = _plant(output, garbage)
            with suppress(KafkaOrderedOpsError):
                action()
        if step == 4:
            before = _plant(output, garbage)
        with suppress(KafkaOrderedOpsError):
            StagedOutput.found(output.to_json())
        with suppress(KafkaOrderedOpsError):
            newer.output.discard()
        after = snapshot(Path(name))
        assert {name: one for name, one in before.items() if after.get(name) != one} == {}


def _plant(
    output: StagedOutput, garbage: list[tuple[str, Callable[[Path], None]]]
) -> dict[str, object]:
    """Makes the garbage where nothing is yet; gives what of it must stay."""
    root = Path(output.root).parent
    names = _places(output)
    before = snapshot(root)
    for place, make in garbage:
        path = root / place.format(**names)
        # A file in a stage or a window of ours is the stage's or the window's.
        if os.path.lexists(path) or str(path.parent) in before.keys() - {str(root)}:
            continue
        with suppress(OSError):
            make(path)
    # Folders on the way to it may go once they are empty: ours are called the same.
    return {
        name: one
        for name, one in snapshot(root).items()
        if name not in before and not (Path(name).is_dir() and not Path(name).is_symlink())
    }
