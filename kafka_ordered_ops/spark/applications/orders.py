"""The driver's side of a run that carries out an order on a table's windows instead of the application's own work."""

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
    """Carry out an order, report, and end this process, without the application's own work.

    The process ends at once, whatever code the application has around its call of `current_window`.
    """
    code = 0
    try:
        results = results_of(spark, submission)
        writes = [entry.write for entry in _kept(submission)]
        application_id = spark.sparkContext.applicationId
        JobResult(tuple(results), application_id).write(folder, submission.token, writes)
    except Exception as error:  # noqa: BLE001 - it is reported, and the exit code says so
        code = 1
        traceback.print_exc()
        with suppress(OSError):  # the folder is gone if the submitter has given up
            JobError.of(error).write(folder)
    with suppress(Exception):  # the result is written, and the session ends with the process
        spark.stop()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def results_of(spark: SparkSession, submission: Submission) -> list[Mapping[str, Any]]:
    """Carry out an order; return the outputs as they are now, an empty mapping for an output that is gone.

    Raises:
        ConfigError: the session cannot use the table.
        SinkError, WindowSupersededError: raised by `TableSink.found` and `TableOutput`.
    """
    if submission.table is None:
        raise ConfigError("this job was submitted for a table's windows, and for no table")
    sink = table_sink(spark, submission.table)
    if submission.order is Order.FIND:
        return [_found(sink, entry) for entry in _kept(submission)]
    return [_done(sink, submission.order, entry) for entry in _kept(submission)]


def _found(sink: TableSink, entry: KeptOutput) -> Mapping[str, Any]:
    output = found_in_table(sink, entry.to_json())
    if isinstance(output, TableOutput):
        # The submitter cannot check this itself before it commits.
        output.check_ready()
    return {} if output is None else output.to_json()


def _done(sink: TableSink, order: Order, entry: KeptOutput) -> Mapping[str, Any]:
    if not sink.is_of(entry):
        raise SinkError(
            f"window {entry.write.window_id} was staged for the {entry.format} table {entry.target.name}, and "
            f"{sink.target.name} is another table now. Run the window again",
            window_id=entry.write.window_id,
        )
    output = sink.reopened(entry)
    if order is Order.PUBLISH:
        output.publish()
    else:
        output.discard()
    return output.to_json()


def _kept(submission: Submission) -> list[KeptOutput]:
    entries = [KeptOutput.from_json(output) for output in submission.outputs]
    return [entry for entry in entries if entry is not None]
