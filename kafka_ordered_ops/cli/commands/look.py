"""``groups``, ``lag`` and ``doctor``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Final

import typer

from kafka_ordered_ops.cli.commands import upkeep
from kafka_ordered_ops.cli.exits import ExitCode
from kafka_ordered_ops.cli.options.help import Commands
from kafka_ordered_ops.cli.options.options import Cluster, Connection, command, group_option
from kafka_ordered_ops.cli.show.screen import Screen

GROUPS_EXAMPLES: Final = """\b
Example:
  kafka-ordered-ops groups list -b localhost:9092"""

REPORT_EXAMPLES: Final = """\b
Example:
  kafka-ordered-ops groups report -b localhost:9092 --output windows.html"""

LAG_EXAMPLES: Final = """\b
Example:
  kafka-ordered-ops lag -b localhost:9092 -g hourly"""

DOCTOR_EXAMPLES: Final = """\b
Examples:
  kafka-ordered-ops doctor -b localhost:9092
  kafka-ordered-ops doctor --config client.properties -g hourly

Exit codes: 0 no check failed; 4 a check failed; 2 usage; 130 Ctrl-C."""

app = Commands(help="Inspect the groups of a ledger, and move one to another cluster.")


@app.command("list", epilog=GROUPS_EXAMPLES)
@command
def list_groups(screen: Screen, cluster: Cluster) -> None:
    """List the groups of a ledger, by name."""
    from kafka_ordered_ops.cli.show.facts import group_facts
    from kafka_ordered_ops.cli.show.tables import groups_table
    from kafka_ordered_ops.windows.queries.groups import list_groups

    settings = cluster.reported_settings(screen)
    with screen.progress("reading the ledger"):
        groups = list_groups(settings, ledger_topic=cluster.ledger)
    facts = [group_facts(group) for group in groups]
    if screen.as_json:
        screen.emit({"ledger_topic": cluster.ledger, "groups": facts})
    elif facts:
        screen.show(groups_table(facts))
    else:
        screen.say(f"no groups in {cluster.ledger}")
    for group in groups:
        if group.error is not None and not screen.as_json:
            screen.say(group.error.message)


@app.command("report", epilog=REPORT_EXAMPLES)
@command
def report(
    screen: Screen,
    cluster: Cluster,
    output: Annotated[
        Path, typer.Option("--output", metavar="FILE", help="File for the page; replaced.")
    ],
) -> None:
    """Write the groups of a ledger and their windows as one page of HTML: what is held comes first."""
    from kafka_ordered_ops.cli.show.report import report_html
    from kafka_ordered_ops.core.errors import ConfigError
    from kafka_ordered_ops.windows.queries.groups import list_groups

    settings = cluster.reported_settings(screen)
    with screen.progress("reading the ledger"):
        groups = list_groups(settings, ledger_topic=cluster.ledger, with_offsets=True)
    page = report_html(
        groups,
        cluster=settings.bootstrap_servers,
        ledger_topic=cluster.ledger,
        now_ms=int(time.time() * 1000),
    )
    try:
        output.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror}") from error
    if screen.as_json:
        screen.emit({"output": str(output.resolve()), "groups": len(groups)})
    else:
        screen.say(f"{output}: {len(groups):,} group{'' if len(groups) == 1 else 's'}")


app.command("fail-over", epilog=upkeep.FAIL_OVER_EXAMPLES)(upkeep.fail_over)


@command
def lag(screen: Screen, connection: Connection) -> None:
    """Show how far behind a group is. Offsets of open windows count until they are committed."""
    from kafka_ordered_ops.cli.show.facts import lag_facts
    from kafka_ordered_ops.cli.show.tables import lag_table
    from kafka_ordered_ops.core.errors import ConfigError

    with connection.open(screen) as windows, screen.progress("reading the ledger"):
        if windows.state() is None:
            raise ConfigError(
                f"group {connection.group_id} has not planned a window in {connection.ledger}: check its name with "
                "groups list, or plan a window"
            )
        offsets = windows.offsets()
    if screen.as_json:
        screen.emit({"group": connection.group_id, **lag_facts(offsets)})
        return
    screen.show(lag_table(offsets))
    for name in offsets.missing_topics:
        screen.say(
            f"topic {name} is gone or was recreated, but the group has progress on it: run windows adopt"
        )
    screen.say(f"group {connection.group_id} is {offsets.lag:,} offsets behind")


@command
def doctor(
    screen: Screen,
    cluster: Cluster,
    group_id: Annotated[
        str | None,
        group_option("Also check the rights and progress of this group."),
    ] = None,
) -> None:
    """Check connection, rights, ledger, clock and versions. Shows how to fix each problem."""
    from kafka_ordered_ops.cli.doctor import examine
    from kafka_ordered_ops.cli.show.checks import State, checks_text

    settings = cluster.reported_settings(screen)
    with screen.progress("checking"):
        checks = examine(settings, group_id, cluster.ledger)
    if screen.as_json:
        screen.emit({"checks": [check.to_json() for check in checks]})
    else:
        screen.show(checks_text(checks))
    if any(check.state is State.FAILED for check in checks):
        raise typer.Exit(ExitCode.FAILED)
