"""A group's offsets, as a table with a bar for each partition, and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from kafka_ordered_ops.cli.show.facts import partition_facts
from kafka_ordered_ops.cli.show.terminal import Board
from kafka_ordered_ops.core.numpy_later import np
from kafka_ordered_ops.core.offset_map.reading import MetadataKind
from kafka_ordered_ops.core.offset_set import Int64Array, OffsetSet
from kafka_ordered_ops.core.times import time_text
from kafka_ordered_ops.core.types import ProgressFormat, TopicPartition
from kafka_ordered_ops.windows.queries.group_offsets import GroupOffsets, PartitionOffsets
from kafka_ordered_ops.windows.queries.offsets_before import OffsetsBefore

#: Partitions shown in a table; --json has all.
_PARTITIONS_SHOWN: Final = 200

#: Offsets before a time shown in a table; --json has all.
_ROWS_SHOWN: Final = 1_000

#: Lines of the table on the terminal besides partitions: title, head, rules, total, caption, two for the legend, time.
_LINES_AROUND: Final = 10

#: A line of the table on the terminal has room for so much of a name.
_NAME_LENGTH: Final = 30

_BAR_CELLS: Final = 30

_NOTHING: Final = "-"

#: Where the progress of a group without windows is.
_COMMITS: Final = "commits"

_PLACES: Final = {
    None: "its commits",
    ProgressFormat.LEDGER: "the ledger",
    ProgressFormat.DUAL: "the ledger and its commits",
    ProgressFormat.PARALLEL_CONSUMER: "its commits, by Parallel Consumer",
}

#: A cell of the bar: in Unicode, without it, its colour, and its meaning.
_DONE: Final = ("█", "#", "green", "done")
_PARTLY: Final = ("▓", "+", "yellow", "partly done")
_CLAIMED: Final = ("▒", "~", "cyan", "claimed by open windows")
_MISSING: Final = ("░", ".", "red", "not done")
_CELLS: Final = (_DONE, _PARTLY, _CLAIMED, _MISSING)


def offsets_json(found: GroupOffsets) -> dict[str, Any]:
    """Return the offsets as JSON; ranges are half-open pairs."""
    return {
        "group": found.group_id,
        "progress_in": _COMMITS if found.format is None else found.format.value,
        "lag": found.lag,
        "partitions": [
            {
                **partition_facts(one),
                "done": one.done.bounds.tolist(),
                "claimed": one.claimed.bounds.tolist(),
                "metadata": one.metadata.value,
                "problem": one.problem,
            }
            for one in found.partitions
        ],
        "missing_topics": list(found.missing_topics),
        "unreadable": list(found.unreadable),
    }


def tables(found: GroupOffsets, *, rows_max: int = _PARTITIONS_SHOWN) -> list[RenderableType]:
    """Return a row for each partition, those with the greatest lag if not all fit; and the bars' meaning."""
    return [_table(found, rows_max, str, in_lines=False), _Legend()]


def _table(
    found: GroupOffsets, rows_max: int, name_of: Callable[[TopicPartition], str], *, in_lines: bool
) -> Table:
    """Return the table, whose bars give way first where it is too wide; with `in_lines` each row takes one line."""
    rows = found.partitions
    cut: Any = {"no_wrap": True} if in_lines else {"overflow": "fold"}
    maps = not in_lines and any(
        one.metadata not in (MetadataKind.NONE, MetadataKind.OURS) for one in rows
    )
    totals = len(rows) > 1
    table = Table(
        title=f"group {found.group_id}: progress in {_PLACES[found.format]}",
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_footer=totals,
    )
    table.add_column("partition", f"total of {len(rows):,}", **cut)
    table.add_column("log" if in_lines else "from log start to end")
    counts: dict[str, list[int | None]] = {
        # A sum of offsets of several logs says nothing.
        "committed": [one.committed for one in rows],
        "end": [one.end_offset for one in rows],
        "lag": [one.lag for one in rows],
        "done beyond": [one.done_beyond for one in rows],
        "claimed": [one.claimed.count for one in rows],
    }
    if found.format is None:
        del counts["claimed"]
    for name, values in counts.items():
        total = sum(value or 0 for value in values) if name not in ("committed", "end") else None
        table.add_column(name, "" if total is None else f"{total:,}", justify="right", **cut)
    if maps:
        table.add_column("metadata", **cut)
    for number in islice(_by_need(rows, rows_max), rows_max):
        one = rows[number]
        table.add_row(
            name_of(one.tp),
            _Bar(one),
            *(_number(values[number]) for values in counts.values()),
            *([one.metadata.value] if maps else []),
        )
    if (more := len(rows) - rows_max) > 0:
        table.caption = f"and {more:,} more partitions; --json shows them all"
    return table


