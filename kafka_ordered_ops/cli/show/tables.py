"""Plans, windows and results as tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

from rich import box
from rich.table import Table
from rich.text import Text

from kafka_ordered_ops.cli.show.facts import (
    base_of,
    counts_of,
    head_and_tail,
    record_facts,
    seconds_of,
    summary_facts,
)
from kafka_ordered_ops.cli.show.printable import in_line
from kafka_ordered_ops.core.group.decisions.adoption import Adoption
from kafka_ordered_ops.core.group.gaps import Gap
from kafka_ordered_ops.core.group.group_state import GroupState, WindowRecord
from kafka_ordered_ops.core.group.summaries import Summaries
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.time_ranges import LateSteps
from kafka_ordered_ops.core.times import duration_text, time_text
from kafka_ordered_ops.core.types import TopicPartition, WindowStatus
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.hosting.summary import window_summary
from kafka_ordered_ops.output.roots.leftovers import Left
from kafka_ordered_ops.output.writing.staged_output import output_of
from kafka_ordered_ops.spec.table import table_of
from kafka_ordered_ops.windows.queries.group_offsets import GroupOffsets

#: Ranges shown for one partition; the JSON has all of them.
_RANGES_SHOWN: Final = 3

#: Partitions shown for one plan: nobody reads a longer table.
_PARTITIONS_SHOWN: Final = 200

_NOTHING: Final = "-"

#: Instead of a time: before everything, any time, and no interval.
_BEGINNING: Final = "(beginning)"
_UNKNOWN: Final = "(unknown)"
_SWEEP: Final = "(sweep)"


def plan_table(
    plan: WindowPlan,
    *,
    state: GroupState | None = None,
    log_starts: Mapping[TopicPartition, int] | None = None,
) -> Table:
    """Return a table of the offsets that a window takes from each partition."""
    log_starts = log_starts or {}
    with_lost = bool(plan.lost)
    with_late = any(part.late for part in plan)
    table = _table(
        f"window {plan.window_id}: {plan.content}, {plan.offsets:,} offsets {_times(plan.window)}",
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
        head, tail = head_and_tail(part)
        table.add_row(
            str(part.tp),
            *([_number(log_starts.get(part.tp))] if log_starts else []),
            _number(base_of(state, part.tp)),
            _number(part.taken.count),
            _ranges(part.taken),
            _number(head),
            _number(tail),
            *([_ranges(part.lost)] if with_lost else []),
            *([_late(part.late)] if with_late else []),
        )
    if (more := len(plan.partitions) - _PARTITIONS_SHOWN) > 0:
        table.caption = f"and {more:,} more partitions; --json shows them all"
    return table


def delivery_text(record: WindowRecord) -> Text:
    """Return the result of `run`."""
    summary, seconds = window_summary(record), seconds_of(record)
    records = summary["records"]
    return _lines(
        ("window", record.plan.window_id),
        ("status", _state(record)),
        *_times_rows(record.plan.window),
        ("records", _number(records)),
        ("out_of_order", _number(summary["out_of_order"])),
        ("late", _number(summary["late"])),
        ("seconds", _NOTHING if seconds is None else f"{seconds:,.1f}"),
        ("records/s", f"{records / seconds:,.0f}" if records and seconds else _NOTHING),
        ("output", summary["output"] or _NOTHING),
    )


def deliveries_table(records: Sequence[WindowRecord]) -> Table:
    """Return the results of a series of windows, and the sums."""
    with_since = _have_since(records)
    names = ("records", "out_of_order", "late", "bytes")
    table = _table(
        None,
        "window",
        "status",
        *(["since"] if with_since else []),
        "cutoff",
        *(f">{name}" for name in names),
    )
    sums: dict[str, int | None] = dict.fromkeys(names, 0)
    for record in records:
        counts = counts_of(record)
        sums = {name: _sum(sums[name], counts[name]) for name in names}
        table.add_row(
            record.plan.window_id,
            _state(record),
            *([_since(record.plan.window)] if with_since else []),
            time_text(record.plan.cutoff_ms),
            *(_number(counts[name]) for name in names),
        )
    table.add_section()
    blanks = [""] * (3 if with_since else 2)
    table.add_row(windows_text(len(records)), *blanks, *map(_number, sums.values()))
    return table


def outputs_text(records: Sequence[WindowRecord]) -> Text:
    """Return the folders of the windows' outputs."""
    outputs = [output_of(record.result, record.plan) for record in records]
    roots = dict.fromkeys(output.root for output in outputs if output is not None)
    roots |= dict.fromkeys(name for one in records if (name := table_of(one.result)) is not None)
    return _lines(*(("output", root) for root in roots or [_NOTHING]))


