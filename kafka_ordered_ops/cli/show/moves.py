"""Moved and migrated offsets of a group as tables."""

from __future__ import annotations

from typing import Final

from rich import box
from rich.table import Table

from kafka_ordered_ops.core.group.decisions.migrating import Migration
from kafka_ordered_ops.core.group.decisions.resetting import OffsetReset

#: Partitions shown; --json has all.
_PARTITIONS_SHOWN: Final = 200

_NOTHING: Final = "-"


def reset_table(found: OffsetReset) -> Table:
    """Return where each partition goes; the sums count all partitions."""
    rows = found.partitions
    table = _table(None)
    table.add_column("partition", f"total of {len(rows):,}", overflow="fold")
    for name in ("from", "to"):
        table.add_column(name, justify="right", overflow="fold")
    table.add_column(
        "skipped", f"{sum(one.skipped for one in rows):,}", justify="right", overflow="fold"
    )
    table.add_column(
        "repeated", f"{sum(one.repeated for one in rows):,}", justify="right", overflow="fold"
    )
    for one in rows[:_PARTITIONS_SHOWN]:
        numbers = (one.before, one.after, one.skipped, one.repeated)
        table.add_row(str(one.tp), *map(_number, numbers))
    return _captioned(table, len(rows))


def migration_table(found: Migration) -> Table:
    """Return what is committed for each partition."""
    rows = found.partitions
    table = _table(f"from {found.before} to {found.after}")
    table.add_column("partition", f"total of {len(rows):,}", overflow="fold")
    for name in ("committed", "to commit"):
        table.add_column(name, justify="right", overflow="fold")
    table.add_column(
        "done beyond", f"{sum(one.done.count for one in rows):,}", justify="right", overflow="fold"
    )
    table.add_column(
        "taken over", f"{sum(one.gained.count for one in rows):,}", justify="right", overflow="fold"
    )
    table.add_column("bytes", justify="right", overflow="fold")
    for one in rows[:_PARTITIONS_SHOWN]:
        numbers = (one.base_before, one.base, one.done.count, one.gained.count, one.size_bytes)
        table.add_row(str(one.tp), *map(_number, numbers))
    return _captioned(table, len(rows))


def _table(title: str | None) -> Table:
    return Table(
        title=title,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_footer=True,
    )


def _captioned(table: Table, rows: int) -> Table:
    if (more := rows - _PARTITIONS_SHOWN) > 0:
        table.caption = f"and {more:,} more partitions; --json shows them all"
    return table


def _number(value: int | None) -> str:
    return _NOTHING if value is None else f"{value:,}"
