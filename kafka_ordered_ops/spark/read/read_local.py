"""Engine local: this process reads windows into files, and Spark reads the files."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

from kafka_ordered_ops.core.errors import ConfigError, ReadError
from kafka_ordered_ops.core.types import PlanContent
from kafka_ordered_ops.ordered.records.columns import SPARK_TIMESTAMP_MS_MAX, STAGE_DDL
from kafka_ordered_ops.output.filesystem import data_names
from kafka_ordered_ops.output.folders import files_for
from kafka_ordered_ops.output.writing.stage import stage_windows
from kafka_ordered_ops.output.writing.staged_output import StagedOutput
from kafka_ordered_ops.spark.read.order import InOrder, mark_in_order
from kafka_ordered_ops.spark.read.reading import Reading, parquet_reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_staged(
    reading: Reading, *, ordered: bool, local_root: str | os.PathLike[str] | None
) -> DataFrame:
    """Return the records of windows from files below `local_root`; missing windows are read from Kafka first.

    Raises:
        ConfigError: there is no root, and executors may be on other machines.
        ReadError, SpillError, BrokerError: raised by `stage_windows`.
    """
    plans = [plan for plan in reading.plans if plan.content is not PlanContent.COVERED]
    if not plans:
        return reading.spark.createDataFrame([], f"{STAGE_DDL}, window_id string")
    root = _temporary_root(reading) if local_root is None else os.fspath(local_root)
    # Separate from the stages of `write_windows`, which may have the same root.
    root = f"{root.rstrip('/')}/.koo-read-{'ordered' if ordered else 'any'}"
    outputs = [StagedOutput.of(plan, root) for plan in plans]
    missing = [plan for plan, output in zip(plans, outputs, strict=True) if not output.exists()]
    if missing:
        # Bytes: Spark's tasks decode them.
        stage_windows(
            [replace(plan, window=plan.window.undecoded) for plan in missing],
            reading.settings,
            root,
            ordered=ordered,
            stall_timeout_s=reading.stall_timeout_s,
        )
    for output in outputs:
        _check_greatest(output.as_found())
    if not ordered:
        return _any_order(reading.spark, outputs)
    frame = _by_name(reading.spark, outputs)
    mark_in_order(frame, InOrder(reading.window_ids, None))
    return frame


def _any_order(spark: SparkSession, outputs: Sequence[StagedOutput]) -> DataFrame:
    """Return the rows of the files in any order."""
    from pyspark.sql import functions as f

    frames = (
        parquet_reader(spark)
        .schema(STAGE_DDL)
        .parquet(output.stage_uri)
        .withColumn("window_id", f.lit(output.window_id))
        for output in outputs
    )
    return reduce(lambda above, below: above.unionAll(below), frames)


def _by_name(spark: SparkSession, outputs: Sequence[StagedOutput]) -> DataFrame:
    """Return the rows window by window, in the order of the files."""
    from kafka_ordered_ops.spark.read.files_source import FileOfWindow, frame_of_files

    files = [
        FileOfWindow(f"{output.stage_path}/{name}", output.window_id)
        for output in outputs
        for name in data_names(files_for(output.root), output.stage_path)
    ]
    return frame_of_files(spark, files, STAGE_DDL)


def _check_greatest(output: StagedOutput) -> None:
    greatest = output.facts.get("timestamp_ms_max")
    if greatest is not None and greatest > SPARK_TIMESTAMP_MS_MAX:
        raise ReadError(
            f"window {output.window_id} has a record stamped {greatest:,} ms since 1970: Spark's timestamps end "
            f"at {SPARK_TIMESTAMP_MS_MAX:,} ms. The staged files keep milliseconds: {output.stage_path}",
            timestamp_ms=greatest,
        )


def _temporary_root(reading: Reading) -> str:
    master = "" if reading.is_connect else reading.spark.sparkContext.master or ""
    if not master.startswith("local") or master.startswith("local-cluster"):
        raise ConfigError(
            "engine 'local' writes files on this machine, but the executors of this session may run on others: "
            "pass a folder that all of them see as local_root"
        )
    root = tempfile.mkdtemp(prefix="kafka-ordered-ops-")
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root
