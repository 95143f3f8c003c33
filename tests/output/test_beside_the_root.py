"""What readers must not see is beside the root: whatever reads it finds published rows, and only those."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops.core.errors import ConfigError, SinkError, WindowSupersededError
from kafka_ordered_ops.core.window.plan import PlanPart
from kafka_ordered_ops.output.cleaning import leftovers
from kafka_ordered_ops.output.draft import Draft, drafts_of
from kafka_ordered_ops.output.filesystem import MARKER_NAME, TAG_PREFIX
from kafka_ordered_ops.output.published import files
from kafka_ordered_ops.output.staged_output import StagedOutput
from kafka_ordered_ops.spark.job_checks import check_writable
from tests.support.stages import control_of, stages_of

Read = Callable[[str], list[Any]]

READS: dict[str, Read] = {
    "pandas root": lambda root: pd.read_parquet(root)["n"].tolist(),
    "pyarrow root": lambda root: pq.read_table(root)["n"].to_pylist(),
    "pyarrow dataset": lambda root: ds.dataset(root, partitioning="hive").to_table()["n"].to_pylist(),
    **{
        f"polars {glob or 'root'}": lambda root, glob=glob: (  # type: ignore[misc]
            pl.scan_parquet(root + glob).collect()["n"].to_list()
        )
        for glob in ("", "/**/*.parquet", "/*/*.parquet", "/**/*", "/*/*")
    },
    **{
        f"duckdb {glob}": lambda root, glob=glob: (  # type: ignore[misc]
            [n for (n,) in duckdb.execute(f"SELECT n FROM read_parquet('{root}{glob}')").fetchall()]
        )
        for glob in ("/**/*.parquet", "/*/*.parquet", "/**", "/*/*")
    },
}  # fmt: skip


def written(root: Path, window_id: str, numbers: list[int], attempt: int = 1) -> StagedOutput:
    """A complete stage, with the files that Spark writes beside its data on a local disk."""
    output = StagedOutput(str(root), window_id, "c", attempt, group_id="g")
    with drafts_of([output]) as (draft,):
        for at, number in enumerate(numbers):
            pq.write_table(pa.table({"n": [number]}), f"{draft.path}/part-{at:05d}.parquet")
            Path(draft.path, f".part-{at:05d}.parquet.crc").write_bytes(b"crc\0")
        Path(draft.path, "_SUCCESS").touch()
        return draft.seal({"records": len(numbers), "files": len(numbers)})


def as_by_an_earlier_version(output: StagedOutput) -> None:
    """Makes a published output one of an earlier version, whose marker was among the files."""
    final = Path(output.final_path)
    [tag] = final.glob(f"{TAG_PREFIX}*")
    marker = control_of(Path(output.root)) / "windows" / f"{tag.name.removeprefix(TAG_PREFIX)}.json"
    marker.rename(final / MARKER_NAME)
    tag.rmdir()


def stages_as_by_an_earlier_version(root: Path) -> Path:
    """Puts all stages where earlier versions had them; gives that folder."""
    stages_of(root).rename(root / ".koo-stage")
    return root / ".koo-stage"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A root with two published windows, a complete stage of a third, and a draft that is being written."""
    root = tmp_path / "lake" / "orders"
    written(root, "a", [1, 2]).publish()
    written(root, "b", [3]).publish()
    written(root, "c", [99])
    draft = Draft(StagedOutput(str(root), "d", "c", 1, group_id="g"))
    draft.make()
    pq.write_table(pa.table({"n": [98]}), f"{draft.path}/part-00000.parquet")
    return root


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_every_reader_sees_the_published_rows(lake: Path, read: Read) -> None:
    """While other attempts have stages: by the root, and by any glob over it."""
    assert sorted(read(str(lake))) == [1, 2, 3]
    assert [path.suffix for path in lake.rglob("*") if path.is_file()] == [".parquet"] * 3


def test_readers_see_whole_windows_while_they_are_published_and_replaced(tmp_path: Path) -> None:
    """A file may go between listing and reading, which is the reader's error; no reader meets anything else."""
    root = tmp_path / "orders"
    written(root, "a", [0]).publish()
    seen: set[tuple[int, ...]] = set()

    def publish() -> None:
        for attempt in range(1, 11):
            written(root, "b", [attempt], attempt).publish()

    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(publish)
        while not publishing.done():
            try:
                seen.add(tuple(sorted(pl.scan_parquet(root).collect()["n"].to_list())))
            except (OSError, pl.exceptions.ComputeError) as error:
                if "No such file" not in str(error):
                    raise
            assert {Path(name).name for name in files(root)} == {"part-00000.parquet"}
        publishing.result()
    assert seen <= {(0,), *((0, n) for n in range(1, 11))}
    assert len(seen) > 1
    assert pl.scan_parquet(root).collect()["n"].sort().to_list() == [0, 10]


