"""What a plan does when others stand in its way."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from kafka_ordered_ops.core.arguments import as_span, check_choice, check_flag, shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.types import OnCovered, OnOpenClaim


# Its own constructor, because it takes more than it keeps: texts too.
@dataclass(frozen=True, slots=True, init=False)
class Policy:
    """What a plan does when others stand in its way.

    A choice may be given as its text, a span as ISO 8601 text such as ``PT15M``.

    Args:
        on_covered: other windows have taken everything that it asks for.
        on_open_claim: open windows may hold records that it asks for.
        claim_age: take_over abandons planned windows that no attempt has touched for longer than this. Written
            ones are left: their output is complete and waits for its commit.
        claim_wait: wait gives up after this long.
        redefine: whether the window's mode, isolation and topics become the group's.

    Raises:
        ConfigError: a value of another type, an unknown choice, a negative span, a `claim_age` of zero.
    """

    on_covered: OnCovered
    on_open_claim: OnOpenClaim
    claim_age: timedelta
    claim_wait: timedelta
    redefine: bool

    def __init__(
        self,
        on_covered: OnCovered | str = OnCovered.SKIP,
        on_open_claim: OnOpenClaim | str = OnOpenClaim.STEP_AROUND,
        claim_age: timedelta | str = timedelta(days=1),
        claim_wait: timedelta | str = timedelta(hours=1),
        redefine: bool = False,
    ) -> None:
        checked = {
            "on_covered": check_choice(on_covered, OnCovered, what="on_covered"),
            "on_open_claim": check_choice(on_open_claim, OnOpenClaim, what="on_open_claim"),
            "claim_age": as_span(claim_age, what="claim_age"),
            "claim_wait": as_span(claim_wait, what="claim_wait"),
            "redefine": check_flag(redefine, what="redefine"),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.claim_age <= timedelta(0):
            raise ConfigError(
                f"claim_age is {shown(claim_age)}, which is no age that a claim can have: give more than zero"
            )


def check_policy(value: object) -> Policy:
    """The policy itself; raises `ConfigError` for anything else."""
    if not isinstance(value, Policy):
        raise ConfigError(f"policy is {shown(value)}: give a Policy")
    return value
