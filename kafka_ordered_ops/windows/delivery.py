"""What a sink hands over, and what becomes of a window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from kafka_ordered_ops.core.group_state import WindowRecord
from kafka_ordered_ops.core.plan import WindowPlan


class Staged(Protocol):
    """A sink's output that is complete and not visible yet."""

    def to_json(self) -> Mapping[str, Any]:
        """What another process needs to publish it; kept in the ledger."""

    def publish(self) -> None:
        """Makes it visible; doing it again changes nothing."""

    def discard(self) -> None:
        """Removes what is not visible; doing it again changes nothing."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of a window."""

    record: WindowRecord
    #: Whether the sink's job ran in this call; False when an earlier try had done it.
    ran: bool

    @property
    def plan(self) -> WindowPlan:
        """The plan, with its status now."""
        return self.record.plan
