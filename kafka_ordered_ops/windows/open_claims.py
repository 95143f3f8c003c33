"""A plan's policy for open windows in its way: step around them, wait, take them over, or fail; and what it leaves to them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final

from kafka_ordered_ops.core.errors import OpenClaimError
from kafka_ordered_ops.core.group import transitions
from kafka_ordered_ops.core.group.checks import known_window
from kafka_ordered_ops.core.group.group_state import GroupView, WindowRecord
from kafka_ordered_ops.core.group.turn import GroupTurn
from kafka_ordered_ops.core.times import duration_text
from kafka_ordered_ops.core.types import OnOpenClaim, WindowStatus
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.core.window.policy import Policy
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.kafka.client import calls
from kafka_ordered_ops.kafka.ports import LedgerDoor

_log = logging.getLogger("kafka_ordered_ops.windows")

#: The interval between checks while a plan waits for open windows.
_LOOK_S: Final = 2.0
#: Open windows listed in one error or warning.
_NAMED_MAX: Final = 5


@dataclass
class OpenClaims:
    """The open windows in the way of one call to plan."""

    ledger: LedgerDoor
    #: The turn of the plan, which it leaves to others while it waits.
    turn: GroupTurn
    policy: Policy
    now_ms: Callable[[], int]
    #: Waits for a number of seconds; other threads' calls of the same service continue.
    pause: Callable[[float], object]
    #: Notes for the plans about the actions taken.
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        wait_s = self.policy.claim_wait.total_seconds()
        self._wait_until_s = time.monotonic() + wait_s
        if self.policy.on_open_claim is OnOpenClaim.WAIT and (call := calls.running()) is not None:
            call.allow(wait_s)

    def came_meanwhile(
        self, view: GroupView, fresh: Mapping[str, Window], call_ids: Collection[str]
    ) -> bool:
        """Return whether open windows are in the way now, and the policy is to wait or to fail."""
        return self.policy.on_open_claim in (OnOpenClaim.WAIT, OnOpenClaim.FAIL) and bool(
            _in_the_way(view, fresh, call_ids)
        )

    def heed(self, view: GroupView, fresh: Mapping[str, Window], call_ids: Collection[str]) -> bool:
        """Apply the policy to the open windows in the way; return whether the group must be read again.

        `fresh` are the new windows, and `call_ids` the ids of all windows of the call.

        Raises:
            OpenClaimError: the policy does not step around open windows.
        """
        if self.policy.on_open_claim is OnOpenClaim.STEP_AROUND:
            return False
        in_the_way = _in_the_way(view, fresh, call_ids)
        if not in_the_way:
            return False
        if self.policy.on_open_claim is OnOpenClaim.TAKE_OVER:
            return self._take_over(view.group_id, in_the_way)
        names = [record.plan.window_id for record in in_the_way]
        left_s = self._wait_until_s - time.monotonic()
        waits = self.policy.on_open_claim is OnOpenClaim.WAIT
        if waits and left_s > 0:
            calls.waits_for(f"open windows in the way: {', '.join(names[:_NAMED_MAX])}")
            self.turn.leave()
            self.pause(min(_LOOK_S, left_s))
            return True
        waited = f" after {_span_text(self.policy.claim_wait)}" if waits else ""
        raise OpenClaimError(
            f"group {view.group_id}: window {next(iter(fresh))} is not planned: {len(names)} open windows may hold "
            f"records that it asks for{waited} ({', '.join(names[:_NAMED_MAX])}). Finish or abandon them, or plan with "
            "on_open_claim='step_around'",
            window_id=next(iter(fresh)),
            open_windows=names,
        )

    def _take_over(self, group_id: str, in_the_way: Sequence[WindowRecord]) -> bool:
        now_ms = self.now_ms()
        age_ms = self.policy.claim_age // timedelta(milliseconds=1)
        stale = [
            record
            for record in in_the_way
            if record.status is WindowStatus.PLANNED and now_ms - record.touched_at_ms > age_ms
        ]
        if not stale:
            return False
        steps = [partial(_give_up, looked_at=record) for record in stale]
        after = self.ledger.update(
            group_id,
            lambda: lambda view, _: transitions.in_turn(view, steps),
            wanted=[record.plan.window_id for record in stale],
            turn=self.turn,
        )
        for record in stale:
            if after is None or known_window(after, record.plan.window_id).status.is_open:
                continue
            age = duration_text(now_ms - record.touched_at_ms)
            note = (
                f"abandoned window {record.plan.window_id}, which no attempt had touched for {age}"
            )
            _log.warning("group %s: %s", group_id, note)
            self.notes.append(note)
        return True


def log_held(plan: WindowPlan, now_ms: int) -> None:
    """Log which open windows hold offsets that a new plan asks for."""
    if not plan.held_by_open:
        return
    named = ", ".join(
        f"{held.window_id} ({held.offsets:,} offsets, {held.status}, "
        f"last touched {duration_text(max(now_ms - held.touched_at_ms, 0))} ago)"
        for held in plan.held_by_open[:_NAMED_MAX]
    )
    _log.warning(
        "group %s: window %s leaves up to %d offsets that it asks for to %d open windows: %s. These windows deliver "
        "them or, once they are abandoned, another window does",
        plan.group_id,
        plan.window_id,
        sum(held.offsets for held in plan.held_by_open),
        len(plan.held_by_open),
        named,
    )


def _give_up(view: GroupView, *, looked_at: WindowRecord) -> transitions.Outcome:
    record = known_window(view, looked_at.plan.window_id)
    # An attempt may have resumed the window.
    if record != looked_at:
        return record
    return transitions.abandon(view, looked_at.plan.window_id, keep_origins=True)


def _in_the_way(
    view: GroupView, fresh: Mapping[str, Window], call_ids: Collection[str]
) -> list[WindowRecord]:
    """Return the open windows whose times meet those of a new window, except windows of this call."""
    return [
        record
        for record in view.open_windows()
        if record.plan.window_id not in call_ids
        and any(record.plan.window.times.meets(window.times) for window in fresh.values())
    ]


def _span_text(span: timedelta) -> str:
    return duration_text(span // timedelta(milliseconds=1))
