"""``live``: is everything before a cutoff written, as far as the logs can tell?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Final

import typer
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kafka_ordered_ops.cli.exits import ExitCode
from kafka_ordered_ops.cli.options.options import Cluster, Records, command, span
from kafka_ordered_ops.cli.show.screen import Board, Screen
from kafka_ordered_ops.cli.show.tables import age_text
from kafka_ordered_ops.core.errors import ConfigError, KafkaOrderedOpsError
from kafka_ordered_ops.core.liveness.liveness import (
    GroupLiveness,
    Liveness,
    LivenessState,
    PartitionLiveness,
)
from kafka_ordered_ops.core.times import duration_text, time_text
from kafka_ordered_ops.windows.queries.live import live as look_once
from kafka_ordered_ops.windows.queries.live import liveness_rule, wait_live

LIVE_EXAMPLES: Final = """\b
Examples:
  kafka-ordered-ops live -b localhost:9092 -t orders --cutoff 2026-11-20T12:00:00Z
  kafka-ordered-ops live -b localhost:9092 -t '^orders-.*' -g hourly --cutoff 2026-11-20T12:00:00Z --grace PT5M --wait --timeout PT30M

Exit codes: 0 all live or idle; 3 not yet; 1 failed, try again; 2 usage; 4 failed, try again makes no difference; 130 Ctrl-C."""

#: How long --wait waits by default: an hour's window that is an hour late is a person's case.
_TIMEOUT: Final = "PT1H"

#: Partitions shown in the table that stays; --json has all.
_PARTITIONS_SHOWN: Final = 200

#: Open windows shown below it.
_WINDOWS_SHOWN: Final = 20

#: Lines of the table on the terminal that are no partition: title, head, rules, caption, summary.
_LINES_AROUND: Final = 8

#: Waiting partitions named in one line.
_NAMED_MAX: Final = 3

_COLOURS: Final = {
    LivenessState.LIVE: "green",
    LivenessState.IDLE: "yellow",
    LivenessState.WAITING: "red",
}


@dataclass(frozen=True, kw_only=True)
class Awaited(Records):
    """Which records a window will ask for; the lateness has its meaning from the other side."""

    max_out_of_orderness: Annotated[
        str | None,
        typer.Option(
            "--max-out-of-orderness",
            metavar="SPAN",
            help="A partition is live at cutoff + span, as PT10M; at the cutoff by default.",
        ),
    ] = None


@command
def live(
    screen: Screen,
    cluster: Cluster,
    awaited: Awaited,
    group_id: Annotated[
        str | None,
        typer.Option(
            "-g", "--group", metavar="GROUP", help="Show this group's lag and open windows too."
        ),
    ] = None,
    grace: Annotated[
        str | None,
        typer.Option(
            "--grace",
            metavar="SPAN",
            help="Count a silent partition as idle so long after the cutoff, as PT5M; never by default.",
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Look again until all are live.")] = False,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", metavar="SPAN", help=f"End of --wait; {_TIMEOUT} by default."),
    ] = None,
) -> None:
    """Tell whether all partitions have come to a cutoff, and of each one why. Changes nothing."""
    window = awaited.window()
    grace_span = None if grace is None else span(grace, what="grace")
    liveness_rule(window, grace_span)
    if timeout is not None and not wait:
        raise ConfigError(
            f"--timeout {timeout} is the end of a wait: give --wait too, or leave it out"
        )
    timeout_s = span(timeout or _TIMEOUT, what="timeout").total_seconds()
    settings = cluster.told_settings(screen)

    def look(before: Liveness | None) -> Liveness:
        return look_once(settings, window, group_id, grace=grace_span, before=before)

    if wait:
        with screen.board() as board:
            teller = _Teller(screen, board, timeout_s)
            found = wait_live(look, timeout_s=timeout_s, told=teller.told, failed=teller.failed)
    else:
        with screen.progress("looking"):
            found = look(None)
    if screen.as_json:
        screen.emit(found.to_json())
    else:
        screen.show(*_tables(found, rows_max=_PARTITIONS_SHOWN))
        screen.say(str(found))
    if not found.is_live:
        raise typer.Exit(ExitCode.NOT_LIVE)


class _Teller:
    """Tells people how a wait goes: a table on a terminal, or a line for each change."""

    def __init__(self, screen: Screen, board: Board | None, timeout_s: float) -> None:
        self._screen = screen
        self._board = board
        self._timeout = duration_text(int(timeout_s * 1000))
        self._last: Liveness | None = None
        self._last_failure: type[KafkaOrderedOpsError] | None = None
        if board is not None:
            board.show(Text("looking"))

    def told(self, found: Liveness) -> None:
        """An answer."""
        last, self._last = self._last, found
        self._last_failure = None
        if self._board is not None:
            looked = Text(
                f"{found}; looked at {time_text(found.now_ms // 1000 * 1000)}, waiting {self._timeout} at most"
            )
            rows_max = max(self._board.lines - _LINES_AROUND, 1)
            self._board.show(*_tables(found, rows_max=rows_max), looked)
        elif last is None or not found.same_as(last):
            self._screen.say(_line(found))

    def failed(self, error: KafkaOrderedOpsError) -> None:
        """A look without an answer; the same kind again says nothing new."""
        if type(error) is not self._last_failure:
            self._screen.say(f"no answer, looking again: {error}")
        self._last_failure = type(error)


def _line(found: Liveness) -> str:
    """An answer in one line: how many, and what the first ones wait for."""
    named = [f"{one.tp}: {one.verdict}" for one in islice(found.waiting, _NAMED_MAX)]
    more = len(found.waiting) - len(named)
    named += [f"and {more:,} more"] if more else []
    return f"{found} ({'; '.join(named)})" if named else str(found)


def _tables(found: Liveness, *, rows_max: int) -> list[RenderableType]:
    tables: list[RenderableType] = [_partitions_table(found, rows_max=rows_max)]
    group = found.group
    if group is None:
        return tables
    if group.open_windows:
        return [*tables, _windows_table(group)]
    known = "has no open windows" if group.is_known else "has not planned a window yet"
    return [*tables, Text(f"group {group.group_id} {known}")]


def _partitions_table(found: Liveness, *, rows_max: int) -> Table:
    """Why each partition is what it is; where there is no room for all, the waiting ones first."""
    rule = found.rule
    grace = "no grace" if rule.grace_ms is None else f"grace {duration_text(rule.grace_ms)}"
    lateness = (
        f", lateness {duration_text(rule.out_of_orderness_ms)}" if rule.out_of_orderness_ms else ""
    )
    table = _table(f"live for {time_text(rule.cutoff_ms)}{lateness}, {grace}", "partition", "state")
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
