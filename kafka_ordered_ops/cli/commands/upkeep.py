"""``windows gaps``, ``adopt`` and ``prune``: maintenance of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from kafka_ordered_ops.cli.options.options import Connection, command
from kafka_ordered_ops.cli.show.screen import Screen
from kafka_ordered_ops.core.arguments import as_span

if TYPE_CHECKING:
    from kafka_ordered_ops.core.group.adoption import Adoption

GAPS_EXAMPLES: Final = """\b
Example:
  kafka-ordered-ops windows gaps -b localhost:9092 -g hourly"""

ADOPT_EXAMPLES: Final = """\b
Examples:
  kafka-ordered-ops windows adopt -b localhost:9092 -g hourly --dry-run
  kafka-ordered-ops windows adopt -b localhost:9092 -g hourly"""

PRUNE_EXAMPLES: Final = """\b
Examples:
  kafka-ordered-ops windows prune -b localhost:9092 -g hourly --older-than P90D
  kafka-ordered-ops windows prune -b localhost:9092 -g hourly --older-than P730D --forget"""

#: Windows named to people; the JSON has all of them.
_NAMED_MAX: Final = 20


@command
def gaps(screen: Screen, connection: Connection) -> None:
    """List times outside all intervals that still have records. A sweep delivers them."""
    from kafka_ordered_ops.cli.show.tables import gaps_table

    with connection.open(screen) as windows, screen.progress("reading the ledger"):
        found = windows.gaps()
    if screen.as_json:
        screen.emit({"group": connection.group_id, "gaps": [gap.to_json() for gap in found]})
    elif found:
        screen.show(gaps_table(found))
        screen.say("run windows sweep to deliver the records in these gaps")
    else:
        screen.say(f"group {connection.group_id} has no gaps")


@command
def adopt(
    screen: Screen,
    connection: Connection,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the changes without making them.")
    ] = False,
) -> None:
    """Accept offsets committed by other tools. Also accepts a recreated topic and a truncated log."""
    from kafka_ordered_ops.cli.show.tables import adoption_table

    with connection.open(screen) as windows, screen.progress("adopting"):
        adoption = windows.adopt(dry_run=dry_run)
    if screen.as_json:
        screen.emit({"group": connection.group_id, "dry_run": dry_run, **adoption.to_json()})
        return
    if not adoption:
        screen.say(
            f"group {connection.group_id} has nothing to adopt: its committed offsets are those of its windows"
        )
        return
    screen.show(adoption_table(adoption))
    _say_windows(screen, adoption)
    screen.say("nothing was changed" if dry_run else "adopted")


@command
def prune(
    screen: Screen,
    connection: Connection,
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than",
            metavar="SPAN",
            help="Prune windows that were committed longer ago than this, such as P90D.",
        ),
    ],
    forget: Annotated[
        bool,
        typer.Option("--forget", help="Remove them completely, including windows pruned earlier."),
    ] = False,
) -> None:
    """Reduce old windows in the ledger. Keeps ids, times, counts and the group's progress."""
    from kafka_ordered_ops.cli.show.tables import windows_text

    age = as_span(older_than, what="older than")
    with connection.open(screen) as windows, screen.progress("pruning"):
        names = windows.prune(age, forget=forget)
    if screen.as_json:
        screen.emit({"group": connection.group_id, "forgotten": forget, "windows": names})
        return
    done = "forgotten" if forget else "pruned"
    screen.say(f"{windows_text(len(names))} of group {connection.group_id} {done}")


def _say_windows(screen: Screen, adoption: Adoption) -> None:
    from kafka_ordered_ops.cli.show.tables import windows_text

    for names, what in (
        (adoption.rewound, "rewound, with offsets that are open again"),
        (adoption.abandoned, "abandoned, of a topic that is gone"),
    ):
        if names:
            shown = ", ".join(names[:_NAMED_MAX])
            more = len(names) - _NAMED_MAX
            shown += f" and {more:,} more" if more > 0 else ""
            screen.say(f"{windows_text(len(names))} {what}: {shown}")
