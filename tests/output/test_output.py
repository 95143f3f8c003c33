"""Staging and publishing a window's files, with a crash between any two steps."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops import (
    ConfigError,
    OutputOwnedError,
    SinkError,
    StagedOutput,
    WindowSupersededError,
)
from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.strict_json import JsonError
from kafka_ordered_ops.output import filesystem as files_module
from kafka_ordered_ops.output.filesystem import MARKER_NAME, LocalFiles, in_name_order, normal_root
from kafka_ordered_ops.output.published import published
from kafka_ordered_ops.output.writing.draft import Draft, drafts_of
from tests.support.spark_support import crashes
from tests.support.stages import control_of, stages_of
from tests.support.swaps import exchanges as exchanges

WINDOW = "2026-11-20T11-00-00Z@a~b.c"


def staged(
    root: Path,
    attempt: int,
    *,
    claim: str = "c1",
    rows: int | None = None,
    replaces: tuple[str, ...] = (),
) -> StagedOutput:
    """A complete stage whose one file says which attempt wrote it."""
    output = StagedOutput(str(root), WINDOW, claim, attempt, replaces=replaces)
    with drafts_of([output]) as (draft,):
        (Path(draft.path) / "part-00000.txt").write_text(f"{claim}-{attempt}")
        facts = {"records": attempt if rows is None else rows, "timestamp_ms_min": None}
        return draft.seal(facts)


def visible(output: StagedOutput) -> str | None:
    """What readers see."""
    path = Path(output.final_path) / "part-00000.txt"
    return path.read_text() if path.exists() else None


def leftovers(root: Path) -> list[str]:
    """What is left below the stage folder."""
    return sorted(
        str(path.relative_to(stages_of(root)))
        for path in stages_of(root).rglob("*")
        if path.name != ".lock"
    )


def test_a_stage_exists_only_once_its_marker_is_written(tmp_path: Path) -> None:
    """Files without a marker are an attempt that did not end."""
    output = StagedOutput(str(tmp_path), WINDOW, "c1", 1)
    assert not output.exists()
    draft = Draft(output)
    draft.make()
    (Path(draft.path) / "part-00000.txt").write_text("half")
    assert not output.exists()
    draft.seal({"records": 1})
    assert not output.exists()
    draft.land()
    assert output.exists()


def test_two_jobs_of_one_attempt_do_not_mix(tmp_path: Path) -> None:
    """Each has its own files; the stage is one job's, whole, and the later one's; who fails takes nothing along."""
    output = StagedOutput(str(tmp_path), WINDOW, "c1", 1)
    first, second, third = Draft(output), Draft(output), Draft(output)
    for draft, names in ((first, "ab"), (second, "bc"), (third, "d")):
        draft.make()
        for name in names:
            (Path(draft.path) / f"part-{name}.txt").write_text(draft.token)
    first.seal({"records": 1})
    first.land()
    third.drop()
    assert output.as_found().facts == {"records": 1}
    sealed = second.seal({"records": 2})
    second.land()
    second.drop()
    sealed.publish()
    found = {path.name: path.read_text() for path in Path(output.final_path).glob("part-*")}
    assert found == {"part-b.txt": second.token, "part-c.txt": second.token}
    assert leftovers(tmp_path) == []


def test_a_job_that_ends_after_the_publish_shows_nothing_more(tmp_path: Path) -> None:
    """What a job has begun is removed by whoever publishes; a part of its records is never complete."""
    output = staged(tmp_path, 1)
    late = Draft(output)
    late.make()
    output.publish()
    assert leftovers(tmp_path) == []
    # As a task of Spark's does, that knows nothing of it.
    Path(late.path).mkdir(parents=True)
    (Path(late.path) / "part-00001.txt").write_text("late")
    with pytest.raises(SinkError, match="was removed while"):
        late.seal({"records": 1})
    late.drop()
    assert visible(output) == "c1-1"
    assert leftovers(tmp_path) == []


def test_a_draft_that_lands_and_crashes_leaves_a_stage_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two steps: whole, if it is there; the next job's takes its place."""
    for root, crashing in crashes(tmp_path, monkeypatch, after=False, least=3):
        output = staged(root, 1, rows=1)
        draft = Draft(output)
        draft.make()
        (Path(draft.path) / "part-00000.txt").write_text("again")
        draft.seal({"records": 2})
        with crashing:
            draft.land()
        if output.exists():
            assert output.as_found().facts["records"] in (1, 2)
        staged(root, 1, rows=3).publish()
        assert visible(output) == "c1-1"
        assert leftovers(root) == []


