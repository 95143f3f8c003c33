"""Plans and windows as plain JSON for programs, and the counts that tables show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka_ordered_ops.core.group.group_state import GroupState, WindowRecord
from kafka_ordered_ops.core.group.summaries import PartsSummary, WindowSummary
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.time_ranges import LateSteps
from kafka_ordered_ops.core.times import time_text
from kafka_ordered_ops.core.types import INT64_MIN, TopicPartition
from kafka_ordered_ops.core.window.plan import PartitionPlan, WindowPlan
from kafka_ordered_ops.decoding.discarded import discarded_in
from kafka_ordered_ops.delivery.summary import (
    held_facts,
    plan_summary,
    time_or_none,
    window_summary,
)
from kafka_ordered_ops.output.writing.reported import result_facts
from kafka_ordered_ops.windows.queries.group_offsets import GroupOffsets, PartitionOffsets
from kafka_ordered_ops.windows.queries.groups import GroupLook


def head_and_tail(part: PartitionPlan) -> tuple[int | None, int | None]:
    """Return the numbers of offsets before and from the first record stamped at or after the cutoff; `None` if unknown."""
    if part.head_end is None:
        return None, None
    head = part.taken.within(0, part.head_end).count
    return head, part.taken.count - head


def base_of(state: GroupState | None, tp: TopicPartition) -> int | None:
    """Return the group's committed offset of a partition; None before its first plan."""
    partition = None if state is None else state.partition(tp)
    return None if partition is None else partition.base


def counts_of(record: WindowRecord) -> dict[str, int | None]:
    """Return the sink's counts; `None` for a count that it did not report for a window with offsets."""
    counts = {**window_summary(record), "bytes": result_facts(record.result).get("bytes")}
    unknown = None if record.plan.offsets else 0
    names = ("records", "out_of_order", "late", "bytes")
    return {name: unknown if counts[name] is None else counts[name] for name in names}


def plan_facts(plan: WindowPlan) -> dict[str, Any]:
    """Return the facts that `list`, `plan` and `show` have for every window."""
    return {
        **plan_summary(plan),
        "sweep": plan.window.sweep,
        "planned_at": time_text(plan.planned_at_ms),
    }


def plan_json(
    plan: WindowPlan,
    *,
    state: GroupState | None = None,
    log_starts: Mapping[TopicPartition, int] | None = None,
) -> dict[str, Any]:
    """Return a plan as JSON; ranges are half-open pairs."""
    log_starts = log_starts or {}
    return {
        **plan_facts(plan),
        "question": plan.window.to_json(),
        "partitions": [
            {
                **_ranges(part),
                "log_start": log_starts.get(part.tp),
                "committed": base_of(state, part.tp),
                "offsets": part.taken.count,
                "head": head,
                "tail": tail,
                "late_steps": _late_steps(part.late),
            }
            for part in plan
            for head, tail in [head_and_tail(part)]
        ],
        "stepped_around": list(plan.stepped_around),
        "held_by_open": held_facts(plan),
        "notes": list(plan.notes),
    }


def record_facts(record: WindowRecord, *, now_ms: int) -> dict[str, Any]:
    """Return the facts of `windows list` from a window's whole record."""
    return summary_facts(record.plan.group_id, WindowSummary.of(record), now_ms=now_ms)


def summary_facts(group_id: str, summary: WindowSummary, *, now_ms: int) -> dict[str, Any]:
    """Return one line of `windows list`."""
    is_open = summary.status.is_open
    return {
        "window_id": summary.window_id,
        "group": group_id,
        "status": summary.status.value,
        "content": summary.content.value,
        "since": time_or_none(summary.since_ms),
        "cutoff": time_text(summary.cutoff_ms),
        "sweep": summary.sweep,
        "offsets": summary.offsets,
        "attempt": summary.attempt,
        "planned_at": time_text(summary.planned_at_ms),
        "records": summary.records,
        "parts": None if summary.parts is None else _parts(summary.parts),
        "pruned": summary.pruned,
        "committed_at": time_or_none(summary.committed_at_ms),
        "open_seconds": (now_ms - summary.planned_at_ms) / 1000 if is_open else None,
        # The age for `--claim-age`.
        "untouched_seconds": (now_ms - summary.touched_at_ms) / 1000 if is_open else None,
        "run_id": summary.run_id,
    }


