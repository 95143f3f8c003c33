"""Tables in Dagster's metadata: of partitions, ranges and windows, with a limit of rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from dagster import MetadataValue, TableColumn, TableRecord, TableSchema

from kafka_ordered_ops.delivery.summary import held_facts

if TYPE_CHECKING:
    from kafka_ordered_ops.core.liveness.liveness import Liveness
    from kafka_ordered_ops.core.window.plan import WindowPlan

#: Rows of a table: a topic may have thousands of partitions.
ROWS_MAX: Final = 200

_RANGES: Final = ("topic", "partition", "from", "up_to", "offsets", "lost")
_HELD: Final = ("window", "held_by", "offsets", "status", "touched_at")
_LIVE: Final = ("topic", "partition", "state", "why")
#: Columns of numbers; the others are text.
_NUMBERS: Final = frozenset(
    {"partition", "from", "up_to", "offsets", "lost", "log_start", "end_offset"}
)


def table(columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> Any:
    """Return the first rows of a table."""
    types = {name: "int" if name in _NUMBERS else "string" for name in columns}
    schema = TableSchema([TableColumn(name, kind) for name, kind in types.items()])
    return MetadataValue.table([TableRecord(row) for row in islice(rows, ROWS_MAX)], schema=schema)


def held_table(plans: Iterable[WindowPlan]) -> Any:
    """Return a table of the open windows that hold records of the windows' times."""
    rows = (
        {"window": plan.window_id, "held_by": held.pop("window_id"), **held}
        for plan in plans
        for held in held_facts(plan)
    )
    return table(_HELD, rows)


def ranges_table(plan: WindowPlan) -> Any:
    """Return a table of the offsets that a window takes from each partition."""
    rows = (
        {
            "topic": part.tp.topic,
            "partition": part.tp.partition,
            "from": part.taken.first if part.taken else 0,
            "up_to": part.taken.end if part.taken else 0,
            "offsets": part.taken.count,
            "lost": part.lost.count,
        }
        for part in plan
        if part.taken or part.lost
    )
    return table(_RANGES, rows)


def partitions_table(liveness: Liveness) -> Any:
    """Return a table of topic, partition, state and reason, waiting partitions first."""
    every = sorted(liveness.partitions, key=lambda partition: partition not in liveness.waiting)
    rows = (
        {
            "topic": partition.tp.topic,
            "partition": partition.tp.partition,
            "state": partition.state.value,
            "why": str(partition.verdict),
        }
        for partition in every
    )
    return table(_LIVE, rows)
