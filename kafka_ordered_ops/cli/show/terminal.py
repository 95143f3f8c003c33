"""The parts of a screen that need rich: loaded when a command shows something, not for its help."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import Final, Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
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

from kafka_ordered_ops.cli.show.safe_console import SafeConsole

#: Width of tables in a file or a pipe, where cut cells would only lose text.
_WIDTH_WITHOUT_TERMINAL: Final = 200
#: Width of the longest line.
_WIDTH_MAX: Final = 10_000


def show_on(stdout: TextIO, results: Iterable[RenderableType]) -> None:
    """Show results to people."""
    width = None if stdout.isatty() else _WIDTH_WITHOUT_TERMINAL
    console = _ResultConsole(file=stdout, width=width)
    for result in results:
        if not isinstance(result, Table):
            # Lines are left to the terminal.
            console.print(result, soft_wrap=True)
        elif result.columns and all(column.no_wrap for column in result.columns):
            # So are the lines of a table whose columns must not be cut.
            whole = console.options.update(max_width=_WIDTH_MAX)
            width = max(console.width, console.measure(result, options=whole).maximum)
            # With a height too, or a terminal that cannot do anything has 80 columns.
            _ResultConsole(file=stdout, width=width, height=console.height).print(result)
        else:
            console.print(result)


@contextlib.contextmanager
def board_on(console: Console) -> Iterator[Board]:
    """Provide a board on a terminal until the block ends."""
    # Transient: only the result stays, on stdout.
    with Live(console=console, transient=True, auto_refresh=False) as display:
        yield Board(display)


class Board:
    """A part of the terminal that is overwritten."""

    def __init__(self, display: Live) -> None:
        self._display = display
        self._results: tuple[RenderableType, ...] = ()
        self._note = ""

    @property
    def lines(self) -> int:
        """The number of lines that fit: longer content cannot be overwritten."""
        return self._display.console.size.height - 1 - -(-len(self._note) // self.width)

    @property
    def width(self) -> int:
        """The number of characters in a line."""
        return self._display.console.size.width

    def show(self, *results: RenderableType) -> None:
        """Overwrite the board."""
        self._results = results
        self._update()

    def note(self, text: str) -> None:
        """Show the reason for waiting below the content, until the next note; an empty note clears it."""
        if text != self._note:
            self._note = text
            self._update()

    def _update(self) -> None:
        note = [Text(self._note)] if self._note else []
        self._display.update(Group(*self._results, *note), refresh=True)


class _ResultConsole(SafeConsole):
    """Raises an error for a closed pipe; rich would end the program."""

    def on_broken_pipe(self) -> None:
        # No reader is left, and Python's own flush at the end would fail again with a traceback.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
        raise BrokenPipeError


class Bar:
    """A progress bar with rate and time left; without counts, it only moves."""

    def __init__(self, console: Console) -> None:
        self._progress = _NotedProgress(
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

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, phase: str, unit: str) -> None:
        """Begin another phase."""
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(phase, total=None, unit=unit, note="")

    def note(self, text: str) -> None:
        """Show the reason for waiting below the bar, until the next note; an empty note clears it."""
        self._progress.note = text

    def report(self, done: int, total: int, note: str) -> None:
        """Report the progress."""
        if self._task is not None:
            self._progress.update(self._task, completed=done, total=total, note=note)


class _NotedProgress(Progress):
    """A progress with a text below it."""

    note = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return the bar, and the text if there is one."""
        yield from super().get_renderables()
        if self.note:
            yield Text(self.note)


class _PaceColumn(ProgressColumn):
    """The counts, and the rate per second."""

    def render(self, task: Task) -> Text:
        if not task.total:
            return Text("")
        pace = f"{task.completed:,.0f}/{task.total:,.0f} {task.fields['unit']}"
        if task.speed:
            pace += f" {task.speed:,.0f}/s"
        return Text(f"{pace} {task.fields['note']}".rstrip())
