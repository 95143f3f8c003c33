"""Plans, windows and results as tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

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
from kafka_ordered_ops.cli.show.layout import (
    NOTHING,
    PARTITIONS_SHOWN,
    add_columns,
    caption_more,
    new_table,
    number_text,
)
from kafka_ordered_ops.cli.show.printable import in_line
from kafka_ordered_ops.core.group.decisions.adoption import Adoption
from kafka_ordered_ops.core.group.decisions.failing_over import FailOver
from kafka_ordered_ops.core.group.gaps import Gap
from kafka_ordered_ops.core.group.group_state import GroupState, WindowRecord
from kafka_ordered_ops.core.group.summaries import Summaries, WindowSummary
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.time_ranges import LateSteps
from kafka_ordered_ops.core.times import duration_text, time_text
from kafka_ordered_ops.core.types import TopicPartition, WindowStatus
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.core.window.window_id import times_in_id
from kafka_ordered_ops.decoding.discarded import discarded_in
from kafka_ordered_ops.delivery.summary import dead_letter_facts, window_summary
from kafka_ordered_ops.output.roots.leftovers import Left
from kafka_ordered_ops.output.writing.reported import result_facts
from kafka_ordered_ops.output.writing.staged_output import output_of
from kafka_ordered_ops.spec.table import table_of
from kafka_ordered_ops.windows.queries.group_offsets import GroupOffsets

#: Ranges shown for one partition; --json has all.
_RANGES_SHOWN: Final = 3

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
    table = new_table(
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
    for part in islice(plan, PARTITIONS_SHOWN):
        head, tail = head_and_tail(part)
        table.add_row(
            str(part.tp),
            *([number_text(log_starts.get(part.tp))] if log_starts else []),
            number_text(base_of(state, part.tp)),
            number_text(part.taken.count),
            _ranges(part.taken),
            number_text(head),
            number_text(tail),
            *([_ranges(part.lost)] if with_lost else []),
            *([_late(part.late)] if with_late else []),
        )
    return caption_more(table, len(plan.partitions), PARTITIONS_SHOWN)


def delivery_text(record: WindowRecord) -> Text:
    """Return the result of `run`."""
    summary, seconds = window_summary(record), seconds_of(record)
    records = summary["records"]
    return _lines(
        ("window", record.plan.window_id),
        ("status", _state(record)),
        *_times_rows(record.plan.window),
        ("records", number_text(records)),
        ("out_of_order", number_text(summary["out_of_order"])),
        ("late", number_text(summary["late"])),
        *_dead_letters(record),
        *_discarded(record),
        ("seconds", NOTHING if seconds is None else f"{seconds:,.1f}"),
        ("records/s", f"{records / seconds:,.0f}" if records and seconds else NOTHING),
        ("output", summary["output"] or NOTHING),
    )


def deliveries_table(records: Sequence[WindowRecord]) -> Table:
    """Return the results of a series of windows, and the sums; with ids and times as in `windows_table`."""
    summaries = [WindowSummary.of(record) for record in records]
    with_times = not all(map(_has_times_in_id, summaries))
    names = ("records", "out_of_order", "late", "bytes")
    table = new_table(None)
    columns = (*(["times (UTC)"] if with_times else []), *(f">{name}" for name in names))
    add_columns(table, "status", *columns, "window", no_wrap=True)
    sums: dict[str, int | None] = dict.fromkeys(names, 0)
    for record, summary in zip(records, summaries, strict=True):
        counts = counts_of(record)
        sums = {name: _sum(sums[name], counts[name]) for name in names}
        table.add_row(
            _state(record),
            *([_times_in_row(summary)] if with_times else []),
            *(number_text(counts[name]) for name in names),
            summary.window_id,
        )
    table.add_section()
    blanks = [""] * (2 if with_times else 1)
    table.add_row(*blanks, *map(number_text, sums.values()), windows_text(len(records)))
    return table


def outputs_text(records: Sequence[WindowRecord]) -> Text:
    """Return the folders of the windows' outputs."""
    outputs = [output_of(record.result, record.plan) for record in records]
    roots = dict.fromkeys(output.root for output in outputs if output is not None)
    roots |= dict.fromkeys(
        name for record in records if (name := table_of(record.result)) is not None
    )
    return _lines(*(("output", root) for root in roots or [NOTHING]))


