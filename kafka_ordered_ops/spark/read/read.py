"""Read plans as a DataFrame."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kafka_ordered_ops.core.window.dead_letters import DeadLetters
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.decoding.decoder import decoder_of
from kafka_ordered_ops.decoding.left_out import Without
from kafka_ordered_ops.kafka.read.reader import STALL_TIMEOUT_S
from kafka_ordered_ops.kafka.settings import ClientSettings, GivenSettings
from kafka_ordered_ops.ordered.records.columns import WINDOW_NUMBER
from kafka_ordered_ops.ordered.records.pieces import check_together
from kafka_ordered_ops.spark.environment import check_pyspark, check_spark
from kafka_ordered_ops.spark.read.bad_records import find_bad_records
from kafka_ordered_ops.spark.read.decoded import Decoding, decoded_frame
from kafka_ordered_ops.spark.read.engines import frame_of
from kafka_ordered_ops.spark.read.order import in_order
from kafka_ordered_ops.spark.read.read_local import read_staged
from kafka_ordered_ops.spark.read.reading import Reading
from kafka_ordered_ops.spec.engine import Engine as Engine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_window(
    spark: SparkSession,
    plan: WindowPlan,
    settings: GivenSettings,
    *,
    ordered: bool = False,
    engine: Engine | str = Engine.PYTHON,
    local_root: str | os.PathLike[str] | None = None,
    stall_timeout_s: float = STALL_TIMEOUT_S,
) -> DataFrame:
    """Return a DataFrame of exactly the plan's records: `read_windows` for one plan."""
    return read_windows(
        spark,
        [plan],
        settings,
        ordered=ordered,
        engine=engine,
        local_root=local_root,
        stall_timeout_s=stall_timeout_s,
    )


def read_windows(
    spark: SparkSession,
    plans: Sequence[WindowPlan],
    settings: GivenSettings,
    *,
    ordered: bool = False,
    engine: Engine | str = Engine.PYTHON,
    local_root: str | os.PathLike[str] | None = None,
    stall_timeout_s: float = STALL_TIMEOUT_S,
) -> DataFrame:
    """Return a DataFrame of exactly the plans' records, read from Kafka in one pass.

    Columns: ``topic`` string, ``partition`` int, ``offset`` bigint, ``timestamp`` timestamp, ``timestamp_type``
    int (0 CreateTime, 1 LogAppendTime, null none), ``key`` binary, ``value`` binary, ``headers``
    array<struct<key: string, value: binary>> (null if there are none), ``late`` boolean (the record was
    written after the window of its time had been planned, or is stamped before the interval that takes it),
    ``window_id`` string (the window that takes the record). Values and keys are decoded as the windows say, in the tasks.

    With the engines python and connector the result is lazy, and every action reads the same records from Kafka again:
    call ``persist()`` for more than one action. A task's error reaches the driver as text inside one of Spark's errors;
    `kafka_ordered_ops.spark.failures.named_error` converts it back.

    Args:
        spark: the session, classic or Connect. Executors need this package and access to the brokers.
        plans: windows of one group and isolation, each once. A covered window reads as empty.
        settings: how to reach the cluster; they are passed inside the pickled reader and not shown anywhere.
        ordered: True returns window after window, in the order of `plans`, each sorted by (timestamp, topic, partition,
            offset): a total order, within each partition of the DataFrame and across them. False returns rows in the
            order of reading. For more than `order.ONE_TASK_OFFSETS_MAX` offsets, this process reads a short sample
            from Kafka before it returns.
        engine: ``"python"`` reads with the executors. ``"connector"`` also does, with the Kafka connector of the
            session's own Spark. ``"local"`` reads in this process, at once, into files; beyond
            `in_order.HELD_BYTES_MAX`, records are sorted on disk. With the settings of an `InMemoryKafka`, python reads
            like local, because executors cannot reach it.
        local_root: the folder for the files of engine local, which executors must see. The files stay there, so
            reading the same attempt again needs no Kafka. None uses a temporary folder that is removed at exit, for
            local sessions only.
        stall_timeout_s: how long a reader waits for progress of any partition.

    Raises:
        ConfigError: an unknown engine, or one whose requirements the session does not meet; no plan, or plans that
            cannot be read together or that share offsets; a missing `local_root` for a session that is not local; or bad
            records become dead letters, which only `run` and `open` can report.
        EnvironmentConflictError: pyspark and pyspark-client are both installed.
        RegistryError, AuthenticationError: the schema registry fails, or refuses the credentials.
        ReadError, SpillError, BrokerError: from engine local, or from the sample before sorting, at once.
    """
    check_pyspark()
    check_together(plans)
    plans[0].window.check_no_dead_letters("read_windows")
    return read_good(
        spark,
        plans,
        settings,
        ordered=ordered,
        engine=engine,
        local_root=local_root,
        stall_timeout_s=stall_timeout_s,
    )[0]


def read_good(
    spark: SparkSession,
    plans: Sequence[WindowPlan],
    settings: GivenSettings,
    *,
    ordered: bool = False,
    engine: Engine | str = Engine.PYTHON,
    local_root: str | os.PathLike[str] | None = None,
    stall_timeout_s: float = STALL_TIMEOUT_S,
    known: Sequence[DeadLetters] | None = None,
    counted: bool = False,
) -> tuple[DataFrame, Sequence[DeadLetters] | None]:
    """Return what `read_windows` returns, and the records of each window that are not in it because they become dead letters.

    The latter are found by one more pass over all records, before this function returns; None if the windows have no topic for
    them.

    Args:
        spark, plans, settings, ordered, engine, local_root, stall_timeout_s: as for `read_windows`.
        known: the records that an earlier read has left out, which are left out again.
        counted: add `DISCARDED` with the counts of fields without a column, for `write_each`; if such fields are left out.

    Raises:
        DecodeError: there are too many of them.
        ConfigError, ReadError, SpillError, BrokerError: as `read_windows` does.
    """
    check_pyspark()
    settings = ClientSettings.of(settings)
    engine = Engine.of(engine, settings)
    check_together(plans)
    check_spark(spark)
    reading = Reading(spark, tuple(plans), settings, stall_timeout_s)
    # The records as bytes, as soon as anything needs them.
    read = None
    if engine is Engine.LOCAL:
        read = read_staged(reading, ordered=ordered, local_root=local_root)
    decoding, limit = None, plans[0].window.dead_letter
    if (decoder := decoder_of(plans[0].window, settings)) is not None:
        if limit is not None and known is None:
            read = frame_of(engine, reading) if read is None else read
            offsets = {plan.window_id: plan.offsets for plan in plans}
            known = find_bad_records(read.drop(WINDOW_NUMBER), decoder, limit, offsets)
        decoding = Decoding(decoder, Without(known or ()), counted and decoder.discards)
    if engine is Engine.PYTHON and decoding is not None:
        # This engine decodes where it reads, the others what they have read.
        read, decoding = frame_of(engine, reading, decoding), None
    elif read is None:
        read = frame_of(engine, reading)
    if ordered and engine is not Engine.LOCAL:
        read = in_order(reading, read)
    return _decoded(read.drop(WINDOW_NUMBER), decoding), known


def _decoded(frame: DataFrame, decoding: Decoding | None) -> DataFrame:
    return frame if decoding is None else decoded_frame(frame, decoding)
