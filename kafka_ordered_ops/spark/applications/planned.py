"""A window that another process has planned, for a job that was started in any way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kafka_ordered_ops.core.errors import WindowPrunedError, WindowSupersededError
from kafka_ordered_ops.core.window.plan import WindowPlan
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
    """Return a window's plan from the ledger, and the settings to read it with; changes nothing.

    For jobs that do not come by `submit`: a host plans and commits, and its job is told the window's id.

    Args:
        settings: how to reach the cluster.
        group_id: the consumer group.
        window_id: the window.
        attempt: the attempt that the job works for, as the planning task told it: its output has a place of its
            own. None: whichever is the newest.
        ledger_topic: the topic that holds plans.

    Raises:
        UnknownWindowError: there is no such window.
        WindowSupersededError: another attempt has taken the window up since, or it was abandoned; what this job
            writes would not be committed.
        WindowPrunedError: its plan is gone.
        LedgerError, BrokerError: the cluster, or the way to it.
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
    """`planned_window` for several windows of a group, in one look: by window id, the attempt or None.

    Raises:
        as `planned_window`, for the first window that is wrong.
    """
    with OrderedWindows(settings, group_id, ledger_topic=ledger_topic) as windows:
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
    # A window that is done is replayed as an attempt that the ledger has not seen.
    is_newest = attempt >= plan.attempt if plan.status.is_done else attempt == plan.attempt
    if not is_newest or not (plan.status.is_open or plan.status.is_done):
        raise WindowSupersededError(
            f"window {plan.window_id} of group {plan.group_id} is {plan.status} at attempt {plan.attempt}, and this "
            f"job works for attempt {attempt}: what it writes would not be committed. End it",
            window_id=plan.window_id,
        )
    return replace(plan, attempt=attempt)
