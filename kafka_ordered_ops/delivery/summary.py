"""The facts of a window that every host reports with the same names and texts, and the records that open windows hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.core.errors import KafkaOrderedOpsError
from kafka_ordered_ops.core.times import time_text
from kafka_ordered_ops.core.window.dead_letters import bad_name, dead_letters_in
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.decoding.discarded import discarded_in
from kafka_ordered_ops.output.writing.reported import result_facts, returned_by

if TYPE_CHECKING:
    from kafka_ordered_ops.core.group.group_state import WindowRecord


#: The facts of a window with more partitions leave their bounds out.
_PARTITIONS_MAX: Final = 200

#: Windows listed in a text; the facts have all of them.
_NAMED_MAX: Final = 5


def plan_summary(plan: WindowPlan) -> dict[str, Any]:
    """Return the facts of a planned window."""
    return {
        "window_id": plan.window_id,
        "group": plan.group_id,
        "status": plan.status.value,
        "content": plan.content.value,
        "since": time_or_none(plan.window.since_ms),
        "cutoff": time_text(plan.cutoff_ms),
        "offsets": plan.offsets,
        "attempt": plan.attempt,
    }


def window_summary(record: WindowRecord) -> dict[str, Any]:
    """Return the facts of a window with its sink's counts; `None` for counts that were not reported."""
    from kafka_ordered_ops.output.writing.staged_output import output_of
    from kafka_ordered_ops.spec.table import table_of

    facts, output = result_facts(record.result), output_of(record.result, record.plan)
    return {
        **plan_summary(record.plan),
        "records": facts.get("records"),
        "late": facts.get("late"),
        **dead_letter_facts(record),
        **discarded_in(facts),
        "out_of_order": facts.get("out_of_order") if record.plan.tells_out_of_order else None,
        "timestamp_min": time_or_none(facts.get("timestamp_ms_min")),
        "timestamp_max": time_or_none(facts.get("timestamp_ms_max")),
        "output": table_of(record.result) if output is None else output.final_path,
        "result": returned_by(record.result),
    }


def dead_letter_facts(record: WindowRecord) -> dict[str, Any]:
    """Return how many dead letters a window has, and the topic, the folder or the table for them; empty if it may have none."""
    from kafka_ordered_ops.output.writing.staged_output import output_of
    from kafka_ordered_ops.spec.table import table_of

    if (letters := dead_letters_in(record.result)) is None:
        return {}
    place, table = letters.topic, table_of(record.result)
    if place is None and table is not None:
        place = bad_name(table)
    elif place is None and (output := output_of(record.result, record.plan)) is not None:
        place = None if output.bad is None else output.bad.final_path
    return {"dead_letters": len(letters.records), "dead_letters_to": place}


def partition_bounds(plan: WindowPlan) -> dict[str, dict[str, int]] | None:
    """Return the bounds of the offsets taken from each partition, of which out-of-order records make very many ranges; None for too many partitions."""
    if len(plan.taken) > _PARTITIONS_MAX:
        return None
    return {
        str(tp): {
            "from": taken.first,
            "up_to": taken.end,
            "offsets": taken.count,
            "ranges": len(taken),
        }
        for tp, taken in plan.taken.items()
    }


def time_or_none(timestamp_ms: int | None) -> str | None:
    """Return a time as text; `None` for `None`."""
    return None if timestamp_ms is None else time_text(int(timestamp_ms))


def held_facts(plan: WindowPlan) -> list[dict[str, Any]]:
    """Return the open windows and their offsets, as plain JSON."""
    return [
        {
            "window_id": window.window_id,
            "offsets": window.offsets,
            "status": window.status.value,
            "touched_at": time_text(window.touched_at_ms),
        }
        for window in plan.held_by_open
    ]


def held_texts(plans: Sequence[WindowPlan]) -> list[str]:
    """Return a text for each window whose records other windows hold."""
    return [text for plan in plans if (text := held_text(plan)) is not None]


def held_text(plan: WindowPlan) -> str | None:
    """Return a text about open windows that hold offsets of a window, and what to do; `None` without any, or if it is done."""
    held = plan.held_by_open
    # For a delivered window, this was so when it was planned.
    if not held or not plan.status.is_open:
        return None
    listing = ", ".join(
        f"{window.window_id} ({window.offsets:,} offsets, {window.status}, last touched {time_text(window.touched_at_ms)})"
        for window in held[:_NAMED_MAX]
    )
    more = f" and {len(held) - _NAMED_MAX:,} more" if len(held) > _NAMED_MAX else ""
    return (
        f"window {plan.window_id}: up to {sum(window.offsets for window in held):,} offsets of its times are held by "
        f"{len(held):,} open window{'' if len(held) == 1 else 's'}: {listing}{more}. Their records are not lost: run "
        "those windows again to deliver them (in Airflow, clear their tasks), or let another window take the records: "
        f"kafka-ordered-ops windows abandon -g {plan.group_id} {held[0].window_id}"
    )


def all_held_text(plan: WindowPlan) -> str | None:
    """Return a text for a window that takes nothing while open windows hold records of its times; else `None`."""
    text = None if plan.offsets else held_text(plan)
    return None if text is None else f"it takes no records, and others may be held: {text}"


@contextmanager
def job_step(
    plans: Sequence[WindowPlan],
    log_error: Callable[[str], object],
    on_purpose: tuple[type[Exception], ...] = (),
) -> Iterator[None]:
    """Name the step of an error of the windows' job; log what to do about an exception of the user's own code.

    Args:
        plans: the windows.
        log_error: writes a line.
        on_purpose: exceptions by which a function ends its task on purpose; they are not logged.
    """
    try:
        yield
    except KafkaOrderedOpsError as error:
        error.step = error.step or "job"
        raise
    except on_purpose:
        raise
    except Exception as error:
        log_error(_job_failed_text(error, plans))
        raise


def _job_failed_text(error: Exception, plans: Sequence[WindowPlan]) -> str:
    """Return a line for the end of a failed attempt's log: group, windows, step, reason, and what to do."""
    more = f" and {len(plans) - 1:,} more" if len(plans) > 1 else ""
    return (
        f"group {plans[0].group_id}, window {plans[0].window_id}{more}, step job: {type(error).__name__}: {error}. Nothing "
        "was committed, and no other window takes the records: fix the job, and run the same window again"
    )
