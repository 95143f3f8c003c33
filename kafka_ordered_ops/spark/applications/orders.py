"""The driver's side of a run that is not for the application's own work, but for the table of its windows."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NoReturn

from kafka_ordered_ops.core.errors import ConfigError, SinkError
from kafka_ordered_ops.spark.applications.protocol import Order, Submission
from kafka_ordered_ops.spark.applications.result import JobError, JobResult
from kafka_ordered_ops.spark.write.table_output import KeptOutput, TableOutput
from kafka_ordered_ops.spark.write.table_windows import found_in_table, table_sink
from kafka_ordered_ops.spark.write.tables import TableSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def carry_out(spark: SparkSession, submission: Submission, folder: PurePath) -> NoReturn:
    """Carry out an order, report, and end this process: the application's own work is for another run.

    The process ends at once, whatever the application has around its call of `current_window`.
    """
    code = 0
    try:
        results = results_of(spark, submission)
        writes = [one.write for one in _kept(submission)]
        application_id = spark.sparkContext.applicationId
        JobResult(tuple(results), application_id).write(folder, submission.token, writes)
    except Exception as error:  # noqa: BLE001 - it is reported, and the exit code says so
        code = 1
        traceback.print_exc()
        with suppress(OSError):  # the folder is gone when the job was given up
            JobError.of(error).write(folder)
    with suppress(
        Exception
    ):  # the result is written, and what is left of the session ends with the process
        spark.stop()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def results_of(spark: SparkSession, submission: Submission) -> list[Mapping[str, Any]]:
    """Carry out an order; return the outputs as they are now, empty for one that is gone.

    Raises:
        ConfigError: the session cannot have the table.
        SinkError, WindowSupersededError: as `TableSink.found` and `TableOutput` raise them.
    """
    if submission.table is None:
        raise ConfigError("this job was submitted for a table's windows, and for no table")
    sink = table_sink(spark, submission.table)
    if submission.order is Order.FIND:
        return [_found(sink, one) for one in _kept(submission)]
    return [_done(sink, submission.order, one) for one in _kept(submission)]


def _found(sink: TableSink, kept: KeptOutput) -> Mapping[str, Any]:
    found = found_in_table(sink, kept.to_json())
    if isinstance(found, TableOutput):
        # The submitter cannot look before it commits.
        found.check_ready()
    return {} if found is None else found.to_json()


def _done(sink: TableSink, order: Order, kept: KeptOutput) -> Mapping[str, Any]:
    if not sink.is_of(kept):
        raise SinkError(
            f"window {kept.write.window_id} was staged for the {kept.format} table {kept.target.name}, and "
            f"{sink.target.name} is another table now. Run the window again",
            window_id=kept.write.window_id,
        )
    output = sink.reopened(kept)
    if order is Order.PUBLISH:
        output.publish()
    else:
        output.discard()
    return output.to_json()


def _kept(submission: Submission) -> list[KeptOutput]:
    found = [KeptOutput.from_json(one) for one in submission.outputs]
    return [one for one in found if one is not None]
