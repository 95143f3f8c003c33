"""Plan windows, deliver them in one pass and report the result: `run` and `windows sweep`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kafka_ordered_ops.cli.exits import ExitCode
from kafka_ordered_ops.cli.options.options import Connection
from kafka_ordered_ops.cli.options.question import Policies
from kafka_ordered_ops.cli.options.sink import Sink
from kafka_ordered_ops.cli.show.facts import delivery_json
from kafka_ordered_ops.cli.show.screen import Screen
from kafka_ordered_ops.cli.show.tables import (
    deliveries_table,
    delivery_text,
    outputs_text,
    windows_text,
)
from kafka_ordered_ops.core.group.group_state import GroupState
from kafka_ordered_ops.core.types import OnCovered, PlanContent, WindowStatus
from kafka_ordered_ops.core.window.covered import covered_text
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.core.window.window_id import default_window_id
from kafka_ordered_ops.delivery.lineage import run_lineage
from kafka_ordered_ops.delivery.summary import held_texts
from kafka_ordered_ops.delivery.verdict import check_same_output, delivered_again
from kafka_ordered_ops.windows import Delivery, Policy

#: Windows of a series that are named individually.
_NAMED_MAX: Final = 10


@dataclass(frozen=True)
class Delivered:
    """Windows before and after a delivery."""

    window_ids: Sequence[str]
    #: As planned or resumed, before the delivery.
    before: Sequence[WindowPlan]
    after: Sequence[Delivery]
    state: GroupState | None


def deliver(
    screen: Screen,
    connection: Connection,
    sink: Sink,
    questions: Sequence[Window],
    window_ids: Sequence[str | None],
    policy: Policy,
) -> Delivered:
    """Deliver windows: one plan, one read, one commit for all that need it.

    Raises:
        ConfigError: the job cannot run; nothing was planned.
    """
    sink.hide_options(screen)
    sink.check(connection.settings(), connection.group_id, questions)
    with (
        sink.opened(connection.settings(), questions) as find_output,
        connection.open(screen) as windows,
        run_lineage(windows.group_id, windows.settings.bootstrap_servers) as say,
        screen.progress("planning"),
    ):
        plans = delivered_again(
            windows,
            windows.plan_many(questions, window_ids, policy, place=sink.publishes_to),
            policy.on_covered,
        )
        say(*plans)
        writer = sink.writer(windows.settings, screen)
        after = windows.deliver_many(plans, writer, find_output)
        for delivery in after:
            check_same_output(delivery, sink.destination)
        say(*(delivery.record for delivery in after))
        requested = [
            name or default_window_id(windows.group_id, question)
            for question, name in zip(questions, window_ids, strict=True)
        ]
        return Delivered(requested, plans, after, windows.state())


def report_one(screen: Screen, sink: Sink, delivered: Delivered) -> None:
    """Report the result for one window."""
    [before], [after] = delivered.before, delivered.after
    say_covered(screen, delivered)
    if screen.as_json:
        say_held(screen, [before])
        screen.emit(delivery_json(after.record, state=delivered.state, ran=after.ran))
        return
    screen.show(delivery_text(after.record))
    say_replacement(screen, delivered.window_ids[0], before)
    say_notes(screen, [before])
    screen.say(_outcome(before, after))


def report_many(screen: Screen, delivered: Delivered) -> None:
    """Report the result for a series of windows."""
    say_covered(screen, delivered)
    if screen.as_json:
        say_held(screen, delivered.before)
        windows = [
            delivery_json(delivery.record, state=delivered.state, ran=delivery.ran)
            for delivery in delivered.after
        ]
        screen.emit({"windows": windows})
        return
    records = [delivery.record for delivery in delivered.after]
    screen.show(deliveries_table(records), outputs_text(records))
    for window_id, plan in zip(delivered.window_ids, delivered.before, strict=True):
        say_replacement(screen, window_id, plan)
    say_notes(screen, delivered.before)
    screen.say(_outcomes(delivered))


def say_covered(screen: Screen, delivered: Delivered) -> None:
    """Report covered windows: nothing was delivered for them."""
    covered = [plan for plan in delivered.before if plan.content is PlanContent.COVERED]
    texts = [f"{covered_text(plan)}. This command delivered none of them" for plan in covered]
    _warn(screen, texts, "are covered")


def say_held(screen: Screen, plans: Sequence[WindowPlan]) -> None:
    """Report open windows that hold records of these windows' times."""
    _warn(screen, held_texts(plans), "miss records that open windows hold")


def _warn(screen: Screen, texts: Sequence[str], predicate: str) -> None:
    for text in texts[:_NAMED_MAX]:
        screen.say(f"warning: {text}")
    if (more := len(texts) - _NAMED_MAX) > 0:
        screen.say(f"warning: and {more:,} more windows {predicate}")


def end_of(delivered: Delivered, policies: Policies) -> ExitCode:
    """Return the exit code: `COVERED` if all windows are covered, unless --on-covered was given."""
    is_covered = all(plan.content is PlanContent.COVERED for plan in delivered.before)
    return (
        ExitCode.COVERED if is_covered and policies.on_covered is OnCovered.AUTO else ExitCode.DONE
    )


def say_replacement(screen: Screen, window_id: str, plan: WindowPlan) -> None:
    """Report that another window holds the records of the requested one."""
    if plan.window_id != window_id:
        screen.say(
            f"note: window {window_id} is covered: window {plan.window_id} holds its records"
        )


def say_notes(screen: Screen, plans: Sequence[WindowPlan]) -> None:
    """Report the notes of plans; windows planned together share them."""
    for note in dict.fromkeys(note for plan in plans for note in plan.notes):
        screen.say(f"note: {note}")
    say_held(screen, plans)
    around = list(dict.fromkeys(name for plan in plans for name in plan.stepped_around))
    if around:
        names = ", ".join(around[:5])
        screen.say(
            f"note: {len(around)} open windows keep their offsets ({names}): finish or abandon them"
        )


def _outcome(before: WindowPlan, delivery: Delivery) -> str:
    """Describe what this call did."""
    name = f"window {before.window_id}"
    if before.content is PlanContent.COVERED:
        return f"{covered_text(before)}; nothing was written"
    if delivery.ran:
        return f"{name} is published"
    outcome = {
        WindowStatus.WRITTEN: "was written by an earlier attempt, and is now committed and published",
        WindowStatus.COMMITTED: "was committed by an earlier attempt, and is now published",
    }.get(before.status, "is already published; nothing was done")
    if delivery.shown_again:
        outcome = "was not visible to readers; the output of an earlier attempt is published again"
    return f"{name} {outcome}"


def _outcomes(delivered: Delivered) -> str:
    """Describe what this call did for several windows."""
    by_outcome = {
        "read and published": 0,
        "written by an earlier attempt and published now": 0,
        "published already": 0,
        "covered by other windows, nothing written": 0,
    }
    read, finished, done, covered = by_outcome
    for before, after in zip(delivered.before, delivered.after, strict=True):
        if before.content is PlanContent.COVERED:
            by_outcome[covered] += 1
        elif after.ran:
            by_outcome[read] += 1
        else:
            is_done = before.status is WindowStatus.PUBLISHED and not after.shown_again
            by_outcome[done if is_done else finished] += 1
    counts = ", ".join(f"{count:,} {outcome}" for outcome, count in by_outcome.items() if count)
    return f"{windows_text(len(delivered.after))}: {counts}"
