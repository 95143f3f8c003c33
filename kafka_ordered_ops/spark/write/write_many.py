"""Write a DataFrame as the outputs of several windows, in one Spark job."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from kafka_ordered_ops.core.errors import ConfigError, SinkError
from kafka_ordered_ops.core.window.plan import WindowPlan, check_not_covered
from kafka_ordered_ops.ordered.records.columns import MANY_ORDER, ORDER, WINDOW_NUMBER
from kafka_ordered_ops.ordered.records.pieces import check_together
from kafka_ordered_ops.output.address import spark_path
from kafka_ordered_ops.output.filesystem import as_sink_error, data_names
from kafka_ordered_ops.output.ports import Files
from kafka_ordered_ops.output.writing.draft import Draft, drafts_of
from kafka_ordered_ops.output.writing.stage_files import FILES_MAX
from kafka_ordered_ops.output.writing.staged_output import Facts, StagedOutput
from kafka_ordered_ops.spark.environment import check_frame, check_pyspark
from kafka_ordered_ops.spark.read.decoded import DISCARDED, collected, total_discarded
from kafka_ordered_ops.spark.read.order import order_of
from kafka_ordered_ops.spark.read.reading import parquet_reader
from kafka_ordered_ops.spark.s3a import lend_credentials
from kafka_ordered_ops.spark.write.write import (
    behind_cutoff,
    check_columns,
    is_kept,
    job_errors,
    kept,
    write_window,
)
from kafka_ordered_ops.spark.write.write_session import written_as_given

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: The largest number of windows' partitions for counting out-of-order records: each is a row sent to every executor.
_HEADS_MAX: Final = 100_000

_ROW: Final = "_koo_row"
_HEAD_END: Final = "_koo_head_end"

_HEADS_TYPES: Final[dict[str, pa.DataType]] = {
    WINDOW_NUMBER: pa.int32(),
    "topic": pa.string(),
    "partition": pa.int32(),
    _HEAD_END: pa.int64(),
}

#: The columns of a record's position, if the user's job has kept them.
_POSITION: Final = {"topic": "string", "partition": "int", "offset": "bigint"}


def write_windows(
    df: DataFrame,
    path: str | os.PathLike[str],
    plans: Sequence[WindowPlan],
    *,
    ordered: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    partition_by: str | None = None,
) -> list[StagedOutput]:
    """Write the results of several windows in one Spark job, each to its window's stage below `path`.

    Each window is written as by `write_window`. The column ``window_id`` names a row's window, so a job on the result
    of `read_windows` must keep it. A window without rows gets one file without rows. The facts of each window are
    counted in the written files; ``elapsed_ms`` is the time from the start to the window's completion.

    Args:
        df: the result of the user's job, with ``window_id``.
        path: the folder that holds the output of all windows: a local or mounted one that the driver and
            all executors see, or a prefix in an object store.
        plans: windows of one group, each once, including all windows that `df` has rows of.
        ordered: as for `write_window`, window by window. A result of ``read_windows(ordered=True)`` passed on
            unchanged is not sorted again.
        storage_options: as for `write_window`.
        partition_by: as for `write_window`.

    Returns:
        The outputs in the order of `plans`, all of them complete.

    Raises:
        JobFailedError: the job failed. Nothing was committed, and all stages are removed, as after every error.
        SinkError: the files that this process sees do not hold all rows that the job wrote; `df` has rows that
            belong to no window of `plans`; or another group's window is in a window's place.
        ReadError, BrokerError, RecordsLostError: the job failed because a task could not read the windows.
        WindowCoveredError: other windows deliver a window's records; an empty output would hide theirs.
        ConfigError: the path has an unknown scheme; `df` has no ``window_id``; no plan, or plans of several groups.
    """
    check_pyspark()
    check_together(plans)
    for plan in plans:
        check_not_covered(plan)
    check_frame(df)
    if dict(df.dtypes).get("window_id") != "string":
        raise ConfigError(
            "the column window_id names the window of each row, but this DataFrame has no such text column: "
            "keep it from the result of read_windows"
        )
    started = time.monotonic()
    outputs = [StagedOutput.of(plan, path, storage_options, partition_by) for plan in plans]
    check_columns(df, outputs[0])
    lend_credentials(df.sparkSession, outputs[0].root, storage_options)
    with drafts_of(outputs) as drafts:
        files = drafts[0].files
        folder = drafts[0].shared_path
        written = _write(df, plans, folder, ordered=ordered)
        facts = _facts(df, plans, written)
        _check_rows(plans, written, facts)
        if not all(facts[output.window_id]["records"] for output in outputs):
            _write_empty(df, plans, written)
        sealed = []
        for draft in drafts:
            counted = facts[draft.output.window_id]
            move = _move if counted["records"] else _copy_empty
            with as_sink_error(f"the stage {draft.path} cannot be filled from {folder}"):
                moved = move(files, written, draft)
            elapsed_ms = round((time.monotonic() - started) * 1000)
            sealed.append(draft.seal({**counted, **moved, "elapsed_ms": elapsed_ms}))
        with as_sink_error(f"{folder} cannot be removed"):
            files.remove(folder)
    return sealed


def write_each(
    df: DataFrame,
    path: str | os.PathLike[str],
    plans: Sequence[WindowPlan],
    *,
    ordered: bool,
    storage_options: Mapping[str, Any] | None = None,
    partition_by: str | None = None,
) -> list[StagedOutput]:
    """Write one window by `write_window`, several by `write_windows`; raise as they do."""
    how: dict[str, Any] = {
        "ordered": ordered,
        "storage_options": storage_options,
        "partition_by": partition_by,
    }
    if len(plans) == 1:
        # It counts while it writes, without reading the files again.
        return [write_window(df, path, plans[0], **how)]
    return write_windows(df, path, plans, **how)


@dataclass(frozen=True)
class _Arranged:
    """Rows with `WINDOW_NUMBER`, in the partitions that write them, still to be sorted within each."""

    rows: DataFrame
    order: tuple[str, ...]
    #: The windows' ids by their numbers.
    window_ids: tuple[str, ...]


@dataclass(frozen=True)
class _Written:
    """The output of the job: one folder below `folder` for each window with rows."""

    folder: str
    window_ids: tuple[str, ...]
    records: int
    #: An id from the rows whose window has no number, if there are such rows; a row may also have no id.
    stranger: str | None
    #: Counts of fields without a column, by window; None if they were not counted.
    discarded: Mapping[str, list[str]] | None

    @property
    def empty_folder(self) -> str:
        """The folder of a file without rows, if it is needed."""
        return f"{self.folder}/_empty"

    def folder_of(self, window_id: str) -> str:
        """Return the folder of the files of a window with rows."""
        return f"{self.folder}/{WINDOW_NUMBER}={self.window_ids.index(window_id)}"


def _write(df: DataFrame, plans: Sequence[WindowPlan], folder: str, *, ordered: bool) -> _Written:
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    observation = Observation()
    stranger = f.when(f.col(WINDOW_NUMBER).isNull(), f.col("window_id"))
    counts = [f.count(f.lit(1)).alias("records"), f.min(stranger).alias("stranger")]
    is_counted = DISCARDED in df.columns
    if is_counted:
        text = f.when(f.col(DISCARDED).isNotNull(), f.struct("window_id", DISCARDED))
        counts.append(collected(text).alias(DISCARDED))
    with (
        job_errors(plans, folder),
        _arranged(df, plans, ordered=ordered) as arranged,
        written_as_given(arranged.rows) as frame,
    ):
        # Observed where each row passes once: below the sort, and above the repartitioning.
        rows = frame.observe(observation, *counts)
        # Sorted last, and by the window first. Otherwise Spark would sort by the window again, without keeping the
        # order of rows within a window.
        rows = rows.sortWithinPartitions(*arranged.order).drop("window_id", _ROW, DISCARDED)
        writer = rows.write.mode("overwrite").option("compression", "zstd")
        # With dynamic, Spark would keep existing files.
        writer = writer.option("partitionOverwriteMode", "static")
        writer.partitionBy(WINDOW_NUMBER).parquet(spark_path(folder))
    observed = observation.get
    discarded: dict[str, list[str]] = {}
    for one in json.loads(observed[DISCARDED]) if is_counted else ():
        discarded.setdefault(one["window_id"], []).append(one[DISCARDED])
    return _Written(
        folder,
        arranged.window_ids,
        int(observed["records"]),
        observed["stranger"],
        discarded if is_counted else None,
    )


@contextmanager
def _arranged(df: DataFrame, plans: Sequence[WindowPlan], *, ordered: bool) -> Iterator[_Arranged]:
    from pyspark.sql import functions as f

    known = order_of(df)
    if known is not None and known.dealt is not None and not is_kept(df):
        yield _Arranged(known.dealt, MANY_ORDER, known.window_ids)
        return
    window_ids = tuple(plan.window_id for plan in plans)
    if known is None and ordered and set(ORDER) <= set(df.columns):
        with kept(df):
            rows = _numbered(df, window_ids).repartitionByRange(*MANY_ORDER)
            yield _Arranged(rows, MANY_ORDER, window_ids)
        return
    rows = _numbered(df, window_ids).withColumn(_ROW, f.monotonically_increasing_id())
    yield _Arranged(rows, (WINDOW_NUMBER, _ROW), window_ids)


def _numbered(df: DataFrame, window_ids: Sequence[str]) -> DataFrame:
    """Add the number of each row's window, null for an unknown window; rows stay in order."""
    from pyspark.sql import functions as f

    numbers = pa.table(
        {
            "window_id": pa.array(window_ids, pa.string()),
            WINDOW_NUMBER: pa.array(range(len(window_ids)), pa.int32()),
        }
    )
    return df.join(f.broadcast(df.sparkSession.createDataFrame(numbers)), "window_id", "left")


