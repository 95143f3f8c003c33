"""Checks before a window is planned or committed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.arguments import shown
from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffsets
from kafka_ordered_ops.core.errors import (
    ConfigError,
    ForeignCommitError,
    SinkError,
    WindowFencedError,
    WindowMismatchError,
)
from kafka_ordered_ops.core.group.checks import unpublished_text
from kafka_ordered_ops.core.group.group_state import GroupView, WindowRecord
from kafka_ordered_ops.core.group.summaries import Summaries, WindowSummary, untouched_text
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.strict_json import JsonError
from kafka_ordered_ops.core.types import PlanContent, TopicPartition
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.kafka.client.calls import within
from kafka_ordered_ops.kafka.ledger.ledger import UPDATE_TIMEOUT_S

_T = TypeVar("_T")

#: Adopts other programs' commits as the group's progress, or raises the error about them.
Accept = Callable[[ForeignCommitError, bool], object]

#: Every process that uses the window reads the result of its sink.
RESULT_BYTES_MAX: Final = 1024 * 1024


def kept_result(plan: WindowPlan, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sink's result as the ledger will return it.

    Raises:
        SinkError: the result cannot be stored as JSON, or could not be read back.
        WindowMismatchError: the result identifies another window, claim or part.
    """
    check_identity(plan, result)
    try:
        stored: dict[str, Any] = strict_json.as_read_back(
            dict(result), limit_bytes=RESULT_BYTES_MAX
        )
    except JsonError as error:
        raise SinkError(
            f"the result of the sink for window {plan.window_id} of group {plan.group_id} cannot be stored: {error}. Give a "
            f"mapping of text, 64-bit integers, finite numbers, lists and mappings, of at most "
            f"{RESULT_BYTES_MAX:,} bytes. Nothing was committed",
            window_id=plan.window_id,
        ) from error
    return stored


def check_identity(plan: WindowPlan, result: Mapping[str, Any]) -> None:
    """Raise `WindowMismatchError` for an output that identifies another window, group, claim or part.

    An output may identify its window by ``window_id`` and ``claim_id``, and in addition ``group``, ``attempt`` and
    ``part``, directly or in a mapping ``write``. An output without these keys is accepted.
    """
    write = result.get("write")
    if "window_id" not in result and isinstance(write, Mapping):
        result = write
    expected: dict[str, Any] = {"window_id": plan.window_id, "claim_id": plan.claim_id}
    if "claim_id" in result:
        expected |= {
            "ledger": plan.ledger_id,
            "group": plan.group_id,
            "part": None if plan.part is None else plan.part.to_json(),
        }
    differences = {
        name: (value, result[name])
        for name, value in expected.items()
        if name in result
        and result[name] != value
        and (name != "group" or result[name] is not None)
    }
    attempt = result.get("attempt") if "claim_id" in result else None
    # A later attempt may use an earlier attempt's output; hosts choose the numbers of their replays.
    is_later = isinstance(attempt, int) and attempt > plan.attempt
    if not differences and is_later and plan.status.is_open:
        differences = {"attempt": (plan.attempt, attempt)}
    if differences:
        text = ", ".join(
            f"{name} {actual!r} instead of {value!r}"
            for name, (value, actual) in differences.items()
        )
        raise WindowMismatchError(
            f"the output passed for window {plan.window_id} of group {plan.group_id} does not belong to this plan: "
            f"it has {text}. Nothing was changed: pass each window's own output, in the order of the plans",
            window_id=plan.window_id,
            differences=differences,
        )


def check_same_length(plans: Sequence[WindowPlan], others: Sequence[object], *, what: str) -> None:
    """Raise `ConfigError` unless there is one of `others` for each plan."""
    if len(others) != len(plans):
        raise ConfigError(f"{len(plans)} plans and {len(others)} {what}: give one for each plan")


def check_list(value: object, *, what: str) -> None:
    """Raise `ConfigError` unless the value is a list; text and generators are not lists."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise ConfigError(f"{what} is {shown(value)}: give a list")


def check_alike(windows: Iterable[Window]) -> None:
    """Raise `ConfigError` if windows differ in more than their times, or if there are none."""
    questions = {
        (
            window.topics,
            window.exclude,
            window.isolation,
            window.starting_offsets,
            window.out_of_orderness_ms,
            window.on_data_loss,
            window.mode,
            window.decoding,
        )
        for window in windows
    }
    if len(questions) != 1:
        raise ConfigError(
            "windows that are planned together may differ only in their times: plan the others separately"
            if questions
            else "there is no window to plan"
        )


def check_plan(plan: object) -> None:
    """Raise `ConfigError` unless the value is a plan."""
    if not isinstance(plan, WindowPlan):
        raise ConfigError(f"{shown(plan)} is not a plan: give the plan that `plan` returned")


def check_plans(plans: Sequence[WindowPlan], *, each_once: bool = False) -> None:
    """Raise `ConfigError` unless the value is a list of plans; with `each_once` also for a duplicated window."""
    check_list(plans, what="the plans")
    for plan in plans:
        check_plan(plan)
    if each_once and len({plan.window_id for plan in plans}) != len(plans):
        raise ConfigError("a window is duplicated among the plans: give each window once")


def check_result(result: object) -> None:
    """Raise `SinkError` unless a sink's result is a mapping."""
    if not isinstance(result, Mapping):
        raise SinkError(
            f"a sink's result is {shown(result)}, but must be a mapping. Nothing was committed"
        )


