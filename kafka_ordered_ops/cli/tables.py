"""Plans, windows and results as tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

from rich import box
from rich.table import Table
from rich.text import Text

from kafka_ordered_ops.cli.delivery import output_of
from kafka_ordered_ops.cli.facts import (
    base_of,
    head_count,
    record_facts,
    result_facts,
    seconds_of,
)
from kafka_ordered_ops.core.group_state import GroupState, WindowRecord
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.plan import WindowPlan
from kafka_ordered_ops.core.time_split import LateSteps
from kafka_ordered_ops.core.times import duration_text, time_text
from kafka_ordered_ops.core.types import TopicPartition, WindowStatus

#: Ranges shown of one partition; the JSON has all of them.
_RANGES_SHOWN: Final = 3

#: Partitions shown of one plan: a longer table is not read.
_PARTITIONS_SHOWN: Final = 200

_NOTHING: Final = "-"


def plan_table(
    plan: WindowPlan,
    *,
    state: GroupState | None = None,
    log_starts: Mapping[TopicPartition, int] | None = None,
) -> Table:
    """What a window takes of each partition."""
    log_starts = log_starts or {}
    with_lost = bool(plan.lost)
    with_late = any(part.late for part in plan)
    table = _table(
        f"window {plan.window_id}: {plan.content}, {plan.offsets:,} offsets before "
        f"{time_text(plan.cutoff_ms)}",
        "partition",
        *([">log start"] if log_starts else []),
        ">committed",
        ">taken",
        "ranges",
        ">head",
        ">tail",
        *(["lost"] if with_lost else []),
        *(["late before"] if with_late else []),
    )
    for part in islice(plan, _PARTITIONS_SHOWN):
        head = head_count(part)
        table.add_row(
            str(part.tp),
            *([_number(log_starts.get(part.tp))] if log_starts else []),
            _number(base_of(state, part.tp)),
            _number(part.taken.count),
            _ranges(part.taken),
            _number(head),
            _number(part.taken.count - head),
            *([_ranges(part.lost)] if with_lost else []),
            *([_late(part.late)] if with_late else []),
        )
    if (more := len(plan.partitions) - _PARTITIONS_SHOWN) > 0:
        table.caption = f"and {more:,} more partitions; --json shows them all"
    return table


def delivery_text(record: WindowRecord) -> Text:
    """What `run` ends with."""
    facts, output = result_facts(record), output_of(record.result)
    records, seconds = facts.get("records"), seconds_of(facts)
    return _lines(
        ("window", record.plan.window_id),
        ("status", f"{record.status}, {record.plan.content}"),
        ("cutoff", time_text(record.plan.cutoff_ms)),
        ("records", _number(records)),
        ("stragglers", _number(facts.get("stragglers"))),
        ("late", _number(facts.get("late"))),
        ("seconds", _NOTHING if seconds is None else f"{seconds:,.1f}"),
        ("records/s", f"{records / seconds:,.0f}" if records and seconds else _NOTHING),
        ("output", _NOTHING if output is None else output.final_path),
    )


def windows_table(records: Sequence[WindowRecord], *, now_ms: int) -> Table:
    """The windows of a group."""
    columns = ["status", "content", "cutoff", ">offsets", ">records", ">attempt", ">open for"]
    table = _table(None, "window", *columns)
    for record in records:
        facts = record_facts(record, now_ms=now_ms)
        table.add_row(
            facts["window_id"],
            facts["status"],
            facts["content"],
            facts["cutoff"],
            _number(facts["offsets"]),
            _number(facts["records"]),
            _number(facts["attempt"]),
            _NOTHING if facts["open_seconds"] is None else age_text(facts["open_seconds"]),
        )
    return table


def history_text(record: WindowRecord, *, now_ms: int) -> Text:
    """What became of a window, beside its plan."""
    facts = record_facts(record, now_ms=now_ms)
    output = output_of(record.result)
    return _lines(
        ("group", record.plan.group),
        ("status", facts["status"]),
        ("planned", facts["planned_at"]),
        ("attempt", facts["attempt"]),
        ("committed", facts["committed_at"]),
        ("records", facts["records"]),
        ("output", _where(output.final_path, record.status) if output else record.result),
        ("run", facts["run_id"]),
        *record.plan.window.to_json().items(),
    )


def age_text(seconds: float) -> str:
    """A span to the second, as ISO 8601 says it."""
    return duration_text(int(max(seconds, 0)) * 1000)


def _where(path: str, status: WindowStatus) -> str:
    return path if status is WindowStatus.PUBLISHED else f"{path} (not published)"


def _lines(*rows: tuple[str, Any]) -> Text:
    """Names and values; no table, whose cells would break a path that is to be copied."""
    width = max(len(name) for name, _ in rows) + 2
    return Text("\n").join(
        Text.assemble((name.ljust(width), "bold"), _text(value)) for name, value in rows
    )


def _table(title: str | None, *columns: str) -> Table:
    """A table whose columns named ``>...`` hold numbers."""
    table = Table(title=title, title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD)
    for name in columns:
        right = name.startswith(">")
        table.add_column(name.lstrip(">"), justify="right" if right else "left", overflow="fold")
    return table


def _text(value: Any) -> str:
    if value is None or value == []:
        return _NOTHING
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _number(value: int | None) -> str:
    return _NOTHING if value is None else f"{value:,}"


def _ranges(offsets: OffsetSet) -> str:
    if not offsets:
        return _NOTHING
    shown = " ".join(f"[{start:,}, {end:,})" for start, end in islice(offsets, _RANGES_SHOWN))
    more = len(offsets) - _RANGES_SHOWN
    return f"{shown} and {more:,} more" if more > 0 else shown


def _late(late: LateSteps) -> str:
    if not late:
        return _NOTHING
    latest, steps = late.times[-1], len(late.pieces)
    return f"{time_text(latest.before_ms)}{f' ({steps} steps)' if steps > 1 else ''}"
