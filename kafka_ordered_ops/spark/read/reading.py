"""The input of an engine, and limits for splitting it into tasks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from kafka_ordered_ops.core.types import Isolation
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.kafka.read.reader import STALL_TIMEOUT_S
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.ordered.records.pieces import Piece, pieces_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession

#: More slices than cores, so that a slow slice does not delay the job; each one costs a connection.
TASKS_PER_CORE: Final = 3

#: A smaller slice is read faster than its task and its connection are set up.
SLICE_OFFSETS_MIN: Final = 20_000

#: The assumed number of cores if it is unknown, as over Spark Connect.
PARALLELISM_UNKNOWN: Final = 8


@dataclass(frozen=True)
class Reading:
    """The records to read and their source, independent of the engine."""

    spark: SparkSession
    plans: tuple[WindowPlan, ...]
    settings: ClientSettings
    stall_timeout_s: float = STALL_TIMEOUT_S

    @cached_property
    def pieces(self) -> list[Piece]:
        """All pieces of the plans."""
        return pieces_of(self.plans)

    @property
    def window_ids(self) -> tuple[str, ...]:
        """The ids of the windows, by their numbers."""
        return tuple(plan.window_id for plan in self.plans)

    @property
    def group_id(self) -> str:
        """The group of all plans."""
        return self.plans[0].group_id

    @property
    def isolation(self) -> Isolation:
        """The isolation of all plans."""
        return self.plans[0].isolation

    @property
    def offsets(self) -> int:
        """The number of offsets to read."""
        return sum(plan.offsets for plan in self.plans)

    @property
    def is_connect(self) -> bool:
        """Whether the session is Spark Connect's."""
        return is_connect(self.spark)

    @property
    def parallelism(self) -> int:
        """The number of tasks that can run at a time."""
        return parallelism(self.spark)


def parquet_reader(spark: SparkSession) -> DataFrameReader:
    """Return a reader for files of this package, whatever the session's settings for other files."""
    return spark.read.options(
        # Otherwise rows of missing or damaged files may be silently left out.
        ignoreCorruptFiles="false",
        ignoreMissingFiles="false",
        # Files that Spark did not write have no metadata that old times are unshifted.
        datetimeRebaseMode="CORRECTED",
    )


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session is Spark Connect's, whose classes need packages that a classic installation lacks."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def parallelism(spark: SparkSession) -> int:
    """Return the number of tasks that a session can run at a time."""
    return PARALLELISM_UNKNOWN if is_connect(spark) else spark.sparkContext.defaultParallelism
