"""Deliver windows: bring each from its current status to published.

The steps are calls of the service, each with its own bound, and the job runs between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kafka_ordered_ops.core.errors import WindowSupersededError
from kafka_ordered_ops.core.group.checks import check_owns_output
from kafka_ordered_ops.core.group.group_state import WindowRecord
from kafka_ordered_ops.core.group.transitions import check_parts
from kafka_ordered_ops.core.types import PlanContent, WindowStatus
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.windows.checks import check_committable, check_plans
from kafka_ordered_ops.windows.sink import (
    Reopen,
    Staged,
    WriteMany,
    check_jobs,
    check_outputs,
    reopen_each,
)


@dataclass(frozen=True, slots=True)
class Delivery:
    """The result of delivering a window."""

    record: WindowRecord
    #: True if the sink's job ran in this call; False if an earlier attempt had run it.
    ran: bool

    @property
    def plan(self) -> WindowPlan:
        """The plan, with its status now."""
        return self.record.plan


class Steps(Protocol):
    """The calls of a service that a delivery is made of; see `OrderedWindows`."""

    group_id: str

    def show_many(self, window_ids: Sequence[str]) -> list[WindowRecord]:
        """Return the windows as the ledger has them."""

    def check_readable(self, plan: WindowPlan) -> None:
        """Raise `RecordsLostError` when a committed window can no longer be read from Kafka."""

    def commit_many(
        self, plans: Sequence[WindowPlan], staged: Sequence[Staged] | None = None
    ) -> list[WindowPlan]:
        """Commit windows in one transaction; with `staged`, then publishes them."""

    def publish_many(
        self, plans: Sequence[WindowPlan], staged: Sequence[Staged]
    ) -> list[WindowPlan]:
        """Make committed windows visible."""


def deliver(
    steps: Steps, plans: Sequence[WindowPlan], write: WriteMany, reopen: Reopen
) -> list[Delivery]:
    """See `OrderedWindows.deliver_many`."""
    # 1. Refuse windows that cannot be delivered before a job runs for nothing.
    check_jobs(write, reopen)
    check_plans(plans, each_once=True)
    for plan in plans:
        check_committable(steps.group_id, plan)
    # 2. Skip covered windows: other windows deliver their records, and no sink sees them.
    if covered := [plan for plan in plans if plan.content is PlanContent.COVERED]:
        steps.commit_many(covered)
    with_records = [plan for plan in plans if plan.content is not PlanContent.COVERED]
    # 3. Find an earlier attempt's output; or find that another attempt, or tasks for its parts, have the window.
    found = _found(steps, with_records, reopen)
    # 4. Run the job for the rest.
    missing = [plan for plan in with_records if plan.window_id not in found]
    for plan in missing:
        if plan.status.is_done:
            steps.check_readable(plan)
    written = write(missing) if missing else ()
    check_outputs(missing, written)
    fresh = dict(zip((plan.window_id for plan in missing), written, strict=True))
    # 5. Commit open windows and publish unpublished ones.
    try:
        _finish(steps, with_records, found, fresh)
    except WindowSupersededError:
        _discard(steps, fresh)
        raise
    # 6. Return the windows with their status now.
    records = steps.show_many([plan.window_id for plan in plans])
    return [Delivery(one, ran=one.plan.window_id in fresh) for one in records]


def _found(steps: Steps, plans: Sequence[WindowPlan], reopen: Reopen) -> dict[str, Staged]:
    """Return the outputs of earlier attempts that are still there, by window id."""
    records = steps.show_many([plan.window_id for plan in plans])
    for plan, record in zip(plans, records, strict=True):
        check_owns_output(record, plan)
        check_parts(record)
    results = {
        plan.window_id: record.result or {}
        for plan, record in zip(plans, records, strict=True)
        # The plan may be older: an earlier call of the same attempt may have ended after its job.
        if record.status is not WindowStatus.PLANNED
    }
    return reopen_each(reopen, results)


def _finish(
    steps: Steps,
    plans: Sequence[WindowPlan],
    found: Mapping[str, Staged],
    fresh: Mapping[str, Staged],
) -> None:
    """Commit open windows and publish committed ones, in as few transactions as possible."""
    outputs = {**found, **fresh}
    open_ = [plan for plan in plans if plan.status.is_open]
    # A published window is published again only if it was written again.
    done = [
        plan
        for plan in plans
        if not plan.status.is_open
        and (plan.status is WindowStatus.COMMITTED or plan.window_id in fresh)
    ]
    if open_:
        steps.commit_many(open_, [outputs[plan.window_id] for plan in open_])
    if done:
        steps.publish_many(done, [outputs[plan.window_id] for plan in done])


def _discard(steps: Steps, fresh: Mapping[str, Staged]) -> None:
    """Remove outputs that nobody needs. Outputs recorded in the ledger are left to the owning attempt."""
    named = {record.plan.window_id: record.result for record in steps.show_many(list(fresh))}
    for window_id, one in fresh.items():
        if named.get(window_id) != one.to_json():
            one.discard()
