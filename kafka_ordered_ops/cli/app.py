"""The commands, and the translation of errors to exit codes."""

from __future__ import annotations

import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from kafka_ordered_ops.cli.commands import look, offsets, relay, windows
from kafka_ordered_ops.cli.commands.clean import CLEAN_EXAMPLES, clean
from kafka_ordered_ops.cli.commands.live import LIVE_EXAMPLES, live
from kafka_ordered_ops.cli.commands.read import READ_EXAMPLES, read
from kafka_ordered_ops.cli.commands.watch import WATCH_EXAMPLES, watch
from kafka_ordered_ops.cli.exits import ExitCode, end_well, error_json, exit_code, named_error
from kafka_ordered_ops.cli.options.help import Commands
from kafka_ordered_ops.cli.options.options import Connection, WindowIdOption, command
from kafka_ordered_ops.cli.options.question import Policies, Question, Series
from kafka_ordered_ops.cli.options.sink import JobSink
from kafka_ordered_ops.cli.show.printable import in_line, printable
from kafka_ordered_ops.cli.show.screen import Screen, UnwrittenError
from kafka_ordered_ops.core.errors import ConfigError, KafkaOrderedOpsError

_PROGRAM: Final = "kafka-ordered-ops"

#: typer's usage errors: the class has moved between versions, this name has not.
_UsageError: Final[type[Exception]] = typer.BadParameter.__mro__[2]

#: Characters at each end of a long message about usage.
_SHOWN_MAX: Final = 400

#: Time between two checks that the broker's process still runs.
_BROKER_LOOK_S: Final = 1.0

# The mark \b keeps the lines of a paragraph unchanged.
_PREVIEW_EXAMPLES: Final = """\b
Examples:
  kafka-ordered-ops preview -b localhost:9092 -t orders -g hourly --cutoff 2026-11-20T12:00:00Z --starting-offsets earliest
  kafka-ordered-ops preview --config client.properties -t '^orders-.*' -g daily --since 2026-11-19T00:00:00Z --cutoff 2026-11-20T00:00:00Z"""

_RUN_EXAMPLES: Final = """\b
Examples:
  kafka-ordered-ops run -b localhost:9092 -t orders -g hourly --cutoff 2026-11-20T12:00:00Z --starting-offsets earliest --output out
  kafka-ordered-ops run --config client.properties -t orders -g hourly --cutoff 2026-11-20T13:00:00Z --output out --engine local --json
  kafka-ordered-ops run -b localhost:9092 -t orders -g daily --since 2026-11-01T00:00:00Z --every P1D --until 2026-11-08T00:00:00Z --starting-offsets earliest --output out
  kafka-ordered-ops run -b localhost:9092 -t orders -g hourly --cutoff 2026-11-20T14:00:00Z --output out --application job.py -- --country DE

Exit codes: 0 done; 1 failed, retry; 2 usage; 4 failed, retrying does not help; 5 covered, nothing was delivered; 130 Ctrl-C."""

_BROKER_EXAMPLES: Final = """\b
Example:
  kafka-ordered-ops broker --port 9092"""

app = Commands(
    name=_PROGRAM,
    help="Exact, bounded, time-ordered windows over Apache Kafka.",
    epilog="Set common options once: as environment variables such as KAFKA_ORDERED_OPS_GROUP, or in a profile. "
    "Start with: kafka-ordered-ops doctor -b HOST:PORT",
)
app.add_typer(windows.app, name="windows")
app.add_typer(look.app, name="groups")
app.add_typer(offsets.app, name="offsets")
app.add_typer(relay.app, name="relay")


def run(argv: Sequence[str]) -> int:
    """Run one command, and return its exit code."""
    options = argv[: argv.index("--")] if "--" in argv else argv
    with Screen(as_json="--json" in options, debug="--debug" in options) as screen:
        try:
            code = app(args=list(argv), prog_name=_PROGRAM, standalone_mode=False, obj=screen)
            if code == ExitCode.INTERRUPTED:  # Ctrl-C, in newer versions of typer
                return _interrupted(screen)
            # A requested exit, for example by --help, arrives as its code.
            return code if isinstance(code, int) else ExitCode.DONE
        except (KeyboardInterrupt, typer.Abort):
            return _interrupted(screen)
        except BrokenPipeError:
            return ExitCode.BROKEN_PIPE
        except UnwrittenError as error:
            # As JSON it could not be written either.
            screen.say(str(error))
            return ExitCode.FAILED
        except _UsageError as error:
            return _misused(error, screen)
        except KafkaOrderedOpsError as error:
            return _failed(error, screen, with_traceback=screen.debug)
        except Exception as error:  # noqa: BLE001 - the last handler: any error ends as an exit code
            return _failed(error, screen, with_traceback=True)


def _failed(error: Exception, screen: Screen, *, with_traceback: bool) -> int:
    screen.fail(error, with_traceback=with_traceback)
    if screen.as_json:
        screen.emit_error(error_json(error))
    return exit_code(error)


