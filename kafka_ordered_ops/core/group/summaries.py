"""The summary of a window for lists, small enough for a header of the window's record.

A group may have a hundred thousand old windows with thousands of ranges each, which a list does not need. Each write
of a window therefore has a header with its summary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.errors import LedgerCorruptError
from kafka_ordered_ops.core.group.group_state import WindowRecord
from kafka_ordered_ops.core.strict_json import Fields, JsonError
from kafka_ordered_ops.core.times import TIME_MS_MAX
from kafka_ordered_ops.core.types import PlanContent, WindowStatus
from kafka_ordered_ops.core.window.plan import ATTEMPT_MAX, PARTS_MAX, stored_time_ms

#: Of another version the whole record is read.
_VERSION: Final = 1

#: A window that was split into `plan.PARTS_MAX` parts, and none has reported.
SUMMARY_BYTES_MAX: Final = 128 * 1024


@dataclass(frozen=True, slots=True)
class PartsSummary:
    """How far a split window is."""

    count: int
    missing: tuple[int, ...]


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
            values = strict_json.loads(text, limit_bytes=SUMMARY_BYTES_MAX)
        except JsonError:
            return None
        if not isinstance(values, list) or values[:1] != [_VERSION] or len(values) != len(_NAMES):
            return None
        fields = Fields(dict(zip(_NAMES, values, strict=True)), "summary")
        try:
            return cls(
                window_id=window_id,
                status=fields.choice("status", WindowStatus),
                content=fields.choice("content", PlanContent),
                since_ms=fields.integer_or_none("since_ms"),
                cutoff_ms=fields.integer("cutoff_ms"),
                sweep=fields.boolean("sweep"),
                offsets=fields.integer("offsets", least=0),
                records=fields.integer_or_none("records"),
                attempt=fields.integer("attempt", least=0, greatest=ATTEMPT_MAX),
                planned_at_ms=stored_time_ms(fields, "planned_at_ms"),
                touched_at_ms=stored_time_ms(fields, "touched_at_ms"),
                committed_at_ms=fields.integer_or_none(
                    "committed_at_ms", least=0, greatest=TIME_MS_MAX
                ),
                run_id=fields.text_or_none("run_id"),
                pruned=fields.boolean("pruned"),
                parts=_parts(fields.anything("parts")),
            )
        except JsonError:
            return None


_NAMES: Final = ("version", *WindowSummary.__slots__[1:])


#: What a header begins with: the version and the cutoff, of at most 19 digits.
_BEGIN: Final = re.compile(rb"\[%d,(-?[0-9]{1,19})," % _VERSION)


def cutoff_in(header: bytes) -> int | None:
    """Return the cutoff in the result of `to_text`, without parsing the rest; None if it does not begin like one."""
    found = _BEGIN.match(header)
    return None if found is None else int(found[1])


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
            one for one in self.windows if one.status.is_open or one.window_id in self.unpublished
        )


def _counted(result: Any) -> int | None:
    """Return the number of records counted by this package's own sink."""
    facts = result.get("facts") if isinstance(result, Mapping) else None
    records = facts.get("records") if isinstance(facts, Mapping) else None
    return records if type(records) is int else None


def _parts(value: Any) -> PartsSummary | None:
    if value is None:
        return None
    if not (isinstance(value, list) and len(value) == 2 and isinstance(value[1], list)):
        raise JsonError("the parts are not a number and a list")
    fields = Fields({"count": value[0], "missing": value[1]}, "parts")
    count, missing = (
        fields.integer("count", least=1, greatest=PARTS_MAX),
        fields.integers("missing"),
    )
    if missing and not 0 <= min(missing) <= max(missing) < count:
        raise JsonError("missing parts that the window does not have")
    return PartsSummary(count, tuple(missing))
