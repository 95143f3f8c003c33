"""The commands, and the one place where an error becomes an exit code."""

from __future__ import annotations

import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final

import typer

from kafka_ordered_ops.cli import window_commands
from kafka_ordered_ops.cli.delivery import Sink
from kafka_ordered_ops.cli.exits import ExitCode, error_json, exit_code, named_error
from kafka_ordered_ops.cli.facts import delivery_json, plan_json
from kafka_ordered_ops.cli.options import Connection, Question, WindowIdOption, command
from kafka_ordered_ops.cli.screen import Screen
from kafka_ordered_ops.cli.tables import delivery_text, plan_table
from kafka_ordered_ops.core.errors import ConfigError, KafkaOrderedOpsError
from kafka_ordered_ops.core.plan import WindowPlan
from kafka_ordered_ops.core.types import PlanContent, WindowStatus
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.spark.output import StagedOutput
from kafka_ordered_ops.windows import Delivery

_PROGRAM: Final = "kafka-ordered-ops"

#: typer's own mistakes of usage: the class has moved between its versions, and this name has not.
_UsageError: Final[type[Exception]] = typer.BadParameter.__mro__[2]

#: Between two looks at whether the broker's process is still there.
_BROKER_LOOK_S: Final = 1.0

# The mark \b keeps the lines of a paragraph as they are.
_PREVIEW_EXAMPLES: Final = """\b
Examples:
  kafka-ordered-ops preview -b localhost:9092 -t orders -g hourly --cutoff 2026-11-20T12:00:00Z --start earliest
  kafka-ordered-ops preview --config client.properties -t '^orders-.*' -g hourly --cutoff 2026-11-20T12:00:00Z"""

_RUN_EXAMPLES: Final = """\b
Examples:
  kafka-ordered-ops run -b localhost:9092 -t orders -g hourly --cutoff 2026-11-20T12:00:00Z --start earliest --output out
  kafka-ordered-ops run --config client.properties -t orders -g hourly --cutoff 2026-11-20T13:00:00Z --output out --engine stage --json

Exit codes: 0 done; 1 failed, try again; 2 usage; 4 failed, try again makes no difference; 130 Ctrl-C."""

_BROKER_EXAMPLES: Final = """\b
Example:
  kafka-ordered-ops broker --port 9092"""

app = typer.Typer(
    name=_PROGRAM,
    help="Bounded, ordered, exactly planned windows over Apache Kafka.",
    no_args_is_help=True,
    add_completion=False,
    # Plain help: in boxes a narrow terminal leaves no room for the words.
    rich_markup_mode=None,
    # Its tracebacks show the values of variables, and some of these are passwords.
    pretty_exceptions_enable=False,
)
app.add_typer(window_commands.app, name="windows")


def run(argv: Sequence[str]) -> int:
    """Runs one command; every way it can end leads through here."""
    options = argv[: argv.index("--")] if "--" in argv else argv
    with Screen(as_json="--json" in options, debug="--debug" in options) as screen:
        try:
            code = app(args=list(argv), prog_name=_PROGRAM, standalone_mode=False, obj=screen)
            if code == ExitCode.INTERRUPTED:  # Ctrl-C, as newer typers tell it
                return _interrupted(screen)
            # An exit that was asked for inside, as by --help, arrives as its code.
            return code if isinstance(code, int) else ExitCode.DONE
        except (KeyboardInterrupt, typer.Abort):
            return _interrupted(screen)
        except BrokenPipeError:
            return ExitCode.BROKEN_PIPE
        except _UsageError as error:
            return _misused(error, screen)
        except KafkaOrderedOpsError as error:
            return _failed(error, screen, with_traceback=screen.debug)
        except Exception as error:  # noqa: BLE001 - the last stop: whatever it is ends as an exit code
            return _failed(error, screen, with_traceback=True)


def _failed(error: Exception, screen: Screen, *, with_traceback: bool) -> int:
    screen.fail(error, with_traceback=with_traceback)
    if screen.as_json:
        screen.emit_error(error_json(error))
    return exit_code(error)


def _misused(error: Any, screen: Screen) -> int:
    error.show(file=sys.stderr)
    if screen.as_json:
        screen.emit_error(named_error("UsageError", error.format_message()))
    return ExitCode.USAGE


def _interrupted(screen: Screen) -> int:
    screen.say("interrupted")
    if screen.as_json:
        screen.emit_error(named_error("Interrupted", "interrupted", retriable=True))
    return ExitCode.INTERRUPTED


