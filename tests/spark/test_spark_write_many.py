"""Several windows written in one job, each into its own stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops import (
    ConfigError,
    SinkError,
    StagedOutput,
    UnknownTopicError,
    WindowCoveredError,
    WindowPlan,
    stage_windows,
)
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import PlanContent
from kafka_ordered_ops.output.writing.draft import Draft
from kafka_ordered_ops.spark import read_window, read_windows, write_window, write_windows
from kafka_ordered_ops.spark.read.read import Engine
from tests.support.spark_many_support import (
    NOWHERE,
    cases,
    counted,
    facts_of,
    left,
    log,
    plans_of,
    small_tasks,
    staged_rows,
)
from tests.support.spark_support import (
    Case,
    part_of,
    plan_of,
    settings_of,
    spark,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["cases", "log", "small_tasks", "spark"]  # fixtures

pytestmark = pytest.mark.spark

SPILL_ROWS = "spark.shuffle.spill.numElementsForceSpillThreshold"


def _reads(ordered: bool, engine: Engine) -> Callable[..., DataFrame]:
    def read(spark: SparkSession, plans: list[WindowPlan], bootstrap: str) -> DataFrame:
        return read_windows(spark, plans, settings_of(bootstrap), ordered=ordered, engine=engine)

    return read


@pytest.mark.slow
@pytest.mark.parametrize(
    "read",
    [
        pytest.param(_reads(ordered=True, engine=Engine.PYTHON), id="sorted-by-read"),
        pytest.param(_reads(ordered=False, engine=Engine.PYTHON), id="sorted-by-write"),
        pytest.param(_reads(ordered=True, engine=Engine.LOCAL), id="from-files"),
        pytest.param(
            lambda *given: _reads(ordered=False, engine=Engine.PYTHON)(*given).where("true"),
            id="derived",
        ),
    ],
)
def test_each_window_gets_its_own_output(
    bootstrap: str,
    cases: list[Case],
    spark: SparkSession,
    tmp_path: Path,
    read: Callable[..., DataFrame],
) -> None:
    """Files in order by name, with the facts of each window, whoever has sorted; nothing else is left."""
    frame = read(spark, plans_of(cases), bootstrap)
    # In another order than they were read.
    asked = list(reversed(cases))
    outputs = write_windows(frame, tmp_path, plans_of(asked))
    assert [output.window_id for output in outputs] == [case.plan.window_id for case in asked]
    for case, output in zip(asked, outputs, strict=True):
        assert output.exists()
        assert staged_rows(output) == case.rows
        assert counted(output) == facts_of(case)
        names = sorted(path.name for path in Path(output.stage_path).glob("*.parquet"))
        assert names == [f"part-{n:05d}.parquet" for n in range(output.facts["files"] or 0)]
        assert output.facts["bytes"] == sum(
            (Path(output.stage_path) / name).stat().st_size for name in names
        )
        assert output.facts["elapsed_ms"] is not None
    assert left(tmp_path) == {"claim1-1"}
    for output in outputs:
        output.publish()
    table = spark.read.parquet(f"file://{tmp_path}")
    assert table.count() == sum(len(case.rows) for case in cases)
    assert table.columns[-1] == "window_id"


@pytest.mark.long
def test_writing_together_is_writing_one_by_one(
    bootstrap: str, cases: list[Case], spark: SparkSession, tmp_path: Path
) -> None:
    """The same columns, types and facts as `write_window` gives, window by window."""
    frame = read_windows(spark, plans_of(cases), settings_of(bootstrap))
    together = write_windows(frame, tmp_path / "together", plans_of(cases))
    for case, output in zip(cases, together, strict=True):
        single = read_window(spark, case.plan, settings_of(bootstrap))
        alone = write_window(single, tmp_path / "alone", case.plan)
        assert counted(output) == counted(alone)
        assert staged_rows(output) == staged_rows(alone)
        schemas = [
            pq.read_schema(sorted(Path(one.stage_path).glob("part-*"))[0])
            for one in (output, alone)
        ]
        assert schemas[0].equals(schemas[1])


@pytest.fixture
def spilling(spark: SparkSession) -> Iterator[None]:
    """Spark's sorts go to disk every thousand rows, as they do where memory is short."""
    conf = spark.sparkContext._jsc.sc().conf()
    conf.set(SPILL_ROWS, "1000")
    yield
    conf.remove(SPILL_ROWS)


