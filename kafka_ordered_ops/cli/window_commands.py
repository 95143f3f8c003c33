"""``windows``: look at the windows of a group, and move one of them by hand."""

from __future__ import annotations

import time
from typing import Annotated, Final

import typer

from kafka_ordered_ops.cli.delivery import Sink, output_of
from kafka_ordered_ops.cli.facts import delivery_json, plan_json, record_facts, record_json
from kafka_ordered_ops.cli.options import (
    Connection,
    Question,
    WindowId,
    WindowIdOption,
    command,
)
from kafka_ordered_ops.cli.screen import Screen
from kafka_ordered_ops.cli.tables import history_text, plan_table, windows_table
from kafka_ordered_ops.core.errors import SinkError
from kafka_ordered_ops.core.group_state import WindowRecord
from kafka_ordered_ops.core.plan import WindowPlan
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.spark.output import StagedOutput

_LIST_EXAMPLES: Final = """\b
Examples:
  kafka-ordered-ops windows list -b localhost:9092 -g hourly --open"""

_PLAN_EXAMPLES: Final = """\b
Example, around a job of your own:
  kafka-ordered-ops windows plan -b localhost:9092 -g hourly -t orders --cutoff 2026-11-20T12:00:00Z --window-id noon --json
  kafka-ordered-ops windows commit -b localhost:9092 -g hourly noon"""

_REPLAY_EXAMPLES: Final = """\b
Example:
  kafka-ordered-ops windows replay -b localhost:9092 -g hourly noon --output again"""

app = typer.Typer(
    help="Look at the windows of a group, and plan, commit, abandon or replay one.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("list", epilog=_LIST_EXAMPLES)
@command
def list_windows(
    screen: Screen,
    connection: Connection,
    only_open: Annotated[
        bool, typer.Option("--open", help="Only windows that are not committed yet.")
    ] = False,
) -> None:
    """List the windows of a group, by cutoff."""
    with connection.open(screen) as windows, screen.progress("reading the ledger"):
        records = [record for record in windows.list() if record.status.is_open or not only_open]
    now_ms = _now_ms()
    if screen.as_json:
        facts = [record_facts(record, now_ms=now_ms) for record in records]
        screen.emit({"group": connection.group, "windows": facts})
    elif records:
        screen.show(windows_table(records, now_ms=now_ms))
    else:
        screen.say(f"group {connection.group} has no {'open ' if only_open else ''}windows")


@app.command("show")
@command
def show_window(screen: Screen, connection: Connection, window_id: WindowId) -> None:
    """Show all that the ledger knows of a window."""
    with connection.open(screen) as windows, screen.progress("reading the ledger"):
        record, state = windows.show(window_id), windows.state()
    now_ms = _now_ms()
    if screen.as_json:
        screen.emit(record_json(record, state=state, now_ms=now_ms))
        return
    screen.show(plan_table(record.plan, state=state), history_text(record, now_ms=now_ms))
    say_notes(screen, record.plan)


@app.command("plan", epilog=_PLAN_EXAMPLES)
@command
def plan_window(
    screen: Screen,
    connection: Connection,
    question: Question,
    window_id: WindowIdOption = None,
) -> None:
    """Plan a window for a job of your own. Claims its offsets, reads and commits nothing."""
    window = question.window()
    with connection.open(screen) as windows, screen.progress("planning"):
        plan = windows.plan(window, window_id)
        state = windows.state()
    if screen.as_json:
        screen.emit({**plan_json(plan, state=state), "plan": plan.to_json()})
        return
    screen.show(plan_table(plan, state=state))
    say_notes(screen, plan)
    screen.say(f"window {plan.window_id} is {plan.status}, attempt {plan.attempt}")


@app.command("commit")
@command
def commit_window(screen: Screen, connection: Connection, window_id: WindowId) -> None:
    """Commit a window whose records a job of your own has taken."""
    with connection.open(screen) as windows, screen.progress("committing"):
        record = windows.show(window_id)
        # What a `run` has written is not taken by anybody before it is published.
        staged = _written_output(record)
        windows.commit(record.plan, staged)
        record = windows.show(window_id)
    _end(screen, connection, record)


@app.command("abandon")
@command
def abandon_window(screen: Screen, connection: Connection, window_id: WindowId) -> None:
    """Give an open window's offsets free. Output that waits to be published is deleted."""
    with connection.open(screen) as windows, screen.progress("abandoning"):
        record = windows.abandon(window_id)
        # After the ledger: whoever still tries to commit this output is refused by then.
        output = output_of(record.result)
        if output is not None:
            output.discard()
    _end(screen, connection, record)


@app.command("replay", epilog=_REPLAY_EXAMPLES)
@command
def replay_window(screen: Screen, connection: Connection, window_id: WindowId, sink: Sink) -> None:
    """Read a committed window again into another folder. Commits nothing."""
    sink.check()
    with connection.open(screen) as windows, screen.progress("planning"):
        plan = windows.replay(window_id)
        output = sink.writer(windows.settings, screen)(plan)
        output.publish()
        record, state = windows.show(window_id), windows.state()
    if screen.as_json:
        replayed = WindowRecord(plan=record.plan, result=output.to_json())
        screen.emit(delivery_json(replayed, state=state, ran=True))
    else:
        records = output.facts.get("records")
        screen.show(output.final_path)
        screen.say(f"window {window_id} was read again: {records:,} records, nothing was committed")


def say_notes(screen: Screen, plan: WindowPlan) -> None:
    """What a person should know of a plan beside its offsets."""
    for note in plan.notes:
        screen.say(f"note: {note}")
    if plan.stepped_around:
        shown = ", ".join(plan.stepped_around[:5])
        screen.say(
            f"note: {len(plan.stepped_around)} open windows keep their offsets ({shown}): finish them, or "
            "abandon them"
        )


def _written_output(record: WindowRecord) -> StagedOutput | None:
    if record.status is not WindowStatus.WRITTEN:
        return None
    output = output_of(record.result)
    if output is not None and StagedOutput.found(record.result or {}) is None:
        raise SinkError(
            f"window {record.plan.window_id} of group {record.plan.group} was written to {output.stage_path}, and "
            "that is gone: a commit would lose its records. Run the window again, or abandon it",
            window_id=record.plan.window_id,
        )
    return output


def _end(screen: Screen, connection: Connection, record: WindowRecord) -> None:
    """The result of a command that moves a window."""
    plan = record.plan
    if screen.as_json:
        screen.emit(record_facts(record, now_ms=_now_ms()))
    else:
        screen.say(f"window {plan.window_id} of group {connection.group} is {plan.status}")


def _now_ms() -> int:
    return int(time.time() * 1000)
