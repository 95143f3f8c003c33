"""``windows gaps``, ``adopt`` and ``prune``, and ``groups fail-over``: maintenance of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kafka_ordered_ops.cli.options.options import Connection, DryRun, Root, command
from kafka_ordered_ops.cli.options.storage import Storage
from kafka_ordered_ops.cli.show.screen import Screen
from kafka_ordered_ops.core.arguments import as_span, first_of

if TYPE_CHECKING:
    from kafka_ordered_ops.core.group.decisions.adoption import Adoption

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

ADOPT_OUTPUT_EXAMPLES: Final = """\b
Example, after a fail-over to another cluster:
  kafka-ordered-ops windows adopt-output -b standby:9092 -g hourly /lake/orders"""

FAIL_OVER_EXAMPLES: Final = """\b
Examples:
  kafka-ordered-ops groups fail-over -b standby:9092 -g hourly --dry-run
  kafka-ordered-ops groups fail-over -b standby:9092 -g hourly --output /lake/orders --offset-syncs mm2-offset-syncs.A.internal"""

RESTORE_RECORD_EXAMPLES: Final = """\b
Examples, with the offset that the error reports:
  kafka-ordered-ops windows restore-record -b localhost:9092 -g hourly 4711 --dry-run
  kafka-ordered-ops windows restore-record -b localhost:9092 -g hourly 4711"""

#: Windows listed for people; --json has all.
_NAMED_MAX: Final = 20


@command
def gaps(screen: Screen, connection: Connection) -> None:
    """List times outside all intervals that still have records. A sweep delivers them."""
    from kafka_ordered_ops.cli.show.tables import gaps_table

    with connection.open(screen) as windows, screen.progress("reading the ledger"):
        gap_list = windows.gaps()
    if screen.as_json:
        screen.emit({"group": connection.group_id, "gaps": [gap.to_json() for gap in gap_list]})
    elif gap_list:
        screen.show(gaps_table(gap_list))
        screen.say("run windows sweep to deliver the records in these gaps")
    else:
        screen.say(f"group {connection.group_id} has no gaps")


@command
def adopt(
    screen: Screen,
    connection: Connection,
    dry_run: DryRun = False,
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
def adopt_output(
    screen: Screen,
    connection: Connection,
    storage: Storage,
    root: Root,
) -> None:
    """Let this cluster's ledger publish below ROOT, which belongs to another ledger. Published windows stay as they are."""
    from kafka_ordered_ops.output.places import adopt_root

    storage.hide_options(screen)
    with connection.open(screen) as windows, screen.progress("adopting"):
        ledger_id = windows.existing_ledger_id()
        former = adopt_root(root, ledger_id, storage.storage_options)
    if screen.as_json:
        screen.emit({"root": root, "ledger": ledger_id, "former": former})
    elif former is None:
        screen.say(f"{root} belongs to no other ledger: nothing was changed")
    else:
        screen.say(
            f"{root} belongs to ledger {ledger_id} now, no longer to {former}. Published windows stay and are never replaced"
        )


@command
def fail_over(
    screen: Screen,
    connection: Connection,
    storage: Storage,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "-t",
            "--topic",
            metavar="TOPIC",
            help="Only this mirrored topic, or a pattern (repeatable). Default: all topics with a mirrored commit.",
        ),
    ] = None,
    offset_syncs: Annotated[
        str | None,
        typer.Option(
            "--offset-syncs",
            metavar="TOPIC",
            help="The topic with the mirror's pairs of offsets: fewer records come twice.",
        ),
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option(
            "--output",
            metavar="ROOT",
            help="A root that the group's windows are written to: this cluster's ledger takes it over (repeatable).",
        ),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Continue a group on this cluster, to which MirrorMaker 2 has copied its topics and commits. Misses no record."""
    from kafka_ordered_ops.cli.show.tables import fail_over_table
    from kafka_ordered_ops.core.times import time_text
    from kafka_ordered_ops.output.places import adopt_root

    storage.hide_options(screen)
    taken: list[dict[str, Any]] = []
    with connection.open(screen) as windows, screen.progress("failing over"):
        done = windows.fail_over(topic, offset_syncs=offset_syncs, dry_run=dry_run)
        for root in output or ():
            hidden = _hidden_windows(root, connection.group_id, storage)
            former = None
            if not dry_run:
                former = adopt_root(root, windows.existing_ledger_id(), storage.storage_options)
            taken.append({"root": root, "former": former, "not_published": hidden})
    if screen.as_json:
        facts = {"group": connection.group_id, "dry_run": dry_run, **done.to_json()}
        screen.emit({**facts, "outputs": taken})
        return
    if done:
        screen.show(fail_over_table(done))
    if (before_ms := done.delivered_before_ms) is not None:
        screen.say(
            f"the other cluster delivered windows up to {time_text(before_ms)}. Open records stamped before come with the "
            f"next window, as late ones; {done.may_repeat:,} of them may come twice"
        )
    if names := done.abandoned:
        screen.say(f"abandoned, as open here from before: {first_of(names, _NAMED_MAX)}")
    for root_facts in taken:
        _say_root(screen, **root_facts)
    if dry_run:
        screen.say("nothing was changed")
    else:
        screen.say(f"group {connection.group_id} continues on this cluster")


@command
def restore_record(
    screen: Screen,
    connection: Connection,
    offset: Annotated[
        int,
        typer.Argument(
            metavar="OFFSET",
            min=0,
            help="The record's offset in the ledger, as the error reports it.",
            show_default=False,
        ),
    ],
    dry_run: DryRun = False,
) -> None:
    """Restore a record of the ledger that another program overwrote. Only for a record that cannot be read."""
    with connection.open(screen) as windows, screen.progress("reading the ledger"):
        restored = windows.restore_record(offset, dry_run=dry_run)
    if screen.as_json:
        screen.emit({"dry_run": dry_run, **restored.to_json()})
        return
    subject = f"the {restored.kind} record {restored.name!r} of group {restored.group_id}"
    if restored.restored_from is None:
        screen.say(
            f"{subject} at offset {offset}: the ledger has no earlier readable version, and the record is removed"
        )
    else:
        screen.say(
            f"{subject} at offset {offset} is replaced by the version at offset {restored.restored_from}"
        )
    screen.say("nothing was changed" if dry_run else "restored")


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


def _hidden_windows(root: str, group_id: str, storage: Storage) -> list[str]:
    """Return the windows of a group with a complete output that readers do not see."""
    from kafka_ordered_ops.output.cleaning import leftovers

    attempts = leftovers(root, storage.storage_options).found()
    return sorted(
        {
            left.origin.window_id or left.window
            for left in attempts
            if left.is_complete and left.group_id == group_id
        }
    )


def _say_root(screen: Screen, root: str, former: str | None, not_published: list[str]) -> None:
    if former is not None:
        screen.say(f"{root} belongs to the ledger of this cluster now, no longer to {former}")
    if not_published:
        screen.say(
            f"complete below {root}, and not published: {first_of(not_published, _NAMED_MAX)}. If the other cluster had "
            "committed one of them, its records are in no output: reset the group to before that window"
        )


def _say_windows(screen: Screen, adoption: Adoption) -> None:
    from kafka_ordered_ops.cli.show.tables import windows_text

    for names, what in (
        (adoption.rewound, "rewound, with offsets that are open again"),
        (adoption.abandoned, "abandoned, of a topic that is gone"),
    ):
        if names:
            listing = first_of(names, _NAMED_MAX)
            screen.say(f"{windows_text(len(names))} {what}: {listing}")