@pytest.mark.slow
@pytest.mark.usefixtures("spilling")
def test_order_that_a_result_has_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    """Written as it comes, each window's rows stay in the order of the DataFrame, over many tasks and windows."""
    plans = [plan_of([], window_id=f"w{n}") for n in range(7)]
    frame = spark.range(0, 30_000, numPartitions=5).selectExpr(
        "id", "concat('w', cast(pmod(hash(id), 7) AS string)) AS window_id", "-id AS minus"
    )
    outputs = write_windows(frame, tmp_path, plans, ordered=False)
    expected = {plan.window_id: list[int]() for plan in plans}
    for row in frame.collect():
        expected[row.window_id].append(row.id)
    for output in outputs:
        paths = sorted(Path(output.stage_path).glob("part-*"))
        tables = [pq.read_table(path, partitioning=None) for path in paths]
        assert len(tables) == 5
        assert pa.concat_tables(tables)["id"].to_pylist() == expected[output.window_id]
        assert output.facts["records"] == len(expected[output.window_id])
        assert "late" not in output.facts
        assert tables[0].column_names == ["id", "minus"]


@pytest.mark.slow
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("sorted_by_read", [True, False])
def test_windows_in_which_nothing_happened_have_a_file_each(
    spark: SparkSession, tmp_path: Path, ordered: bool, sorted_by_read: bool
) -> None:
    """Not one record in any window: every output can be read, and has the columns."""
    plans = [plan_of([], window_id=f"w{n}") for n in range(3)]
    frame = read_windows(spark, plans, settings_of(NOWHERE), ordered=sorted_by_read)
    outputs = write_windows(frame, tmp_path, plans, ordered=ordered)
    for output in outputs:
        assert counted(output) == {
            "records": 0,
            "late": 0,
            "out_of_order": 0,
            "timestamp_ms_min": None,
            "timestamp_ms_max": None,
        }
        assert spark.read.parquet(output.stage_uri).columns == frame.columns[:-1]


@pytest.mark.parametrize("other", ["'w3'", "CAST(NULL AS string)"])
def test_rows_of_another_window_are_never_dropped(
    spark: SparkSession, tmp_path: Path, other: str
) -> None:
    """A row that belongs to no window that is written is an error, and nothing is left behind."""
    plans = [plan_of([], window_id=f"w{n}") for n in range(3)]
    frame = spark.range(9).selectExpr(
        "id", f"IF(id = 5, {other}, concat('w', id % 3)) AS window_id"
    )
    message = "1 rows belong .* window w3" if "3" in other else "no window"
    with pytest.raises(SinkError, match=message):
        write_windows(frame, tmp_path, plans)
    assert left(tmp_path) == set()


@pytest.mark.slow
def test_records_of_a_window_that_was_read_are_never_dropped(
    bootstrap: str, cases: list[Case], spark: SparkSession, tmp_path: Path
) -> None:
    """A plan left out between reading and writing is noticed, also where nothing is sorted again."""
    frame = read_windows(spark, plans_of(cases), settings_of(bootstrap), ordered=True)
    with pytest.raises(SinkError, match=f"{len(cases[1].rows)} rows .* {cases[1].plan.window_id}"):
        write_windows(frame, tmp_path, plans_of([cases[0], *cases[2:]]))
    more = [*plans_of(cases), plan_of([], window_id="more")]
    assert write_windows(frame, tmp_path, more)[-1].facts["records"] == 0


@pytest.mark.slow
def test_a_failed_job_leaves_no_stage(bootstrap: str, spark: SparkSession, tmp_path: Path) -> None:
    """A task's own error has its name, any other is a `SinkError`; no window keeps a stage."""
    plans = [
        plan_of([part_of("never-made", n, OffsetSet.of((0, 5)))], window_id=f"w{n}")
        for n in range(3)
    ]
    frame = read_windows(spark, plans, settings_of(bootstrap), stall_timeout_s=2)
    with pytest.raises(UnknownTopicError, match="never-made"):
        write_windows(frame, tmp_path, plans)
    failing = spark.range(3).selectExpr("'w0' AS window_id", "raise_error('my own') AS x")
    with pytest.raises(SinkError, match=r"w0 and 2 more .*my own"):
        write_windows(failing, tmp_path, plans)
    assert left(tmp_path) == set()


