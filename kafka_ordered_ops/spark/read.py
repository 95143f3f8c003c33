"""Plans as a DataFrame."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from kafka_ordered_ops.core.errors import ConfigError, ReadError
from kafka_ordered_ops.core.plan import WindowPlan
from kafka_ordered_ops.core.types import PlanContent
from kafka_ordered_ops.kafka.reader import STALL_TIMEOUT_S
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.spark.columns import (
    MANY_ORDER,
    ORDER,
    SPARK_TIMESTAMP_MS_MAX,
    STAGE_DDL,
    WINDOW_NUMBER,
)
from kafka_ordered_ops.spark.environment import check_pyspark
from kafka_ordered_ops.spark.files import spark_path
from kafka_ordered_ops.spark.output import StagedOutput
from kafka_ordered_ops.spark.pieces import Piece, check_together, pieces_of
from kafka_ordered_ops.spark.slices import Slice, sample_of, slices_of
from kafka_ordered_ops.spark.stage import stage_windows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: More slices than cores, so that a slow one does not hold the job; each one costs a connection.
TASKS_PER_CORE: Final = 3

#: A slice smaller than this is read faster than its task and its connection are set up.
SLICE_OFFSETS_MIN: Final = 20_000

#: What to cut for when the number of cores cannot be asked for: over Spark Connect.
PARALLELISM_UNKNOWN: Final = 8

#: So many offsets at most are put in order by one task, without a look at it beforehand.
ONE_TASK_OFFSETS_MAX: Final = 200_000

#: Samples that decide where the tasks' shares of the order begin: runs of offsets so far apart that the
#: reader jumps from one to the next, so that a look costs some fetches and no second reading.
_SAMPLE_STEP_OFFSETS: Final = 20_000
_SAMPLE_RUNS_PER_BUCKET: Final = 32
_SAMPLE_RUN_OFFSETS: Final = 4

#: Records that one task puts in order, where there are more of them than cores can share.
_BUCKET_OFFSETS: Final = 2_000_000

_BUCKET: Final = "_koo_bucket"

#: Results that need no sorting again. What is derived from them may: it is a new DataFrame.
_IN_ORDER: WeakKeyDictionary[DataFrame, InOrder] = WeakKeyDictionary()

#: Between registering a data source and loading it, no other thread may register one of the same name.
_REGISTERING: Final = threading.Lock()


class Engine(StrEnum):
    """Who reads Kafka: the executors in parallel, or this process, once, into files that Spark reads."""

    PYTHON = "python"
    STAGE = "stage"


@dataclass(frozen=True)
class InOrder:
    """What is known of a DataFrame that is in order."""

    #: The windows, in the order in which they lie in it.
    window_ids: tuple[str, ...]
    #: The same records, with `WINDOW_NUMBER`, dealt out to their tasks and still to be sorted there by
    #: `MANY_ORDER`; None where they come from files.
    dealt: DataFrame | None


def read_window(
    spark: SparkSession,
    plan: WindowPlan,
    settings: ClientSettings,
    *,
    ordered: bool = False,
    engine: Engine | str = Engine.PYTHON,
    stage_root: str | os.PathLike[str] | None = None,
    stall_timeout_s: float = STALL_TIMEOUT_S,
) -> DataFrame:
    """A DataFrame of exactly the plan's records: `read_windows` for one plan."""
    return read_windows(
        spark,
        [plan],
        settings,
        ordered=ordered,
        engine=engine,
        stage_root=stage_root,
        stall_timeout_s=stall_timeout_s,
    )


