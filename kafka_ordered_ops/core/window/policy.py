"""What a plan does when others stand in its way."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from kafka_ordered_ops.core.arguments import check_choice, check_flag, check_span, shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.types import OnCovered, OnOpenClaim


@dataclass(frozen=True, slots=True)
class Policy:
    """What a plan does when others stand in its way.

    Args:
        on_covered: other windows have taken everything that it asks for.
        on_open_claim: open windows may hold records that it asks for.
        claim_age: take_over abandons planned windows that no try has touched for longer than this. Written
            ones are left: their output is complete and waits for its commit.
        claim_wait: wait gives up after this long.
        redefine: whether the window's mode, isolation and topics become the group's.

    Raises:
        ConfigError: a value of another type, an unknown choice, a negative span, a `claim_age` of zero.
    """

    on_covered: OnCovered = OnCovered.SKIP
    on_open_claim: OnOpenClaim = OnOpenClaim.STEP_AROUND
    claim_age: timedelta = timedelta(days=1)
    claim_wait: timedelta = timedelta(hours=1)
    redefine: bool = False

    def __post_init__(self) -> None:
        check_span(self.claim_wait, what="claim_wait")
        if check_span(self.claim_age, what="claim_age") <= timedelta(0):
            raise ConfigError(
                f"claim_age {self.claim_age} is none of the spans of time that an age can be: give more than zero"
            )
        check_flag(self.redefine, what="redefine")
        for name, kind in (("on_covered", OnCovered), ("on_open_claim", OnOpenClaim)):
            object.__setattr__(self, name, check_choice(getattr(self, name), kind, what=name))


def check_policy(value: object) -> Policy:
    """The policy itself; raises `ConfigError` for anything else."""
    if not isinstance(value, Policy):
        raise ConfigError(f"policy is {shown(value)}: give a Policy")
    return value
