"""The engine that reads with the cluster's own Kafka connector, in Java.

The plan decides: the connector gets exact offsets for every partition, so it resolves no bounds itself. Records outside
the plan are dropped by offset (`connector_loads`). No Python worker is involved.

A plan's settings are passed as options of the connector. A classic session shows them nowhere. Spark Connect writes every
request to its web page and its event log, secrets included, so settings with secrets are refused over Connect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from kafka_ordered_ops.core.errors import ConfigError, ReadError
from kafka_ordered_ops.core.types import Isolation
from kafka_ordered_ops.kafka.read.reader import STALL_TIMEOUT_S
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.ordered.records.columns import SOURCE_SCHEMA, WINDOW_NUMBER
from kafka_ordered_ops.ordered.records.pieces import Piece
from kafka_ordered_ops.spark.read.connector_loads import (
    HOLE_OFFSETS_MIN,
    LOADS_MAX,
    Load,
    Runs,
    loads_of,
    needs_runs,
    offsets_of,
)
from kafka_ordered_ops.spark.read.connector_settings import java_settings
from kafka_ordered_ops.spark.read.reading import (
    SLICE_OFFSETS_MIN,
    TASKS_PER_CORE,
    is_connect,
    parallelism,
)
from kafka_ordered_ops.spark.read.source import SOURCE_DDL

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_FORMAT: Final = "kafka"
_PROVIDER: Final = "org.apache.spark.sql.kafka010.KafkaSourceProvider"

#: Spark keeps its internal classes unchanged within a minor version.
_MINOR: Final = re.compile(r"\d+\.\d+")

#: The connector shifts times before 1900 as java.sql.Timestamp does, by the historical calendar and clocks of the JVM's
#: time zone. The original time of a record cannot be restored. One day is added for the zones.
_TIMES_FROM_MS: Final = -2_208_988_800_000 + 86_400_000


def jvm_frame(
    spark: SparkSession,
    pieces: Sequence[Piece],
    settings: ClientSettings,
    *,
    group_id: str,
    isolation: Isolation,
    stall_timeout_s: float = STALL_TIMEOUT_S,
) -> DataFrame:
    """Return the records of several pieces, unordered, with the columns of `source.SOURCE_DDL`.

    Args:
        spark: a session with the Kafka connector of Spark's version.
        pieces: the wanted pieces, at most one for each partition.
        settings: how to reach the cluster, from the driver and from the executors.
        group_id: sent to the brokers with a suffix; the group is neither joined nor committed to.
        isolation: which records are visible.
        stall_timeout_s: how long a task waits for its next record.

    Raises:
        ConfigError: the connector is missing or has another version than Spark; a setting that Java's client does
            not have; or secrets that Spark Connect would show.
    """
    _check_connector(spark)
    java = java_settings(
        settings, group_id=group_id, isolation=isolation, stall_timeout_s=stall_timeout_s
    )
    if is_connect(spark) and java.secrets_from:
        raise ConfigError(
            f"engine 'connector' does not accept {', '.join(java.secrets_from)} over Spark Connect: the connector gets them "
            "as options, and Connect writes every request unchanged into its web page and event log. Use "
            "engine 'python', whose settings travel inside the pickled reader, or a classic session"
        )
    loads = loads_of(pieces, hole_offsets_min=HOLE_OFFSETS_MIN, loads_max=LOADS_MAX)
    if not loads:
        return spark.createDataFrame([], SOURCE_DDL)
    options = {
        **{f"kafka.{key}": value for key, value in java.values.items()},
        "failOnDataLoss": "true",
        # Every read has its own group: the connector reuses consumers of the same group and partition for the
        # next read, even if its settings differ.
        "groupIdPrefix": group_id,
        "includeHeaders": "true",
        "kafkaConsumer.pollTimeoutMs": str(round(stall_timeout_s * 1000)),
    }
    read_offsets = offsets_of(loads)
    frame = _loaded(spark, loads, options, read_offsets)
    if needs_runs(pieces, loads):
        frame = _told_apart(spark, frame, Runs.of(pieces, read_offsets))
    else:
        frame = _all_of(frame, pieces[0])
    # After records were dropped: the time of an unwanted record does not matter.
    frame = frame.withColumns({name: _if_time_is_kept(name) for name in ("timestamp", "late")})
    return frame.select(*SOURCE_SCHEMA.names)


def _check_connector(spark: SparkSession) -> None:
    """Raise `ConfigError` unless the session has the connector of Spark's version, as far as this can be checked."""
    if is_connect(spark):
        # A Connect client cannot see the server's class path: Spark reports a missing connector at the first action.
        return
    jvm: Any = spark._jvm
    loader = jvm.Thread.currentThread().getContextClassLoader()
    what = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark.version}"
    try:
        package = loader.loadClass(_PROVIDER).getPackage()
    except Exception as error:
        # Py4J's own error, which can only be recognized by its text.
        if "ClassNotFoundException" not in str(error):
            raise
        raise ConfigError(
            f"engine 'connector' reads with Spark's Kafka connector, which this session lacks: start it with {what} "
            "and its dependencies (spark.jars.packages, or spark.jars for files), or use engine 'python'"
        ) from None
    # None in a vendor's build without a version.
    connector_version = package.getImplementationVersion() if package is not None else None
    if connector_version is not None and _minor(connector_version) != _minor(spark.version):
        raise ConfigError(
            f"engine 'connector' needs the Kafka connector of Spark {spark.version}, but this session has the one of Spark "
            f"{connector_version}, and it uses Spark's internal classes. Start the session with {what}, "
            "or use engine 'python'"
        )