@app.command(epilog=_PREVIEW_EXAMPLES)
@command
def preview(
    screen: Screen,
    connection: Connection,
    question: Question,
    window_id: WindowIdOption = None,
) -> None:
    """Show what a window would take, and write nothing."""
    window = question.window()
    with connection.open(screen) as windows, screen.progress("planning"):
        plan, state = windows.preview(window, window_id), windows.state()
        with Lookup(windows.settings) as lookup:
            log_starts = lookup.log_starts([part.tp for part in plan])
    if screen.as_json:
        screen.emit(plan_json(plan, state=state, log_starts=log_starts))
        return
    screen.show(plan_table(plan, state=state, log_starts=log_starts))
    window_commands.say_notes(screen, plan)
    if plan.claim_id:
        screen.say(f"window {plan.window_id} exists already: {plan.status}, attempt {plan.attempt}")
    screen.say("nothing was written")


@app.command(name="run", epilog=_RUN_EXAMPLES)
@command
def run_window(
    screen: Screen,
    connection: Connection,
    question: Question,
    sink: Sink,
    window_id: WindowIdOption = None,
) -> None:
    """Plan a window, write its records to Parquet, commit, publish. Again: the same window."""
    sink.check()
    window = question.window()
    with connection.open(screen) as windows, screen.progress("planning"):
        plan = windows.plan(window, window_id)
        delivery = windows.deliver(plan, sink.writer(windows.settings, screen), StagedOutput.found)
        state = windows.state()
    if screen.as_json:
        screen.emit(delivery_json(delivery.record, state=state, ran=delivery.ran))
        return
    screen.show(delivery_text(delivery.record))
    window_commands.say_notes(screen, plan)
    screen.say(_outcome(plan, delivery, sink.output))


def _outcome(before: WindowPlan, delivery: Delivery, asked: Path) -> str:
    """What this call did, in one sentence."""
    name, output = f"window {before.window_id}", StagedOutput.found(delivery.record.result or {})
    if before.content is PlanContent.COVERED:
        return f"{name} is covered: other windows have taken or claim all its records, nothing was written"
    if delivery.ran:
        return f"{name} is published"
    told = {
        WindowStatus.WRITTEN: "was written by an earlier try; it is committed and published now",
        WindowStatus.COMMITTED: "was committed by an earlier try; it is published now",
    }.get(before.status, "is already published; nothing was done")
    if output is not None and Path(output.root) != asked.resolve():
        return (
            f"{name} {told}: in {output.root}, not in {asked} (windows replay writes it elsewhere)"
        )
    return f"{name} {told}"


@app.command()
@command
def demo(
    screen: Screen,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="Folder for what the demo makes.")
    ] = None,
) -> None:
    """See it work: a real broker, a real Spark, some windows."""
    from kafka_ordered_ops.cli.demo import main

    folder = output or Path("kafka-ordered-ops-demo")
    code = main(folder)
    if screen.as_json:
        screen.emit({"output": str(folder.resolve()), "code": code})
    raise typer.Exit(code)


@app.command(epilog=_BROKER_EXAMPLES)
@command
def broker(
    screen: Screen,
    port: Annotated[
        int | None,
        typer.Option("--port", min=1, max=65535, help="Port of 127.0.0.1; a free one by default."),
    ] = None,
) -> None:
    """Run a real Kafka until Ctrl-C, for trials. Its data go with it."""
    from kafka_ordered_ops.embedded import EmbeddedKafka, Listener
    from kafka_ordered_ops.embedded.errors import BrokerStartError

    if port is not None:
        _check_free(port)
    signal.signal(signal.SIGTERM, _terminate)
    listeners = [] if port is None else [Listener("CHOSEN", port)]
    with EmbeddedKafka(listeners=listeners) as kafka:
        address = kafka.bootstrap if port is None else f"127.0.0.1:{port}"
        if screen.as_json:
            screen.emit({"bootstrap": address})
        else:
            screen.show(address)
        screen.say("Kafka is running; Ctrl-C ends it and deletes its data")
        while kafka.running:
            # A signal's exception ends it early.
            time.sleep(_BROKER_LOOK_S)
        raise BrokerStartError("the broker's process ended by itself", log_tail=kafka.log_tail)


def _check_free(port: int) -> None:
    """Said here in one line, instead of by Java in forty."""
    with socket.socket() as probe:
        # As Java's server sockets do: a port whose last connections are still fading is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(f"--port {port} cannot be had: {error.strerror}") from error


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    # As an exception, so that the broker is ended on the way out.
    raise typer.Exit(ExitCode.DONE)
