"""What a plan does about other windows and programs in its way."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta
from functools import partial
from typing import Final

from kafka_ordered_ops.core.arguments import as_span, check_choice, check_count, check_flag, shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.masked import shown_fields
from kafka_ordered_ops.core.templates import check_rendered, if_literal, is_literal
from kafka_ordered_ops.core.types import INT64_MAX, OnCovered, OnForeignCommit, OnOpenClaim


# A constructor instead of generated fields, because arguments may be text.
@dataclass(frozen=True, slots=True, init=False, repr=False)
class Policy:
    """What a plan does about other windows and programs in its way.

    Choices may be text; durations may be ISO 8601 text such as ``PT15M``.

    Args:
        on_covered: what to do if other windows have taken all records that the window asks for, or the window itself is
            finished. ``auto`` and ``skip`` plan a covered window empty.
        on_open_claim: what to do if open windows may hold records that the window asks for.
        claim_age: ``take_over`` abandons planned windows that no attempt has touched for longer than this. Written
            windows are left alone: their output is complete and waits for its commit.
        claim_wait: how long ``wait`` waits.
        on_foreign_commit: fail if another program moved the group's committed offset, or adopt it as progress.
        redefine: True makes the window's mode, isolation and topics those of the group.
        allow_fewer: True lets a window replace its earlier output by one with fewer records, for example after a rewind
            if retention has removed records. Otherwise that is an error, and readers keep the earlier output.
        max_offsets: refuse a window with more offsets, before it is claimed; None means no limit. A window has at least
            as many offsets as records.

    Raises:
        ConfigError: a value of the wrong type, an unknown choice, a negative duration, or a `claim_age` of zero.
    """

    on_covered: OnCovered
    on_open_claim: OnOpenClaim
    claim_age: timedelta
    claim_wait: timedelta
    redefine: bool
    allow_fewer: bool
    on_foreign_commit: OnForeignCommit
    max_offsets: int | None

    def __init__(
        self,
        on_covered: OnCovered | str = OnCovered.AUTO,
        on_open_claim: OnOpenClaim | str = OnOpenClaim.STEP_AROUND,
        claim_age: timedelta | str = timedelta(days=1),
        claim_wait: timedelta | str = timedelta(hours=1),
        redefine: bool = False,
        allow_fewer: bool = False,
        on_foreign_commit: OnForeignCommit | str = OnForeignCommit.FAIL,
        max_offsets: int | str | None = None,
    ) -> None:
        checked = {
            "on_covered": if_literal(
                on_covered, partial(check_choice, kind=OnCovered, what="on_covered")
            ),
            "on_open_claim": if_literal(
                on_open_claim, partial(check_choice, kind=OnOpenClaim, what="on_open_claim")
            ),
            "claim_age": if_literal(claim_age, partial(as_span, what="claim_age")),
            "claim_wait": if_literal(claim_wait, partial(as_span, what="claim_wait")),
            "redefine": check_flag(redefine, what="redefine"),
            "allow_fewer": check_flag(allow_fewer, what="allow_fewer"),
            "on_foreign_commit": check_choice(
                on_foreign_commit, OnForeignCommit, what="on_foreign_commit"
            ),
            "max_offsets": None if max_offsets is None else if_literal(max_offsets, _limit),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if is_literal(claim_age) and self.claim_age <= timedelta(0):
            raise ConfigError(f"claim_age is {shown(claim_age)}: it must be more than zero")

    def __repr__(self) -> str:
        changed = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if getattr(self, field.name) != getattr(DEFAULT_POLICY, field.name)
        }
        return shown_fields(self, **{name: _plain(value) for name, value in changed.items()})

    @property
    def adopts_commits(self) -> bool:
        """Whether another program's commits become the group's progress."""
        return self.on_foreign_commit is OnForeignCommit.ADOPT


#: The policy of a plan that has none.
DEFAULT_POLICY: Final = Policy()


def check_policy(value: object) -> Policy:
    """Return the policy unchanged; raise `ConfigError` for anything else."""
    if not isinstance(value, Policy):
        raise ConfigError(f"policy is {shown(value)}: give a Policy")
    check_rendered(value, "the policy")
    return value


def _plain(value: object) -> object:
    return value if isinstance(value, bool | int) else str(value)


def _limit(value: object) -> int:
    # A rendered template is text.
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        value = int(value)
    return check_count(value, what="max_offsets", least=0, greatest=INT64_MAX)
