"""Deliver windows: bring each from its current status to published.

The steps are calls of the service, each with its own time limit, and the job runs between them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from kafka_ordered_ops.core.errors import (
    FewerRecordsError,
    KafkaOrderedOpsError,
    OutputOwnedError,
    SinkError,
    WindowSupersededError,
)
from kafka_ordered_ops.core.group.checks import check_owns_output, superseded
from kafka_ordered_ops.core.group.group_state import WindowRecord
from kafka_ordered_ops.core.group.transitions import check_parts
from kafka_ordered_ops.core.types import PlanContent, WindowStatus
from kafka_ordered_ops.core.window.plan import WindowPlan, decoded_alike, newest_attempt
from kafka_ordered_ops.windows.checks import check_committable, check_plans
from kafka_ordered_ops.windows.sink import (
    Reopen,
    Staged,
    WriteMany,
    check_jobs,
    check_outputs,
    is_visible,
    reopen_each,
)

_log = logging.getLogger("kafka_ordered_ops.windows")

#: Errors of outputs that no later attempt could publish either.
NEVER_PUBLISHED: Final = (OutputOwnedError, FewerRecordsError)


@dataclass(frozen=True, slots=True)
class Delivery:
    """The result of delivering a window."""

    record: WindowRecord
    #: True if the sink's job ran in this call; False if an earlier attempt had run it.
    ran: bool
    #: True if readers did not see the published window, and this call published an earlier attempt's output again.
    shown_again: bool = False

    @property
    def plan(self) -> WindowPlan:
        """The plan, with its current status."""
        return self.record.plan


class Steps(Protocol):
    """The calls of a service that a delivery consists of; see `OrderedWindows`."""

    group_id: str

    def unpublished(self) -> list[WindowRecord]:
        """Return the group's committed windows whose output is not published yet."""

    def show_many(self, window_ids: Sequence[str]) -> list[WindowRecord]:
        """Return the windows as the ledger has them."""

    def check_readable(self, plan: WindowPlan) -> None:
        """Raise `RecordsLostError` if a committed window can no longer be read from Kafka."""

    def commit_many(
        self, plans: Sequence[WindowPlan], staged: Sequence[Staged] | None = None
    ) -> list[WindowPlan]:
        """Commit windows in one transaction; with `staged`, then publish them."""

    def publish_many(
        self, plans: Sequence[WindowPlan], staged: Sequence[Staged]
    ) -> list[WindowPlan]:
        """Make committed windows visible."""

    def abandon(self, window: str | WindowPlan) -> WindowRecord:
        """Release an open window's offsets."""


def deliver(
    steps: Steps, plans: Sequence[WindowPlan], write: WriteMany, reopen: Reopen
) -> list[Delivery]:
    """See `OrderedWindows.deliver_many`."""
    # 1. Refuse windows that cannot be delivered, before a job runs in vain.
    check_jobs(write, reopen)
    check_plans(plans, each_once=True)
    for plan in plans:
        check_committable(steps.group_id, plan)
    # 2. Publish outputs of earlier runs that died between commit and publishing.
    _publish_left(steps, plans, reopen)
    # 3. Skip covered windows: other windows deliver their records, and no sink sees them.
    if covered := [plan for plan in plans if plan.content is PlanContent.COVERED]:
        steps.commit_many(covered)
    with_records = [plan for plan in plans if plan.content is not PlanContent.COVERED]
    # 4. Find outputs of earlier attempts; raise if another attempt, or tasks for parts, have a window.
    try:
        earlier, moved = _found(steps, with_records, reopen)
    except NEVER_PUBLISHED as error:
        give_back(steps, with_records, error)
        raise
    # 5. Run the job for the rest.
    missing = [plan for plan in with_records if plan.window_id not in earlier]
    for plan in missing:
        if plan.status.is_done:
            steps.check_readable(plan)
    fresh: dict[str, Staged] = {}
    try:
        for alike in decoded_alike(missing):
            written = write(alike)
            check_outputs(alike, written)
            fresh |= zip((plan.window_id for plan in alike), written, strict=True)
        # 6. Commit open windows and publish those that readers do not see.
        unseen = _unseen(with_records, earlier)
        _finish(steps, with_records, {**earlier, **fresh}, unseen | moved | fresh.keys())
    except WindowSupersededError:
        discard(steps, fresh)
        raise
    except NEVER_PUBLISHED as error:
        give_back(steps, with_records, error, fresh=missing, outputs=fresh)
        raise
    # 7. Return the windows with their current status.
    records = steps.show_many([plan.window_id for plan in plans])
    return [
        Delivery(record, ran=name in fresh, shown_again=name in unseen)
        for record in records
        for name in [record.plan.window_id]
    ]