def record_json(
    record: WindowRecord, *, state: GroupState | None, processed: int | None, now_ms: int
) -> dict[str, Any]:
    """Return all facts of a window in the ledger; `processed` counts the offsets that its attempts have recorded."""
    return {
        **plan_json(record.plan, state=state),
        **record_facts(record, now_ms=now_ms),
        "processed": processed,
        "result": record.result,
        # The input of `WindowPlan.from_text`.
        "plan": record.plan.to_json(),
    }


def delivery_json(record: WindowRecord, *, state: GroupState | None, ran: bool) -> dict[str, Any]:
    """Return the result of `run`."""
    plan = record.plan
    return {
        **plan_facts(plan),
        "ran": ran,
        **counts_of(record),
        **discarded_in(result_facts(record.result)),
        "seconds": seconds_of(record),
        "output": window_summary(record)["output"],
        "partitions": [{**_ranges(part), "committed": base_of(state, part.tp)} for part in plan],
        "stepped_around": list(plan.stepped_around),
        "held_by_open": held_facts(plan),
        "notes": list(plan.notes),
    }


def group_facts(look: GroupLook) -> dict[str, Any]:
    """Return one line of `groups list`; for a group that cannot be read, its name and the error."""
    state, windows = look.state, look.windows
    if state is None:
        error = None if look.error is None else look.error.message
        return {"group": look.group_id, "error": error}
    return {
        "group": look.group_id,
        **state.definition.to_json(),
        "columns": dict(state.columns),
        "windows": len(windows),
        "open_windows": len(state.open),
        "unpublished_windows": len(state.unpublished),
        "newest_cutoff": time_text(windows[-1].cutoff_ms) if windows else None,
        "error": None,
    }


def partition_facts(partition: PartitionOffsets) -> dict[str, Any]:
    """Return where a group is in a partition, and where the log is."""
    return {
        "topic": partition.tp.topic,
        "partition": partition.tp.partition,
        "committed": partition.committed,
        "log_start": partition.log_start,
        "end": partition.end_offset,
        "lag": partition.lag,
    }


def lag_facts(offsets: GroupOffsets) -> dict[str, Any]:
    """Return the result of `lag`."""
    return {
        "lag": offsets.lag,
        "partitions": [partition_facts(partition) for partition in offsets.partitions],
        "missing_topics": list(offsets.missing_topics),
    }


def seconds_of(record: WindowRecord) -> float | None:
    """Return the seconds of reading and writing."""
    elapsed_ms = result_facts(record.result).get("elapsed_ms")
    return None if elapsed_ms is None else elapsed_ms / 1000


def _parts(parts: PartsSummary) -> dict[str, Any]:
    missing = list(parts.missing)
    return {"count": parts.count, "reported": parts.count - len(missing), "missing": missing}


def _ranges(part: PartitionPlan) -> dict[str, Any]:
    return {
        "topic": part.tp.topic,
        "partition": part.tp.partition,
        "ranges": _pairs(part.taken),
        "lost": _pairs(part.lost),
    }


def _pairs(offsets: OffsetSet) -> list[list[int]]:
    pairs: list[list[int]] = offsets.bounds.tolist()
    return pairs


def _late_steps(late: LateSteps) -> list[dict[str, Any]]:
    return [
        {
            "offset": offset,
            "since": None if times.since_ms == INT64_MIN else time_text(times.since_ms),
            "before": time_text(times.before_ms),
        }
        for times, offset in late.pieces
    ]
