"""What readers must not see is beside the root: whatever reads it finds published rows, and only those."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops import ConfigError, SinkError, StagedOutput
from kafka_ordered_ops.output import files
from kafka_ordered_ops.output.writing.draft import Draft, drafts_of
from kafka_ordered_ops.spec.writable import check_writable

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
