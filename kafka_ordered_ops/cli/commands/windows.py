"""``windows``: inspect and manage the windows of a group."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kafka_ordered_ops.cli.commands import plot, upkeep
from kafka_ordered_ops.cli.options.help import Commands
from kafka_ordered_ops.cli.options.options import (
    Connection,
    WindowId,
    WindowIdOption,
    command,
)
from kafka_ordered_ops.cli.options.question import Policies, Question, SweepQuestion
from kafka_ordered_ops.cli.options.sink import Sink
from kafka_ordered_ops.cli.options.storage import Storage
from kafka_ordered_ops.cli.show.screen import Screen

if TYPE_CHECKING:
    from kafka_ordered_ops.core.group.group_state import WindowRecord
    from kafka_ordered_ops.output.writing.staged_output import StagedOutput

_LIST_EXAMPLES: Final = """\b
Examples:
  kafka-ordered-ops windows list -b localhost:9092 -g hourly --open"""

_PLAN_EXAMPLES: Final = """\b
Example, with your own job between the two commands:
  kafka-ordered-ops windows plan -b localhost:9092 -g hourly -t orders --cutoff 2026-11-20T12:00:00Z --window-id noon --json
  kafka-ordered-ops windows commit -b localhost:9092 -g hourly noon"""

_SHOW_EXAMPLES: Final = """\b
Example:
  kafka-ordered-ops windows show -b localhost:9092 -g hourly noon"""

_COMMIT_EXAMPLES: Final = """\b
Example:
  kafka-ordered-ops windows commit -b localhost:9092 -g hourly noon"""

_ABANDON_EXAMPLES: Final = """\b
Example:
  kafka-ordered-ops windows abandon -b localhost:9092 -g hourly noon"""

_SWEEP_EXAMPLES: Final = """\b
Example:
  kafka-ordered-ops windows sweep -b localhost:9092 -g hourly -t orders --cutoff 2026-11-20T00:00:00Z --output out"""

_REPLAY_EXAMPLES: Final = """\b
Example:
  kafka-ordered-ops windows replay -b localhost:9092 -g hourly noon --output again"""

WrittenTo = Annotated[
    str | None,
    typer.Option(
        "--output", metavar="DIR", help="The folder or prefix that the window's job has written to."
    ),
]

app = Commands(
    help="Inspect and manage the windows of a group.",
)


@app.command("list", epilog=_LIST_EXAMPLES)
@command
def list_windows(
    screen: Screen,
    connection: Connection,
    only_open: Annotated[
        bool,
        typer.Option(
            "--open",
            help="Show only windows that readers cannot see yet: not committed, or not published.",
        ),
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Show only the last N, by cutoff.", metavar="N")
    ] = None,
) -> None:
    """List the windows of a group, by cutoff."""
    from kafka_ordered_ops.cli.show.facts import summary_facts
    from kafka_ordered_ops.cli.show.tables import windows_table

    with connection.open(screen) as windows, screen.progress("reading the ledger"):
        summaries = windows.summaries(limit=None if only_open else limit)
        notes = windows.left_notes()
    if only_open:
        remaining = summaries.left()
        summaries = replace(summaries, windows=remaining if limit is None else remaining[-limit:])
    now_ms = _now_ms()
    if screen.as_json:
        facts = [
            summary_facts(connection.group_id, summary, now_ms=now_ms)
            | {"unpublished": summary.window_id in summaries.unpublished}
            for summary in summaries.windows
        ]
        wrong = [
            {"window_id": name, "error": error.message}
            for name, error in summaries.unreadable.items()
        ]
        about = {"notes": list(notes), "unreadable": wrong}
        screen.emit({"group": connection.group_id, "windows": facts, **about})
        return
    if summaries.windows or summaries.unreadable:
        screen.show(windows_table(connection.group_id, summaries, now_ms=now_ms))
    else:
        screen.say(f"group {connection.group_id} has no {'open ' if only_open else ''}windows")
    for note in notes:
        screen.say(note)
    for error in summaries.unreadable.values():
        screen.say(error.message)


@app.command("show", epilog=_SHOW_EXAMPLES)
@command
def show_window(screen: Screen, connection: Connection, window_id: WindowId) -> None:
    """Show everything the ledger stores about a window."""
    from kafka_ordered_ops.cli.commands.running import say_notes
    from kafka_ordered_ops.cli.show.facts import record_json
    from kafka_ordered_ops.cli.show.tables import history_text, plan_table

    with connection.open(screen) as windows, screen.progress("reading the ledger"):
        record, state = windows.show(window_id), windows.state()
        done_offsets = windows.processed(record.plan) if record.status.is_open else {}
    processed = sum(offsets.count for offsets in done_offsets.values()) or None
    now_ms = _now_ms()
    if screen.as_json:
        screen.emit(record_json(record, state=state, processed=processed, now_ms=now_ms))
        return
    # A pruned window has no partitions to show.
    tables = [plan_table(record.plan, state=state)] if record.pruned is None else []
    screen.show(*tables, history_text(record, processed=processed, now_ms=now_ms))
    say_notes(screen, [record.plan])


@app.command("plan", epilog=_PLAN_EXAMPLES)
@command
def plan_window(
    screen: Screen,
    connection: Connection,
    question: Question,
    policies: Policies,
    window_id: WindowIdOption = None,
) -> None:
    """Plan a window for your own job. Claims its offsets; reads and commits nothing."""
    from kafka_ordered_ops.cli.commands.running import say_notes, say_replacement
    from kafka_ordered_ops.cli.show.facts import plan_json
    from kafka_ordered_ops.cli.show.tables import plan_table
    from kafka_ordered_ops.core.window.window_id import default_window_id

    window, policy = question.window(), policies.policy()
    with connection.open(screen) as windows, screen.progress("planning"):
        plan = windows.plan(window, window_id, policy)
        state = windows.state()
    if screen.as_json:
        screen.emit({**plan_json(plan, state=state), "plan": plan.to_json()})
        return
    screen.show(plan_table(plan, state=state))
    say_replacement(screen, window_id or default_window_id(connection.group_id, window), plan)
    say_notes(screen, [plan])
    screen.say(f"window {plan.window_id} is {plan.status}, attempt {plan.attempt}")


@app.command("sweep", epilog=_SWEEP_EXAMPLES)
@command
def sweep(
    screen: Screen,
    connection: Connection,
    question: SweepQuestion,
    policies: Policies,
    sink: Sink,
    window_id: WindowIdOption = None,
) -> None:
    """Deliver records outside all intervals. Works like run."""
    from kafka_ordered_ops.cli.commands.running import deliver, end_of, report_one

    window, policy = question.window(), policies.policy()
    delivered = deliver(screen, connection, sink, [window], [window_id], policy)
    report_one(screen, sink, delivered)
    raise typer.Exit(end_of(delivered, policies))


@app.command("commit", epilog=_COMMIT_EXAMPLES)
@command
def commit_window(
    screen: Screen,
    connection: Connection,
    storage: Storage,
    window_id: WindowId,
    root: WrittenTo = None,
) -> None:
    """Commit a window after your own job has read it. With --output, publish the job's output there."""
    storage.hide_options(screen)
    from kafka_ordered_ops.delivery.lineage import run_lineage

    with (
        connection.open(screen) as windows,
        run_lineage(windows.group_id, windows.settings.bootstrap_servers) as say,
        screen.progress("committing"),
    ):
        record = windows.show(window_id)
        say(record.plan)
        # The output of a `run` is published too: readers do not see it before.
        staged = _written_output(record, root, storage.storage_options)
        windows.commit(record.plan, staged)
        record = windows.show(window_id)
        say(record)
    _end(screen, connection, record)


