"""A group's offsets, as a table with a bar for each partition, and as JSON; and offsets that are moved or migrated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from kafka_ordered_ops.cli.show.facts import partition_facts
from kafka_ordered_ops.cli.show.layout import (
    NOTHING,
    PARTITIONS_SHOWN,
    add_columns,
    caption_more,
    new_table,
    number_text,
    shortened,
)
from kafka_ordered_ops.cli.show.terminal import Board
from kafka_ordered_ops.core.group.decisions.migrating import Migration
from kafka_ordered_ops.core.group.decisions.resetting import OffsetReset
from kafka_ordered_ops.core.numpy_later import np
from kafka_ordered_ops.core.offset_map.reading import MetadataKind
from kafka_ordered_ops.core.offset_set import Int64Array, OffsetSet
from kafka_ordered_ops.core.times import time_text
from kafka_ordered_ops.core.types import ProgressFormat, TopicPartition
from kafka_ordered_ops.windows.queries.group_offsets import GroupOffsets, PartitionOffsets
from kafka_ordered_ops.windows.queries.offsets_before import OffsetsBefore

#: Offsets before a time shown in a table; --json has all.
_ROWS_SHOWN: Final = 1_000

#: Lines of the table on the terminal besides partitions: title, head, rules, total, caption, two for the legend, time.
_LINES_AROUND: Final = 10

#: Characters of a name in a line of the table on the terminal.
_NAME_LENGTH: Final = 30

_BAR_CELLS: Final = 30

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


def offsets_json(offsets: GroupOffsets) -> dict[str, Any]:
    """Return the offsets as JSON; ranges are half-open pairs."""
    return {
        "group": offsets.group_id,
        "progress_in": _COMMITS if offsets.format is None else offsets.format.value,
        "lag": offsets.lag,
        "partitions": [
            {
                **partition_facts(partition),
                "done": partition.done.bounds.tolist(),
                "claimed": partition.claimed.bounds.tolist(),
                "metadata": partition.metadata.value,
                "problem": partition.problem,
            }
            for partition in offsets.partitions
        ],
        "missing_topics": list(offsets.missing_topics),
        "unreadable": list(offsets.unreadable),
    }


def tables(offsets: GroupOffsets, *, rows_max: int = PARTITIONS_SHOWN) -> list[RenderableType]:
    """Return a row for each partition, those with the greatest lag if not all fit; and the bars' meaning."""
    return [_table(offsets, rows_max, str, in_lines=False), _Legend()]


def _table(
    offsets: GroupOffsets,
    rows_max: int,
    name_of: Callable[[TopicPartition], str],
    *,
    in_lines: bool,
) -> Table:
    """Return the table. Its bars shrink first if it is too wide; with `in_lines`, each row takes one line."""
    rows = offsets.partitions
    cut: Any = {"no_wrap": True} if in_lines else {"overflow": "fold"}
    maps = not in_lines and any(
        row.metadata not in (MetadataKind.NONE, MetadataKind.OURS) for row in rows
    )
    title = f"group {offsets.group_id}: progress in {_PLACES[offsets.format]}"
    table = new_table(title, footer=len(rows) > 1)
    add_columns(table, ("partition", f"total of {len(rows):,}"), **cut)
    table.add_column("log" if in_lines else "from log start to end")
    counts: dict[str, list[int | None]] = {
        # Offsets of different logs have no meaningful sum.
        "committed": [row.committed for row in rows],
        "end": [row.end_offset for row in rows],
        "lag": [row.lag for row in rows],
        "done beyond": [row.done_beyond for row in rows],
        "claimed": [row.claimed.count for row in rows],
    }
    if offsets.format is None:
        del counts["claimed"]
    for name, values in counts.items():
        total = sum(value or 0 for value in values) if name not in ("committed", "end") else None
        add_columns(table, (f">{name}", "" if total is None else f"{total:,}"), **cut)
    if maps:
        table.add_column("metadata", **cut)
    for number in islice(_by_need(rows, rows_max), rows_max):
        row = rows[number]
        table.add_row(
            name_of(row.tp),
            _Bar(row),
            *(number_text(values[number]) for values in counts.values()),
            *([row.metadata.value] if maps else []),
        )
    return caption_more(table, len(rows), rows_max)


def before_json(partitions: Sequence[OffsetsBefore]) -> dict[str, Any]:
    """Return offsets before a time as JSON."""
    return {
        "partitions": [
            {
                "topic": part.tp.topic,
                "partition": part.tp.partition,
                "log_start": part.log_start,
                "end": part.end_offset,
                "offsets": [
                    {
                        "time": None if entry.time_ms is None else time_text(entry.time_ms),
                        "offset": entry.offset,
                    }
                    for entry in part.offsets
                ],
            }
            for part in partitions
        ]
    }


