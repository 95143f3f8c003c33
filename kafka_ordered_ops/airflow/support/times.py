"""The times of a task's window, and the id that makes two attempts the same window.

A run has its time in different places: see `resolve`. This module neither uses Kafka nor imports Airflow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.times import parse_time_ms, time_at, time_ms, time_text
from kafka_ordered_ops.core.types import Mode
from kafka_ordered_ops.core.window.window_id import is_window_id, readable_window_id

#: The rendered text of a template without a value.
_NOTHING: Final = ("", "None")


class WindowMode(StrEnum):
    """Whether a task's windows have a start in time.

    Auto: the run's interval if it has a length, else catch-up. Catch-up: everything before the cutoff that the group
    has not taken yet. Interval: from the interval's start to its end, and late records.
    """

    AUTO = "auto"
    CATCH_UP = "catch_up"
    INTERVAL = "interval"


class CutoffSource(StrEnum):
    """The source of a cutoff, in order of precedence."""

    PARAMETER = "the task's cutoff"
    CONF = "dag_run.conf"
    PARTITION = "partition_date"
    INTERVAL = "data_interval_end"
    EVENT = "an asset event"
    RUN_AFTER = "dag_run.run_after"


@dataclass(frozen=True, slots=True)
class WindowTimes:
    """The times of one run's window, in UTC and whole milliseconds."""

    cutoff: datetime
    #: None for catch-up.
    since: datetime | None
    source: CutoffSource

    @property
    def mode(self) -> Mode:
        """The kind of the window."""
        return Mode.CATCH_UP if self.since is None else Mode.INTERVAL

    def __str__(self) -> str:
        start = "" if self.since is None else f"from {_text(self.since)} "
        return f"{self.mode.value}, {start}up to {_text(self.cutoff)} (by {self.source.value})"


def resolve(
    context: Mapping[str, Any],
    *,
    cutoff: datetime | str | None = None,
    since: datetime | str | None = None,
    mode: WindowMode = WindowMode.AUTO,
    partition_span: timedelta | None = None,
) -> WindowTimes:
    """Return the times of a run's window.

    In this order: the task's own `cutoff`; ``dag_run.conf["cutoff"]`` (and ``["since"]``); the partition's
    date, to which `partition_span` adds the length of a partition; the end of the data interval; the
    greatest ``extra["cutoff"]``, or ``extra["payload"]["cutoff"]``, of the asset events that started the run;
    ``dag_run.run_after``. Never the current time: a second attempt would plan another window.

    Args:
        context: the task's context, without keys that a run does not have.
        cutoff: the task's rendered parameter: a time with a zone, or its ISO text. Empty text means no cutoff.
        since: the start of an interval, in the same form; requires `cutoff`.
        mode: whether the window has a start.
        partition_span: the length of a partition whose date is its start. By default its date is the cutoff.

    Raises:
        ConfigError: an invalid time, or one without a zone; a `since` without `cutoff`, or in catch-up mode; interval
            mode for a run without an interval; a run without a time; a partition whose date this Airflow does not
            provide.
    """
    mode = WindowMode(mode)
    times = _resolved(
        context, moment_of(cutoff, "cutoff"), moment_of(since, "since"), partition_span
    )
    if mode is WindowMode.CATCH_UP:
        if times.since is not None and times.source in (CutoffSource.PARAMETER, CutoffSource.CONF):
            raise ConfigError(
                f"mode='catch_up' has no start, and since is {_text(times.since)}: leave since out, or use "
                "mode='interval'"
            )
        return replace(times, since=None)
    if mode is WindowMode.INTERVAL and times.since is None:
        raise ConfigError(
            f"mode='interval', but the run has no interval: its cutoff is {_text(times.cutoff)}, by "
            f"{times.source.value}, and there is no start. Give since= and cutoff=, use a timetable with data "
            "intervals, or mode='catch_up'"
        )
    return times


def run_token(context: Mapping[str, Any]) -> str:
    """Return a text that is the same for the retries, clears and reprocessing of a run, and differs between runs.

    Runs of the same partition, or of the same data interval, have the same text. After the loss of Airflow's
    database, or when a partition runs again, the windows are the same. A run whose ``conf`` has a cutoff has its own
    text, although Airflow assigns it the interval of the newest scheduled run.

    Raises:
        ConfigError: the context has no run.
    """
    if not _moment_text(_conf(context).get("cutoff")):
        if (key := _partition_key(context)) is not None:
            return key
        start, end = context.get("data_interval_start"), context.get("data_interval_end")
        if start is not None and end is not None:
            return _text(end) if start == end else f"{_text(start)}_{_text(end)}"
    if (run_id := context.get("run_id")) is None:
        raise ConfigError("the context has no run_id, so its window has no name: give window_id=")
    return str(run_id)


def rendered_window_id(text: str) -> str:
    """Return the id of a rendered template: text with characters that ids cannot have, such as a ``run_id``, gets a digest."""
    return text if is_window_id(text) else readable_window_id(text, distinct=text)