@app.command("abandon", epilog=_ABANDON_EXAMPLES)
@command
def abandon_window(
    screen: Screen,
    connection: Connection,
    storage: Storage,
    window_id: WindowId,
    root: WrittenTo = None,
) -> None:
    """Release an open window's offsets. With --output, delete its hidden output there."""
    storage.hide_options(screen)
    options = storage.storage_options
    from kafka_ordered_ops.core.window.dead_letters import DeadLetters
    from kafka_ordered_ops.output.writing.staged_output import StagedOutput, output_of

    with connection.open(screen) as windows, screen.progress("abandoning"):
        record = windows.abandon(window_id)
        # After the ledger, which refuses commits of this output from then on.
        reported = list(record.parts.results.values()) if record.parts else []
        output = output_of(record.result, record.plan) or output_of(
            {"parts": reported}, record.plan
        )
        if root is not None:
            newest = StagedOutput.of(record.plan, root, options)
            if record.plan.window.has_bad_output:
                # Their stage, whether or not the ledger knows it.
                newest = replace(newest, dead_letters=DeadLetters(None))
            for attempt in {newest.attempt, output.attempt if output else newest.attempt}:
                replace(newest, attempt=attempt).discard()
        elif output is not None:
            screen.say(
                f"note: its hidden output below {output.root} stays: `clean` removes it, or give its folder as --output"
            )
    _end(screen, connection, record)


