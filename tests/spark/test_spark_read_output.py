"""Published windows, read back in the order in which they were written."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import ConfigError, ReadError, StagedOutput, WindowPlan, stage_windows
from kafka_ordered_ops.core.window.plan import PlanPart
from kafka_ordered_ops.ordered.records.columns import SPARK_SCHEMA
from kafka_ordered_ops.output.filesystem import LocalFiles, data_names
from kafka_ordered_ops.output.writing.draft import Draft, drafts_of
from kafka_ordered_ops.spark import read_output, read_windows, write_window, write_windows
from kafka_ordered_ops.spark.failures import named_error
from kafka_ordered_ops.spark.read import files_source
from kafka_ordered_ops.spark.read.files_source import (
    FILE_COST_BYTES,
    TASK_BYTES,
    FileOfWindow,
    dealt_to_tasks,
)
from tests.support.spark_many_support import cases, log, plans_of, small_tasks, told, wanted
from tests.support.spark_support import Case, plan_of, settings_of, spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["cases", "log", "small_tasks", "spark"]  # fixtures

pytestmark = pytest.mark.spark

Write = Callable[["SparkSession", str, Sequence[WindowPlan], Path], Sequence[StagedOutput]]


@pytest.fixture(params=[files_source.UNION_FILES_MAX, 0], ids=["union", "tasks"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few files by Spark's own reader, and as many files are read."""
    monkeypatch.setattr(files_source, "UNION_FILES_MAX", request.param)


def _staged(
    spark: SparkSession, bootstrap: str, plans: Sequence[WindowPlan], root: Path
) -> Sequence[StagedOutput]:
    return stage_windows(plans, settings_of(bootstrap), root, rows_per_file=7)


def _written_together(
    spark: SparkSession, bootstrap: str, plans: Sequence[WindowPlan], root: Path
) -> Sequence[StagedOutput]:
    frame = read_windows(spark, plans, settings_of(bootstrap), ordered=True)
    return write_windows(frame, root, plans)


def _written_alone(
    spark: SparkSession, bootstrap: str, plans: Sequence[WindowPlan], root: Path
) -> Sequence[StagedOutput]:
    return [
        write_window(read_windows(spark, [plan], settings_of(bootstrap), ordered=True), root, plan)
        for plan in plans
    ]


def _in_parts(
    spark: SparkSession, bootstrap: str, plans: Sequence[WindowPlan], root: Path
) -> Sequence[StagedOutput]:
    """Each window as three parts: its topics and partitions, dealt out; the third has none."""
    merged = []
    for plan in plans:
        shares = [plan.partitions[:2], plan.partitions[2:], ()]
        parts = [
            replace(plan, partitions=share, part=PlanPart(n, 3)) for n, share in enumerate(shares)
        ]
        outputs = [
            stage_windows([part], settings_of(bootstrap), root, rows_per_file=9)[0]
            for part in parts
        ]
        merged.append(StagedOutput.merged(outputs))
    return merged


@pytest.mark.long
@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize(
    "write",
    [
        pytest.param(_staged, id="staged"),
        pytest.param(_written_together, id="written-together"),
        pytest.param(_written_alone, id="written-alone"),
        pytest.param(_in_parts, id="in-parts"),
    ],
)
def test_what_was_published_comes_back_in_order(
    bootstrap: str, cases: list[Case], spark: SparkSession, tmp_path: Path, write: Write
) -> None:
    """Whoever wrote: window after window as asked for, and in each the rows as they were written."""
    for output in write(spark, bootstrap, plans_of(cases), tmp_path):
        output.publish()
    # The parts of a split window are one after the other, each in order.
    mine = [case for case in cases for case in (_halves(case) if write is _in_parts else [case])]
    asked = mine[::-1] if write is not _in_parts else mine
    window_ids = list(dict.fromkeys(case.plan.window_id for case in asked))
    frame = read_output(spark, tmp_path, window_ids)
    assert told(frame) == wanted(asked)
    assert frame.columns == SPARK_SCHEMA.names
    by_id = sorted(mine, key=lambda case: case.plan.window_id)
    assert told(read_output(spark, f"file://{tmp_path}")) == wanted(by_id)


def _halves(case: Case) -> list[Case]:
    """The rows of the first two partitions of a plan, and of the others."""
    first = {(part.tp.topic, part.tp.partition) for part in case.plan.partitions[:2]}
    return [
        replace(
            case, rows=[row for row in case.rows if ((row.topic, row.partition) in first) == half]
        )
        for half in (True, False)
    ]