def _minor(version: str) -> str:
    match = _MINOR.match(version)
    return match.group() if match else version


def _loaded(
    spark: SparkSession, loads: Sequence[Load], options: Mapping[str, str], read_offsets: int
) -> DataFrame:
    """Return all records of the loads, with this package's column names."""
    from pyspark.sql import functions as f

    tasks = parallelism(spark) * TASKS_PER_CORE
    task_offsets = max(SLICE_OFFSETS_MIN, -(-read_offsets // tasks))
    reader = spark.read.format(_FORMAT).options(**options)
    reader = reader.option("maxRecordsPerPartition", str(task_offsets))
    frames = [reader.options(**_ranges(load)).load() for load in loads]
    frame = reduce(lambda above, below: above.unionAll(below), frames)
    if sum(map(len, loads)) > tasks:
        # The connector creates at least one task for each partition.
        frame = frame.coalesce(tasks)
    kind = f.col("timestampType")
    # A negative type means that the record's format has no time.
    return frame.withColumn("timestamp_type", f.when(kind >= 0, kind)).drop("timestampType")


def _ranges(load: Load) -> dict[str, str]:
    """Return the ranges to read, in the connector's format."""
    partitions: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for tp, (start, end) in load.items():
        partitions.setdefault(tp.topic, []).append(tp.partition)
        starts.setdefault(tp.topic, {})[str(tp.partition)] = start
        ends.setdefault(tp.topic, {})[str(tp.partition)] = end
    return {
        "assign": json.dumps(partitions),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
    }


def _if_time_is_kept(column: str) -> Column:
    """Return the column; its task fails at a record whose time the connector has shifted."""
    from pyspark.sql import functions as f

    # As Python prints an error, at the beginning of a line, so that `failures.named_error` finds it.
    message = f.concat(
        f.lit(f"\n{ReadError.__module__}.{ReadError.__name__}: the record at "),
        f.col("topic"),
        f.lit("["),
        f.col("partition").cast("string"),
        f.lit("] offset "),
        f.col("offset").cast("string"),
        f.lit(
            " is stamped before 1900, and there Spark's Kafka connector does not keep times as they are. "
            "Use engine 'python'"
        ),
    )
    moved = f.col("timestamp") < f.timestamp_millis(f.lit(_TIMES_FROM_MS))
    return f.when(moved, f.raise_error(message)).otherwise(f.col(column))


def _all_of(frame: DataFrame, piece: Piece) -> DataFrame:
    """Return the records of one window, none of which is late."""
    from pyspark.sql import functions as f

    (share, *_) = piece.shares
    return frame.withColumns(
        {
            "late": f.lit(False),
            "window_id": f.lit(share.window_id),
            WINDOW_NUMBER: f.lit(share.window).cast("int"),
        }
    )


def _told_apart(spark: SparkSession, frame: DataFrame, runs: Runs) -> DataFrame:
    """Return the wanted records, each with its window, and whether it is late there."""
    from pyspark.sql import functions as f

    def table(rows: pa.Table) -> DataFrame:
        return f.broadcast(spark.createDataFrame(rows))

    steps = f.shiftright(f.col("offset") - f.col("origin"), runs.shift)
    frame = frame.join(table(runs.partitions), ["topic", "partition"])
    frame = frame.withColumn("bin", f.col("first_bin") + steps)
    inside = (f.col("offset") >= f.col("start")) & (f.col("offset") < f.col("end"))
    rows = table(runs.rows).withColumnRenamed("bin", "run_bin")
    frame = frame.join(rows, (f.col("bin") == f.col("run_bin")) & inside)
    frame = frame.join(table(runs.windows), "share")
    frame = frame.withColumnRenamed("window", WINDOW_NUMBER)
    if not runs.late_steps.num_rows:
        return frame.withColumn("late", f.lit(False))
    # A record that cannot be late is not compared with any step.
    may_be_late = f.when(f.col("offset") >= f.col("late_from"), f.col("share"))
    time_ms = f.unix_millis("timestamp")
    late = (
        (may_be_late == f.col("late_share"))
        & (time_ms >= f.col("since_ms"))
        & (time_ms < f.col("before_ms"))
        & (f.col("offset") >= f.col("from_offset"))
    )
    late_steps = table(runs.late_steps).withColumnRenamed("share", "late_share")
    frame = frame.join(late_steps, late, "left")
    return frame.withColumn("late", f.col("late_share").isNotNull())
