"""The settings that all windows of a task or an asset share: everything but their times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from kafka_ordered_ops.core.arguments import (
    as_names,
    as_span,
    check_choice,
    check_flag,
)
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.names import check_group
from kafka_ordered_ops.core.times import time_at
from kafka_ordered_ops.core.types import (
    Isolation,
    OnCovered,
    OnDataLoss,
    OnForeignCommit,
    OnOpenClaim,
)
from kafka_ordered_ops.core.window.bounds import Bound
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
    """The settings that all windows of a task or an asset share: the arguments of `Window` and `Policy`.

    Raises:
        ConfigError: no topic, no group, or an invalid value.
    """

    topics: str | Sequence[str]
    group_id: str
    starting_offsets: Bound | datetime | str | None = None
    max_out_of_orderness: timedelta | str | None = None
    isolation: Isolation | str = Isolation.READ_COMMITTED
    exclude: str | Sequence[str] = ()
    on_covered: OnCovered | str = OnCovered.AUTO
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
        # A window's parameters without its times, in the form of a window.
        window = self.window(time_at(0), None)
        object.__setattr__(self, "starting_offsets", window.starting_offsets)
        object.__setattr__(self, "max_out_of_orderness", window.max_out_of_orderness)
        object.__setattr__(self, "topics", as_names(self.topics, what="topics"))
        object.__setattr__(self, "exclude", as_names(self.exclude, what="exclude"))

    def window(self, cutoff: datetime, since: datetime | None) -> Window:
        """Return the window for these times; raise `ConfigError`."""
        return Window(
            self.topics,
            cutoff,
            since=since,
            starting_offsets=self.starting_offsets,
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
        *,
        allow_fewer: bool = False,
    ) -> Policy:
        """Return the policy about other windows; None: the policy's own default."""
        given = {"claim_age": claim_age, "claim_wait": claim_wait}
        spans = {name: span for name, span in given.items() if span is not None}
        on_open_claim = OnOpenClaim(self.on_open_claim)
        return Policy(
            on_covered,
            on_open_claim,
            redefine=self.redefine,
            allow_fewer=allow_fewer,
            **spans,
        )


def span_of(value: timedelta | str | None, what: str) -> timedelta | None:
    """Return a span from an argument; raise `ConfigError`."""
    return None if value is None else as_span(value, what=what)
