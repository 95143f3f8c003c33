"""Numbers and words of a history as values of the package, and its values as words."""

from __future__ import annotations

from typing import Any, Final

from kafka_ordered_ops import AtOffset, Earliest, Latest
from kafka_ordered_ops.core.window.bounds import Bound
from tests.support.oracle.journal import PlanSeen

#: Of a record without a timestamp.
UNTIMED_S: Final = -1.0


def second_of(number: int) -> float:
    """Of a record: most often one that windows ask for, sometimes one far behind them, from the future, or none."""
    if number == 0:
        return 20_000.0
    if number >= 970:
        return UNTIMED_S
    return 5_000.0 if number < 20 else float(number % 45)


def bound_of(text: str) -> Bound:
    """Where a group begins."""
    if text.startswith("offset:"):
        return AtOffset(int(text.removeprefix("offset:")))
    return Latest() if text == "latest" else Earliest()


def told_of(plan: PlanSeen) -> str:
    """A plan that a call returned, in a transcript."""
    shares = {
        str(key): (sorted(share.taken), sorted(share.lost), share.decided_end)
        for key, share in plan.shares.items()
    }
    return (
        f"{plan.window_id}/{plan.claim_id[:4]}/{plan.attempt} {plan.status} {plan.content} {shares}"
    )


def short_of(one: Any) -> str:
    """A window that a call was given, in a transcript."""
    return one if isinstance(one, str) else f"{one['window_id']}/{one.get('attempt')}"
