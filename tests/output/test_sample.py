"""Samples of published windows: what they hold, how little is read for it, and when there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.picture_panels import RecordSample
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.output.stage import stage_window
from kafka_ordered_ops.output.staged_output import StagedOutput
from kafka_ordered_ops.spark import read_windows, write_window
from kafka_ordered_ops.spark.sample import sample_output
from tests.conftest import MakeTopic
from tests.support.spark_support import Case, part_of, plan_of, random_case, settings_of
from tests.support.spark_support import spark as spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDERS = TopicPartition("orders", 0)

Change = Callable[[pa.Table], pa.Table]
Job = Callable[["DataFrame"], "DataFrame"]

#: A record: partition, offset, timestamp in ms, whether it is a straggler, and late.
Told = tuple[TopicPartition, int, int, bool, bool]


def told(sample: RecordSample) -> list[Told]:
    """All records of a sample."""
    return sorted(
        (tp, *record)
        for tp, dots in sample.dots.items()
        for record in zip(
            dots.offsets.tolist(),
            dots.timestamps_ms.tolist(),
            dots.stragglers.tolist(),
            dots.late.tolist(),
            strict=True,
        )
    )


def wanted(case: Case) -> list[Told]:
    """All records of a case."""
    heads = {part.tp: part.head_end for part in case.plan}
    return sorted(
        (
            (tp := TopicPartition(row.topic, row.partition)),
            row.offset,
            row.timestamp_ms,
            (head := heads[tp]) is not None and row.offset >= head,
            (row.topic, row.partition, row.offset) in case.late,
        )
        for row in case.rows
    )


def published(plan: WindowPlan, root: Path, tables: Sequence[pa.Table]) -> StagedOutput:
    """An output of these files, as readers see one."""
    output = StagedOutput.of(plan, root)
    folder = Path(output.final_path)
    folder.mkdir(parents=True)
    for number, table in enumerate(tables):
        pq.write_table(table, folder / f"part-{number:05}.parquet", row_group_size=40_000)
    (folder / "_window.json").write_bytes(output.marker())
    return output


def table_of(offsets: Sequence[int], topic: str = "orders") -> pa.Table:
    """Records of a topic's first partition, an hour's worth of seconds apart."""
    numbers = np.asarray(offsets, dtype=np.int64)
    return pa.table(
        {
            "topic": pa.repeat(topic, numbers.size),
            "partition": pa.array(np.zeros(numbers.size, dtype=np.int32)),
            "offset": pa.array(numbers),
            "timestamp": pa.array(numbers * 1_000, pa.timestamp("ms", tz="UTC")),
        }
    )


@pytest.mark.parametrize("ordered", [True, False])
def test_a_staged_window(bootstrap: str, topic: MakeTopic, tmp_path: Path, ordered: bool) -> None:
    """Of a few records all are there, as the plan judges them, with the counts of who wrote them."""
    case = random_case(bootstrap, {topic(partitions=3): 3, topic(): 1}, seed=5)
    output = stage_window(
        case.plan, settings_of(bootstrap), tmp_path, ordered=ordered, rows_per_file=17
    )
    assert sample_output(case.plan, output) is None, "nobody sees it yet"
    output.publish()
    sample = sample_output(case.plan, output)
    assert sample is not None
    assert told(sample) == wanted(case)
    assert (sample.records, sample.stragglers, sample.late) == (
        len(case.rows),
        case.stragglers,
        len(case.late),
    )


def _more_columns(df: DataFrame) -> DataFrame:
    return df.selectExpr("offset", "value AS load", "topic", "timestamp", "partition")


def _other_columns(df: DataFrame) -> DataFrame:
    return df.groupBy("key").count()


@pytest.mark.spark
@pytest.mark.parametrize(
    ("job", "has_records"),
    [(_more_columns, True), (_other_columns, False)],
)
def test_a_window_of_spark(
    spark: SparkSession,
    bootstrap: str,
    topic: MakeTopic,
    tmp_path: Path,
    job: Job,
    has_records: bool,
) -> None:
    """Spark's files are read as well; a result that does not say which records it has gives nothing."""
    case = random_case(bootstrap, {topic(partitions=2): 2}, seed=6)
    frame = job(read_windows(spark, [case.plan], settings_of(bootstrap)))
    output = write_window(frame, tmp_path, case.plan)
    output.publish()
    sample = sample_output(case.plan, output)
    if has_records:
        assert sample is not None
        assert told(sample) == wanted(case)
    else:
        assert sample is None


def test_an_empty_window(tmp_path: Path) -> None:
    """It is known to have no record."""
    plan = plan_of([])
    output = stage_window(plan, settings_of("127.0.0.1:1"), tmp_path)
    output.publish()
    sample = sample_output(plan, output)
    assert sample is not None
    assert (sample.records, sample.dots) == (0, {})