def default_window_id(
    context: Mapping[str, Any], group_id: str, *, task_id: str | None = None
) -> str:
    """Return the id of a task's window: its run, DAG, task and map index, and a digest of these and the group.

    `task_id` is another task of the same DAG and run, which must not be mapped.

    Raises:
        ConfigError: the context has no task or no run.
    """
    ti = context.get("ti")
    if ti is None:
        raise ConfigError("the context has no task instance, so its window has no name")
    index = -1 if task_id is not None else getattr(ti, "map_index", -1)
    index = -1 if index is None else index
    parts = (ti.dag_id, task_id or ti.task_id, index, run_token(context), group_id)
    # Windows of two groups may share an output folder, where their ids distinguish them. The other parts are in the
    # digest because names may have dots: task c of DAG a.b is not task b.c of DAG a.
    dag_id, task, _, token, _ = parts
    names = (token, f"{dag_id}.{task}", *([] if index == -1 else [str(index)]))
    return readable_window_id(*names, distinct=parts)


def _resolved(
    context: Mapping[str, Any],
    cutoff: datetime | None,
    since: datetime | None,
    partition_span: timedelta | None,
) -> WindowTimes:
    if (explicit := _explicit_times(cutoff, since, "cutoff", CutoffSource.PARAMETER)) is not None:
        return explicit
    conf = _conf(context)
    cutoff = moment_of(conf.get("cutoff"), 'dag_run.conf["cutoff"]')
    since = moment_of(conf.get("since"), 'dag_run.conf["since"]')
    if (
        explicit := _explicit_times(cutoff, since, 'dag_run.conf["cutoff"]', CutoffSource.CONF)
    ) is not None:
        return explicit
    if (date := moment_of(context.get("partition_date"), "partition_date")) is not None:
        if partition_span is None:
            return WindowTimes(date, None, CutoffSource.PARTITION)
        return WindowTimes(date + partition_span, date, CutoffSource.PARTITION)
    if "partition_date" not in context and (key := _partition_key(context)) is not None:
        raise ConfigError(
            f"the run has partition {key!r}, and Airflow before 3.3 does not pass a partition's date to tasks: "
            "give cutoff=, and since= for an interval. For a key that is a time in UTC: "
            'cutoff="{{ dag_run.partition_key }}Z"'
        )
    if (end := moment_of(context.get("data_interval_end"), "data_interval_end")) is not None:
        start = moment_of(context.get("data_interval_start"), "data_interval_start")
        has_length = start is not None and start < end
        return WindowTimes(end, start if has_length else None, CutoffSource.INTERVAL)
    cutoffs = [
        moment
        for event in _events(context.get("triggering_asset_events"))
        if (moment := moment_of(_cutoff_of(event), "the asset event's cutoff")) is not None
    ]
    if cutoffs:
        return WindowTimes(max(cutoffs), None, CutoffSource.EVENT)
    run_after = moment_of(getattr(context.get("dag_run"), "run_after", None), "dag_run.run_after")
    if run_after is not None:
        return WindowTimes(run_after, None, CutoffSource.RUN_AFTER)
    raise ConfigError("the run has no time: give cutoff=")


def _explicit_times(
    cutoff: datetime | None, since: datetime | None, name: str, source: CutoffSource
) -> WindowTimes | None:
    """Return explicit times, of the task or of the run's conf; None if there are none."""
    if cutoff is not None:
        return WindowTimes(cutoff, since, source)
    if since is not None:
        raise ConfigError(
            f"since {_text(since)} without a cutoff: give {name} as well, or leave both out"
        )
    return None


def _conf(context: Mapping[str, Any]) -> Mapping[str, Any]:
    return getattr(context.get("dag_run"), "conf", None) or {}


def _partition_key(context: Mapping[str, Any]) -> str | None:
    """Return the run's partition. In Airflow 3.2 only the run has it, not the context."""
    key = context.get("partition_key") or getattr(context.get("dag_run"), "partition_key", None)
    return str(key) if key else None


def _events(triggering: Any) -> Iterable[Any]:
    """Return the events of all assets."""
    if not triggering:
        return []
    return [event for events in triggering.values() for event in events]


def _cutoff_of(event: Any) -> Any:
    """Return the cutoff in an event: a task's event has it in the extra, a watcher's in the extra's payload."""
    extra = getattr(event, "extra", None) or {}
    payload = extra.get("payload")
    if "cutoff" not in extra and isinstance(payload, Mapping):
        return payload.get("cutoff")
    return extra.get("cutoff")


def _moment_text(value: Any) -> Any:
    """Return the value, or None for the rendered text of a template without a value."""
    text = value.strip() if isinstance(value, str) else value
    return None if text in _NOTHING else text


def moment_of(value: Any, what: str) -> datetime | None:
    """Return a time of a run, or of a rendered template, as a plain datetime in UTC."""
    value = _moment_text(value)
    if value is None:
        return None
    if isinstance(value, datetime):
        ms = time_ms(value, what=what)
    elif isinstance(value, str):
        # Airflow writes times with a space.
        ms = parse_time_ms(value, what=what)
    else:
        raise ConfigError(
            f"{what} is a {type(value).__name__}: give a time with a zone, or its ISO text"
        )
    try:
        return time_at(ms)
    except OverflowError as error:
        raise ConfigError(f"{what} {value} is beyond the calendar, which ends in 9999") from error


def _text(moment: datetime) -> str:
    return time_text(time_ms(moment, what="time"))
