"""Ops that call a function for each record of their windows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from dagster import OpDefinition, OpExecutionContext, PartitionsDefinition

from kafka_ordered_ops.core.templates import check_rendered
from kafka_ordered_ops.core.window.policy import DEFAULT_POLICY, Policy
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.dagster.ops import ordered_window_op
from kafka_ordered_ops.dagster.settings import OnNotLive
from kafka_ordered_ops.dagster.step.job import AssetWindows
from kafka_ordered_ops.dagster.step.step_functions import KAFKA
from kafka_ordered_ops.delivery.arguments import arguments, with_known_names
from kafka_ordered_ops.delivery.process_job import process, processed_facts
from kafka_ordered_ops.spec.process import Process, check_process


@with_known_names
def build_process_window_op(
    *,
    name: str,
    topics: str | Sequence[str] | None = None,
    window: Window | None = None,
    group_id: str,
    job: Process | Callable[..., Any],
    policy: Policy = DEFAULT_POLICY,
    on_not_live: OnNotLive | str = OnNotLive.WARN,
    grace: timedelta | str | None = None,
    open_lag: timedelta | str | None = None,
    partitions_def: PartitionsDefinition[str] | None = None,
    kafka_resource: str = KAFKA,
    pool: str | None = None,
    options: dict[str, Any] | None = None,
) -> OpDefinition:
    """Make an op that calls a function for each record of its windows, many at a time, in order by key.

    A window is committed when all of its records are done. Progress is stored in the ledger every 10 s, and when the
    step fails or is ended: the next attempt calls the function only for the remaining records.

    The output is that of `ordered_window_op`. A window's ``returned`` has the counts: ``succeeded``, ``failed`` and
    ``earlier_offsets``.

    Args:
        name: see `ordered_window_op`, also for the arguments that are not named here.
        job: a function of a `Record`, or a `Process`.

    Raises:
        ConfigError: an invalid argument.
    """
    process_job = check_process(job)
    check_rendered(process_job, "the job")
    definition = ordered_window_op(**arguments(locals(), own=["job", "process_job"]))

    def processed(context: OpExecutionContext, windows: AssetWindows) -> None:
        _process(process_job, context, windows)

    processed.__doc__ = process_job.call.__doc__
    return definition(processed)


def _process(job: Process, context: OpExecutionContext, windows: AssetWindows) -> None:
    service = windows.service
    if service is None:
        raise AssertionError("a step gives its job the service of the windows' group")
    results = [process(job, plan, service, say=context.log.info) for plan in windows.plans]
    windows.report(results)
    counts: Counter[str] = Counter()
    for result in results:
        counts.update(processed_facts(result.to_json()))
    windows.tell({f"kafka_ordered_ops/{name}": count for name, count in counts.items()})
