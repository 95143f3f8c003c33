"""Several windows of one job to a table, and the session that hosts have for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.spark.environment import check_frame, check_pyspark
from kafka_ordered_ops.spark.table_target import TableTarget
from kafka_ordered_ops.spark.write.table_output import KeptOutput, PublishedTable, TableOutput
from kafka_ordered_ops.spark.write.tables import TableSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)


def table_sink(spark: SparkSession, target: TableTarget) -> TableSink:
    """Return the sink for a target; raises what `TableSink` raises."""
    return TableSink(
        spark,
        target.table,
        target.mode,
        keys=target.keys,
        delete_tombstones=target.delete_tombstones,
    )


def active_sink(target: TableTarget) -> TableSink:
    """Return the sink in the session of this thread; raise `ConfigError` if there is none."""
    return table_sink(_active_session(target), target)


def found_in_tables(
    sink: TableSink, result: Mapping[str, Any]
) -> TableOutput | PublishedTable | None:
    """Return what an earlier attempt left, in this table or in the one that it was asked for; None if it is gone.

    A window that was begun for one table ends there, also if another one is asked for by now: its rows may show already.

    Raises:
        SinkError: as `TableSink.found` does.
    """
    kept = KeptOutput.from_json(result)
    if kept is None:
        return None
    if kept.published:
        return PublishedTable(kept)
    if kept.target.table != sink.target.table:
        try:
            sink = table_sink(sink.spark, kept.target)
        except ConfigError as error:
            _log.warning(
                "Window %s was staged for another table, which is gone; it is read again. %s",
                kept.write.window_id,
                error,
            )
            return None
    return sink.found(result)


def write_to_table(
    df: DataFrame, target: TableTarget, plans: Sequence[WindowPlan]
) -> list[TableOutput]:
    """Stage the rows of each window; ``window_id`` distinguishes them if there are several.

    Raises:
        ConfigError, SinkError: as `TableSink.write`; or several windows, and no column ``window_id``.
    """
    check_frame(df)
    sink = table_sink(df.sparkSession, target)
    return _write_each(sink, df, plans)


def copy_to_table(
    read: Callable[[SparkSession], DataFrame], target: TableTarget, plans: Sequence[WindowPlan]
) -> list[TableOutput]:
    """Stage the windows' records as they are, in the session of this thread."""
    sink = active_sink(target)
    return _write_each(sink, sink.fitting(read(sink.spark)), plans)


def _write_each(sink: TableSink, df: DataFrame, plans: Sequence[WindowPlan]) -> list[TableOutput]:
    from pyspark.sql import functions as f

    if len(plans) == 1:
        return [sink.write(df, plans[0])]
    if "window_id" not in df.columns:
        raise ConfigError(
            f"the result of {len(plans)} windows has no column window_id, by which their rows are assigned: keep it"
        )
    with ExitStack() as cached:
        # Each write would read Kafka again.
        cached.callback(df.persist().unpersist)
        return [sink.write(df.where(f.col("window_id") == one.window_id), one) for one in plans]


def _active_session(target: TableTarget) -> SparkSession:
    check_pyspark()
    from pyspark.sql import SparkSession

    spark = SparkSession.getActiveSession()
    if spark is None:
        raise ConfigError(f"there is no Spark session for the table {target.table}")
    return spark
