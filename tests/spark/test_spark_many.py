"""Several windows in one pass: read once, with Spark or without, and told apart."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafka_ordered_ops import ConfigError, WindowPlan, stage_windows
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import Isolation, PlanContent, TopicPartition
from kafka_ordered_ops.ordered.records.columns import SPARK_SCHEMA, STAGE_SCHEMA
from kafka_ordered_ops.ordered.records.pieces import pieces_of
from kafka_ordered_ops.ordered.records.slices import sample_of, slices_of
from kafka_ordered_ops.output.writing import stage_files
from kafka_ordered_ops.spark import read_window, read_windows, write_windows
from kafka_ordered_ops.spark.read.engines import Engine
from tests.support.examples import examples
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
    told,
    unordered,
    wanted,
)
from tests.support.spark_support import (
    ENGINES,
    Case,
    Log,
    part_of,
    plan_of,
    position,
    settings_of,
    spark,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["cases", "log", "small_tasks", "spark"]  # fixtures

pytestmark = pytest.mark.spark


#: A list of plans on the log, the same for the same number.
PLAN_LISTS = st.tuples(st.integers(0, 2**32), st.integers(1, 9))


def plan_list(log: Log, drawn: tuple[int, int]) -> list[Case]:
    """Up to nine windows on the same log, in any order."""
    rng = random.Random(drawn[0])
    cases = log.cases(rng, drawn[1])
    rng.shuffle(cases)
    return cases


@pytest.mark.long
@given(drawn=PLAN_LISTS, ordered=st.booleans())
@settings(max_examples=examples(4), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_reading_together_is_reading_one_by_one(
    bootstrap: str, log: Log, spark: SparkSession, drawn: tuple[int, int], ordered: bool
) -> None:
    """Random plan lists: row for row the union of the windows, tags and late flags, in the order of the plans."""
    cases = plan_list(log, drawn)
    rows = told(read_windows(spark, plans_of(cases), settings_of(bootstrap), ordered=ordered))
    if ordered:
        assert rows == wanted(cases)
    else:
        assert unordered(rows) == unordered(wanted(cases))


@pytest.mark.slow
@given(drawn=PLAN_LISTS, ordered=st.booleans(), rows_per_file=st.integers(1, 60))
@settings(max_examples=examples(6), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_staging_together_is_staging_one_by_one(
    bootstrap: str,
    log: Log,
    tmp_path_factory: pytest.TempPathFactory,
    drawn: tuple[int, int],
    ordered: bool,
    rows_per_file: int,
) -> None:
    """Random plan lists without Spark: each stage has its window's rows and facts."""
    cases = plan_list(log, drawn)
    outputs = stage_windows(
        plans_of(cases),
        settings_of(bootstrap),
        tmp_path_factory.mktemp("root"),
        ordered=ordered,
        rows_per_file=rows_per_file,
    )
    for case, output in zip(cases, outputs, strict=True):
        rows = staged_rows(output)
        assert (rows if ordered else sorted(rows, key=position)) == case.rows
        assert counted(output) == facts_of(case)
        if ordered:
            assert output.facts["files"] == max(1, -(-len(rows) // rows_per_file))


@pytest.mark.long
def test_a_union_of_single_reads_is_the_same(
    bootstrap: str, cases: list[Case], spark: SparkSession
) -> None:
    """What `read_window` gives for each plan, one after the other, is what `read_windows` gives."""
    connection = settings_of(bootstrap)
    single = [read_window(spark, case.plan, connection, ordered=True) for case in cases]
    together = read_windows(spark, plans_of(cases), connection, ordered=True)
    assert [row for frame in single for row in told(frame)] == told(together) == wanted(cases)
    assert together.dtypes == single[0].dtypes


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("ordered", [True, False])
def test_engines_agree(
    bootstrap: str, cases: list[Case], spark: SparkSession, engine: Engine, ordered: bool
) -> None:
    """Both engines give the same rows and columns, with an empty and a covered window among the plans."""
    covered = plan_of([], window_id="covered", content=PlanContent.COVERED)
    plans = [*plans_of(cases), covered]
    frame = read_windows(spark, plans, settings_of(bootstrap), ordered=ordered, engine=engine)
    rows = told(frame)
    assert (rows if ordered else unordered(rows)) == (
        wanted(cases) if ordered else unordered(wanted(cases))
    )
    assert frame.columns == SPARK_SCHEMA.names


@pytest.mark.slow
def test_kafka_is_read_once(bootstrap: str, cases: list[Case], spark: SparkSession) -> None:
    """The plan that Spark runs has one scan of Kafka, whatever the number of windows, and one shuffle."""
    frame = read_windows(spark, plans_of(cases), settings_of(bootstrap), ordered=True)
    text = frame._jdf.queryExecution().executedPlan().toString()
    assert text.count("kafka_window") == 1
    assert text.count("Exchange ") == 1


@pytest.mark.slow
def test_a_stage_of_one_window_is_not_read_again(
    bootstrap: str, cases: list[Case], spark: SparkSession, tmp_path: Path
) -> None:
    """With a root of one's own, Kafka is asked only for the windows that are not there yet."""
    options: dict[str, Any] = {"engine": "local", "ordered": True, "local_root": tmp_path}
    read_windows(spark, plans_of(cases[:3]), settings_of(bootstrap), **options)
    read_windows(spark, plans_of(cases), settings_of(bootstrap), **options)
    frame = read_windows(spark, plans_of(cases), settings_of(NOWHERE), **options)
    assert told(frame) == wanted(cases)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_covered_windows_alone_read_as_empty(spark: SparkSession, engine: Engine) -> None:
    """Nothing is theirs to read, and no broker is asked."""
    covered = plan_of([], content=PlanContent.COVERED)
    frame = read_windows(spark, [covered], settings_of(NOWHERE), engine=engine, ordered=True)
    assert told(frame) == []


def _taking(window_id: str, *ranges: tuple[int, int]) -> WindowPlan:
    return plan_of([part_of("orders", 0, OffsetSet.of(*ranges))], window_id=window_id)


@pytest.mark.parametrize(
    ("plans", "message"),
    [
        ([], "no plan"),
        ([_taking("w1", (0, 5)), replace(_taking("w2", (5, 9)), group_id="other")], "group other"),
        (
            [
                _taking("w1", (0, 5)),
                replace(
                    plan := _taking("w2", (5, 9)),
                    window=replace(plan.window, isolation=Isolation.READ_UNCOMMITTED),
                ),
            ],
            "read_uncommitted",
        ),
        ([_taking("w1", (0, 5)), _taking("w1", (5, 9))], "w1 .* duplicated among 2 plans"),
        (
            [_taking("w1", (0, 5), (8, 9)), _taking("w2", (5, 8)), _taking("w3", (3, 4))],
            r"orders\[0\] offset 3 belongs to window w1 and to window w3",
        ),
        ([_taking("w1", (2, 3)), _taking("w2", (0, 9))], "offset 2 belongs to window w2 and .* w1"),
    ],
)
def test_plans_that_cannot_be_taken_together_are_refused(
    spark: SparkSession, tmp_path: Path, plans: list[WindowPlan], message: str
) -> None:
    """The error names the windows, before anything is read or written."""
    with pytest.raises(ConfigError, match=message):
        read_windows(spark, plans, settings_of(NOWHERE))
    with pytest.raises(ConfigError, match=message):
        stage_windows(plans, settings_of(NOWHERE), tmp_path)
    if "offset" not in message:
        frame = spark.range(1).selectExpr("'w1' AS window_id", "id")
        with pytest.raises(ConfigError, match=message):
            write_windows(frame, tmp_path, plans)
    assert list(tmp_path.iterdir()) == []


# Slices

OWNERS = st.lists(st.lists(st.integers(-1, 5), max_size=80), min_size=1, max_size=4)


def _plans_of_owners(owners: list[list[int]]) -> list[WindowPlan]:
    """Six windows; each partition's n-th offset belongs to the window with that number, or to none."""
    return [
        plan_of(
            [
                part_of("t", partition, OffsetSet.from_offsets(np.flatnonzero(np.array(row) == n)))
                for partition, row in enumerate(owners)
            ],
            window_id=f"w{n}",
        )
        for n in range(6)
    ]


@given(owners=OWNERS, tasks=st.integers(1, 9), least=st.integers(1, 20), runs=st.integers(1, 30))
def test_slices_know_whose_each_offset_is(
    owners: list[list[int]], tasks: int, least: int, runs: int
) -> None:
    """Cut in any way, each offset is in one piece, with its own window; a piece names no other windows."""
    pieces = pieces_of(_plans_of_owners(owners))
    for slices in (
        [tuple(pieces)],
        slices_of(pieces, tasks=tasks, least_offsets=least),
        [tuple(sample := sample_of(pieces, runs=runs, run_offsets=2))],
    ):
        seen: dict[tuple[int, int], int] = {}
        for piece in (piece for pieces in slices for piece in pieces):
            offsets = np.array([n for start, end in piece.wanted for n in range(start, end)])
            numbers = piece.windows_of(piece.owners_of(offsets)).tolist()
            assert {share.window for share in piece.shares} == set(numbers)
            assert all(share.window_id == f"w{share.window}" for share in piece.shares)
            assert np.all(np.diff(piece.starts) > 0)
            assert np.all(np.diff(piece.owners) != 0)
            for offset, number in zip(offsets.tolist(), numbers, strict=True):
                assert (piece.tp.partition, offset) not in seen
                seen[piece.tp.partition, offset] = number
        complete = {
            (partition, offset): owner
            for partition, row in enumerate(owners)
            for offset, owner in enumerate(row)
            if owner >= 0
        }
        assert seen.items() <= complete.items()
        assert seen == complete or slices == [tuple(sample)]


def test_equal_partitions_are_looked_at_in_different_places() -> None:
    """Their records often have the same times: one look each, at the same place, would tell one time."""
    parts = [part_of("t", n, OffsetSet.of((0, 1_000))) for n in range(8)]
    samples = sample_of(pieces_of([plan_of(parts)]), runs=8, run_offsets=1)
    places = sorted(piece.wanted.first for piece in samples)
    assert len(places) == 8
    assert max(np.diff([0, *places, 1_000])) <= 300
    assert min(np.diff(places)) >= 50


def test_a_task_gets_no_more_than_its_slice_needs() -> None:
    """Where windows lie one behind the other, a slice has the ranges of its own windows only."""
    plans = [_taking(f"w{n}", (1000 * n, 1000 * n + 1000)) for n in range(300)]
    slices = slices_of(pieces_of(plans), tasks=100, least_offsets=1)
    assert len(slices) == 100
    assert max(len(pickle.dumps(pieces)) for pieces in slices) < 3_000
    (piece,) = slices[7]
    assert [share.window_id for share in piece.shares] == ["w21", "w22", "w23"]
    assert piece.wanted == OffsetSet.of((21_000, 24_000))


# Staging


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(
    ("rows_per_file", "pending_bytes_max"), [(500_000, 1 << 30), (7, 1 << 30), (500_000, 2_000)]
)
def test_windows_are_staged_in_one_read(
    bootstrap: str,
    cases: list[Case],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ordered: bool,
    rows_per_file: int,
    pending_bytes_max: int,
) -> None:
    """Without Spark: each stage has its window's rows, files within the limits, and its own facts."""
    monkeypatch.setattr(stage_files, "PENDING_BYTES_MAX", pending_bytes_max)
    if pending_bytes_max < 1 << 30:
        monkeypatch.setattr(stage_files, "FILE_BYTES_MAX", 1_500)
    reports: list[tuple[int, int]] = []
    outputs = stage_windows(
        plans_of(cases),
        settings_of(bootstrap),
        tmp_path,
        ordered=ordered,
        rows_per_file=rows_per_file,
        progress=lambda *both: reports.append(both),
    )
    total = sum(case.plan.offsets for case in cases)
    assert reports[-1] == (total, total)
    for case, output in zip(cases, outputs, strict=True):
        rows = staged_rows(output)
        assert (rows if ordered else sorted(rows, key=position)) == case.rows
        assert counted(output) == facts_of(case)
        sizes = [pq.read_metadata(path).num_rows for path in Path(output.stage_path).glob("part-*")]
        assert len(sizes) == output.facts["files"]
        assert max(sizes) <= rows_per_file
        offsets = dict[TopicPartition, int]()
        for row in [] if ordered else rows:
            tp = TopicPartition(row.topic, row.partition)
            assert offsets.get(tp, -1) < row.offset, "records of a partition in another order"
            offsets[tp] = row.offset
    assert left(tmp_path) == {"claim1-1"}


def test_windows_beyond_memory_are_each_in_order(
    bootstrap: str, cases: list[Case], tmp_path: Path
) -> None:
    """What memory does not hold waits on disk, for all windows together; nothing of it is left."""
    plans = plans_of(cases)
    outputs = stage_windows(plans, settings_of(bootstrap), tmp_path, limit_bytes=5_000)
    for output, case in zip(outputs, cases, strict=True):
        assert staged_rows(output) == case.rows
    assert left(tmp_path) == {"claim1-1"}


def test_what_waits_for_its_file_is_bounded_over_all_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many windows are open at a time, and however little each gets, files are written in between."""
    monkeypatch.setattr(stage_files, "PENDING_BYTES_MAX", 20_000)
    monkeypatch.setattr(stage_files, "FILE_BYTES_MAX", 5_000)
    windows, per_window = 40, 50
    columns = [pa.nulls(windows, field.type) for field in STAGE_SCHEMA]
    row_bytes = pa.RecordBatch.from_arrays(columns, schema=STAGE_SCHEMA).nbytes // windows
    taken = 0

    def batches() -> Iterator[stage_files.Batch]:
        nonlocal taken
        for _ in range(per_window):
            taken += windows
            records = pa.RecordBatch.from_arrays(columns, schema=STAGE_SCHEMA)
            yield stage_files.Batch(records, np.arange(windows))

    written: Counter[int] = Counter()
    for window, rows in stage_files.as_they_come(batches(), rows_per_file=500_000):
        written[window] += rows().num_rows
        waiting = (taken - written.total()) * row_bytes
        assert waiting <= 20_000 + 2 * 5_000
    assert written == dict.fromkeys(range(windows), per_window)