def windows_table(group_id: str, found: Summaries, *, now_ms: int) -> Table:
    """Return a table of the windows of a group."""
    with_since = any(one.since_ms is not None or one.sweep for one in found.windows)
    with_parts = any(one.parts is not None for one in found.windows)
    table = _table(
        None,
        "window",
        "status",
        "content",
        *(["since"] if with_since else []),
        "cutoff",
        ">offsets",
        ">records",
        ">attempt",
        *([">parts"] if with_parts else []),
        ">untouched for",
    )
    for summary in found.windows:
        facts = summary_facts(group_id, summary, now_ms=now_ms)
        untouched, parts = facts["untouched_seconds"], facts["parts"]
        since = _SWEEP if facts["sweep"] else facts["since"] or _NOTHING
        reported = _NOTHING if parts is None else f"{parts['reported']:,}/{parts['count']:,}"
        table.add_row(
            facts["window_id"],
            facts["status"]
            + (" (pruned)" if facts["pruned"] else "")
            + (", not published" if summary.window_id in found.unpublished else ""),
            facts["content"],
            *([since] if with_since else []),
            facts["cutoff"],
            _number(facts["offsets"]),
            _number(facts["records"]),
            _number(facts["attempt"]),
            *([reported] if with_parts else []),
            _NOTHING if untouched is None else age_text(untouched),
        )
    for window_id in found.unreadable:
        table.add_row(window_id, "unreadable")
    return table


