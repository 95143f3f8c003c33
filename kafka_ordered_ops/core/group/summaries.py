"""The summary of a window for lists, small enough for a header of the window's record.

A group may have a hundred thousand old windows with thousands of ranges each, which a list does not need. Each write
of a window therefore has a header with its summary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.errors import LedgerCorruptError
from kafka_ordered_ops.core.group.group_state import WindowRecord
from kafka_ordered_ops.core.strict_json import Count, JsonError, Stored, Text
from kafka_ordered_ops.core.times import duration_text
from kafka_ordered_ops.core.types import PlanContent, WindowStatus
from kafka_ordered_ops.core.window.plan import Attempt, PartsCount, TimeMs

#: Of another version the whole record is read.
_VERSION: Final = 1

#: A window that was split into `plan.PARTS_MAX` parts, and none has reported.
SUMMARY_BYTES_MAX: Final = 128 * 1024

#: Windows named in a text.
_NAMED_MAX: Final = 5


class PartsSummary(Stored, frozen=True, array_like=True):
    """How far a split window is."""

    count: PartsCount
    missing: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.missing and not 0 <= min(self.missing) <= max(self.missing) < self.count:
            raise JsonError("missing parts that the window does not have")


@dataclass(frozen=True, slots=True)
class WindowSummary:
    """One line of a list of windows."""

    window_id: str
    cutoff_ms: int
    status: WindowStatus
    content: PlanContent
    since_ms: int | None
    sweep: bool
    #: Taken offsets: an upper bound for records.
    offsets: int
    #: As the sink counted them; None where it did not.
    records: int | None
    attempt: int
    planned_at_ms: int
    touched_at_ms: int
    committed_at_ms: int | None
    run_id: str | None
    pruned: bool
    parts: PartsSummary | None

    @classmethod
    def of(cls, record: WindowRecord) -> WindowSummary:
        """Summarize a window for a list."""
        plan, parts = record.plan, record.parts
        return cls(
            window_id=plan.window_id,
            status=plan.status,
            content=plan.content,
            since_ms=plan.window.since_ms,
            cutoff_ms=plan.cutoff_ms,
            sweep=plan.window.sweep,
            # Of a pruned window the plan is gone, and its counts are left.
            offsets=plan.offsets if record.pruned is None else record.pruned.offsets,
            records=_counted(record.result),
            attempt=plan.attempt,
            planned_at_ms=plan.planned_at_ms,
            touched_at_ms=record.touched_at_ms,
            committed_at_ms=record.committed_at_ms,
            run_id=record.run_id,
            pruned=record.pruned is not None,
            parts=None if parts is None else PartsSummary(parts.count, parts.missing),
        )

    def to_text(self) -> str | None:
        """Return the header, without the window's id, which is in the key; None where it would be too long."""
        parts = self.parts
        text = strict_json.dumps(
            [
                _VERSION,
                self.cutoff_ms,
                self.status.value,
                self.content.value,
                self.since_ms,
                self.sweep,
                self.offsets,
                self.records,
                self.attempt,
                self.planned_at_ms,
                self.touched_at_ms,
                self.committed_at_ms,
                self.run_id,
                self.pruned,
                None if parts is None else [parts.count, list(parts.missing)],
            ]
        )
        # An invalid value is refused with the record itself.
        size = len(text.encode(errors="replace"))
        return text if size <= SUMMARY_BYTES_MAX else None

    @classmethod
    def from_text(cls, window_id: str, text: bytes) -> WindowSummary | None:
        """Parse the result of `to_text`; return None for anything else: then the record itself counts."""
        try:
            stored = _Stored.parse(
                strict_json.loads(text, limit_bytes=SUMMARY_BYTES_MAX), "summary"
            )
        except JsonError:
            return None
        return cls(window_id, **stored.fields())


class _Stored(Stored, frozen=True, array_like=True):
    version: Literal[1]
    cutoff_ms: int
    status: WindowStatus
    content: PlanContent
    since_ms: int | None
    sweep: bool
    offsets: Count
    records: int | None
    attempt: Attempt
    planned_at_ms: TimeMs
    touched_at_ms: TimeMs
    committed_at_ms: TimeMs | None
    run_id: Text | None
    pruned: bool
    parts: PartsSummary | None


#: What a header begins with: the version and the cutoff, of at most 19 digits.
_BEGIN: Final = re.compile(rb"\[%d,(-?[0-9]{1,19})," % _VERSION)


def cutoff_in(header: bytes) -> int | None:
    """Return the cutoff in the result of `to_text`, without parsing the rest; None if it does not begin like one."""
    match = _BEGIN.match(header)
    return None if match is None else int(match[1])


@dataclass(frozen=True, slots=True)
class Summaries:
    """The windows of a group, sorted by cutoff and id, and the windows that cannot be read."""

    windows: tuple[WindowSummary, ...] = ()
    #: Windows whose records cannot be read: id and error.
    unreadable: Mapping[str, LedgerCorruptError] = field(default_factory=dict, compare=False)
    #: Ids of windows that are committed, and whose output readers do not see yet.
    unpublished: frozenset[str] = frozenset()

    def left(self) -> tuple[WindowSummary, ...]:
        """Return the windows that readers do not have yet: open, or committed and not published."""
        return tuple(
            window
            for window in self.windows
            if window.status.is_open or window.window_id in self.unpublished
        )

    def untouched(self, age: timedelta, *, now_ms: int) -> list[WindowSummary]:
        """Return the open windows that no attempt has touched for longer than an age."""
        return [
            window
            for window in self.windows
            if window.status.is_open
            and now_ms - window.touched_at_ms > age / timedelta(milliseconds=1)
        ]


def untouched_text(windows: Sequence[WindowSummary], *, now_ms: int) -> str:
    """Return which windows stay open, what they hold, and since when."""
    named = ", ".join(
        f"{window.window_id} ({window.offsets:,} offsets, {window.status}, untouched for "
        f"{_rounded_text(now_ms - window.touched_at_ms)})"
        for window in windows[:_NAMED_MAX]
    )
    more = f" and {len(windows) - _NAMED_MAX:,} more" if len(windows) > _NAMED_MAX else ""
    return (
        f"{len(windows):,} open window{'' if len(windows) == 1 else 's'} untouched for long: {named}{more}. No other window "
        "delivers what they hold: unless an attempt still works on them, run them again, or abandon them"
    )


def _rounded_text(span_ms: int) -> str:
    unit_ms = 60_000 if span_ms >= 60_000 else 1000
    return duration_text(span_ms // unit_ms * unit_ms)


def _counted(result: Any) -> int | None:
    """Return the number of records counted by this package's own sink."""
    facts = result.get("facts") if isinstance(result, Mapping) else None
    records = facts.get("records") if isinstance(facts, Mapping) else None
    return records if type(records) is int else None
