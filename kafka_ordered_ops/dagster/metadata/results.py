"""Dagster's metadata of delivered windows."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from dagster import (
    DataVersion,
    MarkdownMetadataValue,
    MetadataValue,
)

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.window.plan import ranges_to_json
from kafka_ordered_ops.dagster.metadata.tables import held_table, ranges_table
from kafka_ordered_ops.delivery.summary import window_summary
from kafka_ordered_ops.output.writing.reported import result_facts
from kafka_ordered_ops.spec.table import table_of

if TYPE_CHECKING:
    from kafka_ordered_ops.core.group.group_state import WindowRecord

#: Windows of a step with pictures: each takes half a second, and some 6 kB of Dagster's event log, a database.
PICTURES_MAX: Final = 20

_PREFIX: Final = "kafka_ordered_ops"
#: Keys of a window's summary that are shown under the same name.
_SHOWN: Final = (
    "window_id",
    "status",
    "content",
    "since",
    "cutoff",
    "offsets",
    "late",
    "dead_letters",
    "dead_letters_to",
    "discarded",
    "discarded_fields",
    "out_of_order",
)


def window_metadata(
    record: WindowRecord,
    *,
    ran: bool,
    is_partition: bool,
    picture: MarkdownMetadataValue | None = None,
) -> dict[str, Any]:
    """Return the metadata of one window: the sink's counts, its picture, times and ranges."""
    plan, summary = record.plan, window_summary(record)
    rows = "dagster/partition_row_count" if is_partition else "dagster/row_count"
    metadata: dict[str, Any] = {
        rows: summary["records"],
        f"{_PREFIX}/picture": picture,
        **{f"{_PREFIX}/{name}": summary[name] for name in _SHOWN if name in summary},
        f"{_PREFIX}/first_record": summary["timestamp_min"],
        f"{_PREFIX}/last_record": summary["timestamp_max"],
        f"{_PREFIX}/ran": ran,
        "dagster/table_name": (table := table_of(record.result)),
        "dagster/uri": summary["output"] if table is None else None,
        f"{_PREFIX}/ranges": ranges_table(plan),
        f"{_PREFIX}/held_by_open": held_table([plan]) if plan.held_by_open else None,
        f"{_PREFIX}/returned": None
        if summary["result"] is None
        else MetadataValue.json(summary["result"]),
    }
    return {name: value for name, value in metadata.items() if value is not None}


def pictures_of(
    records: Sequence[WindowRecord], warn: Callable[..., None]
) -> dict[str, MarkdownMetadataValue]:
    """Return the pictures of windows that took any offsets, by id, from their plans; none without matplotlib.

    A step with more than `PICTURES_MAX` windows has none. No error is raised: the windows are committed, and a missing
    picture must not fail the step. Dagster's page shows a link instead of Markdown of more than 1,000 characters.

    Args:
        records: the windows' records in the ledger.
        warn: called with the reason for a missing picture, like a logger's method.
    """
    # Imported late: definitions need no plots.
    from kafka_ordered_ops.delivery import plots

    drawn = [record.plan for record in records if record.plan.taken]
    if len(drawn) > PICTURES_MAX or not plots.is_installed():
        return {}
    pictures = {}
    for plan in drawn:
        try:
            png = base64.b64encode(plots.small_plot(plan)).decode()
            pictures[plan.window_id] = MetadataValue.md(f"![Window](data:image/png;base64,{png})")
        except Exception as error:  # noqa: BLE001 - as above
            warn("Window %s has no picture: %s: %s", plan.window_id, type(error).__name__, error)
    return pictures


def common_metadata(
    records: Sequence[WindowRecord], seconds: float, lag: int | None
) -> dict[str, Any]:
    """Return the metadata of a whole step."""
    records_total = total_of(result_facts(record.result).get("records") for record in records)
    metadata: dict[str, Any] = {
        f"{_PREFIX}/windows": len(records),
        f"{_PREFIX}/group": records[0].plan.group_id,
        f"{_PREFIX}/seconds": round(seconds, 3),
    }
    if lag is not None:
        metadata[f"{_PREFIX}/lag_offsets"] = lag
    if records_total is not None:
        metadata[f"{_PREFIX}/records_in_all"] = records_total
        metadata[f"{_PREFIX}/records_per_s"] = round(records_total / max(seconds, 0.001), 1)
    return metadata


def total_of(counts: Iterable[int | None]) -> int | None:
    """Return the sum of the counts; None if one of them is unknown."""
    known = list(counts)
    return None if None in known else sum(count for count in known if count is not None)


def data_version_of(records: Sequence[WindowRecord]) -> DataVersion:
    """Return a step's data version: the same for the same offsets of the same windows, whenever they are delivered."""
    every = {
        record.plan.window_id: {
            f"{part.topic_id}/{part.tp.partition}": ranges_to_json(part.taken)
            for part in record.plan
        }
        for record in records
    }
    return DataVersion(hashlib.sha256(strict_json.dumps(every).encode()).hexdigest()[:32])
