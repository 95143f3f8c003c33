"""Windows read and written by a real Spark from a real broker."""

from __future__ import annotations

import pickle
import re
import uuid
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import TYPE_CHECKING

import confluent_kafka as ck
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops import (
    ConfigError,
    EnvironmentConflictError,
    ReadError,
    ReadTimeoutError,
    SinkError,
    StagedOutput,
    UnknownTopicError,
    WindowCoveredError,
)
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import Isolation, PlanContent
from kafka_ordered_ops.ordered.records.columns import SOURCE_SCHEMA, SPARK_SCHEMA
from kafka_ordered_ops.ordered.records.pieces import pieces_of
from kafka_ordered_ops.ordered.records.slices import slices_of
from kafka_ordered_ops.spark import environment, read_window, write_window
from kafka_ordered_ops.spark.failures import named_error
from kafka_ordered_ops.spark.read import edges, engines, order
from kafka_ordered_ops.spark.read.engines import Engine
from kafka_ordered_ops.spec import spark_submit
from tests.support.spark_support import (
    CUTOFF_MS,
    ENGINES,
    Case,
    Row,
    part_of,
    plan_of,
    position,
    random_case,
    settings_of,
    spark,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["spark"]  # a fixture

pytestmark = pytest.mark.spark

MakeTopic = Callable[..., str]
PASSWORD = "hunter2-and-more"


def rows_of(frame: DataFrame) -> list[Row]:
    """The rows as Spark gives them, in its order."""
    columns = frame.selectExpr("*", "unix_millis(timestamp) AS timestamp_ms").collect()
    return [Row.of(row.asDict()) for row in columns]


def published_rows(output: StagedOutput) -> list[Row]:
    """The rows of a published window, file by file in the order of names."""
    paths = sorted(Path(output.final_path).glob("part-*"))
    rows = []
    for path in paths:
        table = pq.read_table(path, partitioning=None)
        ms = table["timestamp"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
        rows += [Row.of(fields) for fields in table.append_column("timestamp_ms", ms).to_pylist()]
    return rows


@pytest.fixture(scope="module")
def case(bootstrap: str) -> Case:
    """Random records with transactions and aborts in two topics."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = {f"{name}-{uuid.uuid4().hex}": partitions for name, partitions in (("a", 3), ("b", 1))}
    # The records' times are in the past: the default retention would delete them within seconds.
    new = [NewTopic(*pair, 1, config={"retention.ms": "-1"}) for pair in topics.items()]
    for future in admin.create_topics(new).values():
        future.result(30)
    return random_case(bootstrap, topics, seed=11)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("ordered", [True, False])
def test_both_engines_give_exactly_the_plan(
    bootstrap: str,
    case: Case,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    engine: Engine,
    ordered: bool,
) -> None:
    """Rows, headers, late flags, columns and types are equal, whoever reads and however it is cut."""
    monkeypatch.setattr(engines, "SLICE_OFFSETS_MIN", 20)
    frame = read_window(spark, case.plan, settings_of(bootstrap), ordered=ordered, engine=engine)
    assert frame.columns == SPARK_SCHEMA.names
    assert [kind for _, kind in frame.dtypes] == [
        "string", "int", "bigint", "timestamp", "int", "binary", "binary",
        "array<struct<key:string,value:binary>>", "boolean", "string",
    ]  # fmt: skip
    rows = rows_of(frame)
    assert (rows if ordered else sorted(rows, key=position)) == case.rows
    late = frame.where("late").select("topic", "partition", "offset").collect()
    assert {tuple(row) for row in late} == case.late
    assert {row.window_id for row in frame.select("window_id").collect()} == {case.plan.window_id}


@pytest.mark.long
def test_order_is_kept_over_many_tasks(
    bootstrap: str, case: Case, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks get their shares by sampled edges; all four columns count, for most times are equal here."""
    monkeypatch.setattr(order, "ONE_TASK_OFFSETS_MAX", 0)
    monkeypatch.setattr(edges, "RUN_STEP_OFFSETS", 2)
    monkeypatch.setattr(order, "BUCKET_OFFSETS", 30)
    frame = read_window(spark, case.plan, settings_of(bootstrap), ordered=True)
    assert frame.rdd.getNumPartitions() > 2
    assert sum(1 for rows in frame.rdd.glom().collect() if rows) > 2
    assert rows_of(frame) == case.rows


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("ordered", [True, False])
def test_an_empty_window_has_the_columns_and_no_rows(
    spark: SparkSession, engine: Engine, ordered: bool
) -> None:
    """Nothing happened in the window: an empty DataFrame, and no broker is asked."""
    frame = read_window(
        spark, plan_of([]), settings_of("127.0.0.1:1"), engine=engine, ordered=ordered
    )
    assert frame.columns == SPARK_SCHEMA.names
    assert frame.count() == 0


def test_neither_secrets_nor_the_plan_are_shown(
    bootstrap: str, case: Case, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """What Spark prints of the read has no password, no broker, no offsets, no group: only the name."""
    settings = settings_of(bootstrap, **{"sasl.password": PASSWORD})
    for ordered in (True, False):
        frame = read_window(spark, case.plan, settings, ordered=ordered)
        frame.explain(True)
        frame.explain("formatted")
        shown = capsys.readouterr().out
        assert "kafka_window" in shown
        for hidden in (
            PASSWORD,
            bootstrap,
            case.plan.group_id,
            case.plan.claim_id,
            *case.plan.topics,
        ):
            assert hidden not in shown
    assert all(PASSWORD not in value for _, value in spark.sparkContext.getConf().getAll())


def test_a_task_carries_its_own_slice_only(case: Case) -> None:
    """The plan stays with the worker that plans the read; what goes to the tasks has no ranges."""
    from pyspark.sql.types import StructType

    from kafka_ordered_ops.spark.read.source import KafkaWindowSource, WindowRead

    slices = tuple(slices_of(pieces_of([case.plan]), tasks=50, least_offsets=1))
    read = WindowRead(settings_of("b:1"), "g", Isolation.READ_COMMITTED, slices)
    source = KafkaWindowSource({}, read)
    with_plan = len(pickle.dumps(source))
    reader = pickle.loads(pickle.dumps(source)).reader(StructType())
    assert len(reader.partitions()) == len(slices)
    assert pickle.loads(pickle.dumps(reader)).partitions()[0].pieces == ()
    source.reader(StructType())
    assert len(pickle.dumps(source)) + len(pickle.dumps(reader)) < with_plan / 2


def test_the_declared_columns_are_what_batches_have(spark: SparkSession) -> None:
    """Spark compares the first batch with its own Arrow schema, to the letter."""
    from kafka_ordered_ops.spark.read.files_source import to_arrow
    from kafka_ordered_ops.spark.read.source import SOURCE_DDL

    schema = spark.createDataFrame([], SOURCE_DDL).schema
    assert to_arrow(schema) == SOURCE_SCHEMA


def test_two_windows_are_read_side_by_side(
    bootstrap: str, topic: MakeTopic, spark: SparkSession
) -> None:
    """Reading a second window does not change what an earlier DataFrame reads."""
    name = topic()
    producer = ck.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for _ in range(6):
        producer.produce(name, b"v", partition=0, timestamp=CUTOFF_MS)
    producer.flush()
    frames = [
        read_window(
            spark,
            plan_of([part_of(name, 0, OffsetSet.of((start, start + 3)))], window_id=f"w{start}"),
            settings_of(bootstrap),
        )
        for start in (0, 3)
    ]
    rows = frames[0].union(frames[1]).select("window_id", "offset").collect()
    assert sorted((row[0], row[1]) for row in rows) == [
        ("w0", 0), ("w0", 1), ("w0", 2), ("w3", 3), ("w3", 4), ("w3", 5)
    ]  # fmt: skip


@pytest.mark.long
def test_a_topic_that_is_gone_is_a_named_error(
    bootstrap: str, spark: SparkSession, tmp_path: Path
) -> None:
    """A task's error reaches the caller by name: inside Spark's from an action, bare from a write."""
    plan = plan_of([part_of("never-made", 0, OffsetSet.of((0, 5)))])
    frame = read_window(spark, plan, settings_of(bootstrap), stall_timeout_s=2)
    with pytest.raises(Exception, match="UnknownTopicError: ") as raised:
        frame.collect()
    assert isinstance(named_error(raised.value), UnknownTopicError)
    with pytest.raises(UnknownTopicError, match="never-made"):
        write_window(frame, tmp_path, plan, ordered=False)
    assert not Path(StagedOutput.of(plan, tmp_path).stage_path).exists()
    with pytest.raises(UnknownTopicError):
        read_window(spark, plan, settings_of(bootstrap), engine="local", stall_timeout_s=2)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_time_that_spark_cannot_hold_names_the_record(
    bootstrap: str, topic: MakeTopic, spark: SparkSession, engine: Engine
) -> None:
    """A record of the far future stops the read instead of coming out with another time.

    Java says that some time is too large, and not which.
    """
    name = topic(config={"message.timestamp.after.max.ms": str((1 << 63) - 1)})
    producer = ck.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    producer.produce(name, b"v", partition=0, timestamp=1 << 60)
    producer.flush()
    plan = plan_of([part_of(name, 0, OffsetSet.of((0, 1)))])
    said = "overflow" if engine is Engine.CONNECTOR else "stamped 1,152,921,504,606,846,976 ms"
    with pytest.raises(Exception, match=said) as raised:
        read_window(spark, plan, settings_of(bootstrap), engine=engine).collect()
    error = raised.value
    assert isinstance(error if isinstance(error, ReadError) else named_error(error), ReadError)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (
            "x\nkafka_ordered_ops.core.errors.ReadTimeoutError: no position moved: a at 3 of 5",
            ReadTimeoutError,
        ),
        (
            "kafka_ordered_ops.core.errors.ReadError: one\ntwo\n SQLSTATE: 38000\n\tat java",
            ReadError,
        ),
        ("kafka_ordered_ops.core.errors.NoSuchError: one", type(None)),
        ("kafka_ordered_ops.core.errors.invariant: one", type(None)),
        ("ValueError: one", type(None)),
    ],
)
def test_named_errors_are_found_in_text(text: str, kind: type) -> None:
    """Only this package's own errors count, and Spark's words around the message are cut off."""
    error = named_error(RuntimeError(text))
    assert type(error) is kind
    assert error is None or "SQLSTATE" not in str(error)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("sorted_by", ["read", "write"])
def test_written_files_are_in_order_by_name(
    bootstrap: str,
    case: Case,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    engine: Engine,
    sorted_by: str,
) -> None:
    """Going through several files by name gives the total order, whoever has sorted."""
    monkeypatch.setattr(order, "ONE_TASK_OFFSETS_MAX", 0)
    monkeypatch.setattr(edges, "RUN_STEP_OFFSETS", 2)
    monkeypatch.setattr("kafka_ordered_ops.output.writing.stage_files.FILE_BYTES_MAX", 4_000)
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    spark.conf.set("spark.sql.shuffle.partitions", "4")
    try:
        frame = read_window(
            spark, case.plan, settings_of(bootstrap), ordered=sorted_by == "read", engine=engine
        )
        output = write_window(frame, tmp_path, case.plan)
    finally:
        spark.conf.unset("spark.sql.adaptive.enabled")
        spark.conf.unset("spark.sql.shuffle.partitions")
    output.publish()
    assert published_rows(output) == case.rows
    facts = dict(output.facts)
    assert (facts.pop("files") or 0) > 1 or (engine is Engine.LOCAL and sorted_by == "read")
    assert facts.pop("bytes")
    assert facts.pop("elapsed_ms") is not None
    assert facts == {
        "records": len(case.rows),
        "late": len(case.late),
        "out_of_order": case.out_of_order,
        "timestamp_ms_min": case.rows[0].timestamp_ms,
        "timestamp_ms_max": case.rows[-1].timestamp_ms,
    }


def test_writing_and_publishing_twice_leaves_one_output(
    bootstrap: str, case: Case, spark: SparkSession, tmp_path: Path
) -> None:
    """The same attempt written again replaces its stage, and published again replaces its output."""
    frame = read_window(spark, case.plan, settings_of(bootstrap))
    write_window(frame, tmp_path, case.plan).publish()
    write_window(frame, tmp_path, case.plan)
    output = write_window(frame, tmp_path, case.plan)
    output.publish()
    output.publish()
    assert len(published_rows(output)) == len(case.rows)
    table = spark.read.parquet(f"file://{tmp_path}")
    assert table.count() == len(case.rows)
    assert [name for name in table.columns if name == "window_id"] == ["window_id"]


def test_a_result_without_the_orders_columns_is_written_as_it_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    """An aggregate has no place in time: it is counted, and written without sorting."""
    frame = spark.range(10).withColumnRenamed("id", "n")
    output = write_window(frame, tmp_path, plan_of([]))
    assert output.facts["records"] == 10
    assert "late" not in output.facts


def test_an_empty_result_is_published_with_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    """A window in which nothing happened can be read like any other."""
    output = write_window(
        read_window(spark, plan_of([]), settings_of("127.0.0.1:1")), tmp_path, plan_of([])
    )
    output.publish()
    assert output.facts["records"] == 0
    assert output.facts["timestamp_ms_min"] is None
    assert spark.read.parquet(output.final_path).columns == SPARK_SCHEMA.names[:-1]


def test_a_failed_job_is_a_sink_error_and_no_stage(spark: SparkSession, tmp_path: Path) -> None:
    """The user's own failure is named, with its cause, and the session's settings are put back."""
    key = "spark.sql.parquet.outputTimestampType"
    spark.conf.set(key, "INT96")
    # As Spark 4.0 takes it, too: a column with a type, and no doubled quote.
    frame = spark.range(3).selectExpr(
        """CAST(raise_error("the user's own failure") AS string) AS x"""
    )
    try:
        with pytest.raises(SinkError, match="the user's own failure") as raised:
            write_window(frame, tmp_path, plan_of([]))
        assert spark.conf.get(key) == "INT96"
    finally:
        spark.conf.set(key, "TIMESTAMP_MICROS")
    assert raised.value.__cause__ is not None
    assert not StagedOutput.of(plan_of([]), tmp_path).exists()


def test_a_covered_window_is_never_written(spark: SparkSession, tmp_path: Path) -> None:
    """An empty output in the place of records that others deliver would hide them."""
    with pytest.raises(WindowCoveredError):
        write_window(spark.range(1), tmp_path, plan_of([], content=PlanContent.COVERED))


def test_a_stage_is_read_again_without_kafka(
    bootstrap: str, case: Case, spark: SparkSession, tmp_path: Path
) -> None:
    """With a stage root of one's own, a second read of the same attempt finds the files."""
    options = {"engine": "local", "ordered": True, "local_root": tmp_path}
    first = read_window(spark, case.plan, settings_of(bootstrap), **options)  # type: ignore[arg-type]
    again = read_window(spark, case.plan, settings_of("127.0.0.1:1"), **options)  # type: ignore[arg-type]
    assert rows_of(first) == rows_of(again) == case.rows


def test_an_unknown_engine_is_refused(spark: SparkSession) -> None:
    """The error names the engines that there are."""
    with pytest.raises(ConfigError, match="'python', 'connector', 'local'"):
        read_window(spark, plan_of([]), settings_of("127.0.0.1:1"), engine="scala")


def test_a_kafka_in_memory_is_not_for_the_jvm(spark: SparkSession) -> None:
    """No Java process sees what lies in this one's memory; the other engines read it here."""
    memory = settings_of("memory:orders")
    with pytest.raises(ConfigError, match="cannot read memory:orders"):
        read_window(spark, plan_of([]), memory, engine="connector")


@pytest.mark.parametrize(
    ("installed", "found", "error"),
    [
        ({"pyspark": "4.3.0", "pyspark-client": "4.2.0"}, True, EnvironmentConflictError),
        ({}, False, ConfigError),
        # A Spark that was unpacked, not installed: spark-submit puts its folder on the path.
        ({}, True, None),
        ({"pyspark": "4.3.0"}, True, None),
        ({"pyspark-client": "4.3.0"}, True, None),
    ],
)
def test_installations_that_break_each_other_are_named(
    monkeypatch: pytest.MonkeyPatch,
    installed: dict[str, str],
    found: bool,
    error: type[Exception] | None,
) -> None:
    """The client and the whole of pyspark share one folder: both at once is an error with a cure."""

    def version(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(environment, "version", version)
    monkeypatch.setattr(
        spark_submit,
        "find_spec",
        lambda _: ModuleSpec("pyspark", None, origin="pyspark/__init__.py") if found else None,
    )
    if error is None:
        environment.check_pyspark()
    else:
        with pytest.raises(error, match=re.escape("pip")):
            environment.check_pyspark()