def _publish_left(steps: Steps, plans: Sequence[WindowPlan], reopen: Reopen) -> None:
    """Publish the group's other committed windows whose output is complete in the same place."""
    if (left := getattr(reopen, "left", None)) is None:
        return
    in_call = {plan.window_id for plan in plans}
    for record in steps.unpublished():
        plan = record.plan
        if plan.window_id in in_call:
            continue
        try:
            if (output := left(record.result or {})) is not None:
                steps.publish_many([plan], [output])
                _log.info(
                    "group %s: published window %s, which an earlier run had committed",
                    steps.group_id,
                    plan.window_id,
                )
        except (SinkError, WindowSupersededError) as error:
            # The window's own run raises this error; it does not affect the windows of this call.
            _log.warning(
                "group %s: window %s stays unpublished: %s", steps.group_id, plan.window_id, error
            )


def _found(
    steps: Steps, plans: Sequence[WindowPlan], reopen: Reopen
) -> tuple[dict[str, Staged], set[str]]:
    """Return the existing outputs of earlier attempts by window id, and the ids whose output differs from the ledger."""
    records = steps.show_many([plan.window_id for plan in plans])
    for plan, record in zip(plans, records, strict=True):
        check_owns_output(record, plan)
        check_parts(record)
    pairs = [
        (plan, record)
        for plan, record in zip(plans, records, strict=True)
        # A replay is another attempt of a finished window: its job runs, whatever earlier attempts have written.
        if not (record.status.is_done and plan.attempt > newest_attempt(record.plan, record.result))
    ]
    results = {
        plan.window_id: record.result or {}
        for plan, record in pairs
        # The plan may be older: an earlier call of the same attempt may have ended after its job.
        if record.status is not WindowStatus.PLANNED
    }
    outputs = reopen_each(reopen, results)
    for plan, record in pairs:
        found = outputs.get(plan.window_id)
        newest = plan.attempt if found is None else newest_attempt(plan, found.to_json())
        if plan.status.is_open and newest > plan.attempt:
            # It has published the window since this attempt was planned.
            raise superseded(replace(record, plan=replace(record.plan, attempt=newest)), plan)
    if (elsewhere := getattr(reopen, "elsewhere", None)) is not None:
        # An earlier call published the window to another place: there is nothing to find here.
        for plan, record in pairs:
            if record.status is WindowStatus.PUBLISHED and plan.window_id not in outputs:
                outputs |= _named(plan, elsewhere(record.result or {}))
    moved = {name for name, output in outputs.items() if dict(output.to_json()) != results[name]}
    return outputs, moved


def _named(plan: WindowPlan, output: Staged | None) -> dict[str, Staged]:
    return {} if output is None else {plan.window_id: output}


def _unseen(plans: Sequence[WindowPlan], outputs: Mapping[str, Staged]) -> set[str]:
    """Return the windows that are published in the ledger, but whose existing outputs readers do not see."""
    return {
        plan.window_id
        for plan in plans
        if plan.status is WindowStatus.PUBLISHED
        and plan.window_id in outputs
        and not is_visible(outputs[plan.window_id])
    }


def _finish(
    steps: Steps,
    plans: Sequence[WindowPlan],
    outputs: Mapping[str, Staged],
    again: Collection[str],
) -> None:
    """Commit open windows and publish committed ones, in as few transactions as possible.

    A published window is published again only if `again` contains it.
    """
    open_ = [plan for plan in plans if plan.status.is_open]
    done = [
        plan
        for plan in plans
        if not plan.status.is_open
        and (plan.status is WindowStatus.COMMITTED or plan.window_id in again)
    ]
    if open_:
        steps.commit_many(open_, [outputs[plan.window_id] for plan in open_])
    if done:
        steps.publish_many(done, [outputs[plan.window_id] for plan in done])


def give_back(
    steps: Steps,
    plans: Sequence[WindowPlan],
    error: KafkaOrderedOpsError,
    *,
    fresh: Sequence[WindowPlan] = (),
    outputs: Mapping[str, Staged] | None = None,
) -> None:
    """Abandon open windows whose output can never be published: their records are free for other windows.

    These are the window of the error, and `fresh` windows, which share one job; their `outputs` are removed. Other windows
    keep an earlier attempt's output.

    Raises:
        WindowSupersededError: another attempt owns the window of the error by now, and has published it.
    """
    refused, newer = error.facts.get("window_id"), None
    try:
        for plan in plans:
            is_refused = plan.status.is_open and plan.window_id == refused
            if is_refused or (plan in fresh and plan.status is WindowStatus.PLANNED):
                try:
                    steps.abandon(plan)
                except WindowSupersededError as told:
                    newer = told if is_refused else newer
    finally:
        discard(steps, outputs or {})
    if newer is not None:
        raise newer from error


def discard(steps: Steps, fresh: Mapping[str, Staged]) -> None:
    """Remove outputs that are not needed. Outputs recorded in the ledger are left to the owning attempt."""
    if not fresh:
        return
    named = {record.plan.window_id: record.result for record in steps.show_many(list(fresh))}
    for window_id, output in fresh.items():
        if named.get(window_id) != output.to_json():
            output.discard()
