"""What all windows of a task or an asset have in common: everything but their times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from kafka_ordered_ops.core.arguments import check_choice, check_flag, check_group, check_span
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.times import parse_duration_ms, time_at
from kafka_ordered_ops.core.types import (
    Isolation,
    OnCovered,
    OnDataLoss,
    OnForeignCommit,
    OnOpenClaim,
)
from kafka_ordered_ops.core.window.bounds import Bound, parse_bound
from kafka_ordered_ops.core.window.policy import Policy
from kafka_ordered_ops.core.window.window import Window

_CHOICES: Final = {
    "isolation": Isolation,
    "on_covered": OnCovered,
    "on_open_claim": OnOpenClaim,
    "on_data_loss": OnDataLoss,
    "on_foreign_commit": OnForeignCommit,
}


@dataclass(frozen=True, kw_only=True)
class WindowSpec:
    """What all windows of a task or an asset have in common; a choice or a bound may be given as its text.

    Raises:
        ConfigError: no topic, no group, or an invalid value.
    """

    topics: Sequence[str]
    group_id: str
    starting_offsets: Bound | str | None = None
    max_out_of_orderness: timedelta | None = None
    isolation: Isolation | str = Isolation.READ_COMMITTED
    exclude: Sequence[str] = ()
    on_covered: OnCovered | str = OnCovered.REPLAY
    on_open_claim: OnOpenClaim | str = OnOpenClaim.STEP_AROUND
    on_data_loss: OnDataLoss | str = OnDataLoss.FAIL
    on_foreign_commit: OnForeignCommit | str = OnForeignCommit.FAIL
    redefine: bool = False

    def __post_init__(self) -> None:
        if not self.topics or not self.group_id:
            raise ConfigError(
                "topics and group_id are needed: what to read, and whose progress it is"
            )
        check_group(self.group_id)
        check_flag(self.redefine, what="redefine")
        for name, kind in _CHOICES.items():
            object.__setattr__(self, name, check_choice(getattr(self, name), kind, what=name))
        if self.max_out_of_orderness is not None:
            check_span(self.max_out_of_orderness, what="max_out_of_orderness")
        if isinstance(self.starting_offsets, str):
            object.__setattr__(self, "starting_offsets", parse_bound(self.starting_offsets))
        # All that any window asks for, but its times.
        self.window(time_at(0), None)
        object.__setattr__(self, "topics", tuple(self.topics))
        object.__setattr__(self, "exclude", tuple(self.exclude))

    def window(self, cutoff: datetime, since: datetime | None) -> Window:
        """The question for these times; raises `ConfigError`."""
        return Window(
            self.topics,
            cutoff,
            since=since,
            starting_offsets=None
            if isinstance(self.starting_offsets, str)
            else self.starting_offsets,
            max_out_of_orderness=self.max_out_of_orderness,
            isolation=Isolation(self.isolation),
            exclude=self.exclude,
            on_data_loss=OnDataLoss(self.on_data_loss),
        )

    def policy(
        self,
        on_covered: OnCovered,
        claim_age: timedelta | None = None,
        claim_wait: timedelta | None = None,
    ) -> Policy:
        """What a plan does when others stand in its way; None: the policy's own default."""
        given = {"claim_age": claim_age, "claim_wait": claim_wait}
        spans = {name: span for name, span in given.items() if span is not None}
        on_open_claim = OnOpenClaim(self.on_open_claim)
        return Policy(on_covered, on_open_claim, redefine=self.redefine, **spans)


def span_of(value: timedelta | str | None, what: str) -> timedelta | None:
    """A span from an argument; raises `ConfigError`."""
    if value is None:
        return None
    if isinstance(value, str):
        value = timedelta(milliseconds=parse_duration_ms(value, what=what))
    return check_span(value, what=what)
