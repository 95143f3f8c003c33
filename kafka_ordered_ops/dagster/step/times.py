"""The windows of a step: its partitions' intervals, or everything before its run began."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from dagster import (
    AssetExecutionContext,
    AssetKey,
    DagsterInstance,
    DagsterRun,
    OpExecutionContext,
    PartitionsDefinition,
    TimeWindow,
    TimeWindowPartitionsDefinition,
)

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.times import time_at, time_ms
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.dagster.settings import WindowSettings, window_id_of

#: Tags of runs that continue where their parent failed; a full re-execution has none of them.
_RESUMES: Final = ("dagster/is_resume_retry", "dagster/is_asset_resume_retry")

#: A chain of retries has a few runs.
_CHAIN_MAX: Final = 1_000


@dataclass(frozen=True)
class StepWindow:
    """One window that a step must deliver."""

    window_id: str
    window: Window
    #: None for an asset without partitions.
    partition_key: str | None
    #: Whether the partition has ended; otherwise this is a piece with a cutoff within it.
    is_over: bool = True


def check_partitions(
    definition: PartitionsDefinition[str] | None, settings: WindowSettings
) -> None:
    """Raise `ConfigError` for partitions that are not time intervals, or if `open_lag` lacks partitions."""
    if definition is None and settings.open_lag is not None:
        raise ConfigError(
            "open_lag requires partitions_def: it is for partitions that have not ended"
        )
    if definition is not None and not isinstance(definition, TimeWindowPartitionsDefinition):
        raise ConfigError(
            f"partitions_def is a {type(definition).__name__}: a window of records needs partitions by time, for example "
            "hourly or daily, or no partitions"
        )


def windows_of_step(
    context: AssetExecutionContext | OpExecutionContext,
    key: AssetKey,
    settings: WindowSettings,
    definition: PartitionsDefinition[str] | None,
) -> list[StepWindow]:
    """Return the windows of a step, by time.

    An asset without partitions has one window: everything before the run began. A run that continues a failed one
    uses that run's start, so a retry asks for the same window.
    """
    if isinstance(definition, TimeWindowPartitionsDefinition):
        windows = []
        for name in _partitions_of(context, key):
            times = times_of(definition, name)
            window = settings.untimed_window.at(times.end, times.start)
            windows.append(StepWindow(window_id_of(key, name), window, name))
        return sorted(windows, key=lambda step_window: step_window.window.cutoff_ms)
    first = first_of(context.instance, context.run)
    cutoff = began(context.instance, first)
    return [StepWindow(window_id_of(key, first.run_id), settings.untimed_window.at(cutoff), None)]


def _partitions_of(context: AssetExecutionContext | OpExecutionContext, key: AssetKey) -> list[str]:
    """Return the partitions of a run; raise `ConfigError` for a run without one."""
    if not (context.has_partition_key or context.has_partition_key_range):
        raise ConfigError(
            f"{key.to_user_string()} has partitions, but this run names no partition: choose the partitions to materialize, "
            "in the dialog of the web page, with --partition of `dg launch`, or as partition_key= in Python"
        )
    return list(context.partition_keys)


def times_of(definition: TimeWindowPartitionsDefinition, name: str) -> TimeWindow:
    """Return the start and end of a partition; raise `ConfigError` for times without a zone."""
    times = definition.time_window_for_partition_key(name)
    for moment in times:
        time_ms(moment, what=f"partition {name}: its time")
    return times


def runs_of(instance: DagsterInstance, run: DagsterRun) -> list[DagsterRun]:
    """Return the chain of retries that a run belongs to, up to this run, the newest first; only the run if it is not a retry."""
    chain = [run]
    while len(chain) < _CHAIN_MAX:
        run = chain[-1]
        is_resumed = any(run.tags.get(tag) == "true" for tag in _RESUMES)
        parent = instance.get_run_by_id(run.parent_run_id) if run.parent_run_id else None
        if not is_resumed or parent is None:
            break
        chain.append(parent)
    return chain


def first_of(instance: DagsterInstance, run: DagsterRun) -> DagsterRun:
    """Return the first run of this run's chain of retries; the run itself if it is not a retry."""
    return runs_of(instance, run)[-1]


def began(instance: DagsterInstance, run: DagsterRun) -> datetime:
    """Return the time of a run's creation, in whole milliseconds.

    Raises:
        ConfigError: the instance does not know the run.
    """
    record = instance.get_run_record_by_id(run.run_id)
    if record is None:
        raise ConfigError(
            f"run {run.run_id} is unknown to this Dagster instance, and its time would be the window's cutoff"
        )
    created = record.create_timestamp
    # Some storages return a time without a zone, in UTC.
    return in_ms(created if created.tzinfo is not None else created.replace(tzinfo=UTC))


def in_ms(moment: datetime) -> datetime:
    """Return a moment rounded down to whole milliseconds, the precision of records."""
    return time_at(time_ms(moment, what="the time"))