def test_publish_makes_the_files_visible_and_leaves_no_stage(tmp_path: Path) -> None:
    """The final folder has the files and an empty folder; the marker is outside the root, and nothing else is left."""
    output = staged(tmp_path, 1)
    assert visible(output) is None
    output.publish()
    assert visible(output) == "c1-1"
    assert output.is_published()
    assert not output.exists()
    assert leftovers(tmp_path) == []
    files = [path.name for path in tmp_path.rglob("*") if not path.is_dir()]
    assert files == ["part-00000.txt"]
    [path] = (control_of(tmp_path) / "windows").iterdir()
    marker = json.loads(path.read_text())
    assert marker["window_id"] == WINDOW
    assert marker["facts"] == {"records": 1, "timestamp_ms_min": None}


def test_publish_twice_is_publish_once(tmp_path: Path) -> None:
    """The second publish finds the marker and changes nothing."""
    output = staged(tmp_path, 1)
    output.publish()
    before = os.stat(output.final_path)
    output.publish()
    assert os.stat(output.final_path) == before


def test_publish_from_what_the_ledger_keeps(tmp_path: Path) -> None:
    """The JSON form is enough to publish from another process and working folder."""
    text = strict_json.dumps(staged(tmp_path, 1).to_json())
    again = StagedOutput.from_json(strict_json.loads(text, limit_bytes=9999))
    again.publish()
    assert visible(again) == "c1-1"


def test_a_newer_attempt_replaces_an_older_output(tmp_path: Path) -> None:
    """Replaying a published window puts the new files in place of the old ones."""
    staged(tmp_path, 1).publish()
    abandoned = staged(tmp_path, 2)
    newer = staged(tmp_path, 3)
    newer.publish()
    assert visible(newer) == "c1-3"
    assert not abandoned.exists()
    assert leftovers(tmp_path) == []


def test_an_older_attempt_never_replaces_a_newer_output(tmp_path: Path) -> None:
    """A zombie that publishes late is told that it was superseded."""
    older, newer = staged(tmp_path, 1), staged(tmp_path, 2)
    newer.publish()
    older = staged(tmp_path, 1)
    with pytest.raises(WindowSupersededError, match="attempt 1"):
        older.publish()
    assert visible(newer) == "c1-2"


def test_an_older_attempt_whose_stage_is_gone_is_told_why(tmp_path: Path) -> None:
    """Whoever published removed it: nothing was lost, and nothing is to be done."""
    older, newer = staged(tmp_path, 1), staged(tmp_path, 2)
    newer.publish()
    assert not older.exists()
    with pytest.raises(WindowSupersededError, match="There is nothing to do"):
        older.publish()
    assert visible(newer) == "c1-2"


def test_publishing_leaves_the_stage_of_a_newer_attempt_alone(tmp_path: Path) -> None:
    """An attempt that is still writing is not pulled from under its job."""
    older, newer = staged(tmp_path, 1), staged(tmp_path, 2)
    older.publish()
    assert newer.exists()
    newer.publish()
    assert visible(newer) == "c1-2"


def test_a_later_claim_replaces_the_output_whatever_its_attempt(tmp_path: Path) -> None:
    """Attempts are counted per claim: a window planned again starts at one again, and names its earlier claims."""
    staged(tmp_path, 7, claim="c1").publish()
    with pytest.raises(OutputOwnedError):
        staged(tmp_path, 1, claim="c3")
    output = staged(tmp_path, 1, claim="c2", replaces=("c1",))
    output.publish()
    assert visible(output) == "c2-1"


def test_the_same_attempt_written_and_published_again_replaces_itself(tmp_path: Path) -> None:
    """Facts are part of what is compared: the last write of an attempt wins."""
    staged(tmp_path, 1, rows=10).publish()
    again = staged(tmp_path, 1, rows=11)
    again.publish()
    [path] = (control_of(tmp_path) / "windows").iterdir()
    assert json.loads(path.read_text())["facts"]["records"] == 11
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("after", [False, True])
def test_publish_after_a_crash_at_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool, exchanges: bool
) -> None:
    """Wherever a publish dies, readers see old or new; nothing, too, where folders cannot be exchanged; in the end the new."""
    for root, crashing in crashes(tmp_path, monkeypatch, after=after, least=5):
        staged(root, 1).publish()
        staged(root, 2)
        output = staged(root, 3)
        with crashing:
            output.publish()
        assert visible(output) in ("c1-1", "c1-3", *([] if exchanges else [None]))
        assert [*published(root)] == ([] if visible(output) is None else [WINDOW])
        # What is seen is told by its marker, and counts as published, or the stage is there.
        assert output.is_published() is (visible(output) == "c1-3")
        assert output.is_published() or output.exists()
        assert all(path.suffix == ".txt" for path in root.rglob("*") if not path.is_dir())
        assert StagedOutput.found(output.to_json()) is not None
        output.publish()
        assert visible(output) == "c1-3"
        assert leftovers(root) == []
        assert len(list((control_of(root) / "windows").iterdir())) == 1


