"""Write several windows of one job to a table, and find the session in which hosts do that."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.core.errors import ConfigError, KafkaOrderedOpsError
from kafka_ordered_ops.core.window.dead_letters import bad_name
from kafka_ordered_ops.core.window.ownership import Publisher
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.decoding.decoder import decoder_of
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.output.writing.bad_records import BAD_SCHEMA, bad_table, check_beside
from kafka_ordered_ops.output.writing.window_batches import window_schema
from kafka_ordered_ops.spark.environment import check_frame, check_pyspark, running_session
from kafka_ordered_ops.spark.write.table_output import KeptOutput, PublishedTable, TableOutput
from kafka_ordered_ops.spark.write.tables import TableSink
from kafka_ordered_ops.spec.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)

#: `BAD_SCHEMA` in SQL, with the window.
_BAD_DDL: Final = (
    "window_id STRING, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestamp_type INT, key BINARY, value BINARY, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>, key_error STRING, value_error STRING"
)


def table_sink(spark: SparkSession, target: Table) -> TableSink:
    """Return the sink for a target; raise what `TableSink` raises."""
    return TableSink(
        spark,
        target.name,
        target.mode,
        keys=target.keys,
        delete_tombstones=target.delete_tombstones,
        schema_evolution=target.schema_evolution,
    )


def active_sink(target: Table) -> TableSink:
    """Return the sink in the session that runs in this process; raise `ConfigError` if there is none."""
    return table_sink(_active_session(target), target)


def found_in_table(
    sink: TableSink, result: Mapping[str, Any]
) -> TableOutput | PublishedTable | None:
    """Return the output of an earlier attempt in this table; None if it is gone, or was for another table.

    The ledger is a hint: only the table that the caller names is read.

    Raises:
        SinkError: raised by `TableSink.found`.
    """
    entry = kept_for(sink.target, result)
    if entry is None:
        return None
    return PublishedTable(entry) if entry.published else sink.found(result)


def kept_for(target: Table, result: Mapping[str, Any]) -> KeptOutput | None:
    """Return the ledger's entry of an output for the table of a target; None for any other output."""
    entry = KeptOutput.from_json(result)
    if entry is None or target.names(entry.target.name):
        return entry
    if not entry.published:
        _log.warning(
            "Window %s was staged for the table %s, and %s is named now: it is read again. What it has staged there stays.",
            entry.write.window_id,
            entry.target.name,
            target.name,
        )
    return None


def write_to_table(
    df: DataFrame, target: Table, plans: Sequence[WindowPlan], sink: TableSink | None = None
) -> list[TableOutput]:
    """Stage the rows of each window; ``window_id`` distinguishes them if there are several.

    Raises:
        ConfigError, SinkError: raised by `TableSink.write`; or there are several windows and no column ``window_id``.
    """
    check_frame(df)
    return _write_each(sink or table_sink(df.sparkSession, target), df, plans)


def copy_to_table(
    read: Callable[[SparkSession], DataFrame],
    target: Table,
    plans: Sequence[WindowPlan],
    sink: TableSink | None = None,
) -> list[TableOutput]:
    """Stage the windows' records unchanged, in the session of the sink, or the one that runs in this process."""
    sink = sink or active_sink(target)
    return _write_each(sink, sink.fitting(read(sink.spark)), plans)


class TablePlace:
    """A table to which windows are copied: inferred columns are compared with it before the windows are claimed.

    Args:
        target: the table.
        sink: its sink; `None` means the one in the session that runs in this process when columns are compared.
    """

    def __init__(self, target: Table, sink: TableSink | None = None) -> None:
        self._target = target
        self._sink = sink

    def check(
        self, publishers: Sequence[Publisher], windows: Mapping[str, Window]
    ) -> Sequence[str]:
        """Return no notes: rows of other windows are found when those of a window are written."""
        return ()

    def check_columns(self, window: Window, settings: ClientSettings) -> None:
        """Raise `ConfigError` unless the records of a window can fill the table's columns, as they are."""
        sink = self._sink or active_sink(self._target)
        try:
            sink.check_copy(window_schema(decoder_of(window, settings)))
        except ConfigError as error:
            raise ConfigError(f"the columns of the window: {error}. Nothing was planned") from error


def check_bad(sink: TableSink) -> None:
    """Raise `ConfigError` unless there is a table for bad records beside the sink's, whose columns they fill."""
    try:
        sink.bad.check_copy(BAD_SCHEMA)
    except ConfigError as error:
        raise ConfigError(
            f"on_bad is dead_letter, which writes bad records beside the table: {error}. All of their columns: CREATE TABLE "
            f"{bad_name(sink.target.name)} ({_BAD_DDL}) USING {sink.format.facts.format}"
        ) from error


def stage_bad_rows(
    plans: Sequence[WindowPlan],
    outputs: Sequence[TableOutput],
    settings: ClientSettings,
    target: Table,
    sink: TableSink | None = None,
) -> None:
    """Stage the records that a job has left out of the windows of a table, for the table beside it.

    A window without such records has no rows there, and needs no commit, unless an earlier output may have some.

    Raises:
        RecordsLostError, ReadError, BrokerError: as `read_bad_records` does.
        ConfigError, SinkError, OutputOwnedError: as `TableSink.write` does.
    """
    check_beside(plans, outputs, TableOutput)
    beside: TableSink | None = None
    try:
        for plan, output in zip(plans, outputs, strict=True):
            letters, is_first = output.dead_letters, plan.status.is_open and not plan.replaces
            if letters is None or (is_first and not letters.records):
                continue
            if beside is None:
                own = output.format.facts.own or output.format.facts.spark
                beside = (sink or table_sink(own, target)).bad
            rows = beside.spark.createDataFrame(bad_table(plan, letters, settings))
            output.bad = beside.write(beside.fitting(rows), plan)
    except KafkaOrderedOpsError:
        for output in outputs:
            output.discard()
        raise


def _write_each(sink: TableSink, df: DataFrame, plans: Sequence[WindowPlan]) -> list[TableOutput]:
    from pyspark.sql import functions as f

    if len(plans) == 1:
        return [sink.write(df, plans[0])]
    if "window_id" not in df.columns:
        raise ConfigError(
            f"the result of {len(plans)} windows has no column window_id, by which their rows are assigned: keep it"
        )
    with ExitStack() as cached:
        # Without the cache, each write would read Kafka again.
        cached.callback(df.persist().unpersist)
        frames = [df.where(f.col("window_id") == plan.window_id) for plan in plans]
        return sink.write_each(frames, plans)


def _active_session(target: Table) -> SparkSession:
    check_pyspark()
    spark = running_session()
    if spark is None:
        raise ConfigError(f"there is no Spark session for the table {target.name}")
    return spark
