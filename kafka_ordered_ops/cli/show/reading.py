"""The display of `read`: a table of partitions, a progress bar, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow.compute as pc

from kafka_ordered_ops.cli.show.screen import Screen
from kafka_ordered_ops.ordered.ordered_reader import OrderedReader
from kafka_ordered_ops.ordered.question import Progress

if TYPE_CHECKING:
    from kafka_ordered_ops.cli.show.partitions import PartitionsBoard


class View(Protocol):
    """The display of a read."""

    @property
    def progress(self) -> Progress | None:
        """The callback for the reader's progress."""

    def show(self, reader: OrderedReader, written: int, next_records: int) -> None:
        """Show the state, with the number of records written, and of those written next."""


@contextmanager
def watching(
    screen: Screen, what: str, *, table: bool, follow: bool, shares_terminal: bool
) -> Iterator[View]:
    """Provide the display of a read until the block ends.

    Args:
        screen: the command's screen.
        what: the topics.
        table: whether to show the partitions, on a terminal.
        follow: whether the read has no end.
        shares_terminal: whether records are written to the terminal too: then nothing is shown from the first record on.
    """
    with ExitStack() as stack:
        board = stack.enter_context(screen.board()) if table and not shares_terminal else None
        if board is not None:
            from kafka_ordered_ops.cli.show.partitions import PartitionsBoard

            stack.enter_context(screen.noticed("reading"))
            yield _Table(screen, PartitionsBoard(board, what, follow=follow))
        elif follow:
            stack.enter_context(screen.progress("reading"))
            yield _Nothing(screen, stack)
        else:
            stack.enter_context(screen.progress("reading"))
            yield _Progress(screen, stack if shares_terminal else None)


class _Nothing:
    """Follows quietly, once the cluster has answered."""

    progress = None

    def __init__(self, screen: Screen, ended_by_answer: ExitStack) -> None:
        self._screen, self._ended_by_answer = screen, ended_by_answer

    def show(self, reader: OrderedReader, written: int, next_records: int) -> None:
        """Note that the cluster answers."""
        self._screen.answered()
        self._ended_by_answer.close()


class _Table:
    """The partitions."""

    progress = None

    def __init__(self, screen: Screen, partitions: PartitionsBoard) -> None:
        self._screen, self._partitions = screen, partitions

    def show(self, reader: OrderedReader, written: int, next_records: int) -> None:
        """Show the partitions."""
        self._screen.answered()
        self._partitions.show(reader, written)


class _Progress:
    """A bar, or lines in a log: first of offsets read, then of records written.

    Args:
        screen: the command's screen.
        ended_by_records: closed before the first record.
    """

    def __init__(self, screen: Screen, ended_by_records: ExitStack | None) -> None:
        self.progress = screen.report
        self._screen, self._ended_by_records = screen, ended_by_records
        self._total: int | None = None

    def show(self, reader: OrderedReader, written: int, next_records: int) -> None:
        """Show the progress."""
        self._screen.answered()
        if next_records and self._ended_by_records is not None:
            self._ended_by_records.close()
        elif next_records and self._total is None:
            state: Any = reader.state()
            if pc.sum(state["lag"]).as_py():
                # Still reading: with a maximum out-of-orderness, records are released earlier.
                return
            self._total = written + next_records + pc.sum(state["held"]).as_py()
            self._screen.phase("writing", "records")
        if self._total is not None:
            self._screen.report(written, self._total)