def test_of_many_records_a_few_are_kept(tmp_path: Path) -> None:
    """Memory is bounded; the few stragglers are among what is kept, and the others evenly spread."""
    count = 1_000_000
    plan = plan_of([part_of("orders", 0, OffsetSet.of((0, count)), head_end=count - 3)])
    output = published(plan, tmp_path, [table_of(range(count))])
    sample = sample_output(plan, output)
    assert sample is not None
    dots = sample.dots[ORDERS]
    assert 500 <= len(dots) < 1_500
    assert dots.offsets[dots.stragglers].tolist() == [count - 3, count - 2, count - 1]
    gaps = np.diff(np.sort(dots.offsets[~dots.stragglers]))
    assert gaps.max() < 3 * np.median(gaps)


def test_of_many_records_a_few_are_read(tmp_path: Path) -> None:
    """All of ten files with several row groups each are seen, and of none more than its share is read."""
    count = 100_000
    plan = plan_of([part_of("orders", 0, OffsetSet.of((0, 10 * count)), head_end=10 * count)])
    tables = [table_of(range(n * count, (n + 1) * count)) for n in range(10)]
    output = published(plan, tmp_path, tables)
    sample = sample_output(plan, output, rows_max=500)
    assert sample is not None
    offsets = sample.dots[ORDERS].offsets
    assert 300 <= offsets.size <= 530
    assert {(offset // count, offset % count // 40_000) for offset in offsets.tolist()} == {
        (file, group) for file in range(10) for group in range(3)
    }


def test_no_time_is_no_record(tmp_path: Path) -> None:
    """When the time is over, what was read by then counts: here nothing."""
    plan = plan_of([part_of("orders", 0, OffsetSet.of((0, 9)))])
    output = published(plan, tmp_path, [table_of(range(9))])
    assert sample_output(plan, output, timeout_s=0) is None


def _others(table: pa.Table) -> pa.Table:
    return table_of([3, 99])


def _other_topic(table: pa.Table) -> pa.Table:
    return table_of([3, 4], topic="payments")


def _no_topic(table: pa.Table) -> pa.Table:
    return table.drop_columns("topic")


def _null(table: pa.Table) -> pa.Table:
    offsets: Any = pa.array([None, 1], pa.int64())
    return table.slice(0, 2).set_column(2, "offset", offsets)


def _times_as_text(table: pa.Table) -> pa.Table:
    return table.set_column(3, "timestamp", table["timestamp"].cast(pa.string()))


def _numbers_as_floats(table: pa.Table) -> pa.Table:
    return table.set_column(2, "offset", table["offset"].cast(pa.float64()))


@pytest.mark.parametrize(
    "change", [_others, _other_topic, _no_topic, _null, _times_as_text, _numbers_as_floats]
)
def test_files_that_do_not_hold_the_plans_records(tmp_path: Path, change: Change) -> None:
    """Columns of the same names may mean anything: unless they are the plan's records, there is no sample."""
    plan = plan_of([part_of("orders", 0, OffsetSet.of((0, 9)))])
    output = published(plan, tmp_path, [change(table_of(range(9)))])
    assert sample_output(plan, output) is None


def test_another_windows_folder(tmp_path: Path) -> None:
    """What lies there under another window's name is not this one's."""
    plan = plan_of([part_of("orders", 0, OffsetSet.of((0, 9)))])
    output = published(plan, tmp_path, [table_of(range(9))])
    marker = replace(output, window_id="another").marker()
    (Path(output.final_path) / "_window.json").write_bytes(marker)
    assert sample_output(plan, output) is None


def test_a_broken_file_is_an_error(tmp_path: Path) -> None:
    """Whoever draws decides what to make of it."""
    plan = plan_of([part_of("orders", 0, OffsetSet.of((0, 9)))])
    output = published(plan, tmp_path, [table_of(range(9))])
    (Path(output.final_path) / "part-00000.parquet").write_bytes(b"PAR1")
    with pytest.raises((OSError, pa.ArrowException)):
        sample_output(plan, output)


def test_a_hundred_partitions(tmp_path: Path) -> None:
    """Those with stragglers are kept before all others."""
    parts = [
        part_of("orders", n, OffsetSet.of((0, 3)), head_end=2 if n % 10 == 0 else 3)
        for n in range(100)
    ]
    plan = plan_of(parts)
    tables = [
        table_of(range(3)).set_column(1, "partition", pa.array([n] * 3, pa.int32()))
        for n in range(100)
    ]
    sample = sample_output(plan, published(plan, tmp_path, [pa.concat_tables(tables)]))
    assert sample is not None
    assert {TopicPartition("orders", n) for n in range(0, 100, 10)} <= sample.dots.keys()
    assert len(sample.dots) == 64
    assert all(len(dots) == 3 for dots in sample.dots.values())
