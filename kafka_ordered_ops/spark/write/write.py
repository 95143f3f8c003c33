"""Write a DataFrame as the output of a window."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.core.errors import ConfigError, JobFailedError
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.core.window.partition import columns_of
from kafka_ordered_ops.core.window.plan import WindowPlan, check_not_covered
from kafka_ordered_ops.ordered.records.columns import ORDER
from kafka_ordered_ops.ordered.records.pieces import check_together
from kafka_ordered_ops.output.address import spark_path
from kafka_ordered_ops.output.filesystem import as_sink_error
from kafka_ordered_ops.output.writing.draft import Draft, drafts_of
from kafka_ordered_ops.output.writing.staged_output import Facts, StagedOutput
from kafka_ordered_ops.spark.environment import check_frame, check_pyspark
from kafka_ordered_ops.spark.failures import named_error
from kafka_ordered_ops.spark.read.decoded import DISCARDED, collected, total_discarded
from kafka_ordered_ops.spark.read.order import order_of
from kafka_ordered_ops.spark.s3a import lend_credentials
from kafka_ordered_ops.spark.write.write_session import written_as_given

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: The largest number of partitions for counting out-of-order records: the expression, and Spark's planning, grow with it.
_HEADS_MAX: Final = 2_000

#: Comparing a record with up to this many partitions costs less than looking up its own one by name.
_COMPARED_MAX: Final = 16

#: Texts in a JVM's error: the call, the cause, and the stack.
_PY4J: Final = "An error occurred while calling"
_CAUSE: Final = "Caused by: "
_STACK: Final = ("at ", "... ", "Driver stacktrace:")


def write_window(
    df: DataFrame,
    path: str | os.PathLike[str],
    plan: WindowPlan,
    *,
    ordered: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    partition_by: str | None = None,
) -> StagedOutput:
    """Write a window's result as Parquet to its stage below `path`; nothing is visible yet.

    Pass the result to ``windows.commit(plan, output)``, which commits the window and then publishes. Writing
    the same attempt again replaces its earlier output. All columns of `df` are written except ``window_id``, which
    is in the folder's name: ``<path>/window_id=<id>/``. The plan may be a part of a split window: see
    `StagedOutput.merged`.

    Facts of the result: ``records``, ``bytes``, ``files``, ``elapsed_ms``; and where `df` has the columns of
    `read_window`, ``timestamp_ms_min``, ``timestamp_ms_max``, ``late`` and ``out_of_order`` (null if the plan
    does not know which records are out of order). They are counted in the same job.

    Args:
        df: the result of the user's job: the window's records, or anything made from them.
        path: the folder that holds the output of all windows: a local or mounted one that the driver and
            all executors see, or a prefix in an object store.
        plan: the window.
        ordered: sort by (timestamp, topic, partition, offset), so that the files' rows, in the order of the
            files' names, are in total order. `df` is computed once and cached by the executors meanwhile. A
            result of ``read_window(ordered=True)`` passed on unchanged is not sorted again, and a `df`
            without these four columns is written as it is. False writes any `df` as it is: rows in
            the order of its partitions, which keeps an existing order.
        storage_options: credentials and settings of an object store, for this process; None uses those of the
            environment. Spark gets S3 keys from them, unless its session has its own. For other stores, Spark uses
            its own credentials.
        partition_by: ``date`` or ``hour``: put the window's folder below one of its date, or of its date and hour.

    Raises:
        JobFailedError: the job failed. Nothing was committed, and the stage is removed, as after every error.
        SinkError: the files that this process sees do not hold all rows that the job wrote: some
            executors write to another folder. Or another group's window is in its place.
        ReadError, BrokerError, RecordsLostError: the job failed because a task could not read the window.
        WindowCoveredError: other windows deliver its records; an empty output would hide theirs.
        ConfigError: the path has an unknown scheme; `df` has a column that `partition_by` adds; the window spans several
            dates or hours; or the folder has windows of another `partition_by`.
    """
    check_pyspark()
    check_together([plan])
    check_not_covered(plan)
    check_frame(df)
    started = time.monotonic()
    output = StagedOutput.of(plan, path, storage_options, partition_by)
    check_columns(df, output)
    lend_credentials(df.sparkSession, output.root, storage_options)
    with drafts_of([output]) as (draft,):
        known = order_of(df)
        in_order = known is not None and known.window_ids == (plan.window_id,)
        facts = _run(df.drop("window_id"), draft, plan, sort=ordered and not in_order)
        elapsed_ms = round((time.monotonic() - started) * 1000)
        return draft.seal({**facts, **_files(draft), "elapsed_ms": elapsed_ms})


def check_columns(df: DataFrame, output: StagedOutput) -> None:
    """Raise `ConfigError` for a column that readers would read from the folders' names instead."""
    added = columns_of(output.partition)
    if taken := [name for name in df.columns if name.lower() in added]:
        raise ConfigError(
            f"the rows of window {output.window_id} have a column {taken[0]}, and so have the folders of partition_by: readers "
            f"would see the window's {taken[0].lower()} in it. Rename the column, or leave out partition_by"
        )