def _misused(error: Any, screen: Screen) -> int:
    for name in ("message", "option_name"):
        if isinstance(text := getattr(error, name, None), str):
            text = in_line(text) if name == "option_name" else printable(text)
            setattr(error, name, _short(text))
    error.show(file=sys.stderr)
    if screen.as_json:
        screen.emit_error(named_error("UsageError", error.format_message()))
    return ExitCode.USAGE


def _short(text: str) -> str:
    """Return the beginning and the end of a text that repeats a value of any length."""
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}...{text[-_SHOWN_MAX:]}"


def _interrupted(screen: Screen) -> int:
    screen.say("interrupted")
    if screen.as_json:
        screen.emit_error(named_error("Interrupted", "interrupted", retriable=True))
    return ExitCode.INTERRUPTED


@app.callback()
def program(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Declare the options of the program; `main` handles ``--version`` before this module is loaded."""


@app.command(epilog=_PREVIEW_EXAMPLES)
@command
def preview(
    screen: Screen,
    connection: Connection,
    question: Question,
    window_id: WindowIdOption = None,
) -> None:
    """Show what a window would take. Changes nothing."""
    from kafka_ordered_ops.cli.commands.running import say_notes
    from kafka_ordered_ops.cli.records.sample import sample_facts, say_sample
    from kafka_ordered_ops.cli.show.facts import plan_json
    from kafka_ordered_ops.cli.show.tables import plan_table
    from kafka_ordered_ops.kafka.ports import open_lookup

    window = question.window()
    with connection.open(screen) as windows, screen.progress("planning"):
        plan, state = windows.preview(window, window_id), windows.state()
        sample, is_decoded = windows.sample(plan), plan.window.is_decoded
        with open_lookup(windows.settings) as lookup:
            log_starts = lookup.log_starts([part.tp for part in plan])
    if screen.as_json:
        facts = plan_json(plan, state=state, log_starts=log_starts)
        screen.emit({**facts, "sample": sample_facts(sample, is_decoded=is_decoded)})
        return
    screen.show(plan_table(plan, state=state, log_starts=log_starts))
    say_notes(screen, [plan])
    say_sample(screen, sample, is_decoded=is_decoded)
    if plan.claim_id:
        screen.say(f"window {plan.window_id} exists already: {plan.status}, attempt {plan.attempt}")
    screen.say("nothing was written")


@app.command(name="run", epilog=_RUN_EXAMPLES)
@command
def run_window(
    screen: Screen,
    connection: Connection,
    series: Series,
    policies: Policies,
    sink: JobSink,
    window_id: WindowIdOption = None,
) -> None:
    """Deliver one window or several: plan, write Parquet, commit, publish. Run it again to finish an interrupted run."""
    from kafka_ordered_ops.cli.commands import running

    questions, policy = series.windows(), policies.policy()
    if series.is_many and window_id is not None:
        raise ConfigError(
            f"--window-id {window_id} cannot name {len(questions):,} windows: with --every they get their default "
            "ids. Omit --window-id"
        )
    delivered = running.deliver(
        screen, connection, sink, questions, [window_id] * len(questions), policy
    )
    if series.is_many:
        running.report_many(screen, delivered)
    else:
        running.report_one(screen, sink, delivered)
    raise typer.Exit(running.end_of(delivered, policies))


app.command(epilog=READ_EXAMPLES)(read)
app.command(epilog=LIVE_EXAMPLES)(live)
app.command(epilog=CLEAN_EXAMPLES)(clean)
app.command(epilog=look.LAG_EXAMPLES)(look.lag)
app.command(epilog=look.DOCTOR_EXAMPLES)(look.doctor)
app.command(epilog=WATCH_EXAMPLES)(watch)


@app.command()
@command
def demo(
    screen: Screen,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="Folder for the demo's results.")
    ] = None,
) -> None:
    """Run the demo with a real broker and Spark."""
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
        typer.Option("--port", min=1, max=65535, help="Port on 127.0.0.1. Default: a free port."),
    ] = None,
) -> None:
    """Run a real Kafka broker for testing, until Ctrl-C. Deletes its data at the end."""
    from kafka_ordered_ops.embedded import EmbeddedKafka, Listener
    from kafka_ordered_ops.embedded.errors import BrokerStartError

    if port is not None:
        _check_free(port)
    signal.signal(signal.SIGTERM, end_well)
    listeners = [] if port is None else [Listener("CHOSEN", port)]
    with EmbeddedKafka(listeners=listeners) as kafka:
        address = kafka.bootstrap if port is None else f"127.0.0.1:{port}"
        if screen.as_json:
            screen.emit({"bootstrap": address})
        else:
            screen.show(address)
        screen.say("Kafka is running; press Ctrl-C to stop it and delete its data")
        while kafka.running:
            # A signal's exception ends it early.
            time.sleep(_BROKER_LOOK_S)
        raise BrokerStartError("the broker's process has stopped", log_tail=kafka.log_tail)


def _check_free(port: int) -> None:
    """Raise `ConfigError` for a port in use: Java would print forty lines."""
    with socket.socket() as probe:
        # As Java's server sockets: a port with connections in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(f"--port {port} is not available: {error.strerror}") from error