def _publish(root: Path, tables: Sequence[pa.Table], window_id: str = "w") -> None:
    """A window of these files."""
    output = StagedOutput.of(plan_of([], window_id=window_id), root)
    with drafts_of([output]) as (draft,):
        for n, table in enumerate(tables):
            pq.write_table(table, f"{draft.path}/part-{n:05d}.parquet")
        sealed = draft.seal({"files": len(tables)})
    sealed.publish()


def _numbers(sizes: Sequence[int]) -> list[pa.Table]:
    """Files of so many rows, numbered through."""
    starts = [sum(sizes[:n]) for n in range(len(sizes))]
    return [
        pa.table({"n": pa.array(range(start, start + size), pa.int64())})
        for start, size in zip(starts, sizes, strict=True)
    ]


@pytest.mark.long
def test_sparks_own_reader_loses_the_order(spark: SparkSession, tmp_path: Path) -> None:
    """It takes larger files first; the helper gives rows as they lie, by every way that keeps an order."""
    sizes = [n % 17 * 40 for n in range(200)]
    _publish(tmp_path, _numbers(sizes))
    in_order = list(range(sum(sizes)))
    own = spark.read.parquet(f"file://{tmp_path}")
    assert [row.n for row in own.collect()] != in_order
    frame = read_output(spark, tmp_path)
    assert [row.n for row in frame.collect()] == in_order
    assert [row.n for row in frame.toLocalIterator()] == in_order
    assert [
        row.n for row in frame.mapInArrow(lambda batches: batches, frame.schema).collect()
    ] == in_order
    # Two hundred small files are no two hundred tasks.
    assert 1 < frame.rdd.getNumPartitions() < 20


