"""Partitions that have not ended: taken in pieces, each up to the present, until the partition is complete.

A piece is a separate window: it asks for the partition's time so far, and takes the records that earlier pieces have
not. The window with the partition's own id asks for all of it, once it has ended. Records that are late for a piece
are therefore in the next one, and a complete partition has all of its records.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from dagster import MetadataValue

from kafka_ordered_ops.core.times import time_ms, time_text
from kafka_ordered_ops.dagster.metadata.results import total_of
from kafka_ordered_ops.dagster.settings import WindowSettings
from kafka_ordered_ops.dagster.step.times import Asked
from kafka_ordered_ops.hosting.verdict import is_finished
from kafka_ordered_ops.hosting.window_spec import span_of
from kafka_ordered_ops.output.writing.reported import result_facts
from kafka_ordered_ops.output.writing.staged_output import output_of

if TYPE_CHECKING:
    from kafka_ordered_ops.core.group.group_state import WindowRecord
    from kafka_ordered_ops.windows import OrderedWindows

#: The id of a piece: the id of its partition's window, and its cutoff.
_PIECE: Final = re.compile(r"(.+)@\d{4,}-\d\d-\d\dT[\d:.]+Z")


@dataclass(frozen=True)
class Pieces:
    """The windows of a step whose partitions may have pieces."""

    #: Windows to deliver, by cutoff: those of the step, and open pieces of earlier runs.
    asked: Sequence[Asked]
    #: By partition: pieces that were delivered before and are not delivered again.
    done: Mapping[str, Sequence[WindowRecord]] = field(default_factory=dict)


def piece_of(whole: Asked, settings: WindowSettings, began: datetime) -> Asked:
    """Return the piece of a partition that a run takes; all of it if it has ended, has not begun, or allows no pieces.

    Args:
        whole: the partition's own window.
        settings: the asset's.
        began: the start of the run, or of the run that it continues: the same for every attempt.
    """
    since, lag = whole.window.since, span_of(settings.open_lag, "open_lag")
    # Once it has ended it is taken as a whole. No run must ask again: later records are late.
    if since is None or lag is None or began >= whole.window.cutoff or began - lag <= since:
        return whole
    present = began - lag
    name = f"{whole.window_id}@{time_text(time_ms(present, what='present'))}"
    return Asked(name, settings.window(present, since), whole.partition_key, is_over=False)


def with_pieces(
    windows: OrderedWindows, asked: Sequence[Asked], settings: WindowSettings
) -> Pieces:
    """Add the pieces of the step's partitions that earlier runs have planned.

    Open pieces are delivered with the step, because they hold records of the partition. Finished pieces are read
    again only together with a partition that is complete already.
    """
    keys = {_whole_id(one.window_id): one.partition_key for one in asked}
    found = windows.list(lambda record: _whole_id(record.plan.window_id) in keys)
    whole = {one.plan.window_id for one in found if one.status.is_done}
    new = {one.window_id for one in asked}
    added: list[Asked] = []
    done: dict[str, list[WindowRecord]] = {}
    for record in found:
        name, times = record.plan.window_id, record.plan.window
        whole_id = _whole_id(name)
        key = keys[whole_id]
        if name == whole_id or name in new or key is None:
            continue
        if record.status.is_open or (
            record.status.is_done
            and (whole_id in whole or not is_finished(record.plan, record.result))
        ):
            again = settings.window(times.cutoff, times.since)
            added.append(Asked(name, again, key, is_over=False))
        elif record.status.is_done:
            done.setdefault(key, []).append(record)
    return Pieces(sorted([*asked, *added], key=lambda one: one.window.cutoff_ms), done)


def pieces_metadata(records: Sequence[WindowRecord]) -> dict[str, Any]:
    """Return the metadata of a partition from its delivered windows."""
    rows = total_of(_count(record) for record in records)
    outputs = [
        output
        for record in records
        if (output := output_of(record.result, record.plan)) is not None
    ]
    found: dict[str, Any] = {
        "kafka_ordered_ops/complete": any(_is_whole(record) for record in records),
        "kafka_ordered_ops/pieces": len(records),
    }
    if rows is not None:
        found["dagster/partition_row_count"] = rows
    if len(outputs) > 1:
        folders = [output.final_path for output in outputs]
        found["kafka_ordered_ops/folders"] = MetadataValue.json(folders)
    return found


def _is_whole(record: WindowRecord) -> bool:
    return record.plan.window_id == _whole_id(record.plan.window_id)


def _whole_id(window_id: str) -> str:
    """Return the id of the partition's own window; this one may be a piece of it."""
    found = _PIECE.fullmatch(window_id)
    return window_id if found is None else found[1]


def _count(record: WindowRecord) -> int | None:
    if not record.plan.offsets:
        return 0
    count = result_facts(record.result).get("records")
    return count if isinstance(count, int) else None
