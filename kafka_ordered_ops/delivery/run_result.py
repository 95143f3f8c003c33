"""The result of running one window: a small value for prints, notebooks and decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.times import TIME_MS_MAX, TIME_MS_MIN, time_at, time_text
from kafka_ordered_ops.core.types import PlanContent, WindowStatus
from kafka_ordered_ops.core.window.covered import COVERED_BECAUSE
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.decoding.discarded import discarded_in
from kafka_ordered_ops.delivery.summary import all_held_text, dead_letter_facts, held_text
from kafka_ordered_ops.output.published import window_table
from kafka_ordered_ops.output.writing.reported import result_facts, returned_by
from kafka_ordered_ops.output.writing.staged_output import output_of
from kafka_ordered_ops.spec.destination import Destination, Folder
from kafka_ordered_ops.spec.table import table_of
from kafka_ordered_ops.windows import Delivery

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunResult:
    """The outcome of `OrderedWindows.run` for a window, and the window's facts in the ledger."""

    window_id: str
    group_id: str
    status: WindowStatus
    content: PlanContent
    #: What this call did, in one sentence.
    outcome: str
    #: Whether this call ran the job; `False` if an earlier call ran it, or there was nothing to read.
    ran: bool
    #: The window's attempt, from 1.
    attempt: int
    since: datetime | None
    cutoff: datetime
    #: The number of offsets: an upper bound of records.
    offsets: int
    #: The output's counts; `None` if not reported.
    records: int | None
    late: int | None
    #: Records that could not be decoded, and were written elsewhere; `None` unless the window has a place for them.
    dead_letters: int | None
    #: That place: a topic, or a folder or a table beside the output.
    dead_letters_to: str | None
    #: Values with fields that were left out of the inferred columns, and by the paths of these fields; `None` if not counted.
    discarded: int | None
    discarded_fields: Mapping[str, int] | None
    out_of_order: int | None
    #: The least and the greatest time of its records; `None` if unknown, or beyond the calendar.
    first: datetime | None
    last: datetime | None
    #: The folder with its files; `None` if another sink has the records.
    output: str | None
    #: The function's return value, as far as the ledger stores it.
    returned: Any
    #: Further notes for people.
    notes: tuple[str, ...]
    #: Reads the files in `output`.
    _read: Callable[[], pa.Table] | None = field(default=None, compare=False)

    def to_arrow(self) -> pa.Table:
        """Read the window's published files into one Arrow table, its rows in order.

        Raises:
            ConfigError: its records are not in a folder, or an earlier call published them to another folder.
            SinkError: the file system or the store failed.
        """
        if self._read is None:
            raise ConfigError(
                f"window {self.window_id} of group {self.group_id} has no files in a folder of this call: {self.outcome}"
            )
        return self._read()

    def __repr__(self) -> str:
        counts = "" if self.records is None else f", {self.records:,} records"
        if self.dead_letters:
            counts += f", {self.dead_letters:,} dead letters in {self.dead_letters_to}"
        if self.discarded:
            counts += f", fields of {self.discarded:,} values left out"
        place = "" if self.output is None else f", {self.output}"
        return f"<{type(self).__name__} {self.group_id}/{self.window_id}: {self.outcome}{counts}{place}>"

    def _repr_html_(self) -> str:
        """Return a table of two columns, for notebooks."""
        names = (
            result_field.name
            for result_field in fields(self)
            if not result_field.name.startswith("_")
        )
        rows = ((name, getattr(self, name)) for name in names)
        cells = "".join(
            f"<tr><th style='text-align:left'>{escape(name)}</th>"
            f"<td style='text-align:left'>{escape(_cell_text(value))}</td></tr>"
            for name, value in rows
            if value is not None and value != ()
        )
        return f"<table><tbody>{cells}</tbody></table>"


def run_result(
    requested_id: str, before: WindowPlan, delivery: Delivery, to: Destination | None
) -> RunResult:
    """Return the result of a run.

    Args:
        requested_id: the id of the requested window; another window may replace it.
        before: the plan as made or resumed.
        delivery: its delivery.
        to: the window's destination.
    """
    record = delivery.record
    letters = dead_letter_facts(record)
    plan, facts, output = (
        record.plan,
        result_facts(record.result),
        output_of(record.result, record.plan),
    )
    discarded: dict[str, Any] = discarded_in(facts)
    return RunResult(
        window_id=plan.window_id,
        group_id=plan.group_id,
        status=plan.status,
        content=plan.content,
        outcome=_outcome(before, delivery),
        ran=delivery.ran,
        attempt=plan.attempt,
        since=plan.window.since,
        cutoff=time_at(plan.cutoff_ms),
        offsets=plan.offsets,
        records=facts.get("records"),
        late=facts.get("late"),
        dead_letters=letters.get("dead_letters"),
        dead_letters_to=letters.get("dead_letters_to"),
        discarded=discarded.get("discarded"),
        discarded_fields=discarded.get("discarded_fields"),
        out_of_order=facts.get("out_of_order") if plan.tells_out_of_order else None,
        first=_moment(facts, "timestamp_ms_min"),
        last=_moment(facts, "timestamp_ms_max"),
        output=table_of(record.result) if output is None else output.final_path,
        returned=returned_by(record.result),
        notes=tuple(_notes(requested_id, before)),
        _read=(
            partial(window_table, to.root, plan.window_id, to.storage_options)
            if isinstance(to, Folder) and output is not None
            else None
        ),
    )


def _outcome(before: WindowPlan, delivery: Delivery) -> str:
    if before.content is PlanContent.COVERED:
        return f"covered: {COVERED_BECAUSE}; nothing was delivered"
    if delivery.ran:
        if before.status.is_done:
            return "delivered again; its offsets had been committed before"
        if before.content is PlanContent.EMPTY:
            held = (
                "" if all_held_text(before) is None else "; open windows may hold them: see notes"
            )
            return f"published; it has no records{held}"
        return "published"
    if delivery.shown_again:
        return "readers did not see it; the output of an earlier attempt is published again"
    return {
        WindowStatus.WRITTEN: "written by an earlier attempt; committed and published now",
        WindowStatus.COMMITTED: "committed by an earlier attempt; published now",
    }.get(before.status, "already published; nothing was done")


def _notes(requested_id: str, before: WindowPlan) -> list[str]:
    notes = list(before.notes)
    if before.window_id != requested_id:
        notes.append(
            f"window {requested_id} is covered: window {before.window_id} holds its records"
        )
    if (held := held_text(before)) is not None:
        notes.append(held)
    return notes


def _moment(facts: Mapping[str, Any], name: str) -> datetime | None:
    ms = facts.get(name)
    return time_at(ms) if isinstance(ms, int) and TIME_MS_MIN <= ms <= TIME_MS_MAX else None


def _cell_text(value: Any) -> str:
    if isinstance(value, datetime):
        return time_text(round(value.timestamp() * 1000))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return "; ".join(map(str, value)) if isinstance(value, tuple) else str(value)
