"""Who reads Kafka for Spark.

An engine has one job: some pieces of windows as a DataFrame, in no order, with the columns of
`source.SOURCE_DDL`. What orders records, tells windows apart or writes files does not know which of them it
was. `Engine.STAGE` is the exception: it reads before Spark does, into files that are in order already
(`read_stage`).
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Final

from kafka_ordered_ops.core.errors import ConfigError, invariant
from kafka_ordered_ops.core.types import Isolation
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.kafka.read.reader import STALL_TIMEOUT_S
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.output.records.columns import WINDOW_NUMBER
from kafka_ordered_ops.output.records.pieces import Piece, pieces_of
from kafka_ordered_ops.output.records.slices import slices_of
from kafka_ordered_ops.spark.failures import named_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: More slices than cores, so that a slow one does not hold the job; each one costs a connection.
TASKS_PER_CORE: Final = 3

#: A slice smaller than this is read faster than its task and its connection are set up.
SLICE_OFFSETS_MIN: Final = 20_000

#: What to cut for when the number of cores cannot be asked for: over Spark Connect.
PARALLELISM_UNKNOWN: Final = 8

#: Between registering a data source and loading it, no other thread may register one of the same name.
_REGISTERING: Final = threading.Lock()


class Engine(StrEnum):
    """Who reads Kafka."""

    #: The executors, in Python, by this package's own data source.
    PYTHON = "python"
    #: The executors, in Java, by the Kafka connector that the cluster has.
    JVM = "jvm"
    #: This process, once, into files that Spark reads.
    STAGE = "stage"

    @classmethod
    def of(cls, name: Engine | str, settings: ClientSettings) -> Engine:
        """The engine of this name, as far as it can read from where the settings lead.

        Raises:
            ConfigError: no such engine, or one that cannot reach a Kafka in memory.
        """
        try:
            engine = cls(name)
        except ValueError:
            known = ", ".join(repr(known.value) for known in cls)
            raise ConfigError(f"engine {name!r} is unknown; there are {known}") from None
        if settings.memory_name is None:
            return engine
        if engine is cls.JVM:
            raise ConfigError(
                f"engine 'jvm' cannot read memory:{settings.memory_name}: only this process sees a Kafka in "
                "memory. Leave the engine out, or give the address of real brokers"
            )
        # Executors are other processes: they cannot see what lies in this one's memory.
        return cls.STAGE


@dataclass(frozen=True)
class Reading:
    """What is to be read, and where from: the same for every engine."""

    spark: SparkSession
    plans: tuple[WindowPlan, ...]
    settings: ClientSettings
    stall_timeout_s: float = STALL_TIMEOUT_S

    @cached_property
    def pieces(self) -> list[Piece]:
        """All that the plans take."""
        return pieces_of(self.plans)

    @property
    def window_ids(self) -> tuple[str, ...]:
        """The windows, by their numbers."""
        return tuple(plan.window_id for plan in self.plans)

    @property
    def group(self) -> str:
        """The group of all the plans."""
        return self.plans[0].group

    @property
    def isolation(self) -> Isolation:
        """The isolation of all the plans."""
        return self.plans[0].isolation

    @property
    def offsets(self) -> int:
        """How many offsets there are to read."""
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


def frame_of(engine: Engine, reading: Reading) -> DataFrame:
    """All records of a reading, in no order, with the columns of `source.SOURCE_DDL`.

    Raises:
        ConfigError: the session lacks what the engine needs, or its workers run another Python.
    """
    invariant(engine is not Engine.STAGE, "what is staged is read from its files")
    if engine is Engine.JVM:
        from kafka_ordered_ops.spark.read.connector import jvm_frame

        return jvm_frame(
            reading.spark,
            reading.pieces,
            reading.settings,
            group=reading.group,
            isolation=reading.isolation,
            stall_timeout_s=reading.stall_timeout_s,
        )
    return _python_frame(reading, reading.pieces)


def _loaded(spark: SparkSession, name: str) -> DataFrame:
    """The data source's frame; a Python worker makes it, which may be the first one that Spark starts."""
    try:
        return spark.read.format(name).load()
    except Exception as error:
        # Of Spark's own kinds or py4j's, which Connect does not have.
        if (named := named_error(error)) is None:
            raise
        raise named from error


def _python_frame(reading: Reading, pieces: Sequence[Piece]) -> DataFrame:
    from pyspark.sql import functions as f

    from kafka_ordered_ops.spark.read.source import SOURCE_NAME, WindowRead, source_of

    tasks = reading.parallelism * TASKS_PER_CORE
    several = len(reading.plans) > 1
    read = WindowRead(
        settings=reading.settings,
        group=reading.group,
        isolation=reading.isolation,
        slices=tuple(slices_of(pieces, tasks=tasks, least_offsets=SLICE_OFFSETS_MIN)),
        stall_timeout_s=reading.stall_timeout_s,
        tells_windows=several,
    )
    # A classic session looks the name up once, in load. Connect does so for every action, so that a
    # name used twice would make an older DataFrame read the newer window.
    name = f"{SOURCE_NAME}_{uuid.uuid4().hex}" if reading.is_connect else SOURCE_NAME
    with _REGISTERING:
        reading.spark.dataSource.register(source_of(read, name))
        frame = _loaded(reading.spark, name)
    if several:
        return frame
    (window_id,) = reading.window_ids
    return frame.withColumns({"window_id": f.lit(window_id), WINDOW_NUMBER: f.lit(0).cast("int")})