@app.command("replay", epilog=_REPLAY_EXAMPLES)
@command
def replay_window(screen: Screen, connection: Connection, window_id: WindowId, sink: Sink) -> None:
    """Read a committed window again into another folder or table. Commits nothing."""
    from kafka_ordered_ops.cli.show.facts import delivery_json
    from kafka_ordered_ops.core.group.group_state import WindowRecord
    from kafka_ordered_ops.delivery.lineage import run_lineage
    from kafka_ordered_ops.delivery.summary import window_summary

    sink.hide_options(screen)
    sink.check(connection.settings(), connection.group_id)
    with (
        connection.open(screen) as windows,
        run_lineage(windows.group_id, windows.settings.bootstrap_servers) as say,
        screen.progress("planning"),
    ):
        plan = windows.replay(window_id)
        say(plan)
        with sink.opened(windows.settings, [plan.window]):
            [output] = sink.writer(windows.settings, screen)([plan])
            output.publish()
        record, state = windows.show(window_id), windows.state()
        replayed = WindowRecord(plan=record.plan, result=output.to_json())
        say(replayed)
    if screen.as_json:
        screen.emit(delivery_json(replayed, state=state, ran=True))
    else:
        summary = window_summary(replayed)
        screen.show(summary["output"])
        screen.say(
            f"window {window_id} was read again: {summary['records']:,} records; nothing was committed"
        )


app.command("plot", epilog=plot.PLOT_EXAMPLES)(plot.plot_window)
app.command("gaps", epilog=upkeep.GAPS_EXAMPLES)(upkeep.gaps)
app.command("adopt", epilog=upkeep.ADOPT_EXAMPLES)(upkeep.adopt)
app.command("adopt-output", epilog=upkeep.ADOPT_OUTPUT_EXAMPLES)(upkeep.adopt_output)
app.command("restore-record", epilog=upkeep.RESTORE_RECORD_EXAMPLES)(upkeep.restore_record)
app.command("prune", epilog=upkeep.PRUNE_EXAMPLES)(upkeep.prune)


def _written_output(
    record: WindowRecord, root: str | None, storage_options: Mapping[str, Any] | None
) -> StagedOutput | None:
    from kafka_ordered_ops.core.errors import ConfigError, SinkError
    from kafka_ordered_ops.core.types import WindowStatus
    from kafka_ordered_ops.output.writing.staged_output import StagedOutput, output_of
    from kafka_ordered_ops.spec.job_outputs import check_parts_alike
    from kafka_ordered_ops.spec.table import table_of

    if record.status is not WindowStatus.WRITTEN:
        return None
    if (table := table_of(record.result)) is not None:
        raise ConfigError(
            f"window {record.plan.window_id} of group {record.plan.group_id} was written to the table {table}, and a commit "
            "alone would not show its rows: run the window again, with the same --table, to commit and publish the staged rows"
        )
    check_parts_alike(record.plan, record.result)
    output = output_of(record.result, record.plan)
    if output is not None and root is None:
        # The ledger is only a hint: this command touches the folder that the caller gives.
        raise ConfigError(
            f"window {record.plan.window_id} of group {record.plan.group_id} was written below {output.root}: give this root as "
            "--output, to publish it after the commit"
        )
    # For a split window this joins the parts.
    staged = StagedOutput.found(record.result or {}, storage_options, root=root)
    if output is not None and staged is None:
        raise SinkError(
            f"window {record.plan.window_id} of group {record.plan.group_id} was written to {output.stage_path}, "
            "which is gone: a commit would lose its records. Run the window again, or abandon it",
            window_id=record.plan.window_id,
        )
    return staged


def _end(screen: Screen, connection: Connection, record: WindowRecord) -> None:
    """Report the result of a command that changes a window."""
    from kafka_ordered_ops.cli.show.facts import record_facts

    plan = record.plan
    if screen.as_json:
        screen.emit(record_facts(record, now_ms=_now_ms()))
    else:
        screen.say(f"window {plan.window_id} of group {connection.group_id} is {plan.status}")


def _now_ms() -> int:
    return int(time.time() * 1000)
