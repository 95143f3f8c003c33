"""The layout that all tables share: headings, numbers, shortened names, and rows left out."""

from __future__ import annotations

from typing import Any, Final

from rich import box
from rich.table import Table

#: Partitions shown in a table; --json has all.
PARTITIONS_SHOWN: Final = 200

#: An empty cell.
NOTHING: Final = "-"


def new_table(title: str | None, *columns: str | tuple[str, str], footer: bool = False) -> Table:
    """Return a table; see `add_columns` for its columns."""
    table = Table(
        title=title,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_footer=footer,
    )
    add_columns(table, *columns)
    return table


def add_columns(table: Table, *columns: str | tuple[str, str], **options: Any) -> None:
    """Add columns by their names, or as pairs of name and footer; columns named ``>...`` hold numbers."""
    for column in columns:
        name, footer = (column, "") if isinstance(column, str) else column
        side: Any = "right" if name.startswith(">") else "left"
        fold: Any = options or {"overflow": "fold"}
        table.add_column(name.removeprefix(">"), footer, justify=side, **fold)


def caption_more(table: Table, rows: int, rows_max: int, noun: str = "partitions") -> Table:
    """Return the table with a caption that counts the rows beyond `rows_max`, if there are any."""
    if rows > rows_max:
        table.caption = f"and {rows - rows_max:,} more {noun}; --json shows them all"
    return table


def number_text(value: int | None) -> str:
    """Return a number as text."""
    return NOTHING if value is None else f"{value:,}"


def shortened(name: str, length: int) -> str:
    """Return a name that fits a line; a long one without its middle, so that the number of a partition stays."""
    half = length // 2
    return name if len(name) <= length else f"{name[:half]}…{name[-half:]}"
