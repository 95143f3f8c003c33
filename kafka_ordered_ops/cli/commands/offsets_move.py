"""``offsets reset`` and ``offsets migrate``: show the changes, ask for confirmation, make them."""

from __future__ import annotations

import re
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kafka_ordered_ops.cli.options.options import Connection, DryRun, command
from kafka_ordered_ops.cli.options.times import bound
from kafka_ordered_ops.cli.show.printable import in_line
from kafka_ordered_ops.cli.show.screen import Screen
from kafka_ordered_ops.core.arguments import first_of
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.types import INT64_MAX, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kafka_ordered_ops.core.group.decisions.migrating import Migration
    from kafka_ordered_ops.core.group.decisions.resetting import OffsetReset

RESET_EXAMPLES: Final = """\b
Examples:
  kafka-ordered-ops offsets reset -b localhost:9092 -g hourly --to earliest --dry-run
  kafka-ordered-ops offsets reset -b localhost:9092 -g billing -t orders --to -1h --yes
  kafka-ordered-ops offsets reset -b localhost:9092 -g billing --to orders:0=123 --to orders:1=45"""

MIGRATE_EXAMPLES: Final = """\b
Examples:
  kafka-ordered-ops offsets migrate -b localhost:9092 -g hourly --to parallel-consumer --dry-run
  kafka-ordered-ops offsets migrate -b localhost:9092 -g hourly --to parallel-consumer --dual
  kafka-ordered-ops offsets migrate -b localhost:9092 -g hourly --to ledger --yes"""

#: An offset of one partition: no topic and no other bound has this form.
_AT: Final = re.compile(r"([A-Za-z0-9._-]{1,249}):(\d{1,10})=(.*)", re.ASCII | re.DOTALL)
_NUMBER: Final = re.compile(r"\d{1,19}", re.ASCII)
_PARTITION_MAX: Final = (1 << 31) - 1

#: Windows listed for people; --json has all.
_NAMED_MAX: Final = 20

_Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask. Required without a terminal.")]


class ProgressStore(StrEnum):
    """The place that stores a group's progress."""

    PARALLEL_CONSUMER = "parallel-consumer"
    LEDGER = "ledger"


@command
def reset(
    screen: Screen,
    connection: Connection,
    to: Annotated[
        list[str],
        typer.Option(
            "--to",
            metavar="BOUND",
            help="earliest, latest, committed, a time, offset:N, or a span before now such as -1h; or TOPIC:PARTITION=OFFSET, "
            "for only these partitions (repeatable).",
        ),
    ],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "-t",
            "--topic",
            metavar="TOPIC",
            help="Only this topic, or a pattern such as '^orders-.*' (repeatable). Default: all topics of the group's "
            "windows.",
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: _Yes = False,
) -> None:
    """Move a group to other offsets. Refused while it has members or open windows."""
    start = _start(to, topic)
    _check_confirmable(screen, dry_run=dry_run, yes=yes)
    with connection.open(screen) as windows:
        if yes or dry_run:
            with screen.progress("moving offsets"):
                done = windows.reset_offsets(start, topics=topic, dry_run=dry_run)
        else:
            with screen.progress("reading offsets"):
                preview = windows.reset_offsets(start, topics=topic, dry_run=True)
            _show_reset(screen, preview)
            if not preview.partitions or not _confirmed(f"Reset group {connection.group_id}?"):
                screen.say("nothing was changed")
                return
            # The confirmed offsets: "latest" may have moved since.
            exact = {partition.tp: partition.after for partition in preview.partitions}
            with screen.progress("moving offsets"):
                done = windows.reset_offsets(exact)
    if screen.as_json:
        screen.emit({"group": connection.group_id, "dry_run": dry_run, **done.to_json()})
        return
    if yes or dry_run:
        _show_reset(screen, done)
    if dry_run or not done.partitions:
        screen.say("nothing was changed")
    else:
        screen.say(f"group {connection.group_id} was reset")