def read_windows(
    spark: SparkSession,
    plans: Sequence[WindowPlan],
    settings: ClientSettings,
    *,
    ordered: bool = False,
    engine: Engine | str = Engine.PYTHON,
    stage_root: str | os.PathLike[str] | None = None,
    stall_timeout_s: float = STALL_TIMEOUT_S,
) -> DataFrame:
    """A DataFrame of exactly the plans' records, read from Kafka in one pass.

    Columns: ``topic`` string, ``partition`` int, ``offset`` bigint, ``timestamp`` timestamp, ``timestamp_type``
    int (0 CreateTime, 1 LogAppendTime, null none), ``key`` binary, ``value`` binary, ``headers``
    array<struct<key: string, value: binary>> (null when there are none), ``late`` boolean (the record was
    written after the window that its time belongs to had been planned), ``window_id`` string (the window
    that takes the record).

    With the python engine the result is lazy, and every action reads Kafka again, the same records:
    ``persist()`` it for more than one. A task's error reaches the driver inside one of Spark's, by text;
    `kafka_ordered_ops.spark.failures.named_error` gives it back.

    Args:
        spark: the session, classic or Connect. Executors need this package, and a way to the brokers.
        plans: windows of one group and isolation, each once. One that is covered by others reads as empty.
        settings: how to reach the cluster; they travel inside the pickled reader and are shown nowhere.
        ordered: window after window, as `plans` name them, and in each by (timestamp, topic, partition,
            offset): a total order, within each partition of the DataFrame and over them. Without it, rows
            come as they are read.
        engine: `Engine.PYTHON` reads with the executors. `Engine.STAGE` reads here and now, into files;
            the windows must fit this process's memory (`stage.HELD_BYTES_MAX`) when they are ordered. With the
            settings of an `InMemoryKafka` both read here: no executor can reach it.
        stage_root: where the stage engine puts its files; executors must see the same folder, and it is
            left there, so that reading the same attempt again needs no Kafka. Without one a temporary
            folder is used, and removed at exit: for local sessions only.
        stall_timeout_s: how long a reader waits for any partition to move.

    Raises:
        ConfigError: unknown engine; no plan, or plans that cannot be read together, or that share offsets; a
            stage root missing for a session that is not local.
        EnvironmentConflictError: pyspark and pyspark-client are both installed.
        ReadError, HeldLimitError, BrokerError: from the stage engine, at once.
    """
    check_pyspark()
    try:
        engine = Engine(engine)
    except ValueError:
        known = ", ".join(repr(known.value) for known in Engine)
        raise ConfigError(f"engine {engine!r} is unknown; there are {known}") from None
    if settings.memory_name is not None:
        # Executors are other processes: they cannot see what lies in this one's memory.
        engine = Engine.STAGE
    check_together(plans)
    source = _Source(spark, tuple(plans), settings, stall_timeout_s)
    window_ids = tuple(plan.window_id for plan in plans)
    if engine is Engine.STAGE:
        frame = _read_staged(source, ordered=ordered, stage_root=stage_root)
        in_order = InOrder(window_ids, None)
    elif ordered:
        dealt = _deal(source)
        frame = dealt.sortWithinPartitions(*MANY_ORDER).drop(WINDOW_NUMBER)
        in_order = InOrder(window_ids, dealt)
    else:
        return _read_parallel(source).drop(WINDOW_NUMBER)
    if ordered:
        _IN_ORDER[frame] = in_order
    return frame


def order_of(frame: DataFrame) -> InOrder | None:
    """What is known of the order of this very DataFrame; None unless it is an ordered result of a read."""
    return _IN_ORDER.get(frame)


@dataclass(frozen=True)
class _Source:
    """What every way of reading needs."""

    spark: SparkSession
    plans: tuple[WindowPlan, ...]
    settings: ClientSettings
    stall_timeout_s: float

    def load(self, slices: list[Slice]) -> DataFrame:
        """The records of some slices of the plans, read by the executors."""
        from kafka_ordered_ops.spark.source import SOURCE_NAME, WindowRead, source_of

        plan = self.plans[0]
        read = WindowRead(
            settings=self.settings,
            group=plan.group,
            isolation=plan.isolation,
            slices=tuple(slices),
            stall_timeout_s=self.stall_timeout_s,
        )
        # A classic session looks the name up once, in load. Connect does so for every action, so that a
        # name used twice would make an older DataFrame read the newer window.
        name = f"{SOURCE_NAME}_{uuid.uuid4().hex}" if self.is_connect else SOURCE_NAME
        with _REGISTERING:
            self.spark.dataSource.register(source_of(read, name))
            return self.spark.read.format(name).load()

    @cached_property
    def pieces(self) -> list[Piece]:
        """All that the plans take."""
        return pieces_of(self.plans)

    @property
    def offsets(self) -> int:
        """How many offsets that are."""
        return sum(plan.offsets for plan in self.plans)

    @property
    def is_connect(self) -> bool:
        """Asked of the object: Connect's classes need packages that a classic installation lacks."""
        return type(self.spark).__module__.startswith("pyspark.sql.connect")

    @property
    def parallelism(self) -> int:
        """How many tasks can run at a time."""
        if self.is_connect:
            return PARALLELISM_UNKNOWN
        return self.spark.sparkContext.defaultParallelism


def _read_parallel(source: _Source) -> DataFrame:
    tasks = source.parallelism * TASKS_PER_CORE
    return source.load(slices_of(source.pieces, tasks=tasks, least_offsets=SLICE_OFFSETS_MIN))