def check_plan_of(group_id: str, plan: WindowPlan) -> None:
    """Raise unless this is a plan of the group."""
    check_plan(plan)
    if plan.group_id != group_id:
        raise WindowMismatchError(
            f"the plan of window {plan.window_id} belongs to group {plan.group_id}, not to {group_id}",
            window_id=plan.window_id,
            differences={"group": (plan.group_id, group_id)},
        )


def check_claims(group_id: str, plan: WindowPlan) -> None:
    """Raise unless this is a plan of the group, or a part of a plan, that claims offsets: not a preview."""
    check_plan_of(group_id, plan)
    if not plan.claim_id:
        raise ConfigError(
            f"window {plan.window_id}: a preview claims nothing and cannot be committed: plan the window"
        )


def check_processed(plan: WindowPlan, offsets: object) -> None:
    """Raise `ConfigError` unless the value maps partitions to offsets, `WindowMismatchError` unless the plan takes them."""
    if not isinstance(offsets, Mapping) or not all(
        isinstance(tp, TopicPartition) and isinstance(processed, OffsetSet)
        for tp, processed in offsets.items()
    ):
        raise ConfigError(
            f"the processed offsets are {shown(offsets)}: give a mapping from partitions to offset sets"
        )
    taken = plan.taken
    others = {
        tp: more
        for tp, processed in offsets.items()
        if (more := processed - taken.get(tp, EMPTY_SET))
    }
    if others:
        tp, more = next(iter(others.items()))
        start, end = more.ranges[0]
        raise WindowMismatchError(
            f"window {plan.window_id} of group {plan.group_id}: the plan does not take "
            f"{sum(extra.count for extra in others.values()):,} of the processed offsets, {tp} [{start}, {end}) among them. "
            "Nothing was changed: pass each window's own offsets",
            window_id=plan.window_id,
            differences={
                str(partition): (taken.get(partition, EMPTY_SET).ranges, offsets[partition].ranges)
                for partition in others
            },
        )


def check_committable(group_id: str, plan: WindowPlan) -> None:
    """Raise unless this is a plan of the group that can be committed: not a preview, not a part."""
    check_claims(group_id, plan)
    if plan.part is not None:
        raise ConfigError(
            f"window {plan.window_id}: {plan.part} is reported, not committed; the whole window commits when "
            "all parts have reported"
        )


def present(record: _T | None) -> _T:
    """Return the record of a decision that always finds or creates one."""
    if record is None:
        raise AssertionError("this decision always finds or creates a record")
    return record


def until_decided(attempt: Callable[[], _T | None], what: str) -> _T:
    """Repeat an attempt as long as its facts are outdated when it is decided, within the call's time limit.

    Raises:
        WindowFencedError: the group changed during each attempt.
    """
    deadline = within(UPDATE_TIMEOUT_S)
    while (decision := attempt()) is None:
        if deadline.is_over:
            raise WindowFencedError(
                f"{what}: the group changed during each attempt until the deadline. Run the same window again"
            )
    return decision


def covers(record: WindowRecord, window: Window) -> bool:
    """Return whether a window is committed and has the records that another window asks for."""
    held = record.plan.window
    return (
        record.status.is_done
        and record.pruned is None
        and record.plan.content is not PlanContent.COVERED
        and held.times == window.times
        and (held.topics, held.exclude) == (window.topics, window.exclude)
    )


def newest(records: Iterable[WindowRecord]) -> WindowRecord | None:
    """Return the window that was committed last."""
    return max(records, key=lambda record: record.committed_at_ms or 0, default=None)


#: Shorter intervals do not mean shorter jobs.
_AGE_LEAST: Final = timedelta(hours=1)


def left_notes(
    view: GroupView, plans: Collection[WindowPlan], age: timedelta, *, now_ms: int
) -> tuple[str, ...]:
    """Return notes about other windows of the group that readers do not have: unpublished, or open and touched by no attempt for an age.

    Open windows in the way of `plans` are told with them. Beside intervals, the age is at most an interval's own length,
    and an hour at least: runs of hours must not stay silent for a day.
    """
    lengths_ms = [
        plan.cutoff_ms - plan.window.since_ms for plan in plans if plan.window.since_ms is not None
    ]
    if lengths_ms:
        age = min(age, max(timedelta(milliseconds=max(lengths_ms)), _AGE_LEAST))
    told = {plan.window_id for plan in plans}
    waiting = [name for name in (view.state.unpublished if view.state else ()) if name not in told]
    told |= {held.window_id for plan in plans for held in plan.held_by_open}
    others = [record for record in view.open_windows() if record.plan.window_id not in told]
    old = Summaries(tuple(map(WindowSummary.of, others))).untouched(age, now_ms=now_ms)
    notes = []
    if waiting:
        notes.append(f"{unpublished_text(waiting)}. A run with the same output publishes it")
    if old:
        notes.append(untouched_text(old, now_ms=now_ms))
    return tuple(f"group {view.group_id} has {note}" for note in notes)


def expired_notes(view: GroupView, committed: CommittedOffsets) -> tuple[str, ...]:
    """Return notes about expired committed offsets: the ledger has them, and the next commit restores them."""
    if view.state is None:
        return ()
    gone = [
        tp
        for tp, state in view.state
        if state.committed is not None and tp in committed and committed[tp] is None
    ]
    if not gone:
        return ()
    return (
        f"the committed offsets of {len(gone)} partitions have expired ({gone[0]} among them). The ledger "
        "has them, and the next commit restores them",
    )
