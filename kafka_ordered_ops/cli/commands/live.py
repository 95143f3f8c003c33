"""``live``: whether partitions have reached a cutoff."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kafka_ordered_ops.cli.exits import ExitCode
from kafka_ordered_ops.cli.options.options import Cluster, Records, command, group_option
from kafka_ordered_ops.cli.options.times import optional_span
from kafka_ordered_ops.cli.show.screen import Screen
from kafka_ordered_ops.core.arguments import as_span
from kafka_ordered_ops.core.errors import ConfigError

if TYPE_CHECKING:
    from kafka_ordered_ops.core.liveness.liveness import Liveness

LIVE_EXAMPLES: Final = """\b
Examples:
  kafka-ordered-ops live -b localhost:9092 -t orders --cutoff 2026-11-20T12:00:00Z
  kafka-ordered-ops live -b localhost:9092 -t '^orders-.*' -g hourly --cutoff 2026-11-20T12:00:00Z --grace PT5M --wait --timeout PT30M

Exit codes: 0 all live or idle; 3 not yet; 1 failed, retry; 2 usage; 4 failed, retrying does not help; 130 Ctrl-C."""

#: The default of --timeout: an hourly window that is an hour late needs a person.
_TIMEOUT: Final = "PT1H"


@dataclass(frozen=True, kw_only=True)
class Awaited(Records):
    """The records of a future window. The maximum out-of-orderness delays when a partition counts as live."""

    max_out_of_orderness: Annotated[
        str | None,
        typer.Option(
            "--max-out-of-orderness",
            metavar="SPAN",
            help="A partition is live at cutoff + span, such as PT10M. Default: at the cutoff.",
        ),
    ] = None


@command
def live(
    screen: Screen,
    cluster: Cluster,
    awaited: Awaited,
    group_id: Annotated[
        str | None,
        group_option("Also show the lag and open windows of this group."),
    ] = None,
    grace: Annotated[
        str | None,
        typer.Option(
            "--grace",
            metavar="SPAN",
            help="Count a silent partition as idle this long after the cutoff, such as PT5M. Default: never.",
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Repeat the check until all partitions are live or idle.")
    ] = False,
    timeout: Annotated[
        str | None,
        typer.Option(
            "--timeout",
            metavar="SPAN",
            help=f"With --wait: give up after this long. Default: {_TIMEOUT}.",
        ),
    ] = None,
) -> None:
    """Report which partitions have reached a cutoff, and why. Changes nothing."""
    from kafka_ordered_ops.cli.show.liveness import LivenessReport, tables
    from kafka_ordered_ops.windows.queries.live import live as look_once
    from kafka_ordered_ops.windows.queries.live import liveness_rule, wait_live

    window = awaited.window()
    grace_span = optional_span("--grace", grace)
    liveness_rule(window, grace_span)
    if timeout is not None and not wait:
        raise ConfigError(f"--timeout {timeout} needs --wait: also give --wait, or omit --timeout")
    timeout_s = as_span(timeout or _TIMEOUT, what="timeout").total_seconds()
    settings = cluster.reported_settings(screen)

    # An explicit limit also covers the wait for brokers that are still starting.
    first: dict[str, Any] = {} if timeout is None else {"timeout_s": timeout_s}

    def look(before: Liveness | None) -> Liveness:
        return look_once(
            settings,
            window,
            group_id,
            grace=grace_span,
            before=before,
            ledger_topic=cluster.ledger,
            **(first if before is None else {}),
        )

    if wait:
        with screen.noticed("checking"), screen.board() as board:
            report = LivenessReport(screen, board, timeout_s)
            liveness = wait_live(look, timeout_s=timeout_s, report=report.show, failed=report.fail)
    else:
        with screen.progress("checking"):
            liveness = look(None)
    if screen.as_json:
        screen.emit(liveness.to_json())
    else:
        screen.show(*tables(liveness))
        screen.say(str(liveness))
    if not liveness.is_live:
        raise typer.Exit(ExitCode.NOT_LIVE)