@command
def migrate(
    screen: Screen,
    connection: Connection,
    to: Annotated[
        ProgressStore,
        typer.Option("--to", help="Where the progress is stored from now on."),
    ],
    dual: Annotated[
        bool,
        typer.Option(
            "--dual",
            help="Write both formats, so that windows and Parallel Consumer may run in turn, until the next migrate.",
        ),
    ] = False,
    dry_run: DryRun = False,
    yes: _Yes = False,
) -> None:
    """Hand a group of windows to Parallel Consumer, or take it back. Done offsets stay done."""
    _check_confirmable(screen, dry_run=dry_run, yes=yes)
    with connection.open(screen) as windows:
        if yes or dry_run:
            with screen.progress("migrating"):
                done = windows.migrate(to.value, dual=dual, dry_run=dry_run)
        else:
            with screen.progress("reading offsets"):
                preview = windows.migrate(to.value, dual=dual, dry_run=True)
            _show_migration(screen, preview)
            if preview.changed and not _confirmed(f"Migrate group {connection.group_id}?"):
                screen.say("nothing was changed")
                return
            with screen.progress("migrating"):
                done = windows.migrate(to.value, dual=dual)
    if screen.as_json:
        screen.emit({"group": connection.group_id, "dry_run": dry_run, **done.to_json()})
        return
    if yes or dry_run:
        _show_migration(screen, done)
    if dry_run or not done.changed:
        screen.say("nothing was changed")
    else:
        screen.say(f"group {connection.group_id} was migrated from {done.before} to {done.after}")


def _start(texts: list[str], topics: list[str] | None) -> str | Mapping[TopicPartition, int]:
    """Return one bound for all partitions, or an offset for each."""
    exact = dict[TopicPartition, int]()
    for text in texts:
        if (match := _AT.fullmatch(text)) is None:
            continue
        tp = TopicPartition(match[1], int(match[2]))
        offset = int(match[3]) if _NUMBER.fullmatch(match[3]) else INT64_MAX + 1
        if tp.partition > _PARTITION_MAX or offset > INT64_MAX:
            raise ConfigError(f"--to {text} is not an offset of a partition: write orders:0=123")
        if tp in exact:
            raise ConfigError(f"--to is given twice for {tp}: {exact[tp]} and {offset}")
        exact[tp] = offset
    if not exact and len(texts) == 1:
        return bound(texts[0])
    if len(exact) != len(texts):
        raise ConfigError(
            f"--to {' --to '.join(texts)}: give one bound for all partitions, or TOPIC:PARTITION=OFFSET for each"
        )
    if topics:
        raise ConfigError(
            f"--topic {topics[0]} conflicts with --to {texts[0]}, which includes a topic: omit --topic"
        )
    return exact


def _check_confirmable(screen: Screen, *, dry_run: bool, yes: bool) -> None:
    """Raise `ConfigError` if a confirmation is needed and cannot be requested."""
    if yes and dry_run:
        raise ConfigError("--yes conflicts with --dry-run, which changes nothing: omit one of them")
    if not (yes or dry_run) and (screen.as_json or not sys.stdin.isatty()):
        why = (
            "--json cannot ask for confirmation" if screen.as_json else "no terminal to confirm on"
        )
        raise ConfigError(f"{why}: give --yes to make the changes, or --dry-run to show them")


def _confirmed(question: str) -> bool:
    return typer.confirm(in_line(question), err=True)


def _show_reset(screen: Screen, changes: OffsetReset) -> None:
    from kafka_ordered_ops.cli.show.offsets import reset_table
    from kafka_ordered_ops.cli.show.tables import windows_text

    if screen.as_json:
        return
    screen.show(reset_table(changes))
    if names := changes.rewound:
        listing = first_of(names, _NAMED_MAX)
        screen.say(
            f"{windows_text(len(names))} rewound, with offsets that are open again: {listing}"
        )


def _show_migration(screen: Screen, migration: Migration) -> None:
    from kafka_ordered_ops.cli.show.offsets import migration_table

    if not screen.as_json:
        screen.show(migration_table(migration))