def groups_table(facts: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of a ledger's groups, from their `group_facts`."""
    table = _table(None, "group", "mode", "topics", ">windows", ">open", "newest cutoff")
    for one in facts:
        if one["error"] is not None:
            table.add_row(one["group"], "unreadable")
            continue
        table.add_row(
            one["group"],
            one["mode"] or _NOTHING,
            ", ".join(one["topics"]),
            _number(one["windows"]),
            _number(one["open_windows"]),
            one["newest_cutoff"] or _NOTHING,
        )
    return table


def lag_table(found: GroupOffsets) -> Table:
    """Return a table of a group's lag in each partition, the greatest first."""
    table = _table(None, "partition", ">committed", ">log start", ">end", ">lag")
    ordered = sorted(found.partitions, key=lambda one: (-one.lag, one.tp))
    for one in ordered[:_PARTITIONS_SHOWN]:
        numbers = (one.committed, one.log_start, one.end_offset, one.lag)
        table.add_row(str(one.tp), *map(_number, numbers))
    if (more := len(ordered) - _PARTITIONS_SHOWN) > 0:
        table.caption = f"and {more:,} more partitions; --json shows them all"
    return table


def gaps_table(gaps: Sequence[Gap]) -> Table:
    """Return a table of the gaps."""
    table = _table(None, "topic", "since", "cutoff", ">partitions", ">offsets", ">at most")
    for gap in gaps:
        facts = gap.to_json()
        known = gap.times is not None
        table.add_row(
            gap.topic,
            facts["since"] or (_BEGINNING if known else _UNKNOWN),
            facts["cutoff"] or _UNKNOWN,
            _number(gap.partitions),
            _number(gap.offsets),
            _number(gap.offsets_at_most),
        )
    return table


def stages_table(stages: Sequence[Left]) -> Table:
    """Return a table of what attempts have left."""
    table = _table(None, "window", "attempt", "group", ">files", ">bytes", "written")
    for one in stages:
        facts = one.to_json()
        table.add_row(
            one.window,
            one.attempt,
            one.group_id or _UNKNOWN,
            _number(one.files),
            _number(one.size),
            facts["modified"],
        )
    return table


def adoption_table(adoption: Adoption) -> Table:
    """Return a table of the moved progress."""
    table = _table(None, "partition", "cause", ">from", ">to")
    for one in adoption.moved:
        table.add_row(
            str(one.tp), one.cause.value, _number(one.base_before), _number(one.base_after)
        )
    return table


def history_text(record: WindowRecord, *, processed: int | None, now_ms: int) -> Text:
    """Return a window's history and result; `processed` counts the offsets that its attempts have recorded."""
    facts = record_facts(record, now_ms=now_ms)
    output = output_of(record.result, record.plan)
    return _lines(
        ("group", record.plan.group_id),
        ("status", facts["status"]),
        *_pruned_rows(record),
        ("planned", facts["planned_at"]),
        *_open_rows(facts),
        ("attempt", facts["attempt"]),
        *_parts_rows(record),
        *_processed_rows(record, processed),
        ("committed", facts["committed_at"]),
        ("records", facts["records"]),
        ("output", _where(output.final_path, record.status) if output else record.result),
        ("run", facts["run_id"]),
        *record.plan.window.to_json().items(),
    )


def windows_text(count: int) -> str:
    """Return a number of windows as text."""
    return f"{count:,} window{'' if count == 1 else 's'}"


def age_text(seconds: float) -> str:
    """Return a span in ISO 8601, in whole seconds."""
    return duration_text(int(max(seconds, 0)) * 1000)


def _times(window: Window) -> str:
    cutoff = time_text(window.cutoff_ms)
    if window.sweep:
        return f"that no interval covers before {cutoff}"
    return (
        f"before {cutoff}" if window.since_ms is None else f"from {_since(window)} up to {cutoff}"
    )


def _times_rows(window: Window) -> list[tuple[str, str]]:
    since = [("since", _since(window))] if window.since_ms is not None or window.sweep else []
    return [*since, ("cutoff", time_text(window.cutoff_ms))]


def _since(window: Window) -> str:
    if window.sweep:
        return _SWEEP
    return _NOTHING if window.since_ms is None else time_text(window.since_ms)


def _have_since(records: Sequence[WindowRecord]) -> bool:
    windows = [record.plan.window for record in records]
    return any(window.since_ms is not None or window.sweep for window in windows)


def _state(record: WindowRecord) -> str:
    return f"{record.status}, {record.plan.content}"


def _pruned_rows(record: WindowRecord) -> list[tuple[str, str]]:
    if record.pruned is None:
        return []
    left = f"{record.pruned.offsets:,} offsets, {record.pruned.lost:,} lost; its ranges are gone"
    return [("pruned", left)]


def _open_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    untouched = facts["untouched_seconds"]
    return [] if untouched is None else [("untouched for", age_text(untouched))]


def _parts_rows(record: WindowRecord) -> list[tuple[str, str]]:
    return [] if record.parts is None else [("parts", f"{_reported(record)} reported")]


def _processed_rows(record: WindowRecord, processed: int | None) -> list[tuple[str, str]]:
    return (
        []
        if processed is None
        else [("processed", f"{processed:,}/{record.plan.offsets:,} offsets")]
    )


def _reported(record: WindowRecord) -> str:
    parts = record.parts
    return _NOTHING if parts is None else f"{len(parts.results):,}/{parts.count:,}"


def _where(path: str, status: WindowStatus) -> str:
    return path if status is WindowStatus.PUBLISHED else f"{path} (not published)"


def _lines(*rows: tuple[str, Any]) -> Text:
    """Return names and values as lines, because a table would break long paths."""
    width = max(len(name) for name, _ in rows) + 2
    return Text("\n").join(
        Text.assemble((name.ljust(width), "bold"), _text(value)) for name, value in rows
    )


def _table(title: str | None, *columns: str) -> Table:
    """Return a table whose columns named ``>...`` hold numbers."""
    table = Table(title=title, title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD)
    for name in columns:
        right = name.startswith(">")
        table.add_column(name.lstrip(">"), justify="right" if right else "left", overflow="fold")
    return table


def _text(value: Any) -> str:
    if value is None or value == []:
        return _NOTHING
    # A value with a line feed must not look like two lines of this package.
    return in_line(", ".join(map(str, value)) if isinstance(value, list) else str(value))


def _sum(one: int | None, other: int | None) -> int | None:
    """Return the sum of two counts; None if one of them is unknown."""
    return None if one is None or other is None else one + other


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
