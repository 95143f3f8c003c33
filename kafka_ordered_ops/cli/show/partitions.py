"""The partitions of an ordered read, as a table that is refreshed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from rich import box
from rich.table import Table
from rich.text import Text

from kafka_ordered_ops.cli.show.layout import NOTHING, shortened
from kafka_ordered_ops.cli.show.terminal import Board
from kafka_ordered_ops.core.times import time_text
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.ordered.ordered_reader import OrderedReader

#: Time between two refreshes. With thousands of partitions a refresh is slow, and gets a share of the time. The maximum
#: prevents that one slow refresh stops the display.
_EVERY_S: Final = 0.25
_EVERY_S_MAX: Final = 2.0
_SHARE: Final = 0.1

#: The time over which rates are computed.
_RATE_S: Final = 5.0

#: Lines besides partitions: title, heads, rule, total, caption, and the blank ones around.
_LINES_AROUND: Final = 8

#: On a narrower terminal, columns that follow from others are left out. 80 characters are usual.
_WIDE: Final = 110

#: Characters of a name in a line of the table.
_NAME_LENGTH: Final = 40
_NAME_LENGTH_NARROW: Final = 16


class PartitionsBoard:
    """A display of a reader's state, refreshed several times a second."""

    def __init__(self, board: Board, what: str, *, follow: bool) -> None:
        self._board, self._what = board, what
        self._read_word = "live" if follow else "read"
        self._next_s = 0.0
        #: Samples: the time, the positions, and the number of records written.
        self._past: deque[tuple[float, dict[TopicPartition, int], int]] = deque()
        board.show(Text(f"{what}: looking for partitions"))

    def show(self, reader: OrderedReader, records: int) -> None:
        """Show the state, unless the last refresh is recent."""
        begun = time.monotonic()
        if begun < self._next_s:
            return
        rows = _rows(reader.state())
        rates, pace = self._rates(begun, rows, records)
        rows_max = max(self._board.lines - _LINES_AROUND, 1)
        is_wide = self._board.width >= _WIDE
        table = _table(rows, rates, rows_max, self._read_word, is_wide=is_wide)
        title = f"{records:,} records written, {pace:,.0f}/s: {self._what}"
        # One line: the display cannot overwrite more than fits the terminal.
        table.title = Text(title, "italic", no_wrap=True, overflow="ellipsis")
        self._board.show(table)
        now = time.monotonic()
        self._next_s = now + min(max(_EVERY_S, (now - begun) / _SHARE), _EVERY_S_MAX)

    def _rates(
        self, now: float, rows: Sequence[dict[str, Any]], records: int
    ) -> tuple[dict[TopicPartition, float], float]:
        """Return the offsets per second of each partition, and the records written per second."""
        positions = {_tp(row): row["position"] for row in rows}
        self._past.append((now, positions, records))
        while len(self._past) > 2 and now - self._past[1][0] >= _RATE_S:
            self._past.popleft()
        then, before, records_before = self._past[0]
        seconds = max(now - then, _EVERY_S)
        rates = {
            tp: (position - before.get(tp, position)) / seconds
            for tp, position in positions.items()
        }
        return rates, (records - records_before) / seconds


def _table(
    rows: Sequence[dict[str, Any]],
    rates: dict[TopicPartition, float],
    rows_max: int,
    read_word: str,
    *,
    is_wide: bool,
) -> Table:
    table = Table(
        title_justify="left",
        caption=_caption(rows, rows_max, is_wide=is_wide),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1) if is_wide else (0, 1, 0, 0),
        show_footer=len(rows) > 1,
    )
    late = sum(row["late"] for row in rows)
    ends = ["end"] if is_wide else []
    counts = ("position", *ends, "lag", "held", *(["late"] if late else []))
    table.add_column("partition", f"total of {len(rows):,}", no_wrap=True)
    for name in counts:
        # Offsets of different logs have no meaningful sum.
        total = "" if name in ("position", "end") else f"{sum(row[name] for row in rows):,}"
        table.add_column(name, total, justify="right", no_wrap=True)
    if is_wide:
        table.add_column("offsets/s", f"{sum(rates.values()):,.0f}", justify="right", no_wrap=True)
    table.add_column("last time", _time(_last(rows), is_wide=is_wide), no_wrap=True)
    table.add_column("state", f"{sum(row['live'] for row in rows):,} {read_word}", no_wrap=True)
    for row in _by_need(rows, rows_max)[:rows_max]:
        table.add_row(
            _name(row, is_wide=is_wide),
            *(f"{row[name]:,}" for name in counts),
            *([f"{rates[_tp(row)]:,.0f}"] if is_wide else []),
            _time(row["timestamp"], is_wide=is_wide),
            _state(row, read_word),
        )
    return table


def _caption(rows: Sequence[dict[str, Any]], rows_max: int, *, is_wide: bool) -> str | None:
    held = sum(row["held"] for row in rows)
    lines = [
        f"{held - row['held']:,} records wait for {_name(row, is_wide=is_wide)}"
        for row in rows
        if row["holds_back"]
    ][:1]
    if (more := len(rows) - rows_max) > 0:
        lines.append(f"and {more:,} more partitions")
    return "; ".join(lines) or None


def _by_need(rows: Sequence[dict[str, Any]], rows_max: int) -> Sequence[dict[str, Any]]:
    """Return the rows by name; if not all fit, those first that hold others back or lag most."""
    if len(rows) <= rows_max:
        return rows
    return sorted(rows, key=lambda row: (not row["holds_back"], -row["lag"], -row["held"]))


def _state(row: dict[str, Any], read_word: str) -> Text:
    if row["holds_back"]:
        return Text("holds back", "red")
    return Text(read_word, "green") if row["live"] else Text("reading", "yellow")


def _last(rows: Sequence[dict[str, Any]]) -> Any:
    return max((row["timestamp"] for row in rows if row["timestamp"] is not None), default=None)


def _rows(state: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the partitions; times in ms, as Python's end at the year 9999."""
    place = state.schema.get_field_index("timestamp")
    times: Any = state.column(place)
    rows: list[dict[str, Any]] = state.set_column(
        place, "timestamp", times.view(pa.int64())
    ).to_pylist()
    return rows


def _tp(row: dict[str, Any]) -> TopicPartition:
    return TopicPartition(row["topic"], row["partition"])


def _name(row: dict[str, Any], *, is_wide: bool) -> str:
    return shortened(str(_tp(row)), _NAME_LENGTH if is_wide else _NAME_LENGTH_NARROW)


def _time(timestamp_ms: int | None, *, is_wide: bool) -> str:
    if timestamp_ms is None:
        return NOTHING
    return time_text(timestamp_ms if is_wide else timestamp_ms // 1000 * 1000)