@pytest.mark.slow
def test_a_failure_while_sealing_leaves_no_stage(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full at the third window: the two complete stages go as well."""
    plans = [plan_of([], window_id=f"w{n}") for n in range(4)]
    frame = spark.range(8).selectExpr("id", "concat('w', id % 4) AS window_id")
    seal, sealed = Draft.seal, list[StagedOutput]()

    def full(self: Draft, facts: dict[str, int | None]) -> StagedOutput:
        if len(sealed) == 2:
            raise SinkError("no space left")
        sealed.append(seal(self, facts))
        return sealed[-1]

    with monkeypatch.context() as patch:
        patch.setattr(Draft, "seal", full)
        with pytest.raises(SinkError, match="no space"):
            write_windows(frame, tmp_path, plans)
    assert len(sealed) == 2
    assert left(tmp_path) == set()
    assert len(write_windows(frame, tmp_path, plans)) == 4


@pytest.mark.slow
def test_what_a_killed_try_left_is_replaced(spark: SparkSession, tmp_path: Path) -> None:
    """The folder of an attempt that was killed, half full, does not show in the next one, whatever overwriting means."""
    plans = [plan_of([], window_id=f"w{n}") for n in range(2)]
    killed = Draft(StagedOutput.of(plans[0], tmp_path))
    shared = Path(killed.shared_path) / "_koo_window=0"
    shared.mkdir(parents=True)
    (shared / "part-00000.parquet").write_text("half")
    frame = spark.range(4).selectExpr("id", "'w1' AS window_id")
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        outputs = write_windows(frame, tmp_path, plans)
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert [output.facts["records"] for output in outputs] == [0, 4]
    assert left(tmp_path) == {"claim1-1", Path(killed.shared_path).name}
    for output in outputs:
        output.publish()
    assert left(tmp_path) == set()


def test_files_that_are_not_here_are_an_error(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors on other machines: what was written and what is here differ, and no window loses records."""
    from pyspark.sql import DataFrameWriter

    write = DataFrameWriter.parquet

    def elsewhere(self: DataFrameWriter, path: str, *rest: Any) -> None:
        write(self, path, *rest)
        for file in Path(path.removeprefix("file://")).glob("_koo_window=1/*.parquet"):
            file.unlink()

    plans = [plan_of([], window_id=f"w{n}") for n in range(2)]
    frame = spark.range(4).selectExpr("id", "concat('w', id % 2) AS window_id")
    monkeypatch.setattr(DataFrameWriter, "parquet", elsewhere)
    with pytest.raises(SinkError, match=r"wrote 4 records .* hold 2"):
        write_windows(frame, tmp_path, plans)
    assert left(tmp_path) == set()


def test_covered_windows_and_frames_without_windows_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    """An empty output would hide others' records; rows without a window cannot be told apart."""
    plans = [plan_of([]), plan_of([], window_id="covered", content=PlanContent.COVERED)]
    with pytest.raises(WindowCoveredError, match="covered"):
        write_windows(spark.range(1).selectExpr("'x' AS window_id"), tmp_path, plans)
    with pytest.raises(WindowCoveredError, match="covered"):
        stage_windows(plans, settings_of(NOWHERE), tmp_path)
    with pytest.raises(ConfigError, match="window_id"):
        write_windows(spark.range(1), tmp_path, plans[:1])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_what_the_user_keeps_stays_kept(spark: SparkSession, tmp_path: Path) -> None:
    """Sorting keeps the rows meanwhile, and does not drop what was kept before."""
    plans = [plan_of([], window_id="w")]
    frame = read_windows(spark, plans, settings_of(NOWHERE)).persist()
    try:
        write_windows(frame, tmp_path, plans)
        assert frame.storageLevel.useMemory
    finally:
        frame.unpersist()
    frame = frame.where("true")
    write_windows(frame, tmp_path, plans)
    assert not frame.storageLevel.useMemory
