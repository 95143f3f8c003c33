"""The engines that read Kafka for Spark.

An engine has one job: to return pieces of windows as an unordered DataFrame with the columns of `source.SOURCE_DDL`. The
code that orders records, separates windows or writes files is independent of the engine. `Engine.LOCAL` is the exception: it
reads into sorted files before Spark runs (`read_local`).
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.core.errors import invariant
from kafka_ordered_ops.ordered.records.columns import WINDOW_NUMBER
from kafka_ordered_ops.ordered.records.pieces import Piece
from kafka_ordered_ops.ordered.records.slices import slices_of
from kafka_ordered_ops.spark.failures import named_error
from kafka_ordered_ops.spark.read.decoded import Decoding
from kafka_ordered_ops.spark.read.reading import SLICE_OFFSETS_MIN, TASKS_PER_CORE, Reading
from kafka_ordered_ops.spec.engine import Engine as Engine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Between registering and loading a data source, no other thread may register one with the same name.
_REGISTERING: Final = threading.Lock()


def frame_of(engine: Engine, reading: Reading, decoding: Decoding | None = None) -> DataFrame:
    """Return all records of a reading, unordered, with the columns of `source.SOURCE_DDL`.

    Engine python decodes where it reads: records need no way from Java to Python and back.

    Raises:
        ConfigError: the session lacks a requirement of the engine, or its workers run another Python.
    """
    invariant(engine is not Engine.LOCAL, "what is staged is read from its files")
    if engine is Engine.CONNECTOR:
        from kafka_ordered_ops.spark.read.connector import jvm_frame

        invariant(decoding is None, "what Java has read is decoded afterwards")
        return jvm_frame(
            reading.spark,
            reading.pieces,
            reading.settings,
            group_id=reading.group_id,
            isolation=reading.isolation,
            stall_timeout_s=reading.stall_timeout_s,
        )
    return _python_frame(reading, reading.pieces, decoding)


def _loaded(spark: SparkSession, name: str) -> DataFrame:
    """Return the data source's frame, which a Python worker plans: possibly the first worker that Spark starts."""
    try:
        return spark.read.format(name).load()
    except Exception as error:
        # An error of Spark or py4j, which Connect does not have.
        if (named := named_error(error)) is None:
            raise
        raise named from error


def _python_frame(
    reading: Reading, pieces: Sequence[Piece], decoding: Decoding | None
) -> DataFrame:
    from pyspark.sql import functions as f

    from kafka_ordered_ops.spark.read.source import SOURCE_NAME, WindowRead, source_of

    tasks = reading.parallelism * TASKS_PER_CORE
    several = len(reading.plans) > 1
    read = WindowRead(
        settings=reading.settings,
        group_id=reading.group_id,
        isolation=reading.isolation,
        slices=tuple(slices_of(pieces, tasks=tasks, least_offsets=SLICE_OFFSETS_MIN)),
        stall_timeout_s=reading.stall_timeout_s,
        tells_windows=several,
        decoding=decoding,
    )
    # A classic session resolves the name once, in load, and does not see names of other sessions. Connect resolves it for
    # every action, so with a reused name an older DataFrame would read the newer window.
    session: Any = reading.spark
    own = uuid.uuid4().hex if reading.is_connect else session._jsparkSession.sessionUUID()
    name = f"{SOURCE_NAME}_{own.replace('-', '')}"
    with _REGISTERING:
        reading.spark.dataSource.register(source_of(read, name))
        frame = _loaded(reading.spark, name)
    if several:
        return frame
    (window_id,) = reading.window_ids
    return frame.withColumns({"window_id": f.lit(window_id), WINDOW_NUMBER: f.lit(0).cast("int")})