@given(sizes=st.lists(st.integers(0, 3 * TASK_BYTES), max_size=40))
def test_neighbours_share_a_task(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    """Every file is in one task, in order; no task has more than one file that passes its share."""
    folder = tmp_path_factory.mktemp("files")
    files = []
    for n, size in enumerate(sizes):
        path = folder / str(n)
        with path.open("wb") as file:
            file.truncate(size)
        files.append(FileOfWindow(str(path), "w"))
    tasks = dealt_to_tasks(files)
    assert [file for task in tasks for file in task.files] == files
    costs = [
        sum(Path(file.path).stat().st_size + FILE_COST_BYTES for file in task.files)
        for task in tasks
    ]
    assert all(
        cost <= TASK_BYTES or len(task.files) == 1 for cost, task in zip(costs, tasks, strict=True)
    )
    assert all(one + other > TASK_BYTES for one, other in pairwise(costs))


def test_names_are_in_order_of_their_numbers(tmp_path: Path) -> None:
    """Also where there are more of them than their digits were made for; hidden files are none."""
    wanted = [
        "part-00000-00002.parquet",
        "part-00001-00000.parquet",
        "part-00001-99999-c000.parquet",
        "part-00001-100000-c000.parquet",
        "part-100000.parquet",
    ]
    for name in [*wanted, "_window.json", ".part-00000.parquet.crc"]:
        (tmp_path / name).touch()
    assert data_names(LocalFiles(), str(tmp_path)) == wanted


@pytest.mark.long
@pytest.mark.usefixtures("either_way")
def test_types_come_back_as_spark_reads_them(spark: SparkSession, tmp_path: Path) -> None:
    """Whatever a job makes of records: the same types and values as Spark's own reader."""
    frame = spark.range(3).selectExpr(
        "id",
        "cast(id AS tinyint) AS tiny",
        "cast(id AS decimal(20, 3)) / 7 AS price",
        "cast(id AS double) AS ratio",
        "id = 1 AS flag",
        "date_add(date'2026-01-01', cast(id AS int)) AS day",
        "timestamp'2026-01-01 00:00:00.123456' AS at",
        "timestamp_ntz'2026-01-01 00:00:00.123456' AS wall",
        "array(id, null) AS list",
        "map(cast(id AS string), named_struct('a', id, 'b', array('x'))) AS nested",
        "if(id = 1, null, named_struct('a', id)) AS maybe",
    )
    write_window(frame, tmp_path, plan_of([], window_id="e~1")).publish()
    found = read_output(spark, tmp_path, ["e~1"])
    own = spark.read.parquet(f"file://{tmp_path}").drop("window_id")
    assert found.drop("window_id").dtypes == own.dtypes
    assert found.drop("window_id").collect() == own.orderBy("id").collect()
    assert {row.window_id for row in found.collect()} == {"e~1"}


@pytest.mark.usefixtures("either_way")
def test_a_window_without_rows_has_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    """Alone, and between others."""
    for window_id, size in (("a", 2), ("b", 0), ("c", 3)):
        _publish(tmp_path, _numbers([size]), window_id)
    assert read_output(spark, tmp_path, ["b"]).dtypes == [("n", "bigint"), ("window_id", "string")]
    assert read_output(spark, tmp_path, ["b"]).collect() == []
    found = [(row.window_id, row.n) for row in read_output(spark, tmp_path).collect()]
    assert found == [("a", 0), ("a", 1), ("c", 0), ("c", 1), ("c", 2)]


def test_windows_that_are_not_there_are_named(spark: SparkSession, tmp_path: Path) -> None:
    """Never read, never published, asked for twice, none at all, or not of this package."""
    with pytest.raises(ConfigError, match="no window is published below"):
        read_output(spark, tmp_path)
    _publish(tmp_path, _numbers([2]), "a")
    Draft(StagedOutput.of(plan_of([], window_id="b"), tmp_path)).make()
    stranger = tmp_path / "window_id=c"
    stranger.mkdir()
    pq.write_table(_numbers([1])[0], stranger / "part-00000.parquet")
    with pytest.raises(ConfigError, match=r"3 of 4 windows are not published below .*: b, c, d"):
        read_output(spark, tmp_path, ["a", "b", "c", "d"])
    with pytest.raises(ConfigError, match="window a is requested twice"):
        read_output(spark, tmp_path, ["a", "a"])
    with pytest.raises(ConfigError, match="pass at least one"):
        read_output(spark, tmp_path, [])
    assert read_output(spark, tmp_path).count() == 2
    published = StagedOutput.of(plan_of([], window_id="a"), tmp_path).final_path
    (Path(published) / "part-00000.parquet").unlink()
    with pytest.raises(ConfigError, match="have no file"):
        read_output(spark, tmp_path)


@pytest.mark.long
@pytest.mark.usefixtures("either_way")
def test_a_file_with_other_columns_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """At once, or by the task that reads it: windows of a job that was changed in between are read one by one."""
    _publish(tmp_path, _numbers([2]), "a")
    _publish(tmp_path, [pa.table({"m": ["x"]})], "b")
    with pytest.raises(Exception, match="window b cannot be read as") as raised:
        read_output(spark, tmp_path).collect()
    assert isinstance(named_error(raised.value) or raised.value, ReadError)
    assert read_output(spark, tmp_path, ["b"]).count() == 1


@pytest.mark.long
@pytest.mark.usefixtures("either_way")
def test_random_files_come_back_in_order(spark: SparkSession, tmp_path: Path) -> None:
    """Random sizes, several windows, in a random order of windows."""
    rng = random.Random(2)
    sizes = {f"w{n}": [rng.randrange(60) for _ in range(rng.randrange(1, 30))] for n in range(5)}
    for window_id, mine in sizes.items():
        _publish(tmp_path, _numbers(mine), window_id)
    asked = rng.sample(sorted(sizes), 4)
    frame: DataFrame = read_output(spark, tmp_path, asked)
    expected = [(window_id, n) for window_id in asked for n in range(sum(sizes[window_id]))]
    assert [(row.window_id, row.n) for row in frame.collect()] == expected


def test_the_columns_of_many_files_are_looked_at_together(tmp_path: Path) -> None:
    """A few at a time, which hides the way to a store; the first file that lacks one is named."""
    pq.write_table(pa.table({"n": [1]}), tmp_path / "part-00000.parquet")
    pq.write_table(pa.table({"m": [1]}), tmp_path / "part-00001.parquet")
    together = threading.Barrier(4, timeout=30)

    class Far(LocalFiles):
        def footer(self, path: str) -> BinaryIO:
            together.wait()
            return super().footer(path)

    good, bad = (FileOfWindow(f"{tmp_path}/part-0000{n}.parquet", f"w{n}") for n in (0, 1))
    files_source._check_columns([good] * 8, ["n"], Far())
    with pytest.raises(ReadError, match=r"part-00001\.parquet of window w1 .* it has no n"):
        files_source._check_columns([good, good, good, bad], ["n"], Far())
