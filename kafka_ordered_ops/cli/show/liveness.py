"""Liveness of partitions, as tables and lines."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kafka_ordered_ops.cli.show.screen import Screen
from kafka_ordered_ops.cli.show.tables import age_text
from kafka_ordered_ops.cli.show.terminal import Board
from kafka_ordered_ops.core.errors import KafkaOrderedOpsError
from kafka_ordered_ops.core.group.checks import unpublished_text
from kafka_ordered_ops.core.liveness.liveness import (
    GroupLiveness,
    Liveness,
    LivenessState,
    PartitionLiveness,
)
from kafka_ordered_ops.core.times import duration_text, time_text

#: Partitions shown in the final table; --json has all.
_PARTITIONS_SHOWN: Final = 200

#: Open windows shown below the table.
_WINDOWS_SHOWN: Final = 20

#: Lines of the table on the terminal besides partitions: title, head, rules, caption, summary.
_LINES_AROUND: Final = 8

#: Waiting partitions named in one line.
_NAMED_MAX: Final = 3

_COLOURS: Final = {
    LivenessState.LIVE: "green",
    LivenessState.IDLE: "yellow",
    LivenessState.WAITING: "red",
}


class Teller:
    """Report a wait: a table on a terminal, or a line for each change."""

    def __init__(self, screen: Screen, board: Board | None, timeout_s: float) -> None:
        self._screen = screen
        self._board = board
        self._timeout = duration_text(int(timeout_s * 1000))
        self._last: Liveness | None = None
        self._last_failure: type[KafkaOrderedOpsError] | None = None
        if board is not None:
            board.show(Text("checking"))

    def report(self, found: Liveness) -> None:
        """Report an answer."""
        self._screen.answered()
        last, self._last = self._last, found
        self._last_failure = None
        if self._board is not None:
            looked = Text(
                f"{found}; checked at {time_text(found.now_ms // 1000 * 1000)}, waiting at most {self._timeout}"
            )
            rows_max = max(self._board.lines - _LINES_AROUND, 1)
            self._board.show(*tables(found, rows_max=rows_max), looked)
        elif last is None or not found.same_as(last):
            self._screen.say(_line(found))

    def failed(self, error: KafkaOrderedOpsError) -> None:
        """Report a failed check; the same kind of error is not repeated."""
        self._screen.answered()
        if type(error) is not self._last_failure or self._board is not None:
            self._screen.note(f"no answer, checking again: {error}")
        self._last_failure = type(error)


def _line(found: Liveness) -> str:
    """Return an answer in one line: the counts, and the reasons of the first waiting partitions."""
    named = [f"{one.tp}: {one.verdict}" for one in islice(found.waiting, _NAMED_MAX)]
    more = len(found.waiting) - len(named)
    named += [f"and {more:,} more"] if more else []
    return f"{found} ({'; '.join(named)})" if named else str(found)


def tables(found: Liveness, *, rows_max: int = _PARTITIONS_SHOWN) -> list[RenderableType]:
    """Return the reasons of all partitions, and the group's open windows."""
    tables: list[RenderableType] = [_partitions_table(found, rows_max=rows_max)]
    group = found.group
    if group is None:
        return tables
    if group.unpublished:
        waiting = unpublished_text(group.unpublished)
        tables.append(
            Text(f"group {group.group_id} has {waiting}. A run with the same output publishes it")
        )
    if group.open_windows:
        return [*tables, _windows_table(group)]
    known = "has no open windows" if group.is_known else "has not planned a window yet"
    return [*tables, Text(f"group {group.group_id} {known}")]


def _partitions_table(found: Liveness, *, rows_max: int) -> Table:
    """Return the reasons of the partitions; waiting ones first, if not all fit."""
    rule = found.rule
    grace = "no grace" if rule.grace_ms is None else f"grace {duration_text(rule.grace_ms)}"
    out_of_orderness = (
        f", max. out-of-orderness {duration_text(rule.out_of_orderness_ms)}"
        if rule.out_of_orderness_ms
        else ""
    )
    table = _table(
        f"live for {time_text(rule.cutoff_ms)}{out_of_orderness}, {grace}", "partition", "state"
    )
    if found.group is not None:
        table.add_column("lag", justify="right")
    table.add_column("why", overflow="fold")
    for one in islice(_by_need(found.partitions, rows_max), rows_max):
        lag = (
            []
            if found.group is None
            else ["-" if one.lag_offsets is None else f"{one.lag_offsets:,}"]
        )
        table.add_row(str(one.tp), Text(one.state, _COLOURS[one.state]), *lag, str(one.verdict))
    if (more := len(found.partitions) - rows_max) > 0:
        table.caption = f"and {more:,} more partitions; --json shows them all"
    return table


def _by_need(partitions: Sequence[PartitionLiveness], rows_max: int) -> Sequence[PartitionLiveness]:
    if len(partitions) <= rows_max:
        return partitions
    order = [LivenessState.WAITING, LivenessState.IDLE, LivenessState.LIVE]
    return sorted(partitions, key=lambda one: order.index(one.state))


def _windows_table(group: GroupLiveness) -> Table:
    table = _table(f"open windows of group {group.group_id}", "window", "status", "cutoff")
    table.add_column("open for", justify="right")
    for one in islice(group.open_windows, _WINDOWS_SHOWN):
        table.add_row(
            one.window_id, one.status, time_text(one.cutoff_ms), age_text(one.age_ms / 1000)
        )
    if (more := len(group.open_windows) - _WINDOWS_SHOWN) > 0:
        table.caption = f"and {more:,} more windows; --json shows them all"
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD)
    for name in columns:
        table.add_column(name, overflow="fold")
    return table