@pytest.mark.parametrize("after", [False, True])
def test_discard_after_a_crash_brings_the_older_output_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool, exchanges: bool
) -> None:
    """A publish that died anywhere and is then given up leaves one output, whole, and no more than its marker."""
    seen = set()
    for root, crashing in crashes(tmp_path, monkeypatch, after=after, least=6):
        older = staged(root, 1)
        older.publish()
        output = staged(root, 2)
        with crashing:
            output.publish()
        was = visible(output)
        output.discard()
        output.discard()
        seen.add((was, visible(output)))
        assert older.is_published() is (visible(output) == "c1-1")
        assert output.is_published() is (visible(output) == "c1-2")
        assert not output.exists()
        tags = {path.name for place in (root, control_of(root)) for path in place.rglob(".koo-*")}
        markers = (control_of(root) / "windows").iterdir()
        assert {f".koo-{path.stem}" for path in markers} <= tags
    between = set() if exchanges else {(None, "c1-1")}
    assert seen == {("c1-1", "c1-1"), ("c1-2", "c1-2"), *between}


def test_publish_without_stage_and_output_names_both_and_the_cure(tmp_path: Path) -> None:
    """Files that are gone are an error with facts, not an empty window."""
    output = staged(tmp_path, 1)
    output.discard()
    with pytest.raises(
        SinkError, match=r"no complete stage of attempt 1.*Replay the window"
    ) as raised:
        output.publish()
    assert raised.value.facts["claim_id"] == "c1"


def test_a_folder_of_somebody_else_is_never_replaced(tmp_path: Path) -> None:
    """Files without our marker in the window's place stop the publish."""
    output = staged(tmp_path, 1)
    Path(output.final_path).mkdir()
    (Path(output.final_path) / "precious").write_text("x")
    with pytest.raises(SinkError, match="in the way"):
        output.publish()
    assert output.exists()


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b"null", b'{"version":2}'])
def test_a_damaged_marker_is_no_marker(tmp_path: Path, content: bytes) -> None:
    """Whatever stands in the marker file, it never raises and never counts as ours."""
    output = staged(tmp_path, 1)
    (Path(output.stage_path) / MARKER_NAME).write_bytes(content)
    assert not output.exists()


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    """Discarding a stage that holds a link leaves the link's target alone."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    output = staged(tmp_path / "root", 1)
    (Path(output.stage_path) / "link").symlink_to(outside)
    output.discard()
    assert (outside / "precious").exists()


def test_concurrent_publishers_agree(tmp_path: Path) -> None:
    """Several processes that publish the same output at once all succeed."""
    staged(tmp_path, 1).publish()
    output, errors = staged(tmp_path, 2), []

    def publish() -> None:
        try:
            output.publish()
        except SinkError as error:
            errors.append(error)

    threads = [threading.Thread(target=publish) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert visible(output) == "c1-2"


def test_a_lock_that_is_never_freed_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting for another publisher has an end, and says for what it waited."""
    monkeypatch.setattr(files_module, "LOCK_WAIT_S", 0.1)
    output = staged(tmp_path, 1)
    folder = str(stages_of(tmp_path))
    with LocalFiles().locked(folder), pytest.raises(SinkError, match=r"\.lock"):
        output.publish()
    output.publish()


def test_the_stage_is_hidden_from_dataset_discovery(tmp_path: Path) -> None:
    """A reader of the root sees published windows only, and no marker as data."""
    for attempt, claim in ((1, "published"), (1, "staged")):
        output = StagedOutput(str(tmp_path), claim, claim, attempt)
        with drafts_of([output]) as (draft,):
            pq.write_table(pa.table({"claim": [claim]}), f"{draft.path}/part-00000.parquet")
            output = draft.seal({})
        if claim == "published":
            output.publish()
    table = ds.dataset(tmp_path, format="parquet", partitioning="hive").to_table()
    assert table["claim"].to_pylist() == ["published"]