def _deal(source: _Source) -> DataFrame:
    """Deals records out to tasks by edges known beforehand, to be sorted in each: one reading of Kafka.

    A plain ``orderBy`` reads everything twice, once to find such edges.
    """
    frame = _read_parallel(source)
    if source.offsets <= ONE_TASK_OFFSETS_MAX:
        return frame.repartition(1)
    edges = _edges(source)
    dealt = frame.withColumn(_BUCKET, _bucket_of(edges)).repartitionById(len(edges) + 1, _BUCKET)
    return dealt.drop(_BUCKET)


def _edges(source: _Source) -> list[Any]:
    """Rows of the order's columns at which the tasks' shares begin; they decide balance, never order."""
    offsets = source.offsets
    buckets = max(source.parallelism, -(-offsets // _BUCKET_OFFSETS))
    runs = max(1, min(offsets // _SAMPLE_STEP_OFFSETS, buckets * _SAMPLE_RUNS_PER_BUCKET))
    slices = sample_of(source.pieces, runs=runs, run_offsets=_SAMPLE_RUN_OFFSETS)
    columns = (WINDOW_NUMBER, "unix_micros(timestamp)", *ORDER[1:])
    rows = source.load(slices).selectExpr(*columns).collect()
    samples = sorted(tuple(row) for row in rows)
    picked = (samples[len(samples) * n // buckets] for n in range(1, buckets) if samples)
    return sorted(set(picked))


def _bucket_of(edges: list[Any]) -> Column:
    """The number of edges at or below a record. All columns count, or equal times share one task."""
    from pyspark.sql import functions as f

    record = f.struct(*MANY_ORDER)
    passed = (
        (
            record
            >= f.struct(
                f.lit(window).cast("int").alias(WINDOW_NUMBER),
                f.timestamp_micros(f.lit(micros)).alias("timestamp"),
                f.lit(topic).alias("topic"),
                f.lit(partition).cast("int").alias("partition"),
                f.lit(offset).cast("bigint").alias("offset"),
            )
        ).cast("int")
        for window, micros, topic, partition, offset in edges
    )
    return reduce(lambda sum_, one: sum_ + one, passed, f.lit(0))


def _read_staged(
    source: _Source, *, ordered: bool, stage_root: str | os.PathLike[str] | None
) -> DataFrame:
    plans = [plan for plan in source.plans if plan.content is not PlanContent.COVERED]
    if not plans:
        return source.load([]).drop(WINDOW_NUMBER)
    root = _temporary_root(source) if stage_root is None else os.fspath(stage_root)
    # Apart from the stages of `write_windows`, which may be told the same root.
    root = f"{root.rstrip('/')}/.koo-read-{'ordered' if ordered else 'any'}"
    outputs = [StagedOutput.of(plan, root) for plan in plans]
    missing = [plan for plan, one in zip(plans, outputs, strict=True) if not one.exists()]
    if missing:
        stage_windows(
            missing,
            source.settings,
            root,
            ordered=ordered,
            stall_timeout_s=source.stall_timeout_s,
        )
    frames: list[DataFrame] = []
    for output in outputs:
        _check_greatest(output.as_found())
        frames += _staged_frames(source.spark, output, ordered=ordered)
    return reduce(lambda above, below: above.unionAll(below), frames)


def _staged_frames(
    spark: SparkSession, output: StagedOutput, *, ordered: bool
) -> Iterator[DataFrame]:
    """The files of one window, in order."""
    from pyspark.sql import functions as f

    # Each file is one row group, which Spark does not split, and a union keeps the order of its parts.
    # Given the folder, Spark would pack files into partitions by size.
    files = sorted(str(path) for path in Path(output.stage_path).glob("part-*.parquet"))
    paths = map(spark_path, files) if ordered else [output.stage_uri]
    for path in paths:
        # Without the schema Spark would start a job for each file, to look it up.
        frame = spark.read.schema(STAGE_DDL).parquet(path)
        yield frame.withColumn("window_id", f.lit(output.window_id))


def _check_greatest(output: StagedOutput) -> None:
    greatest = output.facts.get("timestamp_ms_max")
    if greatest is not None and greatest > SPARK_TIMESTAMP_MS_MAX:
        raise ReadError(
            f"window {output.window_id} has a record stamped {greatest:,} ms since 1970: Spark's timestamps end "
            f"at {SPARK_TIMESTAMP_MS_MAX:,} ms. The staged files keep milliseconds: {output.stage_path}",
            timestamp_ms=greatest,
        )


def _temporary_root(source: _Source) -> str:
    master = "" if source.is_connect else source.spark.sparkContext.master or ""
    if not master.startswith("local") or master.startswith("local-cluster"):
        raise ConfigError(
            "engine 'stage' writes files on this machine, and the executors of this session may run on others: "
            "name a folder that all of them see as stage_root"
        )
    root = tempfile.mkdtemp(prefix="kafka-ordered-ops-")
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root
