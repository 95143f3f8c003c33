"""Replacements of published output: in one step where the file system can, and healed by whoever comes next where not."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from multiprocessing import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops import SinkError, StagedOutput, WindowSupersededError
from kafka_ordered_ops.disk import disk
from kafka_ordered_ops.output import files
from kafka_ordered_ops.output.filesystem import LocalFiles, tag_in
from kafka_ordered_ops.output.layout import swap_folder
from tests.support.objects_support import named_rows, staged_rows
from tests.support.spark_support import crash_at, crashes
from tests.support.stages import control_of, stages_of
from tests.support.swaps import NEW, NEXT, OLD, cannot_exchange, die_before_the_last_rename, swapped
from tests.support.swaps import exchanges as exchanges

DATE = "date=2026-11-20"

#: How many files a look named, whether the folder was there, and what else was in the root.
Looks = set[tuple[int, bool, tuple[str, ...]]]

next_ones = pytest.mark.parametrize("touch", NEXT.values(), ids=NEXT)
after = pytest.mark.parametrize("after", [False, True], ids=["before", "after"])


def of_window(root: str) -> list[int]:
    """The rows that a reader of the window's folder finds."""
    paths = sorted(Path(root).glob("window_id=w/*.parquet"))
    rows: list[Any] = []
    for path in paths:
        rows += pq.read_table(path)["n"].to_pylist()
    return rows


# --- killed at every step --------------------------------------------------------------------------


@pytest.mark.slow
@next_ones
@after
def test_whoever_touches_the_root_next_heals_a_replacement_that_was_killed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    exchanges: bool,
    after: bool,
    touch: Callable[[str], object],
) -> None:
    """At every step of it: then readers see the old rows or the new ones, and what was to be shown is staged, or shown."""
    seen = set()
    for folder, crashing in crashes(tmp_path, monkeypatch, after=after, least=8):
        root = str(folder)
        staged_rows(root, OLD, attempt=1).publish()
        newer = staged_rows(root, NEW, attempt=2)
        with crashing:
            newer.publish()
        was = of_window(root)
        touch(root)
        now = of_window(root)
        seen.add((tuple(was), tuple(now)))
        assert swapped(root) == []
        assert newer.is_published() is (now == NEW)
        assert newer.is_published() or newer.exists()
        newer.publish()
        assert of_window(root) == NEW
        assert [one for one in stages_of(folder).iterdir() if one.name.startswith("w-")] == []
        shown = {path.name.removeprefix(".koo-") for path in folder.glob("*/.koo-*")}
        staged = {path.name.removeprefix(".koo-") for path in stages_of(folder).rglob(".koo-*")}
        markers = {path.stem for path in (control_of(folder) / "windows").iterdir()}
        assert shown <= markers <= shown | staged
    old, new = tuple(OLD), tuple(NEW)
    assert seen == {(old, old), (new, new), *([] if exchanges else [((), old)])}


@pytest.mark.slow
@after
def test_healing_that_is_killed_is_healed_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool, after: bool
) -> None:
    """At every step of it, after a replacement that was killed at any step."""
    at, was_killed = 0, True
    while was_killed:
        at += 1
        for folder, crashing in crashes(tmp_path / str(at), monkeypatch, after=after, least=0):
            root = str(folder)
            staged_rows(root, OLD, attempt=1).publish()
            newer = staged_rows(root, NEW, attempt=2)
            with crash_at(at, monkeypatch, after=after) as killed:
                newer.publish()
            was_killed = bool(killed)
            with crashing:
                newer.is_published()
            newer.is_published()
            assert of_window(root) in (OLD, NEW)
            assert newer.is_published() or newer.exists()
            assert swapped(root) == []
    assert at > 8


@after
def test_a_first_publication_that_is_killed_is_there_or_staged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """It takes one rename, and nothing stands aside."""
    for folder, crashing in crashes(tmp_path, monkeypatch, after=after, least=3):
        output = staged_rows(str(folder), NEW)
        with crashing:
            output.publish()
        assert of_window(str(folder)) in ([], NEW)
        assert output.is_published() or output.exists()
        assert not Path(swap_folder(str(folder))).exists()


# --- what readers see meanwhile --------------------------------------------------------------------


def read_all_the_while(root: str, folder: str, over: Event, told: Queue[Looks]) -> None:
    """In a process of its own: looks at a window until the event is set; tells what it saw."""
    looks: Looks = set()
    while not over.is_set():
        paths = files(root)
        is_one = {os.path.dirname(path) for path in paths} == {folder}
        looks.add((len(paths) if is_one else 0, os.path.exists(folder), tuple(os.listdir(root))))
    told.put(looks)


