"""Partitions that have not ended: taken in pieces, each up to the present, until the partition is complete.

A piece is a separate window: it covers the partition's time so far, and takes the records that earlier pieces have
not taken. The window with the partition's own id covers the whole partition, once it has ended. Records that are late
for a piece are therefore in the next piece, and a complete partition has all of its records.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from dagster import MetadataValue

from kafka_ordered_ops.core.times import time_at, time_ms, time_text
from kafka_ordered_ops.dagster.metadata.results import total_of
from kafka_ordered_ops.dagster.settings import WindowSettings
from kafka_ordered_ops.dagster.step.times import StepWindow
from kafka_ordered_ops.delivery.verdict import is_finished
from kafka_ordered_ops.output.writing.reported import result_facts
from kafka_ordered_ops.output.writing.staged_output import output_of
from kafka_ordered_ops.spec.asked import span_of

if TYPE_CHECKING:
    from kafka_ordered_ops.core.group.group_state import WindowRecord
    from kafka_ordered_ops.windows import OrderedWindows

#: The id of a piece: the id of its partition's window, and its cutoff.
_PIECE: Final = re.compile(r"(.+)@\d{4,}-\d\d-\d\dT[\d.-]+Z")


@dataclass(frozen=True)
class Pieces:
    """The windows of a step whose partitions may have pieces."""

    #: Windows to deliver, by cutoff: those of the step, and open pieces of earlier runs.
    step_windows: Sequence[StepWindow]
    #: By partition: pieces of earlier runs that are not delivered again.
    done: Mapping[str, Sequence[WindowRecord]] = field(default_factory=dict)


def piece_of(whole: StepWindow, settings: WindowSettings, began: datetime) -> StepWindow:
    """Return the piece of a partition that a run takes: the whole partition if it has ended, has not begun, or allows no pieces.

    Args:
        whole: the partition's own window.
        settings: the asset's settings.
        began: the start of the run, or of the run that it continues: the same for every attempt.
    """
    since, lag = whole.window.since, span_of(settings.open_lag, "open_lag")
    # A partition that has ended is taken as a whole, and no later run is needed: later records are late.
    ends = time_at(whole.window.cutoff_ms)
    if since is None or lag is None or began >= ends or began - lag <= since:
        return whole
    present = began - lag
    moment = time_text(time_ms(present, what="present")).replace(":", "-")
    name = f"{whole.window_id}@{moment}"
    return StepWindow(
        name, settings.untimed_window.at(present, since), whole.partition_key, is_over=False
    )


def with_pieces(
    windows: OrderedWindows, step_windows: Sequence[StepWindow], settings: WindowSettings
) -> Pieces:
    """Add the pieces of the step's partitions that earlier runs have planned.

    Open pieces are delivered with the step, because they hold records of the partition. Finished pieces are read
    again only together with a partition that is complete already.
    """
    keys = {
        _whole_id(step_window.window_id): step_window.partition_key for step_window in step_windows
    }
    records = windows.list(lambda record: _whole_id(record.plan.window_id) in keys)
    whole = {record.plan.window_id for record in records if record.status.is_done}
    new = {step_window.window_id for step_window in step_windows}
    added: list[StepWindow] = []
    done: dict[str, list[WindowRecord]] = {}
    for record in records:
        name, times = record.plan.window_id, record.plan.window
        whole_id = _whole_id(name)
        key = keys[whole_id]
        if name == whole_id or name in new or key is None:
            continue
        if record.status.is_open or (
            record.status.is_done
            and (whole_id in whole or not is_finished(record.plan, record.result))
        ):
            again = settings.untimed_window.at(time_at(times.cutoff_ms), times.since)
            added.append(StepWindow(name, again, key, is_over=False))
        elif record.status.is_done:
            done.setdefault(key, []).append(record)
    return Pieces(
        sorted([*step_windows, *added], key=lambda step_window: step_window.window.cutoff_ms), done
    )


def pieces_metadata(records: Sequence[WindowRecord]) -> dict[str, Any]:
    """Return the metadata of a partition from its delivered windows."""
    rows = total_of(_count(record) for record in records)
    outputs = [
        output
        for record in records
        if (output := output_of(record.result, record.plan)) is not None
    ]
    metadata: dict[str, Any] = {
        "kafka_ordered_ops/complete": any(_is_whole(record) for record in records),
        "kafka_ordered_ops/pieces": len(records),
    }
    if rows is not None:
        metadata["dagster/partition_row_count"] = rows
    if len(outputs) > 1:
        folders = [output.final_path for output in outputs]
        metadata["kafka_ordered_ops/folders"] = MetadataValue.json(folders)
    return metadata


def _is_whole(record: WindowRecord) -> bool:
    return record.plan.window_id == _whole_id(record.plan.window_id)


def _whole_id(window_id: str) -> str:
    """Return the id of the partition's own window, from its id or the id of a piece."""
    match = _PIECE.fullmatch(window_id)
    return window_id if match is None else match[1]


def _count(record: WindowRecord) -> int | None:
    if not record.plan.offsets:
        return 0
    count = result_facts(record.result).get("records")
    return count if isinstance(count, int) else None
