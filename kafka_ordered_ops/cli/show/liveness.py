"""Liveness of partitions, as tables and lines."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kafka_ordered_ops.cli.show.layout import (
    PARTITIONS_SHOWN,
    add_columns,
    caption_more,
    new_table,
    number_text,
)
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

#: Open windows shown below the table.
_WINDOWS_SHOWN: Final = 20

#: Lines of the table on the terminal besides partitions: title, head, rules, caption, summary.
_LINES_AROUND: Final = 8

#: Waiting partitions listed in one line.
_NAMED_MAX: Final = 3

_COLOURS: Final = {
    LivenessState.LIVE: "green",
    LivenessState.IDLE: "yellow",
    LivenessState.WAITING: "red",
}


class LivenessReport:
    """The progress of a wait: a table on a terminal, or a line for each change."""

    def __init__(self, screen: Screen, board: Board | None, timeout_s: float) -> None:
        self._screen = screen
        self._board = board
        self._timeout = duration_text(int(timeout_s * 1000))
        self._last: Liveness | None = None
        self._last_failure: type[KafkaOrderedOpsError] | None = None
        if board is not None:
            board.show(Text("checking"))

    def show(self, liveness: Liveness) -> None:
        """Show the result of a check."""
        self._screen.answered()
        last, self._last = self._last, liveness
        self._last_failure = None
        if self._board is not None:
            looked = Text(
                f"{liveness}; checked at {time_text(liveness.now_ms // 1000 * 1000)}, waiting at most {self._timeout}"
            )
            rows_max = max(self._board.lines - _LINES_AROUND, 1)
            self._board.show(*tables(liveness, rows_max=rows_max), looked)
        elif last is None or not liveness.same_as(last):
            self._screen.say(_line(liveness))

    def fail(self, error: KafkaOrderedOpsError) -> None:
        """Show a failed check; the same kind of error is not repeated."""
        self._screen.answered()
        if type(error) is not self._last_failure or self._board is not None:
            self._screen.note(f"no answer, checking again: {error}")
        self._last_failure = type(error)


def _line(liveness: Liveness) -> str:
    """Return an answer in one line: the counts, and the reasons of the first waiting partitions."""
    reasons = [
        f"{partition.tp}: {partition.verdict}" for partition in islice(liveness.waiting, _NAMED_MAX)
    ]
    more = len(liveness.waiting) - len(reasons)
    reasons += [f"and {more:,} more"] if more else []
    return f"{liveness} ({'; '.join(reasons)})" if reasons else str(liveness)


def tables(liveness: Liveness, *, rows_max: int = PARTITIONS_SHOWN) -> list[RenderableType]:
    """Return the reasons of all partitions, and the group's open windows."""
    tables: list[RenderableType] = [_partitions_table(liveness, rows_max=rows_max)]
    group = liveness.group
    if group is None:
        return tables
    if group.unpublished:
        waiting = unpublished_text(group.unpublished)
        tables.append(
            Text(f"group {group.group_id} has {waiting}. A run with the same output publishes it")
        )
    if group.open_windows:
        return [*tables, _windows_table(group)]
    summary = "has no open windows" if group.is_known else "has not planned a window yet"
    return [*tables, Text(f"group {group.group_id} {summary}")]


def _partitions_table(liveness: Liveness, *, rows_max: int) -> Table:
    """Return the reasons of the partitions; waiting ones first, if not all fit."""
    rule = liveness.rule
    grace = "no grace" if rule.grace_ms is None else f"grace {duration_text(rule.grace_ms)}"
    out_of_orderness = (
        f", max. out-of-orderness {duration_text(rule.out_of_orderness_ms)}"
        if rule.out_of_orderness_ms
        else ""
    )
    table = new_table(
        f"live for {time_text(rule.cutoff_ms)}{out_of_orderness}, {grace}", "partition", "state"
    )
    if liveness.group is not None:
        add_columns(table, ">lag")
    add_columns(table, "why")
    for partition in islice(_by_need(liveness.partitions, rows_max), rows_max):
        lag = [] if liveness.group is None else [number_text(partition.lag_offsets)]
        table.add_row(
            str(partition.tp),
            Text(partition.state, _COLOURS[partition.state]),
            *lag,
            str(partition.verdict),
        )
    return caption_more(table, len(liveness.partitions), rows_max)


def _by_need(partitions: Sequence[PartitionLiveness], rows_max: int) -> Sequence[PartitionLiveness]:
    if len(partitions) <= rows_max:
        return partitions
    order = [LivenessState.WAITING, LivenessState.IDLE, LivenessState.LIVE]
    return sorted(partitions, key=lambda partition: order.index(partition.state))


def _windows_table(group: GroupLiveness) -> Table:
    table = new_table(
        f"open windows of group {group.group_id}", "window", "status", "cutoff", ">open for"
    )
    for window in islice(group.open_windows, _WINDOWS_SHOWN):
        table.add_row(
            window.window_id,
            window.status,
            time_text(window.cutoff_ms),
            age_text(window.age_ms / 1000),
        )
    return caption_more(table, len(group.open_windows), _WINDOWS_SHOWN, "windows")
