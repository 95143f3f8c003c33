"""A window shared among several tasks: cut by weight, reported part by part, committed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.arguments import check_count
from kafka_ordered_ops.core.errors import ConfigError, SinkError, WindowMismatchError
from kafka_ordered_ops.core.group.checks import known_state, owned
from kafka_ordered_ops.core.group.group_state import (
    Change,
    GroupView,
    PartReports,
    WindowRecord,
    next_state,
)
from kafka_ordered_ops.core.group.transitions import Outcome
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.core.window.plan import PARTS_MAX, PartitionPlan, PlanPart, WindowPlan

#: The limit of all reports of a window's parts, as JSON. The complete record holds them twice, and the plan: together
#: less than the limit of a record.
REPORTS_BYTES_MAX: Final = 20 * 1024 * 1024


def shares(plan: WindowPlan, count: int) -> tuple[WindowPlan, ...]:
    """Return the plan as `count` plans of about equal weight: contiguous runs of its offsets, partition after partition.

    The same plan and count give the same shares. Some are empty where there are fewer offsets than shares.

    Raises:
        ConfigError: not between 1 and `PARTS_MAX`, or a share of a share.
    """
    check_count(count, what="the number of parts", least=1, greatest=PARTS_MAX)
    if plan.part is not None:
        raise ConfigError(f"window {plan.window_id}: {plan.part} cannot be split again")
    edges = [plan.offsets * n // count for n in range(count + 1)]
    starts = list(accumulate((part.taken.count for part in plan), initial=0))
    return tuple(
        replace(
            plan,
            partitions=tuple(_cut(plan.partitions, starts, low, high)),
            part=PlanPart(index, count),
        )
        for index, (low, high) in enumerate(pairwise(edges))
    )


def _cut(
    parts: Sequence[PartitionPlan], starts: Sequence[int], low: int, high: int
) -> list[PartitionPlan]:
    """Return the plan's offsets number `low` to `high`, counted through."""
    cut = []
    for part, start in zip(parts, starts[:-1], strict=True):
        # Lost offsets belong to no part.
        taken = _numbered(part.taken, low - start, high - start)
        if taken:
            cut.append(
                replace(
                    part, taken=taken, lost=EMPTY_SET, lost_untimed=EMPTY_SET, earlier=EMPTY_SET
                )
            )
    return cut


def _numbered(offsets: OffsetSet, low: int, high: int) -> OffsetSet:
    """Return a set's offsets number `low` to `high`, counted from its lowest."""
    low, high = max(low, 0), min(high, offsets.count)
    if low >= high:
        return EMPTY_SET
    bounds = offsets.bounds
    before = np.cumsum(bounds[:, 1] - bounds[:, 0])
    first, last = np.searchsorted(before, [low, high - 1], side="right")
    start = int(bounds[first, 1] - (before[first] - low))
    end = int(bounds[last, 1] - (before[last] - high))
    return offsets & OffsetSet.of((start, end))


def split(view: GroupView, plan: WindowPlan, count: int, *, now_ms: int) -> Outcome:
    """Write down into how many parts a window is split; from now on it commits when all have reported.

    Raises:
        UnknownWindowError, WindowSupersededError
        WindowMismatchError: this attempt was split into another number of parts.
    """
    record = owned(view, plan)
    if record.status is not WindowStatus.PLANNED:
        return record
    if record.parts is not None:
        if record.parts.count == count:
            return record
        raise WindowMismatchError(
            f"window {plan.window_id} of group {plan.group_id}, attempt {plan.attempt}, was split into "
            f"{record.parts.count} parts, not into {count}: plan it again to split it differently",
            window_id=plan.window_id,
            differences={"parts": (record.parts.count, count)},
        )
    return Change(
        state=next_state(known_state(view)),
        records=(replace(record, parts=PartReports(count), touched_at_ms=now_ms),),
    )


def report(view: GroupView, plan: WindowPlan, result: Any, *, now_ms: int) -> Outcome:
    """Record that one part is delivered; with the last part, the window is written.

    The first report of a part counts: another attempt of the same part gets the first report.

    Raises:
        UnknownWindowError, WindowSupersededError
        SinkError: the reports of all parts together are too long.
        WindowMismatchError: the window was not split like that.
    """
    part = plan.part
    if part is None:
        raise ConfigError(
            f"window {plan.window_id}: only a part of a split window reports; commit the whole"
        )
    record = owned(view, plan)
    parts = waiting_parts(record, plan)
    if parts is None:
        return record
    parts = replace(parts, results={**parts.results, part.index: result})
    _check_reports(plan, parts)
    record = replace(record, parts=parts, touched_at_ms=now_ms)
    if not parts.missing:
        written = replace(record.plan, status=WindowStatus.WRITTEN)
        in_order = [parts.results[index] for index in range(parts.count)]
        record = replace(record, plan=written, result={"parts": in_order})
    return Change(state=next_state(known_state(view)), records=(record,))


def waiting_parts(record: WindowRecord, part: WindowPlan) -> PartReports | None:
    """Return the reports of a split window that waits for one of its parts; None if it does not any more.

    Raises:
        WindowMismatchError: the window was not split like that.
    """
    if record.status is not WindowStatus.PLANNED:
        # At most the commit remains: the existing report counts.
        return None
    parts, mine = record.parts, part.part
    if parts is None or mine is None or parts.count != mine.count:
        raise WindowMismatchError(
            f"window {part.window_id} of group {part.group_id}: {mine} reports, and the ledger knows of "
            f"{'no' if parts is None else parts.count} parts: split the plan before its parts are run",
            window_id=part.window_id,
            differences={
                "parts": (
                    None if parts is None else parts.count,
                    None if mine is None else mine.count,
                )
            },
        )
    return None if mine.index in parts.results else parts


def _check_reports(plan: WindowPlan, parts: PartReports) -> None:
    """Raise `SinkError` where the parts of a window have reported more than its record can hold."""
    size = sum(len(strict_json.dumps(report).encode()) for report in parts.results.values())
    if size > REPORTS_BYTES_MAX:
        raise SinkError(
            f"window {plan.window_id} of group {plan.group_id}: with this report of {plan.part}, {len(parts.results):,} of "
            f"its {parts.count:,} parts have reported {size:,} bytes, and all of them may report {REPORTS_BYTES_MAX:,}: "
            "report the place of a list of files instead of the list, or abandon the window and plan smaller ones. "
            "Nothing was written",
            window_id=plan.window_id,
        )
