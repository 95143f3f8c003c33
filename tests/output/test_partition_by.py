"""Folders of dates and hours above the windows': in every kind of root, from every crash, and one kind for all windows."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow.dataset as ds
import pytest

from kafka_ordered_ops import (
    ConfigError,
    Folder,
    OrderedWindows,
    SinkError,
    StagedOutput,
    Window,
    WindowSupersededError,
    stage_window,
)
from kafka_ordered_ops.core.window.plan import PlanPart
from kafka_ordered_ops.output import files
from kafka_ordered_ops.output.filesystem import LocalFiles
from kafka_ordered_ops.output.hdfs import turn
from kafka_ordered_ops.output.objects import publisher
from kafka_ordered_ops.output.published import published
from kafka_ordered_ops.output.writing.draft import drafts_of
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support import hdfs_support, objects_support
from tests.support.hdfs_support import memory_hdfs as memory_hdfs
from tests.support.objects_support import every_kill, named_rows, staged_rows, step
from tests.support.objects_support import memory as memory
from tests.support.objects_support import server as server
from tests.support.stages import stages_of

MakeRoot = Callable[[], str]

#: 2026-11-20T10:00Z
TEN_MS = 1_795_168_800_000
EARLY, LATE = "date=2026-11-20/hour=10", "date=2026-11-20/hour=11"
OLD, NEW = [1, 2, 3], [4, 5, 6, 7, 8]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has a turn in HDFS is dead, and publishers in a store do not wait for each other."""
    monkeypatch.setattr(turn, "LOST_AFTER_S", 0.0)
    monkeypatch.setattr(turn, "_POLL_S", 0.0)
    monkeypatch.setattr(publisher, "_PAUSE_S", 0.0)


@pytest.fixture(params=["local", "store", "hdfs"])
def make_root(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    memory: MakeRoot,
    memory_hdfs: MakeRoot,
) -> MakeRoot:
    """Makes fresh roots of each kind, in which a process may die before any change."""
    if request.param != "local":
        return memory if request.param == "store" else memory_hdfs
    for name in ("rename", "exchange", "remove", "make_folder", "write"):
        monkeypatch.setattr(LocalFiles, name, _stepped(getattr(LocalFiles, name)))
    # Every crash here is a process's, and the disk is others', too.
    monkeypatch.setattr(os, "fsync", lambda _: None)
    roots = (str(tmp_path / f"{n}" / "orders") for n in range(1000))
    return lambda: next(roots)


def _stepped(original: Callable[..., Any]) -> Callable[..., Any]:
    def one(*arguments: Any, **keywords: Any) -> Any:
        step("put")
        return original(*arguments, **keywords)

    return one


def globbed(root: str) -> list[int]:
    """What a reader of ``root/**/*.parquet`` sees."""
    if root.startswith("s3://"):
        return objects_support.globbed_rows(root)
    if root.startswith("hdfs://"):
        return hdfs_support.globbed_rows(root)
    paths = sorted(map(str, Path(root).glob("**/*.parquet")))
    return objects_support.rows_in(root, paths)


def left_over(root: str) -> list[str]:
    """What is in all stages of a root."""
    if root.startswith("s3://"):
        return objects_support.staged_names(root)
    if root.startswith("hdfs://"):
        return hdfs_support.staged_names(root)
    return [str(one) for one in stages_of(Path(root)).rglob("*") if one.name != ".lock"]


def folders_of(root: str) -> set[str]:
    """The folders above windows', of the files that readers see."""
    below = (path.removeprefix(f"{root}/") for path in files(root))
    return {path.rpartition("window_id=")[0].rstrip("/") for path in below}