def before_json(found: Sequence[OffsetsBefore]) -> dict[str, Any]:
    """Return offsets before a time as JSON."""
    return {
        "partitions": [
            {
                "topic": part.tp.topic,
                "partition": part.tp.partition,
                "log_start": part.log_start,
                "end": part.end_offset,
                "offsets": [
                    {"time": time_text(one.time_ms), "offset": one.offset} for one in part.offsets
                ],
            }
            for part in found
        ]
    }


def before_table(found: Sequence[OffsetsBefore]) -> Table:
    """Return a row for each offset before a time."""
    table = Table(caption_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("partition", overflow="fold")
    table.add_column("time", overflow="fold")
    table.add_column("offset", justify="right", overflow="fold")
    table.add_column("offsets to the end", justify="right", overflow="fold")
    rows = [(part, one) for part in found for one in part.offsets]
    for part, one in rows[:_ROWS_SHOWN]:
        to_end = max(part.end_offset - one.offset, 0)
        table.add_row(str(part.tp), time_text(one.time_ms), f"{one.offset:,}", f"{to_end:,}")
    if (more := len(rows) - _ROWS_SHOWN) > 0:
        table.caption = f"and {more:,} more offsets; --json shows them all"
    return table


class OffsetsBoard:
    """Overwrites a group's offsets on a board, with the newest failure below them."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._last: GroupOffsets | None = None
        board.show(Text("reading offsets"))

    def show(self, found: GroupOffsets, now_ms: int) -> None:
        """Show the offsets as of now."""
        self._last = found
        self._show(Text(f"{found.lag:,} offsets behind; read at {time_text(now_ms)}"))

    def fail(self, message: str) -> None:
        """Show the last offsets, and why there are no newer ones."""
        self._show(Text(f"no answer, reading again: {message}", "red"))

    def _show(self, line: Text) -> None:
        # One line: what does not fit the terminal cannot be overwritten.
        line.no_wrap, line.overflow = True, "ellipsis"
        rows_max = max(self._board.lines - _LINES_AROUND, 1)
        if self._last is None:
            self._board.show(line)
        else:
            table = _table(self._last, rows_max, _short, in_lines=True)
            self._board.show(table, _Legend(), line)


class _Bar:
    """A partition's log in cells; without the letters of Unicode where the terminal has none."""

    def __init__(self, offsets: PartitionOffsets) -> None:
        self._offsets = offsets

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        bar = Text()
        for cell in _cells(self._offsets, min(_BAR_CELLS, options.max_width)):
            bar.append(cell[options.ascii_only], cell[2])
        yield bar

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, _BAR_CELLS)


class _Legend:
    """The meaning of the bars' cells."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        legend = Text()
        for cell in _CELLS:
            legend.append(f"{cell[options.ascii_only]} ", cell[2])
            legend.append(f"{cell[3]}   ")
        legend.rstrip()
        yield legend


def _cells(
    offsets: PartitionOffsets, cells_max: int = _BAR_CELLS
) -> list[tuple[str, str, str, str]]:
    """Return the cells of a partition's bar; none for an empty log."""
    start, end = offsets.log_start, offsets.end_offset
    cells = min(cells_max, end - start)
    if not cells:
        return []
    # In Python's integers: the product exceeds 64 bits near the greatest offsets.
    edges = np.array([start + (end - start) * n // cells for n in range(cells + 1)], dtype=np.int64)
    sizes = np.diff(edges)
    done, claimed = (np.diff(_below(one, edges)) for one in (offsets.done, offsets.claimed))
    found = []
    for size, finished, held in zip(*(one.tolist() for one in (sizes, done, claimed)), strict=True):
        if finished == size:
            found.append(_DONE)
        elif held:
            found.append(_CLAIMED)
        else:
            found.append(_PARTLY if finished else _MISSING)
    return found


def _below(offsets: OffsetSet, edges: Int64Array) -> Int64Array:
    """Return how many offsets of a set are below each edge."""
    bounds = offsets.bounds
    starts, ends = bounds[:, 0], bounds[:, 1]
    sums = np.concatenate(([0], np.cumsum(ends - starts)))
    # Ranges that begin below the edge, less what of the last one is not below it.
    at = np.searchsorted(starts, edges, side="left")
    last = np.concatenate(([0], ends))[at]
    below: Int64Array = sums[at] - np.maximum(last - edges, 0)
    return below


def _short(tp: TopicPartition) -> str:
    """Return a name that fits a line; a long one without its middle, so that the number stays."""
    name, half = str(tp), _NAME_LENGTH // 2
    return name if len(name) <= _NAME_LENGTH else f"{name[:half]}…{name[-half:]}"


def _by_need(rows: Sequence[PartitionOffsets], rows_max: int) -> Sequence[int]:
    """Return the numbers of the rows by name; by lag, if not all fit."""
    if len(rows) <= rows_max:
        return range(len(rows))
    return sorted(range(len(rows)), key=lambda number: -rows[number].lag)


def _number(value: int | None) -> str:
    return _NOTHING if value is None else f"{value:,}"
