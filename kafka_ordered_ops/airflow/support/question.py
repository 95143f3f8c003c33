"""One check of a window's partitions, for the sensor in a worker and for its trigger."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal

from kafka_ordered_ops.airflow.connection import ledger_option, open_windows, settings_of
from kafka_ordered_ops.airflow.support.facts import table_of
from kafka_ordered_ops.core.arguments import DefaultTimeout
from kafka_ordered_ops.core.errors import ConfigError, UnknownWindowError
from kafka_ordered_ops.core.strict_json import JsonError, Stored, Text
from kafka_ordered_ops.core.times import duration_text, parse_duration_ms
from kafka_ordered_ops.core.window.window import StoredWindow, Window

if TYPE_CHECKING:
    from kafka_ordered_ops.core.group.group_state import GroupState
    from kafka_ordered_ops.core.liveness.liveness import Liveness
    from kafka_ordered_ops.windows import OrderedWindows

_log = logging.getLogger(__name__)

#: Partitions in the log and in an XCom, about 40 KB: waiting partitions first.
PARTITIONS_MAX: Final = 100
#: Open windows of the group in an XCom: the oldest first.
OPEN_WINDOWS_MAX: Final = 20

#: The timeout of one request to the cluster; the sensor's timeout limits the wait.
LOOK_TIMEOUT_S: Final = DefaultTimeout(30.0)

_WAITING: Final = "waiting"

#: Version of a question's JSON.
_VERSION: Final = 1


class Until(StrEnum):
    """The condition that a sensor waits for.

    Live: every partition has reached the cutoff, so a window may be planned. Caught up: the group has committed
    everything before the cutoff, by any windows, so their output is complete.
    """

    LIVE = "live"
    CAUGHT_UP = "caught_up"


@dataclass(frozen=True)
class Question:
    """A sensor's question, convertible to JSON for a trigger: with a connection's name, without secrets."""

    conn_id: str
    group_id: str
    window: Window
    window_id: str | None = None
    grace: timedelta | None = None
    ledger_topic: str | None = None
    until: Until = Until.LIVE
    #: Whether the planning task redefines the group. Only the first check needs it, and a trigger runs the later checks.
    redefine: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return versioned JSON."""
        grace = self.grace
        return {
            "version": _VERSION,
            "conn_id": self.conn_id,
            "group": self.group_id,
            "window": self.window.undecoded.to_json(),
            "window_id": self.window_id,
            "grace": None if grace is None else duration_text(grace // timedelta(milliseconds=1)),
            "ledger_topic": self.ledger_topic,
            "until": self.until.value,
        }

    @classmethod
    def from_json(cls, value: object) -> Question:
        """Parse the result of `to_json`; raise `ConfigError` for anything else, or another version."""
        try:
            stored = _Stored.parse(dict(value) if isinstance(value, Mapping) else value, "question")
            ms = None if stored.grace is None else parse_duration_ms(stored.grace, what="grace")
            return cls(
                stored.conn_id,
                stored.group,
                stored.window.window,
                stored.window_id,
                None if ms is None else timedelta(milliseconds=ms),
                stored.ledger_topic,
                stored.until,
            )
        except JsonError as error:
            raise ConfigError(
                f"the sensor's question, which its task stored with the trigger, cannot be read: {error}. If the sensor's task "
                "ran with a newer version of this package, upgrade the triggerers, and clear the task"
            ) from error

    def look(self, before: Answer | None = None, *, is_first: bool = True) -> Answer:
        """Check once, without joining the group or changing anything.

        Records read for the check `before` are not read again. The first check logs the ignored settings of the
        connection, and refuses a window that the group could not plan.

        Raises:
            AirflowNotFoundException: there is no such connection.
            GroupMismatchError: the group's windows have other topics, or another isolation.
            KafkaOrderedOpsError: an error of `OrderedWindows.live`.
        """
        if self.until is Until.CAUGHT_UP:
            return self._progress(quiet=not is_first)
        return self._liveness(None if before is None else before.liveness, quiet=not is_first)

    def open_windows(self, *, quiet: bool = False) -> OrderedWindows:
        """Return the service for the group, with the timeouts of a check."""
        return open_windows(
            self.conn_id,
            self.group_id,
            ledger_topic=self.ledger_topic,
            quiet=quiet,
            timeout_s=LOOK_TIMEOUT_S,
            lookup_timeout_s=LOOK_TIMEOUT_S,
        )

    def _progress(self, *, quiet: bool) -> Answer:
        from kafka_ordered_ops.windows.queries.caught_up import caught_up

        catch_up = caught_up(
            settings_of(self.conn_id, quiet=quiet),
            self.group_id,
            self.window,
            timeout_s=LOOK_TIMEOUT_S,
            **ledger_option(self.ledger_topic),
        )
        return Answer(catch_up.is_caught_up, f"{catch_up}", catch_up.to_json())

    def _liveness(self, before: Liveness | None, *, quiet: bool) -> Answer:
        with self.open_windows(quiet=quiet) as windows:
            if not quiet and not self.redefine:
                _check_group(windows.state(), self.window)
            # Retention may have removed the records of a finished window, and later ones.
            if (done := self._done_window(windows)) is not None:
                return Answer(True, f"window {self.window_id} is {done} already", {}, done)
            liveness = windows.live(self.window, grace=self.grace, before=before)
        return Answer(liveness.is_live, f"{liveness}", liveness.to_json(), liveness=liveness)

    def _done_window(self, windows: OrderedWindows) -> str | None:
        """Return the status of the group's window with this id if it is done: there is nothing to wait for."""
        if self.window_id is None:
            return None
        try:
            status = windows.show(self.window_id).status
        except UnknownWindowError:
            return None
        return status.value if status.is_done else None


class _Stored(Stored, frozen=True):
    what = "it"

    version: Literal[1]
    conn_id: Text
    group: Text
    window: StoredWindow
    window_id: Text | None
    grace: Text | None
    ledger_topic: Text | None
    until: Until


def _check_group(state: GroupState | None, window: Window) -> None:
    """Raise `GroupMismatchError`, as the task that plans the window would."""
    if state is None:
        return
    # Imported late: the ledger's rules load numpy, which no DAG's file needs.
    from kafka_ordered_ops.core.group.checks import check_same_group

    # That task sets the mode and the owner.
    definition = replace(state.definition, mode=None, owner=None)
    check_same_group(replace(state, definition=definition), window)


@dataclass(frozen=True)
class Answer:
    """The result of one check."""

    #: Whether the wait is over.
    is_over: bool
    summary: str
    #: The JSON of `Liveness` or `CatchUp`.
    facts: Mapping[str, Any]
    #: The status of the task's own window, if it is done.
    window: str | None = None
    #: For the next check.
    liveness: Liveness | None = None

    def to_json(self) -> dict[str, Any]:
        """Return small plain JSON: the counts, and the partitions, waiting ones first."""
        partitions = sorted(
            self.facts.get("partitions", ()), key=lambda partition: partition["state"] != _WAITING
        )
        return {
            **self.facts,
            "summary": self.summary,
            "window": self.window,
            "partitions": partitions[:PARTITIONS_MAX],
            "more_partitions": max(len(partitions) - PARTITIONS_MAX, 0),
            "open_windows": list(self.facts.get("open_windows") or ())[:OPEN_WINDOWS_MAX],
        }

    def log(self) -> None:
        """Log a table of the partitions, waiting ones first."""
        for line in lines_of(self.to_json()):
            _log.info("%s", line)


def lines_of(facts: Mapping[str, Any]) -> list[str]:
    """Return a check's result as a sentence and a table."""
    lines = [f"{facts['summary']}."]
    rows = [
        (
            f"{partition['topic']}[{partition['partition']}]",
            str(partition["state"]),
            "-" if partition["lag_offsets"] is None else f"{partition['lag_offsets']:,}",
            str(partition["explanation"]),
        )
        for partition in facts["partitions"]
    ]
    if rows:
        lines += table_of(("partition", "state", "lag", "why"), rows)
    if more := facts["more_partitions"]:
        lines.append(f"... and {more:,} more partitions")
    return lines