# --- every crash point ----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_replacement_that_is_killed_anywhere_is_finished_by_the_next(make_root: MakeRoot) -> None:
    """Readers see the old rows, for an instant none, or the new ones; in the end these, and nothing is left."""
    for killed in every_kill(least=5):
        root = make_root()
        staged_rows(root, OLD, attempt=1, partition=EARLY).publish()
        staged_rows(root, [9], window_id="other", partition=LATE).publish()
        staged = staged_rows(root, NEW, attempt=2, partition=EARLY)
        with killed:
            staged.publish()
        assert published_rows(root, "w") in (OLD, [], NEW)
        found = StagedOutput.found(staged.to_json())
        assert found is not None
        found.check_ready()
        found.publish()
        assert published_rows(root, "w") == NEW
        assert sorted(globbed(root)) == [*NEW, 9]
        assert left_over(root) == []


def published_rows(root: str, window_id: str) -> list[int]:
    """The rows of one window."""
    return objects_support.rows_in(root, published(root).get(window_id, []))


@pytest.mark.slow
def test_a_window_that_comes_to_another_date_is_never_there_twice(make_root: MakeRoot) -> None:
    """It was forgotten, say, and its id was given to a window of other times."""
    for killed in every_kill(least=5):
        root = make_root()
        staged_rows(root, OLD, attempt=1, partition="date=2026-11-19/hour=23").publish()
        staged = staged_rows(root, NEW, attempt=2, partition=EARLY)
        with killed:
            staged.publish()
        assert named_rows(root) in (OLD, [], NEW)
        staged.publish()
        assert named_rows(root) == globbed(root) == NEW
        assert folders_of(root) == {EARLY}
        assert left_over(root) == []


@pytest.mark.slow
def test_what_a_killed_publisher_left_goes_when_another_attempt_comes_to_another_date(
    make_root: MakeRoot,
) -> None:
    """The next publisher looks into its own folder only, and must be told of the other one."""
    for before in ([], OLD):
        for killed in every_kill(least=3):
            root = make_root()
            if before:
                staged_rows(root, before, attempt=1, partition="date=2026-11-19/hour=23").publish()
            staged = staged_rows(root, [9], attempt=2, partition=LATE)
            with killed:
                staged.publish()
            staged_rows(root, NEW, attempt=3, partition=EARLY).publish()
            assert named_rows(root) == globbed(root) == NEW
            assert folders_of(root) == {EARLY}
            assert left_over(root) == []


def test_an_attempt_that_comes_too_late_is_told_so_wherever_the_newer_one_is(
    make_root: MakeRoot,
) -> None:
    """The older one was for another date."""
    root = make_root()
    older = staged_rows(root, OLD, attempt=1, partition=LATE)
    staged_rows(root, NEW, attempt=2, partition=EARLY).publish()
    for call in (older.check_ready, older.publish):
        with pytest.raises(WindowSupersededError, match=EARLY):
            call()
    assert globbed(root) == NEW


def test_a_discard_after_a_crash_puts_a_window_back_where_it_was(make_root: MakeRoot) -> None:
    """Whoever gives up a window does not say how windows are partitioned."""
    for killed in every_kill(least=5):
        root = make_root()
        staged_rows(root, OLD, attempt=1, partition=EARLY).publish()
        staged = staged_rows(root, NEW, attempt=2, partition=EARLY)
        with killed:
            staged.publish()
        replace(staged, partition=None).discard()
        assert named_rows(root) in (OLD, NEW)
        assert folders_of(root) == {EARLY}


def test_a_process_that_does_not_know_the_partition_finds_and_publishes_the_stage(
    make_root: MakeRoot,
) -> None:
    """As a task that commits what another one has written: where it belongs is in the stage."""
    root = make_root()
    staged = staged_rows(root, NEW, partition=EARLY)
    other = replace(staged, partition=None, facts={}, holding=None)
    assert other.exists()
    assert not other.is_published()
    assert other.as_found() == staged
    other.check_ready()
    other.publish()
    assert folders_of(root) == {EARLY}
    assert other.is_published()
    assert staged.is_published()
    other.check_ready()
    other.publish()
    assert globbed(root) == NEW


