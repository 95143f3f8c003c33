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
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TextIO

from kafka_ordered_ops.cli.show.silence import Silence, noticed

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from kafka_ordered_ops.cli.show.terminal import Board

#: Without a terminal progress is told this seldom: a log is read by people, later.
LINE_INTERVAL_S: Final = 10.0

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
        #: The brokers that are asked; None: none are, or they are in memory.
        self.brokers: str | None = None
        self._silence: Silence | None = None
        self._secrets: tuple[str, ...] = ()
        self._display: _Display | None = None
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
        """From now on logs are shown: a command runs. Help needs none of it."""
        self._handler = self._log_handler()
        logger = logging.getLogger(_LOGGER)
        logger.addHandler(self._handler)
        logger.setLevel(logging.DEBUG if self.debug else self._log_level())

    def hide(self, secrets: Iterable[str]) -> None:
        """From now on these values are masked in whatever is said about errors."""
        self._secrets = (*self._secrets, *secrets)

    # --- for people -------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """One line for people."""
        self._people.print(self._masked(text), soft_wrap=True)

    def fail(self, error: BaseException, *, with_traceback: bool) -> None:
        """Report what went wrong."""
        if with_traceback:
            self.say("".join(traceback.format_exception(error)).rstrip())
        else:
            from rich.text import Text

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
        from kafka_ordered_ops.cli.show.terminal import board_on

        with board_on(self._people) as board:
            yield board

    @contextlib.contextmanager
    def progress(self, phase: str) -> Iterator[None]:
        """Show that something goes on, and how far it is, until the block ends."""
        with self.noticed(phase), self._new_display() as display:
            self._display = display
            self._begin(phase, "offsets")
            try:
                yield
            finally:
                self._display = None

    @contextlib.contextmanager
    def noticed(self, doing: str) -> Iterator[None]:
        """Report what is waited for, if the block's first answer takes long."""
        with noticed(self.say, self.brokers, doing) as self._silence:
            yield

    def answered(self) -> None:
        """There was an answer."""
        if self._silence is not None:
            self._silence.end()

    def phase(self, name: str, unit: str = "offsets") -> None:
        """What goes on now, inside `progress`."""
        self.answered()
        self._begin(name, unit)

    def report(self, done: int, total: int, note: str = "") -> None:
        """How far the phase is, and what else there is to say of it."""
        self.answered()
        if self._display is not None:
            self._display.report(done, total, note)

    # --- the result -------------------------------------------------------------------------------

    def show(self, *results: RenderableType) -> None:
        """The result for people."""
        from kafka_ordered_ops.cli.show.terminal import show_on

        show_on(self._stdout, results)

    def emit(self, result: Any) -> None:
        """The result for programs: the one JSON object."""
        # ASCII, so that no locale can spoil it.
        self._stdout.write(json.dumps(result, allow_nan=False) + "\n")
        self._stdout.flush()

    def emit_error(self, result: Any) -> None:
        """The JSON object in place of a result, without secrets."""
        self.emit(_walk(result, self._masked))

    # --- inside -----------------------------------------------------------------------------------

    @cached_property
    def _people(self) -> Console:
        from rich.console import Console

        # No markup: what is shown comes from the cluster, and brackets are no colours there.
        return Console(stderr=True, markup=False, highlight=False, emoji=False)

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
        # On a terminal the bar tells what goes on; in a log file the lines do.
        return logging.WARNING if self._people.is_terminal else logging.INFO

    def _log_handler(self) -> logging.Handler:
        if self._people.is_terminal:
            from rich.logging import RichHandler

            return RichHandler(console=self._people, show_path=False, markup=False)
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        return handler


class _Display(Protocol):
    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def begin(self, phase: str, unit: str) -> None: ...

    def report(self, done: int, total: int, note: str) -> None: ...


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
    """Return the value with every text in it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _walk(one, change) for key, one in value.items()}
    if isinstance(value, list):
        return [_walk(one, change) for one in value]
    return value
