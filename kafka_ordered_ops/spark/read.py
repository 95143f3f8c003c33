"""A plan as a DataFrame."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
import uuid
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from kafka_ordered_ops.core.errors import ConfigError, ReadError
from kafka_ordered_ops.core.plan import WindowPlan
from kafka_ordered_ops.core.types import PlanContent
from kafka_ordered_ops.kafka.reader import STALL_TIMEOUT_S
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.spark.columns import ORDER, SPARK_SCHEMA, SPARK_TIMESTAMP_MS_MAX
from kafka_ordered_ops.spark.environment import check_pyspark
from kafka_ordered_ops.spark.files import spark_path
from kafka_ordered_ops.spark.output import StagedOutput
from kafka_ordered_ops.spark.slices import Slice, sample_of, slices_of
from kafka_ordered_ops.spark.stage import stage_window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: More slices than cores, so that a slow one does not hold the job; each one costs a connection.
TASKS_PER_CORE: Final = 3

#: A slice smaller than this is read faster than its task and its connection are set up.
SLICE_OFFSETS_MIN: Final = 20_000

#: What to cut for when the number of cores cannot be asked for: over Spark Connect.
PARALLELISM_UNKNOWN: Final = 8

#: A window of so many offsets at most is put in order by one task, without a look at it beforehand.
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
_IN_ORDER: WeakSet[DataFrame] = WeakSet()

#: Between registering a data source and loading it, no other thread may register one of the same name.
_REGISTERING: Final = threading.Lock()


class Engine(StrEnum):
    """Who reads Kafka: the executors in parallel, or this process, once, into files that Spark reads."""

    PYTHON = "python"
    STAGE = "stage"


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
    """A DataFrame of exactly the plan's records.

    Columns: ``topic`` string, ``partition`` int, ``offset`` bigint, ``timestamp`` timestamp, ``timestamp_type``
    int (0 CreateTime, 1 LogAppendTime, null none), ``key`` binary, ``value`` binary, ``headers``
    array<struct<key: string, value: binary>> (null when there are none), ``late`` boolean (the record was
    written after the window that its time belongs to had been planned), ``window_id`` string.

    With the python engine the result is lazy, and every action reads Kafka again, the same records:
    ``persist()`` it for more than one. A task's error reaches the driver inside one of Spark's, by text;
    `kafka_ordered_ops.spark.failures.named_error` gives it back.

    Args:
        spark: the session, classic or Connect. Executors need this package, and a way to the brokers.
        plan: the window. One that is covered by others reads as empty.
        settings: how to reach the cluster; they travel inside the pickled reader and are shown nowhere.
        ordered: in total order by (timestamp, topic, partition, offset), within each partition of the
            DataFrame and over them. Without it, rows come as they are read.
        engine: `Engine.PYTHON` reads with the executors. `Engine.STAGE` reads here and now, into files;
            the window must fit this process's memory (`stage.HELD_BYTES_MAX`) when it is ordered.
        stage_root: where the stage engine puts its files; executors must see the same folder, and it is
            left there, so that reading the same attempt again needs no Kafka. Without one a temporary
            folder is used, and removed at exit: for local sessions only.
        stall_timeout_s: how long a reader waits for any partition to move.

    Raises:
        ConfigError: unknown engine; a stage root missing for a session that is not local.
        EnvironmentConflictError: pyspark and pyspark-client are both installed.
        ReadError, HeldLimitError, BrokerError: from the stage engine, at once.
    """
    check_pyspark()
    try:
        engine = Engine(engine)
    except ValueError:
        known = ", ".join(repr(known.value) for known in Engine)
        raise ConfigError(f"engine {engine!r} is unknown; there are {known}") from None
    source = _Source(spark, plan, settings, stall_timeout_s)
    if engine is Engine.STAGE:
        frame = _read_staged(source, ordered=ordered, stage_root=stage_root)
    elif ordered:
        frame = _read_ordered(source)
    else:
        frame = _read_parallel(source)
    if ordered:
        _IN_ORDER.add(frame)
    return frame


def is_in_order(frame: DataFrame) -> bool:
    """Whether this very DataFrame is known to be in order: it is a result of `read_window`."""
    return frame in _IN_ORDER


@dataclass(frozen=True)
class _Source:
    """What every way of reading needs."""

    spark: SparkSession
    plan: WindowPlan
    settings: ClientSettings
    stall_timeout_s: float

    def load(self, slices: list[Slice]) -> DataFrame:
        """The records of some slices of the plan, read by the executors."""
        from kafka_ordered_ops.spark.source import SOURCE_NAME, WindowRead, source_of

        plan = self.plan
        read = WindowRead(
            settings=self.settings,
            group=plan.group,
            window_id=plan.window_id,
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
    return source.load(slices_of(source.plan, tasks=tasks, least_offsets=SLICE_OFFSETS_MIN))


def _read_ordered(source: _Source) -> DataFrame:
    """Deals records out to tasks by edges known beforehand, then sorts in each: one reading of Kafka.

    A plain ``orderBy`` reads everything twice, once to find such edges.
    """
    frame = _read_parallel(source)
    if source.plan.offsets <= ONE_TASK_OFFSETS_MAX:
        return frame.repartition(1).sortWithinPartitions(*ORDER)
    edges = _edges(source)
    dealt = frame.withColumn(_BUCKET, _bucket_of(edges)).repartitionById(len(edges) + 1, _BUCKET)
    return dealt.sortWithinPartitions(*ORDER).drop(_BUCKET)


def _edges(source: _Source) -> list[Any]:
    """Rows of the order's columns at which the tasks' shares begin; they decide balance, never order."""
    offsets = source.plan.offsets
    buckets = max(source.parallelism, -(-offsets // _BUCKET_OFFSETS))
    runs = max(1, min(offsets // _SAMPLE_STEP_OFFSETS, buckets * _SAMPLE_RUNS_PER_BUCKET))
    slices = sample_of(source.plan, runs=runs, run_offsets=_SAMPLE_RUN_OFFSETS)
    rows = source.load(slices).selectExpr("unix_micros(timestamp)", *ORDER[1:]).collect()
    samples = sorted(tuple(row) for row in rows)
    picked = (samples[len(samples) * n // buckets] for n in range(1, buckets) if samples)
    return sorted(set(picked))


def _bucket_of(edges: list[Any]) -> Column:
    """The number of edges at or below a record. All four columns count, or equal times share one task."""
    from pyspark.sql import functions as f

    record = f.struct(*ORDER)
    passed = (
        (
            record
            >= f.struct(
                f.timestamp_micros(f.lit(micros)).alias("timestamp"),
                f.lit(topic).alias("topic"),
                f.lit(partition).cast("int").alias("partition"),
                f.lit(offset).cast("bigint").alias("offset"),
            )
        ).cast("int")
        for micros, topic, partition, offset in edges
    )
    return reduce(lambda sum_, one: sum_ + one, passed, f.lit(0))


def _read_staged(
    source: _Source, *, ordered: bool, stage_root: str | os.PathLike[str] | None
) -> DataFrame:
    from pyspark.sql import functions as f

    spark, plan = source.spark, source.plan
    if plan.content is PlanContent.COVERED:
        return source.load([])
    root = _temporary_root(source) if stage_root is None else os.fspath(stage_root)
    # Apart from the stages of `write_window`, which may be told the same root.
    output = StagedOutput.of(
        plan, f"{root.rstrip('/')}/.koo-read-{'ordered' if ordered else 'any'}"
    )
    if not output.exists():
        output = stage_window(
            plan,
            source.settings,
            output.root,
            ordered=ordered,
            stall_timeout_s=source.stall_timeout_s,
        )
    output = output.as_found()
    _check_greatest(output)
    if ordered:
        # Each file is one row group, which Spark does not split, and a union keeps the order of its parts.
        # Given the folder, Spark would pack files into partitions by size.
        files = sorted(str(path) for path in Path(output.stage_path).glob("part-*.parquet"))
        frames = [spark.read.parquet(spark_path(file)) for file in files]
        frame = reduce(lambda above, below: above.unionAll(below), frames)
    else:
        frame = spark.read.parquet(output.stage_uri)
    return frame.withColumn("window_id", f.lit(plan.window_id)).select(*SPARK_SCHEMA.names)


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