def windows_table(group_id: str, summaries: Summaries, *, now_ms: int) -> Table:
    """Return a table of the windows of a group, a line each.

    The id is last, where a long one can be copied. Most ids contain the times of their window, and then it is the only
    column of them.
    """
    facts = [summary_facts(group_id, summary, now_ms=now_ms) for summary in summaries.windows]
    is_shown = {
        "times (UTC)": not all(map(_has_times_in_id, summaries.windows)),
        ">parts": any(window["parts"] is not None for window in facts),
        ">untouched for": any(window["untouched_seconds"] is not None for window in facts),
    }
    names = ["times (UTC)", ">records", ">parts", ">untouched for"]
    columns = [name for name in names if is_shown.get(name, True)]
    table = new_table(None)
    add_columns(table, "status", *columns, "window", no_wrap=True)
    for summary, window in zip(summaries.windows, facts, strict=True):
        untouched, parts = window["untouched_seconds"], window["parts"]
        cells = {
            "times (UTC)": _times_in_row(summary),
            ">records": number_text(window["records"]),
            ">parts": NOTHING if parts is None else f"{parts['reported']:,}/{parts['count']:,}",
            ">untouched for": NOTHING if untouched is None else age_text(untouched),
        }
        status = (
            window["status"]
            + (" (pruned)" if window["pruned"] else "")
            + (", not published" if window["window_id"] in summaries.unpublished else "")
        )
        table.add_row(status, *(cells[name] for name in columns), window["window_id"])
    for window_id in summaries.unreadable:
        table.add_row("unreadable", *([NOTHING] * len(columns)), window_id)
    return table


def _has_times_in_id(summary: WindowSummary) -> bool:
    """Return whether a window's id begins with its times."""
    times = times_in_id(summary.since_ms, summary.cutoff_ms)
    return not summary.sweep and summary.window_id.startswith(times)


def _times_in_row(summary: WindowSummary) -> str:
    """Return a window's times as short as they are exact: most are full minutes, and of one day."""
    cutoff = _minute(summary.cutoff_ms)
    if summary.sweep:
        return f"{_SWEEP} before {cutoff}"
    if summary.since_ms is None:
        return f"before {cutoff}"
    since = _minute(summary.since_ms)
    day, _, _ = since.partition(" ")
    return f"{since} to {cutoff.removeprefix(f'{day} ')}"


def _minute(time_ms: int) -> str:
    return time_text(time_ms).removesuffix("Z").removesuffix(":00").replace("T", " ")


