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
class Asked:
    """One window that a step must deliver."""

    window_id: str
    window: Window
    #: None: the asset has no partitions.
    partition_key: str | None
    #: Whether the partition has ended; otherwise this is a piece with a cutoff within it.
    is_over: bool = True


def check_partitions(
    definition: PartitionsDefinition[str] | None, settings: WindowSettings
) -> None:
    """Raise `ConfigError` for partitions that are not time intervals, or missing ones that settings require."""
    if definition is None and settings.open_lag is not None:
        raise ConfigError(
            "open_lag requires partitions_def: it is for partitions that have not ended"
        )
    if definition is not None and not isinstance(definition, TimeWindowPartitionsDefinition):
        raise ConfigError(
            f"partitions_def is a {type(definition).__name__}: a window of records needs partitions by time, hourly "
            "or daily ones for example, or none"
        )


def asked_of(
    context: AssetExecutionContext | OpExecutionContext,
    key: AssetKey,
    settings: WindowSettings,
    definition: PartitionsDefinition[str] | None,
) -> list[Asked]:
    """Return the windows of a step, by time.

    An asset without partitions has one window: everything before the run began. A run that continues a failed one
    uses that run's start, so a retry asks for the same window.
    """
    if isinstance(definition, TimeWindowPartitionsDefinition):
        asked = []
        for name in _partitions_of(context, key):
            times = times_of(definition, name)
            window = settings.window(times.end, times.start)
            asked.append(Asked(window_id_of(key, name), window, name))
        return sorted(asked, key=lambda one: one.window.cutoff_ms)
    first = first_of(context.instance, context.run)
    cutoff = began(context.instance, first)
    return [Asked(window_id_of(key, first.run_id), settings.window(cutoff, None), None)]


def _partitions_of(context: AssetExecutionContext | OpExecutionContext, key: AssetKey) -> list[str]:
    """Return the partitions of a run; raise `ConfigError` for a run without one."""
    if not (context.has_partition_key or context.has_partition_key_range):
        raise ConfigError(
            f"{key.to_user_string()} has partitions, and this run has none of them: choose the partitions to materialize, "
            "in the dialog of the web page, with --partition of `dg launch`, or as partition_key= in Python"
        )
    return list(context.partition_keys)


def times_of(definition: TimeWindowPartitionsDefinition, name: str) -> TimeWindow:
    """Return the start and end of a partition; raise `ConfigError` for times without a zone."""
    times = definition.time_window_for_partition_key(name)
    for moment in times:
        time_ms(moment, what=f"partition {name}: its time")
    return times


def first_of(instance: DagsterInstance, run: DagsterRun) -> DagsterRun:
    """Return the first run of the chain of retries that this run belongs to; the run itself if it is no retry."""
    for _ in range(_CHAIN_MAX):
        goes_on = any(run.tags.get(tag) == "true" for tag in _RESUMES)
        parent = instance.get_run_by_id(run.parent_run_id) if run.parent_run_id else None
        if not goes_on or parent is None:
            return run
        run = parent
    return run


def began(instance: DagsterInstance, run: DagsterRun) -> datetime:
    """Return the time of a run's creation, in whole milliseconds.

    Raises:
        ConfigError: the instance does not know it.
    """
    record = instance.get_run_record_by_id(run.run_id)
    if record is None:
        raise ConfigError(
            f"run {run.run_id} is not in this instance: its time is the window's cutoff"
        )
    made = record.create_timestamp
    # Some storages return a time without a zone, in UTC.
    return in_ms(made if made.tzinfo is not None else made.replace(tzinfo=UTC))


def in_ms(moment: datetime) -> datetime:
    """Return a moment rounded down to whole milliseconds, the precision of records."""
    return time_at(time_ms(moment, what="the time"))
