"""Read a window that another process has planned, for jobs that are started in any way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kafka_ordered_ops.core.errors import WindowPrunedError, WindowSupersededError
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.kafka.ledger.ledger import UPDATE_TIMEOUT_S
from kafka_ordered_ops.kafka.ledger.topic import LEDGER_TOPIC
from kafka_ordered_ops.kafka.settings import ClientSettings, GivenSettings
from kafka_ordered_ops.windows import OrderedWindows


def planned_window(
    settings: GivenSettings,
    group_id: str,
    window_id: str,
    *,
    attempt: int | None = None,
    ledger_topic: str = LEDGER_TOPIC,
) -> tuple[WindowPlan, ClientSettings]:
    """Return a window's plan from the ledger, and the settings to read it with, without changing anything.

    For jobs not launched through `submit`: a host plans and commits, and passes the window's id to its job.

    Args:
        settings: how to reach the cluster.
        group_id: the consumer group.
        window_id: the window.
        attempt: the attempt that the job works for, from the planning task. Its output then has its own
            place. None selects the newest attempt.
        ledger_topic: the topic that holds plans.

    Raises:
        UnknownWindowError: the window does not exist.
        WindowSupersededError: another attempt has resumed the window, or it was abandoned; this job's output
            would not be committed.
        WindowPrunedError: the plan was pruned.
        LedgerError, BrokerError: the cluster failed or could not be reached.
    """
    plans, client = planned_windows(
        settings, group_id, {window_id: attempt}, ledger_topic=ledger_topic
    )
    return plans[0], client


def planned_windows(
    settings: GivenSettings,
    group_id: str,
    attempts: Mapping[str, int | None],
    *,
    ledger_topic: str = LEDGER_TOPIC,
) -> tuple[list[WindowPlan], ClientSettings]:
    """Return the plans of several windows of a group: `planned_window` for each window id and its attempt.

    Raises:
        As `planned_window`, for the first invalid window.
    """
    # The brokers have answered the program that submitted this one: if they refuse now, they are restarting.
    with OrderedWindows(
        settings, group_id, ledger_topic=ledger_topic, timeout_s=float(UPDATE_TIMEOUT_S)
    ) as windows:
        records = windows.show_many(list(attempts))
        for record in records:
            if record.pruned is not None:
                name = record.plan.window_id
                raise WindowPrunedError(
                    f"window {name} of group {group_id} is {record.status} and was pruned from the ledger: its "
                    "offsets are no longer known, and it cannot be read again",
                    window_id=name,
                )
        plans = [_for_attempt(record.plan, attempts[record.plan.window_id]) for record in records]
        return plans, windows.settings


def _for_attempt(plan: WindowPlan, attempt: int | None) -> WindowPlan:
    if attempt is None:
        attempt = plan.attempt
    # A window that is done is replayed as an attempt that is not in the ledger yet.
    is_newest = attempt >= plan.attempt if plan.status.is_done else attempt == plan.attempt
    if not is_newest or not (plan.status.is_open or plan.status.is_done):
        raise WindowSupersededError(
            f"window {plan.window_id} of group {plan.group_id} is {plan.status} at attempt {plan.attempt}, but this "
            f"job works for attempt {attempt}: what it writes would not be committed. End it",
            window_id=plan.window_id,
        )
    return replace(plan, attempt=attempt)