def _facts(
    df: DataFrame, plans: Sequence[WindowPlan], written: _Written
) -> dict[str | None, Facts]:
    """Return the contents of the files by window; None for rows without a number."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import IntegerType, StructField, StructType

    fields = [field for field in df.schema.fields if field.name in (*ORDER, "late")]
    schema = StructType([*fields, StructField(WINDOW_NUMBER, IntegerType())])
    rows = parquet_reader(df.sparkSession).schema(schema).parquet(spark_path(written.folder))
    counts = _counts({field.name: field.dataType.simpleString() for field in fields})
    heads = _heads(plans, written.window_ids)
    if _POSITION.items() <= dict(rows.dtypes).items() and heads.num_rows <= _HEADS_MAX:
        heads_frame = f.broadcast(df.sparkSession.createDataFrame(heads))
        rows = rows.join(heads_frame, [WINDOW_NUMBER, "topic", "partition"], "left")
        counts["out_of_order"] = f.count_if(f.col("offset") >= f.col(_HEAD_END))
    aggregates = [count.alias(name) for name, count in counts.items()]
    with job_errors(plans, written.folder):
        collected = rows.groupBy(WINDOW_NUMBER).agg(*aggregates).collect()
    nothing = {name: None if name.startswith("timestamp") else 0 for name in counts}
    facts: dict[str | None, Facts] = {plan.window_id: nothing for plan in plans}
    for row in collected:
        number = row[WINDOW_NUMBER]
        window_id = None if number is None else written.window_ids[number]
        facts[window_id] = {name: row[name] for name in counts}
    for plan in plans:
        if "out_of_order" in counts and not plan.tells_out_of_order:
            facts[plan.window_id] = {**facts[plan.window_id], "out_of_order": None}
        if written.discarded is not None:
            counted = total_discarded(written.discarded.get(plan.window_id, ()))
            facts[plan.window_id] = {**facts[plan.window_id], **counted}
    return facts


def _counts(types: dict[str, str]) -> dict[str, Column]:
    from pyspark.sql import functions as f

    counts = {"records": f.count(f.lit(1))}
    if types.get("timestamp") == "timestamp":
        counts["timestamp_ms_min"] = f.unix_millis(f.min("timestamp"))
        counts["timestamp_ms_max"] = f.unix_millis(f.max("timestamp"))
    if types.get("late") == "boolean":
        counts["late"] = f.count_if(f.col("late"))
    return counts


def _heads(plans: Sequence[WindowPlan], window_ids: Sequence[str]) -> pa.Table:
    """Return the ends of heads, for the partitions in which a window has records after the head."""
    numbers = {window_id: number for number, window_id in enumerate(window_ids)}
    rows = [
        (numbers[plan.window_id], tp.topic, tp.partition, head_end)
        for plan in plans
        if plan.window_id in numbers
        for tp, head_end in behind_cutoff(plan).items()
    ]
    columns: list[Any] = list(zip(*rows, strict=True)) or [()] * len(_HEADS_TYPES)
    schema = pa.schema(_HEADS_TYPES)
    return pa.table(list(map(pa.array, columns, schema.types)), schema=schema)


def _check_rows(
    plans: Sequence[WindowPlan], written: _Written, facts: dict[str | None, Facts]
) -> None:
    """Raise `SinkError` if files are missing here, or hold rows of no plan."""
    records = {window_id: of_window["records"] or 0 for window_id, of_window in facts.items()}
    if (here := sum(records.values())) != written.records:
        raise SinkError(
            f"Spark wrote {written.records:,} records of {len(plans)} windows of group {plans[0].group_id}, "
            f"but the files in {written.folder} on this machine hold {here:,}: some executors write to a folder that "
            "this process does not see. Use a folder that the driver and all executors share, and check that it is mounted on each of "
            "them. Nothing was committed"
        )
    strangers = records.keys() - {plan.window_id for plan in plans}
    if strangers:
        example = min(
            (window_id for window_id in strangers if window_id is not None),
            default=written.stranger,
        )
        raise SinkError(
            f"{sum(records[window_id] for window_id in strangers):,} rows belong to none of the {len(plans)} windows "
            f"being written, but to {'no window' if example is None else f'window {example}, for example'}: "
            "their plans were not passed, or the job changed window_id"
        )


def _write_empty(df: DataFrame, plans: Sequence[WindowPlan], written: _Written) -> None:
    """Write one file without rows, for all windows that have none."""
    empty = df.sparkSession.createDataFrame([], df.drop("window_id", DISCARDED).schema).coalesce(1)
    with job_errors(plans, written.empty_folder), written_as_given(empty) as frame:
        frame.write.option("compression", "zstd").parquet(spark_path(written.empty_folder))


def _copy_empty(files: Files, written: _Written, draft: Draft) -> Facts:
    names = data_names(files, written.empty_folder)
    if not names:
        raise SinkError(
            f"Spark wrote a file without rows to {written.empty_folder}, but this machine does not see it: "
            "executors write elsewhere. Use a folder that the driver and all executors share"
        )
    name = names[0]
    with files.open(f"{written.empty_folder}/{name}") as file:
        content = file.read()
    files.write(_file_path(draft, 0), content)
    return {"files": 1, "bytes": len(content)}


def _move(files: Files, written: _Written, draft: Draft) -> Facts:
    """Move a window's files to its stage, under names that keep their order."""
    folder = written.folder_of(draft.output.window_id)
    names, sizes = data_names(files, folder), files.sizes(folder)
    if len(names) > FILES_MAX:
        raise ConfigError(
            f"window {draft.output.window_id} has {len(names):,} files, and names keep the order of {FILES_MAX:,}: "
            "write with fewer tasks, or larger files"
        )
    files.move_all(
        [(f"{folder}/{name}", _file_path(draft, number)) for number, name in enumerate(names)]
    )
    return {"files": len(names), "bytes": sum(sizes.values())}


def _file_path(draft: Draft, number: int) -> str:
    return f"{draft.path}/part-{number:05d}.parquet"