def groups_table(facts: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of a ledger's groups, from their `group_facts`."""
    table = new_table(None, "group", "mode", "topics", ">windows", ">open", "newest cutoff")
    for group in facts:
        if group["error"] is not None:
            table.add_row(group["group"], "unreadable")
            continue
        table.add_row(
            group["group"],
            group["mode"] or NOTHING,
            ", ".join(group["topics"]),
            number_text(group["windows"]),
            number_text(group["open_windows"]),
            group["newest_cutoff"] or NOTHING,
        )
    return table


def lag_table(offsets: GroupOffsets) -> Table:
    """Return a table of a group's lag in each partition, the greatest first."""
    table = new_table(None, "partition", ">committed", ">log start", ">end", ">lag")
    ordered = sorted(offsets.partitions, key=lambda partition: (-partition.lag, partition.tp))
    for partition in ordered[:PARTITIONS_SHOWN]:
        numbers = (partition.committed, partition.log_start, partition.end_offset, partition.lag)
        table.add_row(str(partition.tp), *map(number_text, numbers))
    return caption_more(table, len(ordered), PARTITIONS_SHOWN)


def gaps_table(gaps: Sequence[Gap]) -> Table:
    """Return a table of the gaps."""
    table = new_table(None, "topic", "since", "cutoff", ">partitions", ">offsets", ">at most")
    for gap in gaps:
        facts = gap.to_json()
        has_times = gap.times is not None
        table.add_row(
            gap.topic,
            facts["since"] or (_BEGINNING if has_times else _UNKNOWN),
            facts["cutoff"] or _UNKNOWN,
            number_text(gap.partitions),
            number_text(gap.offsets),
            number_text(gap.offsets_at_most),
        )
    return table


def stages_table(stages: Sequence[Left]) -> Table:
    """Return a table of the leftovers of attempts."""
    table = new_table(None, "window", "attempt", "group", ">files", ">bytes", "written")
    for stage in stages:
        facts = stage.to_json()
        table.add_row(
            stage.window,
            stage.attempt,
            stage.group_id or _UNKNOWN,
            number_text(stage.files),
            number_text(stage.size),
            facts["modified"],
        )
    return table


def adoption_table(adoption: Adoption) -> Table:
    """Return a table of the moved progress."""
    table = new_table(None, "partition", "cause", ">from", ">to")
    for move in adoption.moved:
        table.add_row(
            str(move.tp),
            move.cause.value,
            number_text(move.base_before),
            number_text(move.base_after),
        )
    return table


def fail_over_table(done: FailOver) -> Table:
    """Return where the group continues on each partition, and the offsets of the records that may come twice."""
    rows = done.partitions
    table = new_table(
        None,
        ("partition", f"total of {len(rows):,}"),
        ">mirrored commit",
        ">continues at",
        (">done beyond", f"{sum(row.done_beyond for row in rows):,}"),
        (">may come twice", f"{done.may_repeat:,}"),
        "at offsets",
        footer=True,
    )
    for row in rows[:PARTITIONS_SHOWN]:
        numbers = (row.before, row.after, row.done_beyond, row.may_repeat.count)
        table.add_row(str(row.tp), *map(number_text, numbers), _ranges(row.may_repeat))
    return caption_more(table, len(rows), PARTITIONS_SHOWN)


def history_text(record: WindowRecord, *, processed: int | None, now_ms: int) -> Text:
    """Return a window's history and result; `processed` counts the offsets that its attempts have recorded."""
    facts = record_facts(record, now_ms=now_ms)
    pruned, parts, untouched = record.pruned, record.parts, facts["untouched_seconds"]
    result = record.result
    if output := output_of(result, record.plan):
        is_published = record.status is WindowStatus.PUBLISHED
        result = output.final_path + ("" if is_published else " (not published)")
    rows = [
        ("group", record.plan.group_id),
        ("status", facts["status"]),
        None
        if pruned is None
        else ("pruned", f"{pruned.offsets:,} offsets, {pruned.lost:,} lost; its ranges are gone"),
        ("planned", facts["planned_at"]),
        None if untouched is None else ("untouched for", age_text(untouched)),
        ("attempt", facts["attempt"]),
        None if parts is None else ("parts", f"{len(parts.results):,}/{parts.count:,} reported"),
        None
        if processed is None
        else ("processed", f"{processed:,}/{record.plan.offsets:,} offsets"),
        ("committed", facts["committed_at"]),
        ("records", facts["records"]),
        *_dead_letters(record),
        *_discarded(record),
        ("output", result),
        ("run", facts["run_id"]),
        *record.plan.window.to_json().items(),
    ]
    return _lines(*(row for row in rows if row is not None))


def _dead_letters(record: WindowRecord) -> list[tuple[str, str]]:
    """Return a row on the dead letters of a window that may have them."""
    if not (facts := dead_letter_facts(record)):
        return []
    place, count = facts["dead_letters_to"], facts["dead_letters"]
    return [("dead letters", number_text(count) + (f" in {place}" if count and place else ""))]


def _discarded(record: WindowRecord) -> list[tuple[str, str]]:
    """Return a row on the fields that were left out of a window's inferred columns, if they were counted."""
    facts: dict[str, Any] = discarded_in(result_facts(record.result))
    if (count := facts.get("discarded")) is None:
        return []
    fields = ", ".join(f"{name} ({number:,})" for name, number in facts["discarded_fields"].items())
    return [("fields left out", f"of {count:,} values: {fields}" if count else "none")]


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
    return NOTHING if window.since_ms is None else time_text(window.since_ms)


def _state(record: WindowRecord) -> str:
    return f"{record.status}, {record.plan.content}"


def _lines(*rows: tuple[str, Any]) -> Text:
    """Return names and values as lines, because a table would break long paths."""
    width = max(len(name) for name, _ in rows) + 2
    return Text("\n").join(
        Text.assemble((name.ljust(width), "bold"), _text(value)) for name, value in rows
    )


def _text(value: Any) -> str:
    if value is None or value == []:
        return NOTHING
    # A value with a line feed must not look like two lines of this package.
    return in_line(", ".join(map(str, value)) if isinstance(value, list) else str(value))


def _sum(first: int | None, second: int | None) -> int | None:
    """Return the sum of two counts; `None` if one of them is unknown."""
    return None if first is None or second is None else first + second


def _ranges(offsets: OffsetSet) -> str:
    if not offsets:
        return NOTHING
    ranges = " ".join(f"[{start:,}, {end:,})" for start, end in islice(offsets, _RANGES_SHOWN))
    more = len(offsets) - _RANGES_SHOWN
    return f"{ranges} and {more:,} more" if more > 0 else ranges


def _late(late: LateSteps) -> str:
    if not late:
        return NOTHING
    latest, steps = late.times[-1], len(late.pieces)
    return f"{time_text(latest.before_ms)}{f' ({steps} steps)' if steps > 1 else ''}"
