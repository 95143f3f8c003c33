"""A plan's policy if other windows are in the way."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from kafka_ordered_ops.core.arguments import as_span, check_choice, check_flag, shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.types import OnCovered, OnOpenClaim


# A constructor instead of generated fields, because arguments may be text.
@dataclass(frozen=True, slots=True, init=False)
class Policy:
    """A plan's policy if other windows are in the way.

    Choices may be text; durations may be ISO 8601 text such as ``PT15M``.

    Args:
        on_covered: what to do if other windows have taken all records that the window asks for. ``auto`` and ``skip``
            plan it empty.
        on_open_claim: what to do if open windows may hold records that the window asks for.
        claim_age: take_over abandons planned windows that no attempt has touched for longer than this. Written
            windows are left: their output is complete and waits for its commit.
        claim_wait: how long wait waits.
        redefine: True makes the window's mode, isolation and topics those of the group.
        allow_fewer: True lets a window replace its earlier output by one with fewer records: of a rewound window whose
            records retention has removed, for example. Otherwise that is an error, and readers keep what they see.

    Raises:
        ConfigError: a value of the wrong type, an unknown choice, a negative duration, or a `claim_age` of zero.
    """

    on_covered: OnCovered
    on_open_claim: OnOpenClaim
    claim_age: timedelta
    claim_wait: timedelta
    redefine: bool
    allow_fewer: bool

    def __init__(
        self,
        on_covered: OnCovered | str = OnCovered.AUTO,
        on_open_claim: OnOpenClaim | str = OnOpenClaim.STEP_AROUND,
        claim_age: timedelta | str = timedelta(days=1),
        claim_wait: timedelta | str = timedelta(hours=1),
        redefine: bool = False,
        allow_fewer: bool = False,
    ) -> None:
        checked = {
            "on_covered": check_choice(on_covered, OnCovered, what="on_covered"),
            "on_open_claim": check_choice(on_open_claim, OnOpenClaim, what="on_open_claim"),
            "claim_age": as_span(claim_age, what="claim_age"),
            "claim_wait": as_span(claim_wait, what="claim_wait"),
            "redefine": check_flag(redefine, what="redefine"),
            "allow_fewer": check_flag(allow_fewer, what="allow_fewer"),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.claim_age <= timedelta(0):
            raise ConfigError(f"claim_age is {shown(claim_age)}: it must be more than zero")


def check_policy(value: object) -> Policy:
    """Return the policy itself; raise `ConfigError` for anything else."""
    if not isinstance(value, Policy):
        raise ConfigError(f"policy is {shown(value)}: give a Policy")
    return value
