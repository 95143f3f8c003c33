"""The base of every task that plans a window or waits for one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from kafka_ordered_ops.airflow.compat import Context
from kafka_ordered_ops.airflow.connection import DEFAULT_CONN_ID, open_windows
from kafka_ordered_ops.airflow.support.first_try import stored_times
from kafka_ordered_ops.airflow.support.literals import is_literal
from kafka_ordered_ops.airflow.support.parameters import NamedParameters, check_parameters
from kafka_ordered_ops.airflow.support.times import (
    WindowMode,
    WindowTimes,
    default_window_id,
    moment_of,
    rendered_window_id,
    resolve,
)
from kafka_ordered_ops.airflow.support.values import ValueTask
from kafka_ordered_ops.core.cluster.names import check_group
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.templates import check_rendered
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.core.window.window_id import check_window_id
from kafka_ordered_ops.spec.asked import window_asked

if TYPE_CHECKING:
    from kafka_ordered_ops.windows import OrderedWindows


class WindowTask(NamedParameters, ValueTask):
    """A task that plans a window of a consumer group or waits for one.

    No request is sent to Kafka before the task runs.

    Args:
        topics: names, or regular expressions that begin with ``^``; one, or a list. Short for ``window=Window(topics)``.
            (templated)
        window: the topics and their options, a `Window` without times, which come from the run. (templated)
        group_id: the consumer group whose progress the windows are; the connection's ``group.id`` is not
            used. (templated)
        cutoff: the window's exclusive end, a time with a zone or its ISO text. By default the run's time, see
            `times.resolve`. (templated)
        since: the start of an interval; requires `cutoff`. (templated)
        partition_span: the length of a partition whose date is its start. By default its date is the cutoff.
        window_id: the window's id. By default it is derived from DAG, task, map index and run. (templated)
        kafka_conn_id: a connection of type ``kafka``. (templated)
        ledger_topic: the topic that holds plans and progress.
    """

    template_fields: Sequence[str] = (
        "window",
        "group_id",
        "kafka_conn_id",
        "cutoff",
        "since",
        "window_id",
    )

    def __init__(
        self,
        *,
        topics: str | Sequence[str] | None = None,
        window: Window | None = None,
        group_id: str,
        cutoff: datetime | str | None = None,
        since: datetime | str | None = None,
        partition_span: timedelta | None = None,
        window_id: str | None = None,
        kafka_conn_id: str | None = None,
        ledger_topic: str | None = None,
        **kwargs: Any,
    ) -> None:
        check_parameters(self, kwargs)
        super().__init__(**kwargs)
        self.window = window_asked(topics, window)
        self.group_id = group_id
        self.kafka_conn_id = kafka_conn_id or DEFAULT_CONN_ID
        self.cutoff = cutoff
        self.since = since
        self.partition_span = partition_span
        self.window_id = window_id
        self.ledger_topic = ledger_topic
        #: The parameters as written in the DAG's file: rendering replaces the attributes.
        self._written = (str(cutoff), str(since))
        self._check_literals_of_window()

    def _check_literals_of_window(self) -> None:
        """Raise `ConfigError` for parameters that are known to be invalid without a run."""
        if is_literal(self.group_id):
            check_group(self.group_id)
        if self.window_id is not None and is_literal(self.window_id):
            check_window_id(self.window_id)
        if not isinstance(self.partition_span, timedelta | None):
            raise ConfigError(f"partition_span is {self.partition_span!r}, not a timedelta")
        literal_times = [
            moment
            for what, value in (("cutoff", self.cutoff), ("since", self.since))
            if is_literal(value) and (moment := moment_of(value, what)) is not None
        ]
        if len(literal_times) == 2:
            Window("any", literal_times[0], since=literal_times[1])

    def times_of(self, context: Context) -> WindowTimes:
        """Return the window's times: those of this task's first attempt, if they were stored.

        Raises:
            ConfigError: see `times.resolve`.
        """
        resolved = resolve(
            context,
            cutoff=self.cutoff,
            since=self.since,
            mode=self.window_mode(),
            partition_span=self.partition_span,
        )
        times = stored_times(context, resolved, self._written)
        self.log.info("Window: %s.", times)
        return times

    def window_mode(self) -> WindowMode:
        """Return whether the window has a start in time; tasks that plan override it."""
        return WindowMode.AUTO

    def window_of(self, times: WindowTimes) -> Window:
        """Return the rendered window with its times; raise `ConfigError`."""
        check_group(self.group_id)
        check_rendered(self.window, "the window")
        return self.window.at(times.cutoff, times.since)

    def window_id_of(self, context: Context) -> str:
        """Return the window's id: the task's parameter, or an id that all attempts of this run's task share."""
        if self.window_id:
            return rendered_window_id(self.window_id)
        return default_window_id(context, self.group_id)

    def places(self, context: Context) -> dict[str, str | None]:
        """Return what an error of this task must name."""
        window_id = None
        with suppress(ConfigError):
            window_id = self.window_id_of(context)
        return {"group": self.group_id, "window": window_id}

    def windows_options(self, context: Context) -> dict[str, Any]:
        """Return arguments of `OrderedWindows`."""
        return {"run_id": context.get("run_id")}

    def open_windows(self, context: Context) -> OrderedWindows:
        """Return the service for this task's group."""
        return open_windows(
            self.kafka_conn_id,
            self.group_id,
            ledger_topic=self.ledger_topic,
            **self.windows_options(context),
        )