def test_parts_are_joined_in_their_window_s_folders(make_root: MakeRoot) -> None:
    """And parts that were written with another `partition_by` are none of the same output."""
    root = make_root()
    parts = []
    for index in range(2):
        part = PlanPart(index, 2)
        place = StagedOutput(root, "w", "c1", 1, part, group_id="g", partition=EARLY)
        with drafts_of([place]) as (draft,):
            _write(draft, [index])
            parts.append(draft.seal({"records": 1}))
    with pytest.raises(ConfigError, match="parts of different outputs"):
        StagedOutput.merged([parts[0], replace(parts[1], partition=None)])
    StagedOutput.merged(parts).publish()
    assert named_rows(root) == globbed(root) == [0, 1]
    assert folders_of(root) == {EARLY}


def _write(draft: Any, rows: list[int]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with draft.files.sink(f"{draft.path}/part-00000.parquet") as file:
        pq.write_table(pa.table({"n": rows}), file)


@pytest.mark.long
def test_a_run_on_a_server_of_s3_that_is_killed_anywhere_is_exact_when_it_is_run_again(
    server: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its first change of the store, its second and so on; a run of another kind changes nothing there."""
    objects_support.hooked_stores(monkeypatch)
    numbers = itertools.count()
    for killed in every_kill(least=8):
        root = f"s3://bucket/{next(numbers)}/orders"
        hours = Folder(root, "hour", server)
        with cluster() as kafka, OrderedWindows(kafka.settings, group_id="g") as windows:
            with killed:
                windows.run(hour(0), hours, window_id="w")
            assert objects_support.named_rows(root, server) in ([], [0])
            windows.run(hour(0), hours, window_id="w")
            with pytest.raises(ConfigError, match="Give partition_by='hour'"):
                windows.run(hour(1), Folder(root, "date", server), window_id="v")
            assert len(windows.list()) == 1
        [path] = files(root, storage_options=server)
        assert path.startswith(f"{root}/date=2026-11-20/hour=22/window_id=")
        assert objects_support.globbed_rows(root, server) == [0]
        assert objects_support.staged_names(root, server) == []


# --- one kind for all -----------------------------------------------------------------------------


@contextmanager
def cluster() -> Iterator[InMemoryKafka]:
    """A topic with a record in each of four hours, two on either side of midnight."""
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders")
        for n in range(4):
            kafka.produce("orders", value=b"v", timestamp_ms=TEN_MS + (12 + n) * 3_600_000 + n)
        yield kafka


@pytest.fixture
def windows() -> Iterator[OrderedWindows]:
    """A group of that topic."""
    with cluster() as kafka, OrderedWindows(kafka.settings, group_id="g") as made:
        yield made


def hour(n: int) -> Window:
    """The n-th hour of those that have records."""
    times = ["2026-11-20T22:00Z", "2026-11-20T23:00Z", "2026-11-21T00:00Z", "2026-11-21T01:00Z"]
    return Window("orders", [*times, "2026-11-21T02:00Z"][n + 1], "earliest", since=times[n])


@pytest.mark.parametrize("first", [None, "date", "hour"])
@pytest.mark.parametrize("second", [None, "date", "hour"])
def test_all_windows_of_a_root_are_partitioned_alike(
    make_root: MakeRoot, windows: OrderedWindows, first: str | None, second: str | None
) -> None:
    """Another window, or the same one again, is refused before it is planned, and the next of its kind is not."""
    root = make_root()
    windows.run(hour(0), Folder(root, partition_by=first), window_id="a")
    before, seen = [one.plan.window_id for one in windows.list()], files(root)
    if first != second:
        for window, name in ((hour(1), "b"), (hour(0), "a")):
            with pytest.raises(ConfigError, match=f"Give partition_by={first!r}"):
                windows.run(window, Folder(root, partition_by=second), window_id=name)
        assert [one.plan.window_id for one in windows.list()] == before
        assert files(root) == seen
        plan = windows.plan(hour(1), "b")
        with pytest.raises(ConfigError, match="partition_by is"):
            stage_window(plan, windows.settings, root, partition_by=second)
        return
    windows.run(hour(1), Folder(root, partition_by=second), window_id="b")
    assert len(published(root)) == 2


def test_windows_of_two_kinds_that_were_staged_side_by_side_are_refused_before_their_commits(
    make_root: MakeRoot, windows: OrderedWindows
) -> None:
    """Two first windows at once, each of its own kind: once one is written again as the other, both are committed."""
    root = make_root()
    plans = [windows.plan(hour(n), f"w{n}") for n in range(2)]
    places = [
        StagedOutput.of(plan, root, partition_by=by)
        for plan, by in zip(plans, ("date", None), strict=True)
    ]
    outputs = list[StagedOutput]()

    def staged_and_committed() -> None:
        with drafts_of(places) as drafts:
            for draft in drafts:
                _write(draft, [1])
            outputs.extend(draft.seal({"records": 1}) for draft in drafts)
        windows.commit(plans[1], outputs[1])

    with pytest.raises(ConfigError, match="window w0 was staged for"):
        staged_and_committed()
    assert windows.show("w1").plan.status.is_open
    windows.commit(plans[1], stage_window(plans[1], windows.settings, root, partition_by="date"))
    windows.commit(plans[0], outputs[0])
    assert len(published(root)) == 2


def test_a_window_that_is_committed_and_not_yet_published_keeps_windows_of_other_kinds_away(
    make_root: MakeRoot, windows: OrderedWindows
) -> None:
    """Nothing of it is visible, and it will be published where it was staged for."""
    root = make_root()
    plan = windows.plan(hour(0), "a")
    output = stage_window(plan, windows.settings, root)
    windows.mark_written(plan, output.to_json())
    plan = windows.show("a").plan
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StagedOutput, "publish", _dies)
        with pytest.raises(objects_support.Killed):
            windows.commit(plan, output)
    with pytest.raises(ConfigError, match="window a was staged for"):
        windows.run(hour(1), Folder(root, partition_by="date"), window_id="b")
    assert [one.plan.window_id for one in windows.list()] == ["a"]
    windows.run(hour(0), root, window_id="a")
    windows.run(hour(1), root, window_id="b")
    assert folders_of(root) == {""}


def _dies(_: object) -> None:
    raise objects_support.Killed


def test_a_date_s_folder_on_another_file_system_is_refused(tmp_path: Path) -> None:
    """A window cannot be renamed into it."""
    command = ["mount", "-t", "tmpfs", "tmpfs", str(tmp_path / "orders/date=2026-11-20")]
    (tmp_path / "orders/date=2026-11-20").mkdir(parents=True)
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting needs root")
    try:
        with pytest.raises(ConfigError, match="a file system is mounted at"):
            staged_rows(str(tmp_path / "orders"), OLD, partition=EARLY)
    finally:
        subprocess.run(["umount", command[-1]], check=True)


def test_what_another_program_has_put_where_a_date_belongs_is_left_alone(tmp_path: Path) -> None:
    """A link may lead to the folder of somebody else."""
    root, theirs = tmp_path / "orders", tmp_path / "theirs"
    root.mkdir()
    theirs.mkdir()
    (root / "date=2026-11-20").symlink_to(theirs)
    with pytest.raises(SinkError, match="is in the way"):
        staged_rows(str(root), OLD, partition="date=2026-11-20")
    assert [*theirs.iterdir()] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"partition_by": "day"}, "partition_by is 'day': give one of 'date', 'hour'"),
        ({"partition_by": ["date"]}, "partition_by is"),
        ({"partition_by": "hour", "window": "day"}, "leave out partition_by"),
    ],
)
def test_bad_values_are_refused_before_anything_is_touched(
    windows: OrderedWindows, tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    """No window is planned, and no folder is made."""
    root = tmp_path / "lake" / "orders"
    day = Window("orders", "2026-11-21T00:00Z", "earliest", since="2026-11-20T00:00Z")
    window = day if arguments.pop("window", None) else hour(0)
    with pytest.raises(ConfigError, match=message):
        windows.run(window, Folder(root, **arguments))
    with (
        pytest.raises(ConfigError, match=message),
        windows.open(window, Folder(root, **arguments)),
    ):
        raise AssertionError
    assert windows.list() == []
    assert not root.parent.exists()


# --- readers --------------------------------------------------------------------------------------


def rows_by_hour(found: Any) -> list[tuple[str, int]]:
    """Dates and hours as texts and numbers, sorted."""
    return sorted((str(date)[:10], int(hour)) for date, hour in found)


FILTERED = [("2026-11-21", 0), ("2026-11-21", 1)]


def test_readers_get_dates_and_hours_as_columns_of_their_types(
    windows: OrderedWindows, tmp_path: Path
) -> None:
    """Polars, DuckDB, pandas and PyArrow, by the root or a glob; each with a filter on a date."""
    root = str(tmp_path / "orders")
    for n in range(4):
        windows.run(hour(n), Folder(root, partition_by="hour"))
    frame = pl.scan_parquet(root, hive_partitioning=True)
    schema = frame.collect_schema()
    assert (str(schema["date"]), str(schema["hour"])) == ("Date", "Int64")
    chosen = frame.filter(pl.col("date") == pl.date(2026, 11, 21)).collect()
    assert rows_by_hour(chosen.select("date", "hour").rows()) == FILTERED

    query = f"FROM read_parquet('{root}/**/*.parquet', hive_partitioning=true)"
    [types] = duckdb.execute(f"SELECT DISTINCT typeof(date), typeof(hour) {query}").fetchall()
    assert types == ("DATE", "BIGINT")
    where = f"{query} WHERE date = DATE '2026-11-21'"
    assert rows_by_hour(duckdb.execute(f"SELECT date, hour {where}").fetchall()) == FILTERED
    plan = str(duckdb.execute(f"EXPLAIN SELECT * {where}").fetchall())
    assert "2/4" in plan

    dataset = ds.dataset(root, partitioning="hive")
    assert str(dataset.schema.field("hour").type) == "int32"
    only = ds.field("date") == "2026-11-21"
    assert len([*dataset.get_fragments(filter=only)]) == 2
    table = dataset.to_table(filter=only)
    assert rows_by_hour(zip(*map(table.column, ("date", "hour")), strict=True)) == FILTERED

    found = pd.read_parquet(root, filters=[("date", "=", "2026-11-21")])
    assert rows_by_hour(zip(found["date"], found["hour"], strict=True)) == FILTERED
    assert sorted(files(root)) == sorted(map(str, Path(root).glob("date=*/hour=*/*/*.parquet")))
    assert len(files(root)) == 4


def test_a_replay_stays_in_its_folder_and_clean_and_files_find_it(
    windows: OrderedWindows, tmp_path: Path
) -> None:
    """One folder for each window, also of those that have no rows."""
    root = str(tmp_path / "orders")
    empty = Window("orders", "2026-11-20T22:00Z", "earliest", since="2026-11-20T21:00Z")
    windows.run(empty, Folder(root, partition_by="date"), window_id="empty")
    windows.run(hour(1), Folder(root, partition_by="date"), window_id="full")
    first = files(root)
    replay = windows.replay("full")
    windows.publish(replay, stage_window(replay, windows.settings, root, partition_by="date"))
    assert files(root) == first
    assert files(root, ["full"]) == [path for path in first if "window_id=full" in path]
    assert folders_of(root) == {"date=2026-11-20"}
    assert StagedOutput.clean(root, older_than="PT0S") == 0
    record = windows.show("full")
    assert isinstance(record.result, dict)
    found = StagedOutput.found(record.result)
    assert found is not None
    assert Path(found.final_path).parent == Path(root, "date=2026-11-20")