def test_a_lake_that_is_copied_as_a_whole_stays_readable(lake: Path, tmp_path: Path) -> None:
    """What is beside the root comes along. Without it, `files` names what is missing and reads nothing."""
    shutil.copytree(lake.parent, tmp_path / "copy")
    assert len(files(tmp_path / "copy" / "orders")) == 3
    shutil.copytree(lake, tmp_path / "alone" / "orders")
    with pytest.raises(SinkError, match="moved without its marker"):
        files(tmp_path / "alone" / "orders")
    output = StagedOutput(str(tmp_path / "alone" / "orders"), "a", "c", 1, group_id="g")
    with pytest.raises(SinkError, match="moved without its marker"):
        Draft(output).make()


# --- what earlier versions left -----------------------------------------------------------------


def test_an_output_of_an_earlier_version_is_found_and_replaced(lake: Path) -> None:
    """Its marker is among its files. It counts as published, is not written again, and a replay takes its place."""
    output = StagedOutput(str(lake), "a", "c", 1, group_id="g")
    as_by_an_earlier_version(output)
    assert output.is_published()
    assert StagedOutput.found(output.to_json()) is not None
    assert len(files(lake, ["a"])) == 2
    output.publish()
    with pytest.raises(WindowSupersededError):
        written(lake, "a", [7], attempt=0).publish()
    written(lake, "a", [5], attempt=2).publish()
    assert not Path(output.final_path, MARKER_NAME).exists()
    assert sorted(pl.scan_parquet(lake).collect()["n"].to_list()) == [3, 5]


def test_an_output_of_an_earlier_version_is_another_group_s_as_before(lake: Path) -> None:
    """Who owns it is in its marker."""
    as_by_an_earlier_version(StagedOutput(str(lake), "a", "c", 1, group_id="g"))
    with pytest.raises(SinkError, match="of group g"):
        Draft(StagedOutput(str(lake), "a", "other", 1, group_id="h")).make()


@pytest.mark.parametrize("step", ["publish", "deliver", "discard"])
def test_a_stage_of_an_earlier_version_is_finished(tmp_path: Path, step: str) -> None:
    """A window that was written before the update is published, or given up, and nothing is left in the root."""
    root = tmp_path / "orders"
    output, other = written(root, "a", [1]), written(root, "b", [2])
    old = stages_as_by_an_earlier_version(root)
    if step == "discard":
        output.discard()
        assert not output.exists()
        assert not output.is_published()
    else:
        found = StagedOutput.found(output.to_json()) if step == "deliver" else output
        assert found is not None
        found.check_ready()
        found.publish()
        assert sorted(pl.scan_parquet(output.final_path).collect()["n"].to_list()) == [1]
    # Another window's stage stays until its own turn.
    assert [path.name for path in old.glob("*/*")] == ["c-1"]
    other.publish()
    assert not old.exists()
    assert other.is_published()


def test_a_publish_that_an_earlier_version_did_not_end_is_given_up_or_ended(tmp_path: Path) -> None:
    """Its older output was aside when it was killed: it comes back, or goes."""
    for step in ("discard", "publish"):
        root = tmp_path / step
        older = written(root, "a", [1])
        older.publish()
        as_by_an_earlier_version(older)
        newer = written(root, "a", [2], attempt=2)
        old = stages_as_by_an_earlier_version(root)
        os.rename(older.final_path, old / Path(older.window_folder).name / ".replaced")
        getattr(newer, step)()
        assert newer.is_published() is (step == "publish")
        assert older.is_published() is (step == "discard")


def test_parts_of_an_earlier_version_are_joined(tmp_path: Path) -> None:
    """Also one part of it and one of this version."""
    root, parts = tmp_path / "orders", []
    for index in (0, 1):
        part = PlanPart(index=index, count=2)
        output = StagedOutput(str(root), "a", "c", 1, part, group_id="g")
        with drafts_of([output]) as (draft,):
            pq.write_table(pa.table({"n": [index]}), f"{draft.path}/part-00000.parquet")
            parts.append(draft.seal({"records": 1, "files": 1}))
        if index == 0:
            stages_as_by_an_earlier_version(root)
    StagedOutput.merged(parts).publish()
    assert sorted(pl.scan_parquet(root).collect()["n"].to_list()) == [0, 1]