def _run(df: DataFrame, draft: Draft, plan: WindowPlan, *, sort: bool) -> Facts:
    from pyspark.sql import Observation

    observation = Observation()
    with (
        job_errors([plan], draft.path),
        written_as_given(df) as frame,
        _sorted(frame, sort=sort) as rows,
    ):
        # Observed last: the plan below a sort may run more than once.
        observed = rows.observe(observation, *_counts(df, plan))
        # The folder exists and is empty. Overwriting would remove the flag that shows that it is still the same.
        writer = observed.drop(DISCARDED).write.mode("append").option("compression", "zstd")
        writer.parquet(spark_path(draft.path))
    observed_facts = dict(observation.get)
    discarded = observed_facts.pop(DISCARDED, None)
    facts = {name: None if value is None else int(value) for name, value in observed_facts.items()}
    if discarded is not None:
        facts |= total_discarded(json.loads(discarded))
    if not _tells_places(df) or "out_of_order" in facts:
        return facts
    if not plan.tells_out_of_order:
        return {**facts, "out_of_order": None}
    return facts if behind_cutoff(plan) else {**facts, "out_of_order": 0}


@contextmanager
def job_errors(plans: Sequence[WindowPlan], path: str) -> Iterator[None]:
    """Raise a failed Spark job's error as an error of this package: a task's own class, or `JobFailedError`."""
    try:
        yield
    except Exception as error:
        # An error of Spark or py4j, which Connect does not have.
        named = named_error(error)
        if named is not None:
            raise named from error
        first = plans[0]
        more = f" and {len(plans) - 1} more" if len(plans) > 1 else ""
        raise JobFailedError(
            f"the Spark job that writes window {first.window_id}{more} of group {first.group_id} to {path} failed: "
            f"{_first_line(error)}. Nothing was committed: run the window again",
            window_id=first.window_id,
        ) from error


@contextmanager
def _sorted(df: DataFrame, *, sort: bool) -> Iterator[DataFrame]:
    if not sort or not set(ORDER) <= set(df.columns):
        yield df
        return
    with kept(df):
        yield df.orderBy(*ORDER)


@contextmanager
def kept(df: DataFrame) -> Iterator[None]:
    """Cache `df` on the executors in the block, so that it is computed once; a cache of the user's stays.

    Sorting runs its input twice, first to sample the range of each task. Without the cache, Kafka would be read twice,
    and the user's job would run twice.
    """
    if is_kept(df):
        yield
        return
    df.persist()
    try:
        yield
    finally:
        df.unpersist()


def is_kept(df: DataFrame) -> bool:
    """Return whether the user has cached `df`."""
    return df.storageLevel.useMemory or df.storageLevel.useDisk


def _counts(df: DataFrame, plan: WindowPlan) -> list[Column]:
    from pyspark.sql import functions as f

    types = dict(df.dtypes)
    counts = [f.count(f.lit(1)).alias("records")]
    if types.get("timestamp") == "timestamp":
        counts.append(f.unix_millis(f.min("timestamp")).alias("timestamp_ms_min"))
        counts.append(f.unix_millis(f.max("timestamp")).alias("timestamp_ms_max"))
    if types.get("late") == "boolean":
        counts.append(f.count_if(f.col("late")).alias("late"))
    if DISCARDED in types:
        counts.append(collected(DISCARDED).alias(DISCARDED))
    behind = behind_cutoff(plan) if plan.tells_out_of_order else {}
    if _tells_places(df) and 0 < len(behind) <= _HEADS_MAX:
        counts.append(f.count_if(_is_out_of_order(behind)).alias("out_of_order"))
    return counts


def _tells_places(df: DataFrame) -> bool:
    """Return whether each row identifies its record."""
    return set(ORDER) <= set(df.columns)


def behind_cutoff(plan: WindowPlan) -> dict[TopicPartition, int]:
    """Return the partitions that may have records after the first one stamped at or after the cutoff, with its offset."""
    return {
        part.tp: part.head_end
        for part in plan
        if part.head_end is not None and part.may_have_out_of_order
    }


def _is_out_of_order(behind: Mapping[TopicPartition, int]) -> Column:
    """Return whether a record is after the first one stamped at or after the cutoff, in its partition.

    Args:
        behind: the offset of that record for each partition with records after it; not empty.
    """
    from pyspark.sql import functions as f

    if len(behind) <= _COMPARED_MAX:
        compared = (
            (f.col("partition") == tp.partition)
            & (f.col("offset") >= f.lit(head_end).cast("bigint"))
            & (f.col("topic") == tp.topic)
            for tp, head_end in behind.items()
        )
        return reduce(lambda any_, comparison: any_ | comparison, compared)
    heads = [
        column
        for tp, head_end in behind.items()
        for column in (f.lit(str(tp)), f.lit(head_end).cast("bigint"))
    ]
    where = f.concat("topic", f.lit("["), f.col("partition").cast("string"), f.lit("]"))
    return f.col("offset") >= f.try_element_at(f.create_map(*heads), where)


def _files(draft: Draft) -> Facts:
    """Return how many files there are; `Draft.seal` checks that they hold everything."""
    with as_sink_error(f"the stage {draft.path} cannot be read"):
        sizes = draft.files.sizes(draft.path)
    return {"files": len(sizes), "bytes": sum(sizes.values())}


def _first_line(error: BaseException) -> str:
    """Return the line of an error that describes the failure."""
    lines = [line.strip() for line in str(error).splitlines()]
    lines = [line for line in lines if line and not line.startswith(_STACK)]
    if not lines:
        return type(error).__name__
    # In a Python traceback, the last line describes the failure; in a JVM's, the first.
    if any("Traceback (most recent call last)" in line for line in lines):
        return lines[-1]
    if not lines[0].startswith(_PY4J) or len(lines) == 1:
        return lines[0]
    # Py4J's first line names its own call. The JVM's exceptions follow, and the last cause is the root cause.
    causes = [line for line in lines if line.startswith(_CAUSE)]
    return (causes[-1] if causes else lines[1]).removeprefix(_CAUSE).lstrip(": ")
