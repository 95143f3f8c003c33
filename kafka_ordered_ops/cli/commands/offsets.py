"""``offsets``: inspect and move the offsets of a group, and read and write offset maps."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kafka_ordered_ops.cli.commands import offset_maps, offsets_move
from kafka_ordered_ops.cli.options.help import Commands
from kafka_ordered_ops.cli.options.options import Cluster, Connection, TopicNames, command
from kafka_ordered_ops.cli.options.times import moment
from kafka_ordered_ops.cli.show.screen import Screen
from kafka_ordered_ops.core.errors import ConfigError, KafkaOrderedOpsError

if TYPE_CHECKING:
    from kafka_ordered_ops.windows.queries.group_offsets import GroupOffsets, GroupOffsetsReader

_SHOW_EXAMPLES: Final = """\b
Examples:
  kafka-ordered-ops offsets show -b localhost:9092 -g hourly
  kafka-ordered-ops offsets show -b localhost:9092 -g billing -t '^orders-.*' --watch"""

_BEFORE_EXAMPLES: Final = """\b
Examples:
  kafka-ordered-ops offsets before -b localhost:9092 -t orders --time 2026-11-20T12:00:00Z -n 5
  kafka-ordered-ops offsets before -b localhost:9092 -t orders --time yesterday --every P1D"""

#: Partitions listed for people; --json has all.
_NAMED_MAX: Final = 20

#: Between two reads of a group that is watched.
_WATCH_S: Final = 2.0

app = Commands(
    help="Inspect and move the offsets of a group, and decode and encode offset maps.",
)


@app.command("show", epilog=_SHOW_EXAMPLES)
@command
def show_offsets(
    screen: Screen,
    connection: Connection,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "-t",
            "--topic",
            metavar="TOPIC",
            help="Only this topic, or a pattern such as '^orders-.*' (repeatable). Default: all topics of the group.",
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Repeat on the terminal until Ctrl-C.")
    ] = False,
) -> None:
    """Show a group's offsets: done, claimed, not done. Of windows or of any consumers; changes nothing."""
    from kafka_ordered_ops.windows.queries.group_offsets import GroupOffsetsReader

    if watch and screen.as_json:
        raise ConfigError(
            "--watch conflicts with --json, which prints one object: omit one of them"
        )
    reader = GroupOffsetsReader(
        connection.reported_settings(screen),
        connection.group_id,
        topic or (),
        ledger_topic=connection.ledger,
    )
    with reader:
        if watch:
            _watch(screen, connection, reader)
            return
        with screen.progress("reading offsets"):
            offsets = reader.read()
    _check_known(connection, offsets)
    _show(screen, offsets)


@app.command("before", epilog=_BEFORE_EXAMPLES)
@command
def before(
    screen: Screen,
    cluster: Cluster,
    topic: TopicNames,
    until: Annotated[
        str,
        typer.Option(
            "--time",
            metavar="TIME",
            help="The newest time, such as 2026-11-20T12:00:00Z, 2026-11-20, today or -1h; latest: the end of each log, and "
            "steps back from the newest record; earliest: the start of each log alone.",
        ),
    ] = "now",
    every: Annotated[
        str,
        typer.Option(
            "--every", metavar="SPAN", help="The step back to each next time, such as PT10M."
        ),
    ] = "PT1H",
    max_offsets: Annotated[
        int,
        typer.Option(
            "-n",
            "--max-offsets",
            metavar="N",
            min=1,
            max=1_000,
            help="The most offsets of each partition.",
        ),
    ] = 10,
) -> None:
    """List offsets before a time, newest first. The first offset stamped at or after it, and after each step back."""
    from kafka_ordered_ops.cli.show.offsets import before_json, before_table
    from kafka_ordered_ops.windows.queries.offsets_before import offsets_before

    newest = until if until in ("latest", "earliest") else moment(until, what="time")
    settings = cluster.reported_settings(screen)
    with screen.progress("looking up offsets"):
        offsets = offsets_before(settings, topic, newest, max_offsets, every=every)
    if screen.as_json:
        screen.emit(before_json(offsets))
    else:
        screen.show(before_table(offsets))


app.command("decode", epilog=offset_maps.DECODE_EXAMPLES)(offset_maps.decode)
app.command("encode", epilog=offset_maps.ENCODE_EXAMPLES)(offset_maps.encode)
app.command("reset", epilog=offsets_move.RESET_EXAMPLES)(offsets_move.reset)
app.command("migrate", epilog=offsets_move.MIGRATE_EXAMPLES)(offsets_move.migrate)


def _show(screen: Screen, offsets: GroupOffsets) -> None:
    from kafka_ordered_ops.cli.show.offset_maps import MAPS
    from kafka_ordered_ops.cli.show.offsets import offsets_json, tables

    if screen.as_json:
        screen.emit(offsets_json(offsets))
        return
    screen.show(*tables(offsets))
    problems = [
        partition
        for partition in offsets.partitions
        if partition.is_past_end or (partition.problem and partition.metadata in MAPS)
    ]
    for partition in problems[:_NAMED_MAX]:
        subject = (
            str(partition.tp)
            if partition.is_past_end
            else f"the offset map of {partition.tp} is not used"
        )
        screen.say(f"{subject}: {partition.problem}")
    if (more := len(problems) - _NAMED_MAX) > 0:
        screen.say(f"and {more:,} more partitions with such problems; --json shows them all")
    for name in offsets.missing_topics:
        screen.say(
            f"topic {name} is gone or was recreated, but the group has progress on it: run windows adopt"
        )
    for name in offsets.unreadable:
        screen.say(f"window {name} is open and unreadable: its offsets are not shown as claimed")
    screen.say(f"group {offsets.group_id} is {offsets.lag:,} offsets behind")


def _watch(screen: Screen, connection: Connection, reader: GroupOffsetsReader) -> None:
    from kafka_ordered_ops.cli.show.offsets import OffsetsBoard

    last: GroupOffsets | None = None
    try:
        with screen.noticed("reading offsets"), screen.board() as board:
            if board is None:
                raise ConfigError(
                    "--watch needs a terminal to overwrite: omit --watch, or run it on a terminal"
                )
            view = OffsetsBoard(board)
            while True:
                try:
                    now = reader.read()
                except KafkaOrderedOpsError as error:
                    if last is None or not error.retriable:
                        raise
                    view.fail(str(error))
                else:
                    screen.answered()
                    _check_known(connection, now)
                    last = now
                    view.show(last, int(time.time()) * 1000)
                time.sleep(_WATCH_S)
    finally:
        # The board is gone: the last offsets stay.
        if last is not None:
            _show(screen, last)


def _check_known(connection: Connection, offsets: GroupOffsets) -> None:
    if not offsets.partitions and offsets.format is None:
        raise ConfigError(
            f"group {offsets.group_id} has neither planned a window in {connection.ledger} nor committed an offset: check "
            "its name and the topics"
        )