def test_a_job_of_an_earlier_version_that_still_writes_is_left_alone(tmp_path: Path) -> None:
    """Its draft stays where it writes, until the window is published."""
    root = tmp_path / "orders"
    output = written(root, "a", [1])
    draft = Draft(output)
    draft.make()
    name = Path(draft.path).name
    old = stages_as_by_an_earlier_version(root)
    assert output.exists()
    assert [path.name for path in old.glob("*/*")] == [name]
    output.publish()
    assert not old.exists()


def test_what_an_earlier_version_left_is_cleaned(tmp_path: Path) -> None:
    """With what this version leaves: the stage of a publication that was killed has its marker elsewhere."""
    root = tmp_path / "orders"
    for window_id in ("old", "both"):
        written(root, window_id, [1])
    stages_as_by_an_earlier_version(root)
    killed = written(root, "both", [1], attempt=2)
    marker, windows = Path(killed.stage_path, MARKER_NAME), control_of(root) / "windows"
    windows.mkdir()
    Path(killed.stage_path, f"{TAG_PREFIX}{'0' * 16}").mkdir()
    marker.rename(windows / f"{'0' * 16}.json")
    assert killed.exists()
    found = leftovers(root).found()
    assert [(one.attempt, one.group_id) for one in found] == [
        ("c-1", "g"),
        ("c-2", "g"),
        ("c-1", "g"),
    ]
    assert StagedOutput.clean(root, older_than=timedelta(0)) > 0
    assert leftovers(root).found() == []
    assert [*windows.iterdir()] == []
    assert [path.name for path in root.rglob("*")] == [".koo-stage", ".lock"]


# --- roots that cannot be ------------------------------------------------------------------------


@pytest.mark.parametrize("root", ["/", "file:///", "/lake/.koo"])
def test_a_root_without_a_place_beside_it_is_refused(root: str) -> None:
    """Before anything is planned: the root of the file system, and this package's own folder."""
    for check in (check_writable, lambda root: StagedOutput(root, "w", "c", 1)):
        with pytest.raises(ConfigError, match="stored beside the root"):
            check(root)


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """What renaming a folder into the root answers."""
    answer: dict[str, int] = {}
    rename = os.rename

    def renaming(source: str, target: str) -> None:
        if answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]))
        rename(source, target)

    monkeypatch.setattr(os, "rename", renaming)
    return answer


def test_a_root_where_a_file_system_is_mounted_is_refused(
    tmp_path: Path, moves: dict[str, int]
) -> None:
    """What is written beside it could not be moved into it; a folder below it will do. Nothing is left."""
    (tmp_path / "mount").mkdir()
    moves["errno"] = errno.EXDEV
    with pytest.raises(ConfigError, match=r"another file system.*Name a folder below"):
        check_writable(tmp_path / "mount")
    moves["errno"] = errno.EACCES
    with pytest.raises(ConfigError, match="Permission denied"):
        check_writable(tmp_path / "mount")
    moves.clear()
    check_writable(tmp_path / "mount" / "orders")
    assert [path.name for path in tmp_path.rglob("*")] == ["mount"]


def test_a_folder_beside_the_root_that_is_none_is_refused(tmp_path: Path) -> None:
    """Named, before anything is planned."""
    (tmp_path / ".koo").touch()
    with pytest.raises(ConfigError, match="stored beside it"):
        check_writable(tmp_path / "orders")


def test_who_may_write_beside_a_root_may_write_beside_the_next(tmp_path: Path) -> None:
    """The folder that roots share has the rights of the one that it is in."""
    tmp_path.chmod(0o2775)
    written(tmp_path / "orders", "a", [1])
    assert os.stat(tmp_path / ".koo").st_mode & 0o7777 == 0o2775
    assert os.stat(tmp_path / ".koo" / "orders").st_mode & 0o777 == 0o755


def test_a_link_and_its_folder_have_one_place(tmp_path: Path) -> None:
    """Whoever publishes by one name is seen, and kept out, by the other."""
    (tmp_path / "disk" / "orders").mkdir(parents=True)
    (tmp_path / "orders").symlink_to(tmp_path / "disk" / "orders")
    check_writable(tmp_path / "orders")
    written(tmp_path / "orders", "a", [1]).publish()
    assert len(files(tmp_path / "disk" / "orders")) == 1
    assert not (tmp_path / ".koo").exists()
