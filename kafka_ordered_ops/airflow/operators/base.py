"""The base of every task that asks for a window: its parameters, and the window that they define."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.airflow.compat import BaseOperator, Context
from kafka_ordered_ops.airflow.connection import DEFAULT_CONN_ID, open_windows
from kafka_ordered_ops.airflow.support.first_try import stored_times
from kafka_ordered_ops.airflow.support.literals import (
    check_native,
    choice_or_template,
    is_literal,
)
from kafka_ordered_ops.airflow.support.parameters import NamedParameters, check_parameters
from kafka_ordered_ops.airflow.support.times import (
    CutoffSource,
    WindowMode,
    WindowTimes,
    default_window_id,
    moment_of,
    resolve,
)
from kafka_ordered_ops.core.arguments import check_texts
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.times import time_at
from kafka_ordered_ops.core.types import Isolation, OnDataLoss
from kafka_ordered_ops.core.window.bounds import Bound
from kafka_ordered_ops.core.window.window import Window, check_window_id
from kafka_ordered_ops.hosting.window_spec import WindowSpec, span_of

if TYPE_CHECKING:
    from kafka_ordered_ops.windows import OrderedWindows


#: Parameters whose own default applies if a template renders to nothing.
_CHOICES: Final = ("isolation", "on_data_loss", "on_covered", "on_open_claim")

#: Any time serves to check a window's other parameters.
_STAND_IN: Final = time_at(0)


class WindowTask(NamedParameters, BaseOperator):
    """A task that asks for a window of a consumer group.

    No request is sent to Kafka before the task runs.

    Args:
        topics: names, or regular expressions that begin with ``^``; one, or a list. (templated)
        group_id: the consumer group whose progress the windows are; the connection's ``group.id`` is not
            used. (templated)
        kafka_conn_id: a connection of type ``kafka``. (templated)
        kafka_config_id: the same, by the Apache Kafka provider's name for it.
        cutoff: the window's exclusive end, a time with a zone or its ISO text; None: the run's time, see
            `times.resolve`. (templated)
        since: the start of an interval; requires `cutoff`. (templated)
        partition_span: the length of a partition whose date is its start; None: its date is the cutoff.
        starting_offsets: where a new group begins: a bound, or its text: ``earliest``, ``latest``, ``committed``, a
            time, ``-PT1H``. (templated)
        max_out_of_orderness: a span, or its ISO text; None reads to the end of the log. (templated)
        isolation: ``read_committed`` or ``read_uncommitted``. (templated)
        exclude: names or patterns to leave out. (templated)
        on_data_loss: ``fail``, or ``warn``: record as lost what retention removed or cannot be read, and
            continue. (templated)
        window_id: None: from DAG, task, map index and run. (templated)
        settings_allowed: more of librdkafka's settings to take from the connection.
        ledger_topic: the topic that holds plans and progress.
    """

    template_fields: Sequence[str] = (
        "topics",
        "exclude",
        "group_id",
        "kafka_conn_id",
        "cutoff",
        "since",
        "starting_offsets",
        "max_out_of_orderness",
        "isolation",
        "on_data_loss",
        "window_id",
    )

    def __init__(
        self,
        *,
        topics: str | Sequence[str],
        group_id: str,
        kafka_conn_id: str | None = None,
        kafka_config_id: str | None = None,
        cutoff: datetime | str | None = None,
        since: datetime | str | None = None,
        partition_span: timedelta | None = None,
        starting_offsets: Bound | datetime | str | None = None,
        max_out_of_orderness: timedelta | str | None = None,
        isolation: Isolation | str = Isolation.READ_COMMITTED,
        exclude: str | Sequence[str] = (),
        on_data_loss: OnDataLoss | str = OnDataLoss.FAIL,
        window_id: str | None = None,
        settings_allowed: Sequence[str] = (),
        ledger_topic: str | None = None,
        **kwargs: Any,
    ) -> None:
        check_parameters(self, kwargs)
        super().__init__(**kwargs)
        if kafka_conn_id is not None and kafka_config_id is not None:
            raise ConfigError(
                "kafka_conn_id and kafka_config_id are two names of one parameter: give one of them"
            )
        self.topics = topics
        self.exclude = exclude
        self.group_id = group_id
        self.kafka_conn_id = kafka_conn_id or kafka_config_id or DEFAULT_CONN_ID
        self.cutoff = cutoff
        self.since = since
        self.partition_span = partition_span
        self.starting_offsets = (
            starting_offsets
            if starting_offsets is None or isinstance(starting_offsets, str | datetime)
            else str(starting_offsets)
        )
        self.max_out_of_orderness = max_out_of_orderness
        self.isolation = choice_or_template(isolation, Isolation, "isolation")
        self.on_data_loss = choice_or_template(on_data_loss, OnDataLoss, "on_data_loss")
        self.window_id = window_id
        self.settings_allowed = tuple(_list(settings_allowed, "settings_allowed"))
        self.ledger_topic = ledger_topic
        #: As written in the DAG's file: rendering replaces the attribute.
        self._written = (str(cutoff), str(since))
        self._check_literals_of_window()

    def _check_literals_of_window(self) -> None:
        """Raise `ConfigError` for parameters that are known to be invalid without a run."""
        if self.window_id is not None and is_literal(self.window_id):
            check_window_id(self.window_id)
        if not isinstance(self.partition_span, timedelta | None):
            raise ConfigError(f"partition_span is {self.partition_span!r}, not a timedelta")
        given_times = [
            moment
            for what, value in (("cutoff", self.cutoff), ("since", self.since))
            if is_literal(value) and (moment := moment_of(value, what)) is not None
        ]
        both = len(given_times) == 2
        self.window_of(
            WindowTimes(
                given_times[0] if both else _STAND_IN,
                given_times[1] if both else None,
                CutoffSource.PARAMETER,
            ),
            is_known=is_literal,
        )

    def times_of(self, context: Context) -> WindowTimes:
        """Return the window's times: those that the first attempt of this task found, as far as they were stored.

        Raises:
            ConfigError: see `times.resolve`.
        """
        found = resolve(
            context,
            cutoff=self.cutoff,
            since=self.since,
            mode=self.window_mode(),
            partition_span=self.partition_span,
        )
        times = stored_times(context, found, self._written)
        self.log.info("Window: %s.", times)
        return times

    def window_mode(self) -> WindowMode:
        """Return whether the window has a start in time; tasks that plan override it."""
        return WindowMode.AUTO

    def window_of(
        self, times: WindowTimes, *, is_known: Callable[[Any], bool] = lambda _: True
    ) -> Window:
        """Return the window to ask for, as far as it is known; raise `ConfigError`."""
        return self.spec(is_known).window(times.cutoff, times.since)

    def spec(self, is_known: Callable[[Any], bool] = lambda _: True) -> WindowSpec:
        """Return the task's window without its times; unknown values are replaced by valid ones.

        Raises:
            ConfigError: an invalid parameter.
        """
        names = {one.name for one in fields(WindowSpec)} & vars(self).keys()
        given = {name: getattr(self, name) for name in names}
        # A template without a value is rendered to an empty text.
        known = {
            name: value
            for name, value in given.items()
            if is_known(value) and not (name in _CHOICES and value == "")
        }
        for name in {"topics", "exclude"} & known.keys():
            check_native(known[name], name)
            known[name] = _list(known[name], name)
        known["starting_offsets"] = known.get("starting_offsets") or None
        span = known.get("max_out_of_orderness") or None
        known["max_out_of_orderness"] = span_of(span, "max_out_of_orderness")
        return WindowSpec(**{"topics": ["unknown"], "group_id": "unknown", **known})

    def window_id_of(self, context: Context) -> str:
        """Return the window's id: the task's own, or one that is the same for every attempt of this run's task."""
        return self.window_id or default_window_id(context, self.group_id)

    def windows_options(self, context: Context) -> dict[str, Any]:
        """Return arguments of `OrderedWindows`."""
        return {"run_id": context.get("run_id")}

    def open_windows(self, context: Context) -> OrderedWindows:
        """Return the service for this task's group."""
        return open_windows(
            self.kafka_conn_id,
            self.group_id,
            settings_allowed=self.settings_allowed,
            ledger_topic=self.ledger_topic,
            **self.windows_options(context),
        )


def _list(value: Any, what: str) -> list[str]:
    """Return names from one name or a list; a rendered template may be either."""
    if isinstance(value, str):
        return [value]
    # The results of other tasks may be a lazy sequence of Airflow's.
    return list(check_texts(list(value) if isinstance(value, Iterable) else value, what=what))