def before_table(partitions: Sequence[OffsetsBefore]) -> Table:
    """Return a row for each offset before a time."""
    table = new_table(None, "partition", "time", ">offset", ">offsets to the end")
    rows = [(part, entry) for part in partitions for entry in part.offsets]
    for part, entry in rows[:_ROWS_SHOWN]:
        to_end = max(part.end_offset - entry.offset, 0)
        table.add_row(
            str(part.tp),
            NOTHING if entry.time_ms is None else time_text(entry.time_ms),
            f"{entry.offset:,}",
            f"{to_end:,}",
        )
    return caption_more(table, len(rows), _ROWS_SHOWN, "offsets")


class OffsetsBoard:
    """A display that is overwritten with a group's offsets, and the newest failure below them."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._last: GroupOffsets | None = None
        board.show(Text("reading offsets"))

    def show(self, offsets: GroupOffsets, now_ms: int) -> None:
        """Show the offsets as of now."""
        self._last = offsets
        self._show(Text(f"{offsets.lag:,} offsets behind; read at {time_text(now_ms)}"))

    def fail(self, message: str) -> None:
        """Show the last offsets and the failure."""
        self._show(Text(f"no answer, reading again: {message}", "red"))

    def _show(self, line: Text) -> None:
        # One line: the display cannot overwrite more than fits the terminal.
        line.no_wrap, line.overflow = True, "ellipsis"
        rows_max = max(self._board.lines - _LINES_AROUND, 1)
        if self._last is None:
            self._board.show(line)
        else:
            table = _table(self._last, rows_max, _short, in_lines=True)
            self._board.show(table, _Legend(), line)


class _Bar:
    """A partition's log as cells, in ASCII on a terminal without Unicode."""

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
    done, claimed = (
        np.diff(_below(offset_set, edges)) for offset_set in (offsets.done, offsets.claimed)
    )
    bar = []
    for size, finished, held in zip(
        *(column.tolist() for column in (sizes, done, claimed)), strict=True
    ):
        if finished == size:
            bar.append(_DONE)
        elif held:
            bar.append(_CLAIMED)
        else:
            bar.append(_PARTLY if finished else _MISSING)
    return bar


def _below(offsets: OffsetSet, edges: Int64Array) -> Int64Array:
    """Return how many offsets of a set are below each edge."""
    bounds = offsets.bounds
    starts, ends = bounds[:, 0], bounds[:, 1]
    sums = np.concatenate(([0], np.cumsum(ends - starts)))
    # Ranges that begin below the edge, less the part of the last one beyond it.
    at = np.searchsorted(starts, edges, side="left")
    last = np.concatenate(([0], ends))[at]
    below: Int64Array = sums[at] - np.maximum(last - edges, 0)
    return below


def _short(tp: TopicPartition) -> str:
    return shortened(str(tp), _NAME_LENGTH)


def _by_need(rows: Sequence[PartitionOffsets], rows_max: int) -> Sequence[int]:
    """Return the numbers of the rows: by name, or by lag if not all fit."""
    if len(rows) <= rows_max:
        return range(len(rows))
    return sorted(range(len(rows)), key=lambda number: -rows[number].lag)


def reset_table(reset: OffsetReset) -> Table:
    """Return the offsets of each partition before and after; the sums count all partitions."""
    rows = reset.partitions
    table = new_table(
        None,
        ("partition", f"total of {len(rows):,}"),
        ">from",
        ">to",
        (">skipped", f"{sum(row.skipped for row in rows):,}"),
        (">repeated", f"{sum(row.repeated for row in rows):,}"),
        footer=True,
    )
    for row in rows[:PARTITIONS_SHOWN]:
        numbers = (row.before, row.after, row.skipped, row.repeated)
        table.add_row(str(row.tp), *map(number_text, numbers))
    return caption_more(table, len(rows), PARTITIONS_SHOWN)


def migration_table(migration: Migration) -> Table:
    """Return the commit of each partition."""
    rows = migration.partitions
    table = new_table(
        f"from {migration.before} to {migration.after}",
        ("partition", f"total of {len(rows):,}"),
        ">committed",
        ">to commit",
        (">done beyond", f"{sum(row.done.count for row in rows):,}"),
        (">taken over", f"{sum(row.gained.count for row in rows):,}"),
        ">bytes",
        footer=True,
    )
    for row in rows[:PARTITIONS_SHOWN]:
        numbers = (row.base_before, row.base, row.done.count, row.gained.count, row.size_bytes)
        table.add_row(str(row.tp), *map(number_text, numbers))
    return caption_more(table, len(rows), PARTITIONS_SHOWN)