@pytest.mark.long
def test_readers_see_the_window_at_every_moment_of_a_thousand_replacements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the folder's name, in a listing of the root, and with `files`, which names the files of one attempt."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    root = str(tmp_path / "orders")
    staged_rows(root, [0], attempt=0).publish()
    [folder] = Path(root).glob("window_id=*")
    apart = multiprocessing.get_context("spawn")
    over, told = apart.Event(), apart.Queue()
    reader = apart.Process(target=read_all_the_while, args=(root, str(folder), over, told))
    reader.start()
    try:
        for attempt in range(1, 1_001):
            # One file and two, by turns.
            staged_rows(root, [attempt] * (1 + 2 * (attempt % 2)), attempt=attempt).publish()
        over.set()
        looks = told.get(timeout=60)
    finally:
        reader.kill()
        reader.join()
    assert looks == {(n, True, (folder.name,)) for n in (1, 2)}
    assert named_rows(root) == [1_000]


@pytest.mark.slow
def test_a_look_at_a_folder_is_of_one_attempt_while_it_is_replaced(tmp_path: Path) -> None:
    """Names, sizes and tag: never of a folder that is emptied meanwhile, and never of none."""
    one, other, found = tmp_path / "one", tmp_path / "other", set[object]()
    where, is_over = LocalFiles(), threading.Event()

    def look() -> None:
        while not is_over.is_set():
            found.add(len(where.names(str(one))))
            found.add(tuple(where.sizes(str(one))))
            found.add(tag_in(where, str(one)) in tags)

    def make(folder: Path, tag: str) -> None:
        (folder / f".koo-{tag}").mkdir(parents=True)
        (folder / "part").touch()

    tags = [f"{n:016x}" for n in range(1_000)]
    make(one, tags[0])
    reader = threading.Thread(target=look)
    reader.start()
    try:
        for tag in tags[1:]:
            make(other, tag)
            assert where.exchange(str(one), str(other))
            where.remove(str(other))
    finally:
        is_over.set()
        reader.join()
    assert found == {2, ("part",), True}


# --- exchanging two folders ------------------------------------------------------------------------


def test_two_folders_change_places(tmp_path: Path) -> None:
    """In one step; a name that is not there is an error."""
    for name in ("a", "b"):
        (tmp_path / name / name).mkdir(parents=True)
    assert LocalFiles().exchange(f"{tmp_path}/a", f"{tmp_path}/b")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]
    with pytest.raises(FileNotFoundError):
        LocalFiles().exchange(f"{tmp_path}/a", f"{tmp_path}/nothing")


@pytest.mark.parametrize("number", [38, 22, 95, 1, None])
def test_where_folders_cannot_be_exchanged_the_older_one_goes_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int | None
) -> None:
    """The kernel, the file system, a sandbox or the C library may lack it: the window is replaced all the same."""
    answer = None if number is None else lambda *_: number
    monkeypatch.setattr(disk, "_exchange", lambda: answer)
    root = str(tmp_path / "orders")
    staged_rows(root, OLD, attempt=1).publish()
    assert not LocalFiles().exchange(root, root)
    staged_rows(root, NEW, attempt=2).publish()
    assert of_window(root) == NEW
    assert swapped(root) == []


# --- what stands aside -----------------------------------------------------------------------------


@pytest.fixture(params=[None, DATE])
def crashed(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, StagedOutput, StagedOutput]:
    """A root where attempt 5 was published and attempt 6 died between two renames; attempts 4 and 6, staged."""
    root = str(tmp_path / "orders")
    staged_rows(root, [5], attempt=5, partition=request.param).publish()
    older, newer = (staged_rows(root, [n], attempt=n, partition=request.param) for n in (4, 6))
    die_before_the_last_rename(newer, monkeypatch)
    return root, older, newer


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
    """And keeps what was on its way to readers: it may have been committed."""
    root, older, newer = crashed
    older.discard()
    assert named_rows(root) == [5]
    assert StagedOutput.clean(root, older_than="PT0S") == 0
    newer.publish()
    assert named_rows(root) == [6]


def test_a_stage_that_has_lost_a_file_is_not_published_and_the_older_output_is_there_again(
    crashed: tuple[str, StagedOutput, StagedOutput],
) -> None:
    """What is visible stays as it is, and here it is what was visible before the crash."""
    root, _, newer = crashed
    for path in Path(swap_folder(root)).glob("*/*.parquet"):
        if pq.read_table(path)["n"].to_pylist() == [6]:
            os.remove(path)
    with pytest.raises(SinkError, match="no longer holds what was written"):
        newer.publish()
    assert named_rows(root) == [5]
    [path] = Path(root).glob("**/*.parquet")
    assert pq.read_table(path).column("n").to_pylist() == [5]


