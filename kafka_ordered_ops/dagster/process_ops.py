"""Ops that call a function for each record of their windows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from dagster import OpDefinition, OpExecutionContext, PartitionsDefinition

from kafka_ordered_ops.core.processing.failures import RETRIES, Backoff, WhenExhausted
from kafka_ordered_ops.core.processing.options import WorkerKind
from kafka_ordered_ops.core.processing.scheduling import Ordering
from kafka_ordered_ops.core.types import (
    Isolation,
    OnCovered,
    OnDataLoss,
    OnForeignCommit,
    OnOpenClaim,
)
from kafka_ordered_ops.core.window.bounds import Bound
from kafka_ordered_ops.dagster.ops import ordered_window_op
from kafka_ordered_ops.dagster.settings import OnNotLive
from kafka_ordered_ops.dagster.step.job import AssetWindows
from kafka_ordered_ops.dagster.step.step_functions import KAFKA
from kafka_ordered_ops.hosting.arguments import arguments, with_known_names
from kafka_ordered_ops.hosting.process_job import ProcessJob, processed_facts

#: Arguments of the job, which the windows do not need.
_OF_JOB = (
    "function",
    "ordering",
    "max_concurrency",
    "workers",
    "timeout_s",
    "retries",
    "backoff",
    "when_exhausted",
    "dead_letter_topic",
    "batch_size",
)


@with_known_names
def build_process_window_op(
    *,
    name: str,
    topics: str | Sequence[str],
    group_id: str,
    function: Callable[[Any], Any],
    ordering: Ordering | str = Ordering.KEY,
    max_concurrency: int | None = None,
    workers: WorkerKind | str = WorkerKind.THREADS,
    timeout_s: float | None = None,
    retries: int | None = RETRIES,
    backoff: Backoff | float | None = None,
    when_exhausted: WhenExhausted | str | None = None,
    dead_letter_topic: str | None = None,
    batch_size: int | None = None,
    starting_offsets: Bound | datetime | str | None = None,
    max_out_of_orderness: timedelta | str | None = None,
    isolation: Isolation | str = Isolation.READ_COMMITTED,
    exclude: str | Sequence[str] = (),
    on_covered: OnCovered | str = OnCovered.AUTO,
    on_open_claim: OnOpenClaim | str = OnOpenClaim.STEP_AROUND,
    on_data_loss: OnDataLoss | str = OnDataLoss.FAIL,
    on_foreign_commit: OnForeignCommit | str = OnForeignCommit.FAIL,
    on_not_live: OnNotLive | str = OnNotLive.WARN,
    grace: timedelta | str | None = None,
    open_lag: timedelta | str | None = None,
    redefine: bool = False,
    partitions_def: PartitionsDefinition[str] | None = None,
    kafka_resource: str = KAFKA,
    pool: str | None = None,
    options: dict[str, Any] | None = None,
) -> OpDefinition:
    """Make an op that calls a function for each record of its windows, many at a time, in order by key.

    A window is committed when all of its records are done. What is done is kept in the ledger every 10 s, and when the step
    fails or is ended: the next attempt calls the function only for the records that are left.

    The output is that of `ordered_window_op`. A window's ``returned`` has the counts: ``succeeded``, ``failed`` and
    ``earlier_offsets``.

    Args:
        name: see `ordered_window_op`, also for the arguments that are not named here.
        function: called as ``f(record)`` with a `Record`, or with `batch_size` with a list of them. It may be async. It fails
            by raising, and may be called again for a record: it must be idempotent.
        ordering: ``key``: records of one partition with the same key, one after another; ``partition``; ``unordered``.
        max_concurrency: how many records, or batches, are processed at the same time. None: 16; with processes, one for
            each processor.
        workers: ``threads``, or ``processes``, for functions that compute, at the top level of a module.
        timeout_s: how long the function may take for a record or a batch, which otherwise counts as failed.
        retries: attempts for a record after the first one; None: without a limit.
        backoff: seconds before the next attempt, or a function of the record and its error that returns them; default: from
            0.2 s, doubled up to 60 s.
        when_exhausted: what to do with a record that failed in its last attempt: ``stop`` fails the step, ``skip``, or
            ``dead-letter``.
        dead_letter_topic: an existing topic for such records.
        batch_size: how many records the function gets at once, at most; None: one, and no list.

    Raises:
        ConfigError: an invalid argument.
    """
    job = ProcessJob(
        function=function,
        ordering=ordering,
        max_concurrency=max_concurrency,
        workers=workers,
        timeout_s=timeout_s,
        retries=retries,
        backoff=backoff,
        when_exhausted=when_exhausted,
        dead_letter_topic=dead_letter_topic,
        batch_size=batch_size,
    )
    job.check()
    of_windows = {one: value for one, value in locals().items() if one != "job"}
    definition = ordered_window_op(**arguments(of_windows, own=_OF_JOB))

    def process(context: OpExecutionContext, windows: AssetWindows) -> None:
        _process(job, context, windows)

    process.__doc__ = function.__doc__
    return definition(process)


def _process(job: ProcessJob, context: OpExecutionContext, windows: AssetWindows) -> None:
    service = windows.service
    if service is None:
        raise AssertionError("a step gives its job the service of the windows' group")
    found = [job.process(plan, service, say=context.log.info) for plan in windows.plans]
    windows.report(found)
    counts: Counter[str] = Counter()
    for one in found:
        counts.update(processed_facts(one.to_json()))
    windows.tell({f"kafka_ordered_ops/{what}": count for what, count in counts.items()})
