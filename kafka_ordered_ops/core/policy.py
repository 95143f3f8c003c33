"""What a plan does when others stand in its way."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

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
    """

    on_covered: OnCovered = OnCovered.SKIP
    on_open_claim: OnOpenClaim = OnOpenClaim.STEP_AROUND
    claim_age: timedelta = timedelta(days=1)
    claim_wait: timedelta = timedelta(hours=1)
    redefine: bool = False

    def __post_init__(self) -> None:
        if self.claim_age <= timedelta(0) or self.claim_wait < timedelta(0):
            raise ConfigError(
                f"claim_age {self.claim_age} and claim_wait {self.claim_wait} are spans of time"
            )
        object.__setattr__(self, "on_covered", OnCovered(self.on_covered))
        object.__setattr__(self, "on_open_claim", OnOpenClaim(self.on_open_claim))
