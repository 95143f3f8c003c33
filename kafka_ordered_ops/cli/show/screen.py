"""Where output goes: the result to stdout, and everything for people on the way there to stderr.

With ``--json`` stdout holds one JSON object and nothing else, even where a library or a Java child process
prints: the real stdout is put aside at the start, and file descriptor 1 leads to stderr.
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
from typing import Any, Final, Protocol, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.logging import RichHandler
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

#: Without a terminal progress is told this seldom: a log is read by people, later.
LINE_INTERVAL_S: Final = 10.0

#: Width of tables that go to a file or a pipe; cutting cells there would only lose text.
_WIDTH_WITHOUT_TERMINAL: Final = 200

_LOGGER: Final = "kafka_ordered_ops"


class Screen:
    """What one command says, and to whom. A context manager.

    Args:
        as_json: whether the result is one JSON object instead of tables.
        debug: whether logs are complete, and errors have their traceback.
    """

    def __init__(self, *, as_json: bool, debug: bool) -> None:
        self.as_json = as_json
        self.debug = debug
        self._secrets: tuple[str, ...] = ()
        self._display: _Display | None = None
        self._stdout = sys.stdout
        # No markup: what is shown comes from the cluster, and brackets are no colours there.
        self._people = Console(stderr=True, markup=False, highlight=False, emoji=False)

    def __enter__(self) -> Screen:
        if self.as_json:
            self._stdout = _put_stdout_aside()
        self._handler = self._log_handler()
        logger = logging.getLogger(_LOGGER)
        logger.addHandler(self._handler)
        logger.setLevel(logging.DEBUG if self.debug else self._log_level())
        return self

    def __exit__(self, *exc_info: object) -> None:
        logging.getLogger(_LOGGER).removeHandler(self._handler)
        if self.as_json:
            _put_stdout_back(self._stdout)

    def hide(self, secrets: Iterable[str]) -> None:
        """From now on these values are masked in whatever is said about errors."""
        self._secrets = (*self._secrets, *secrets)

    # --- for people -------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """One line for people."""
        self._people.print(self._masked(text), soft_wrap=True)

    def fail(self, error: BaseException, *, with_traceback: bool) -> None:
        """Says what went wrong."""
        if with_traceback:
            self.say("".join(traceback.format_exception(error)).rstrip())
        else:
            self._people.print(
                Text.assemble((f"{type(error).__name__}: ", "bold red"), self._masked(str(error))),
                soft_wrap=True,
            )

    @contextlib.contextmanager
    def board(self) -> Iterator[Board | None]:
        """A place on the terminal that is written over until the block ends; None where there is no terminal."""
        if not self._is_live:
            yield None
            return
        # Transient: what stays is the result, and that belongs on stdout.
        with Live(console=self._people, transient=True, auto_refresh=False) as display:
            yield Board(display)

    @contextlib.contextmanager
    def progress(self, phase: str) -> Iterator[None]:
        """Shows that something goes on, and how far it is, until the block ends."""
        display = _Bar(self._people) if self._is_live else _Lines(self)
        with display:
            self._display = display
            self.phase(phase)
            try:
                yield
            finally:
                self._display = None

    def phase(self, name: str, unit: str = "offsets") -> None:
        """What goes on now, inside `progress`."""
        if self._display is not None:
            self._display.begin(name, unit)

    def report(self, done: int, total: int, note: str = "") -> None:
        """How far the phase is, and what else there is to say of it."""
        if self._display is not None:
            self._display.report(done, total, note)

    # --- the result -------------------------------------------------------------------------------

    def show(self, *results: RenderableType) -> None:
        """The result for people."""
        width = None if self._stdout.isatty() else _WIDTH_WITHOUT_TERMINAL
        console = _ResultConsole(
            file=self._stdout, width=width, markup=False, highlight=False, emoji=False
        )
        for result in results:
            # Only a table knows how to make the best of a width; lines are left to the terminal.
            console.print(result, soft_wrap=not isinstance(result, Table))

    def emit(self, result: Any) -> None:
        """The result for programs: the one JSON object."""
        # ASCII, so that no locale can spoil it.
        self._stdout.write(json.dumps(result, allow_nan=False) + "\n")
        self._stdout.flush()

    def emit_error(self, result: Any) -> None:
        """The JSON object in place of a result, without secrets."""
        self.emit(_walk(result, self._masked))

    # --- inside -----------------------------------------------------------------------------------

    @property
    def _is_live(self) -> bool:
        return self._people.is_terminal and not self._people.is_dumb_terminal

    def _masked(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def _log_level(self) -> int:
        # On a terminal the bar tells what goes on; in a log file the lines do.
        return logging.WARNING if self._people.is_terminal else logging.INFO

    def _log_handler(self) -> logging.Handler:
        if self._people.is_terminal:
            return RichHandler(console=self._people, show_path=False, markup=False)
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        return handler


class Board:
    """What a terminal shows for now."""

    def __init__(self, display: Live) -> None:
        self._display = display

    @property
    def lines(self) -> int:
        """How many lines there is room for: what is longer cannot be written over."""
        return self._display.console.size.height - 1

    def show(self, *results: RenderableType) -> None:
        """Writes over what was there."""
        self._display.update(Group(*results), refresh=True)


class _ResultConsole(Console):
    """Leaves it to the caller what a reader that went away means; rich would end the program."""

    def on_broken_pipe(self) -> None:
        # Nobody reads it any more, and Python's own flush at the end would fail again, loudly.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
        raise BrokenPipeError


class _Display(Protocol):
    def begin(self, phase: str, unit: str) -> None: ...

    def report(self, done: int, total: int, note: str) -> None: ...


class _Bar:
    """A moving bar with rate and time left; while nothing is known, it only moves."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            _PaceColumn(),
            TimeRemainingColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, phase: str, unit: str) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(phase, total=None, unit=unit, note="")

    def report(self, done: int, total: int, note: str) -> None:
        if self._task is not None:
            self._progress.update(self._task, completed=done, total=total, note=note)


class _PaceColumn(ProgressColumn):
    """How many of how many, and how many a second."""

    def render(self, task: Task) -> Text:
        if not task.total:
            return Text("")
        pace = f"{task.completed:,.0f}/{task.total:,.0f} {task.fields['unit']}"
        if task.speed:
            pace += f" {task.speed:,.0f}/s"
        return Text(f"{pace} {task.fields['note']}".rstrip())


class _Lines:
    """A line now and then."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._phase = self._unit = ""
        self._begun = self._told = time.monotonic()

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin(self, phase: str, unit: str) -> None:
        self._phase, self._unit = phase, unit
        self._begun = self._told = time.monotonic()

    def report(self, done: int, total: int, note: str) -> None:
        now = time.monotonic()
        if not total or now - self._told < LINE_INTERVAL_S:
            return
        self._told = now
        pace = f"{done:,} of {total:,} {self._unit}, {done / (now - self._begun):,.1f}/s"
        if note:
            pace += f", {note}"
        self._screen.say(f"{self._phase}: {100 * done // total} % ({pace})")


def _put_stdout_aside() -> TextIO:
    sys.stdout.flush()
    aside = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return aside


def _put_stdout_back(aside: TextIO) -> None:
    sys.stdout.flush()
    os.dup2(aside.fileno(), 1)
    with contextlib.suppress(BrokenPipeError):
        aside.close()


def _walk(value: Any, change: Any) -> Any:
    """The value with every text in it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _walk(one, change) for key, one in value.items()}
    if isinstance(value, list):
        return [_walk(one, change) for one in value]
    return value
