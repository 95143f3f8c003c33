"""The command's output: the result to stdout, and everything else for people to stderr.

With ``--json`` stdout holds one JSON object and nothing else, even if a library or a Java child process prints. The
real stdout is replaced at the start, and file descriptor 1 points to stderr.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TextIO

from kafka_ordered_ops.cli.show.printable import in_line, printable
from kafka_ordered_ops.cli.show.silence import Silence, noticed

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from kafka_ordered_ops.cli.show.terminal import Board

#: The interval of progress lines without a terminal, in a log.
LINE_INTERVAL_S: Final = 10.0

_LOGGER: Final = "kafka_ordered_ops"


class UnwrittenError(Exception):
    """The result could not be written."""


class Screen:
    """The output of one command; a context manager.

    Args:
        as_json: whether the result is one JSON object instead of tables.
        debug: whether logs are complete, and errors have their traceback.
    """

    def __init__(self, *, as_json: bool, debug: bool) -> None:
        self.as_json = as_json
        self.debug = debug
        #: The brokers of the command; `None` without brokers, or with those in memory.
        self.brokers: str | None = None
        self._silence: Silence | None = None
        self._secrets: tuple[str, ...] = ()
        self._display: _Display | None = None
        self._board: Board | None = None
        self._stdout = sys.stdout
        self._handler: logging.Handler | None = None

    def __enter__(self) -> Screen:
        if self.as_json:
            self._stdout = _put_stdout_aside()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._handler is not None:
            logging.getLogger(_LOGGER).removeHandler(self._handler)
        if self.as_json:
            _put_stdout_back(self._stdout)

    def show_logs(self) -> None:
        """Show logs from now on; commands need them, help does not."""
        self._handler = self._log_handler()
        logger = logging.getLogger(_LOGGER)
        logger.addHandler(self._handler)
        logger.setLevel(logging.DEBUG if self.debug else self._log_level())

    def hide(self, secrets: Iterable[str]) -> None:
        """Mask these values in all errors from now on."""
        self._secrets = (*self._secrets, *secrets)

    # --- for people -------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """Write one line for people."""
        self._people.print(in_line(self._masked(text)), soft_wrap=True)

    def fail(self, error: BaseException, *, with_traceback: bool) -> None:
        """Report an error."""
        if with_traceback:
            lines = "".join(traceback.format_exception(error)).rstrip()
            self._people.print(self._masked(lines), soft_wrap=True)
        else:
            from rich.text import Text

            self._people.print(
                Text.assemble((f"{type(error).__name__}: ", "bold red"), self._masked(str(error))),
                soft_wrap=True,
            )

    @contextlib.contextmanager
    def board(self) -> Iterator[Board | None]:
        """Provide a board on the terminal until the block ends; None without a terminal."""
        if not self._is_live:
            yield None
            return
        from kafka_ordered_ops.cli.show.terminal import board_on

        with board_on(self._people) as self._board:
            try:
                yield self._board
            finally:
                self._board = None

    @contextlib.contextmanager
    def progress(self, phase: str) -> Iterator[None]:
        """Show progress until the block ends."""
        with self.noticed(phase), self._new_display() as display:
            self._display = display
            self._begin(phase, "offsets")
            try:
                yield
            finally:
                self._display = None

    @contextlib.contextmanager
    def noticed(self, doing: str) -> Iterator[None]:
        """Report the cause of the wait, if the block's first answer takes long."""
        with noticed(self.note, self.brokers, doing) as self._silence:
            yield

    def answered(self) -> None:
        """Note an answer of the cluster."""
        if self._silence is not None:
            self._silence.end()
        self.note("")

    def note(self, text: str) -> None:
        """Show the reason for waiting: on a terminal until an empty text clears it, in a log permanently."""
        place = self._display or self._board
        if place is not None:
            place.note(in_line(self._masked(text)))
        elif text:
            self.say(text)

    def phase(self, name: str, unit: str = "offsets") -> None:
        """Begin a phase inside `progress`."""
        self.answered()
        self._begin(name, unit)

    def report(self, done: int, total: int, note: str = "") -> None:
        """Report the phase's progress, with a note."""
        self.answered()
        if self._display is not None:
            self._display.report(done, total, note)

    # --- the result -------------------------------------------------------------------------------

    def show(self, *results: RenderableType) -> None:
        """Show the result to people; raise `UnwrittenError`."""
        from kafka_ordered_ops.cli.show.terminal import show_on

        with _writing():
            show_on(self._stdout, results)

    def emit(self, result: Any) -> None:
        """Print the result for programs: one JSON object; raise `UnwrittenError`."""
        # ASCII, which every locale can print.
        text = json.dumps(result, allow_nan=False) + "\n"
        with _writing():
            self._stdout.write(text)
            self._stdout.flush()

    def emit_error(self, result: Any) -> None:
        """Print the JSON object of an error, without secrets."""
        # It was reported to people as well.
        with contextlib.suppress(UnwrittenError):
            self.emit(_walk(result, self._masked))

    # --- inside -----------------------------------------------------------------------------------

    @cached_property
    def _people(self) -> Console:
        from kafka_ordered_ops.cli.show.safe_console import SafeConsole

        return SafeConsole(stderr=True)

    def _begin(self, name: str, unit: str) -> None:
        if self._display is not None:
            self._display.begin(name, unit)

    def _new_display(self) -> _Display:
        if not self._is_live:
            return _Lines(self)
        from kafka_ordered_ops.cli.show.terminal import Bar

        return Bar(self._people)

    @property
    def _is_live(self) -> bool:
        return self._people.is_terminal and not self._people.is_dumb_terminal

    def _masked(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def _log_level(self) -> int:
        # A terminal shows the bar; a log file needs the lines.
        return logging.WARNING if self._people.is_terminal else logging.INFO

    def _log_handler(self) -> logging.Handler:
        if self._people.is_terminal:
            from rich.logging import RichHandler

            return RichHandler(console=self._people, show_path=False, markup=False)
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_LogLines("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        return handler


class _LogLines(logging.Formatter):
    """Lines of a log, which may end on a terminal as well."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class _Display(Protocol):
    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def begin(self, phase: str, unit: str) -> None: ...

    def note(self, text: str) -> None: ...

    def report(self, done: int, total: int, note: str) -> None: ...


class _Lines:
    """Progress as lines."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._phase = self._unit = ""
        self._begun = self._last_s = time.monotonic()

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin(self, phase: str, unit: str) -> None:
        self._phase, self._unit = phase, unit
        self._begun = self._last_s = time.monotonic()

    def note(self, text: str) -> None:
        if text:
            self._screen.say(text)

    def report(self, done: int, total: int, note: str) -> None:
        now = time.monotonic()
        if not total or now - self._last_s < LINE_INTERVAL_S:
            return
        self._last_s = now
        pace = f"{done:,} of {total:,} {self._unit}, {done / (now - self._begun):,.1f}/s"
        if note:
            pace += f", {note}"
        self._screen.say(f"{self._phase}: {100 * done // total} % ({pace})")


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        # The reader of the output is gone.
        raise
    except OSError as error:
        raise UnwrittenError(f"the result could not be written: {error.strerror}") from error


def _put_stdout_aside() -> TextIO:
    sys.stdout.flush()
    aside = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return aside


def _put_stdout_back(aside: TextIO) -> None:
    sys.stdout.flush()
    os.dup2(aside.fileno(), 1)
    # A result that could not be written was reported.
    with contextlib.suppress(OSError):
        aside.close()


def _walk(value: Any, change: Any) -> Any:
    """Return the value with `change` applied to every text in it."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _walk(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_walk(item, change) for item in value]
    return value