def test_an_attempt_that_was_written_again_meanwhile_keeps_its_newer_stage(
    crashed: tuple[str, StagedOutput, StagedOutput], tmp_path: Path
) -> None:
    """What stood aside of the same attempt goes: a stage is one job's, and the later one's."""
    root, _, newer = crashed
    # Written where nobody heals, and put in its place by hand.
    elsewhere = staged_rows(str(tmp_path / "other"), [66], attempt=6, partition=newer.partition)
    os.rename(elsewhere.stage_path, newer.stage_path)
    again = newer.as_found()
    assert again.exists()
    again.publish()
    assert named_rows(root) == [66]
    assert swapped(root) == []


def test_what_another_program_put_in_the_way_stays_and_nothing_is_lost(
    crashed: tuple[str, StagedOutput, StagedOutput], caplog: pytest.LogCaptureFixture
) -> None:
    """In the place of the window: the older output waits until it is free, and other windows are not held up."""
    root, _, newer = crashed
    final = Path(newer.final_path)
    final.mkdir(parents=True)
    (final / "precious").touch()
    with pytest.raises(SinkError, match="is in the way"):
        newer.publish()
    assert "another program's" in caplog.text
    staged_rows(root, [9], window_id="other", partition=newer.partition).publish()
    assert named_rows(root) == [9]
    assert [path.name for path in final.iterdir()] == ["precious"]
    (final / "precious").unlink()
    final.rmdir()
    assert newer.exists()
    assert sorted(named_rows(root)) == [5, 9]


def test_what_is_not_this_package_s_is_left_where_replacements_stand_aside(tmp_path: Path) -> None:
    """A file, a link, and a folder without a readable marker, by whatever name; windows are replaced all the same."""
    root = str(tmp_path / "orders")
    staged_rows(root, OLD, attempt=1).publish()
    [tag] = [path.name.removeprefix(".koo-") for path in Path(root).glob("*/.koo-*")]
    swap, elsewhere = Path(swap_folder(root)), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").touch()
    for name in (f"{tag[:8]}00000000", f"{tag[:8]}00000000~0", "theirs"):
        (swap / name).mkdir(parents=True)
        (swap / name / "precious").touch()
    (swap / "file").touch()
    (swap / f"{tag[:8]}11111111").symlink_to(elsewhere)
    before = sorted(swap.rglob("*"))
    staged_rows(root, NEW, attempt=2).publish()
    assert named_rows(root) == NEW
    assert sorted(swap.rglob("*")) == before
    assert (elsewhere / "precious").exists()


def test_a_link_in_the_place_of_the_folder_for_replacements_is_named(tmp_path: Path) -> None:
    """What is behind it is neither looked at nor changed; the window stays as it is."""
    root = str(tmp_path / "orders")
    staged_rows(root, OLD, attempt=1).publish()
    (tmp_path / "elsewhere").mkdir()
    Path(swap_folder(root)).symlink_to(tmp_path / "elsewhere")
    newer = staged_rows(root, NEW, attempt=2)
    with pytest.raises(SinkError, match=r"swap is in the way: it is a link"):
        newer.publish()
    assert named_rows(root) == OLD
    assert newer.exists()
    assert [*(tmp_path / "elsewhere").iterdir()] == []


def test_a_publisher_at_work_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever finds something on its way while its publisher is alive lets that one end, and changes nothing."""
    cannot_exchange(monkeypatch)
    root = str(tmp_path / "orders")
    staged_rows(root, OLD, attempt=1).publish()
    newer = staged_rows(root, NEW, attempt=2)
    rename, is_between, go_on = LocalFiles.rename, threading.Event(), threading.Event()

    def slow(files: LocalFiles, source: str, to: str) -> None:
        if to == newer.final_path:
            is_between.set()
            assert go_on.wait(30)
        rename(files, source, to)

    monkeypatch.setattr(LocalFiles, "rename", slow)
    publishing = threading.Thread(target=newer.publish)
    publishing.start()
    assert is_between.wait(30)
    looks = list[bool]()
    looking = threading.Thread(target=lambda: looks.append(newer.is_published()))
    looking.start()
    looking.join(0.3)
    assert looking.is_alive()
    go_on.set()
    publishing.join()
    looking.join()
    assert looks == [True]
    assert of_window(root) == NEW