@pytest.mark.parametrize(("umask", "rights"), [(0o022, 0o755), (0o077, 0o700), (0o002, 0o775)])
def test_folders_have_the_rights_that_the_umask_leaves(
    tmp_path: Path, umask: int, rights: int
) -> None:
    """Readers, and a group that shares the root, are let in or kept out as the worker's umask says."""
    old = os.umask(umask)
    try:
        output = staged(tmp_path / "table", 1)
        output.publish()
    finally:
        os.umask(old)
    for folder in (output.final_path, output.root, output.stages_folder):
        assert os.stat(folder).st_mode & 0o777 == rights


def test_nobody_else_may_write_whatever_the_umask(tmp_path: Path) -> None:
    """A worker without a umask lets its group in, and not everybody."""
    old = os.umask(0)
    try:
        output = staged(tmp_path / "table", 1)
    finally:
        os.umask(old)
    for folder, _, _ in os.walk(control_of(tmp_path / "table")):
        assert os.stat(folder).st_mode & 0o777 == 0o775
    output.publish()


def test_a_failing_file_system_is_a_sink_error(tmp_path: Path) -> None:
    """The system's own error is kept as the cause."""
    (tmp_path / "file").write_text("")
    output = StagedOutput(str(tmp_path / "file"), WINDOW, "c1", 1)
    with pytest.raises(SinkError, match="cannot be created") as raised:
        Draft(output).make()
    assert isinstance(raised.value.__cause__, OSError)


@pytest.mark.parametrize(
    ("given", "root"),
    [
        ("/a/b/../c/", "/a/c"),
        ("file:/a/b%20c", "/a/b c"),
        ("file:///a/b", "/a/b"),
        ("relative", os.path.abspath("relative")),
        ("s3a://lake/orders/", "s3://lake/orders"),
    ],
)
def test_a_root_has_one_name(given: str, root: str) -> None:
    """A window is published by other processes: the root is kept absolute."""
    assert normal_root(given) == root


def test_a_root_without_atomic_rename_is_refused_before_anything_is_written() -> None:
    """Neither a file system that is mounted nor a store that is known; the error shows the way with a sink of one's own."""
    output = StagedOutput("ftp://lake/orders", WINDOW, "c1", 1)
    with pytest.raises(ConfigError, match="your own sink"):
        Draft(output).make()


@pytest.mark.parametrize(("claim", "attempt"), [("", 1), ("../up", 1), (".hidden", 1), ("c1", -1)])
def test_names_that_could_leave_the_root_are_refused(claim: str, attempt: int) -> None:
    """A claim id is part of a path, and the ledger it comes from is read as untrusted."""
    with pytest.raises(ConfigError):
        StagedOutput("/root", WINDOW, claim, attempt)


@pytest.mark.parametrize("facts", [[], {"records": "1"}, {"records": True}])
def test_output_json_is_read_strictly(facts: object) -> None:
    """What the ledger holds is read as it was written, or not at all."""
    value = {**StagedOutput("/root", WINDOW, "c1", 1).to_json(), "facts": facts}
    with pytest.raises(JsonError):
        StagedOutput.from_json(value)


@pytest.mark.parametrize(("tasks", "files"), [(1, 1_001), (2, 1_000), (100_001, 1)])
def test_files_are_in_the_order_of_their_rows_by_name(tasks: int, files: int) -> None:
    """However many a task has written, and however many tasks there were: Spark's own names grow wider."""
    names = [
        f"part-{task:05d}-0ab1-9-c{number:03d}.zstd.parquet"
        for task in range(max(0, tasks - 3), tasks)
        for number in range(max(0, files - 3), files)
    ]
    wider = in_name_order(names)
    named = [wider.get(name, name) for name in names]
    assert named == sorted(named)
    assert len(set(named)) == len(names)
    assert (files > 1_000 or tasks > 100_000) == bool(wider)


def test_a_stage_s_files_are_renamed_where_spark_has_numbered_more_than_a_thousand(
    tmp_path: Path,
) -> None:
    """Whoever reads them by name reads the rows in order."""
    place = StagedOutput(str(tmp_path / "orders"), "w", "c1", 1, group_id="g")
    with drafts_of([place]) as (draft,):
        for number in (9, 998, 999, 1_000, 1_001):
            name = f"part-00000-0ab1-c{number:03d}.zstd.parquet"
            pq.write_table(pa.table({"n": [number]}), f"{draft.path}/{name}")
        draft.seal({"records": 5})
    place.publish()
    files = sorted(Path(place.final_path).glob("*.parquet"))
    assert [pq.read_table(one)["n"][0].as_py() for one in files] == [9, 998, 999, 1_000, 1_001]
