"""The identity of one attempt's rows of one window: what the ledger keeps and the table's commits carry."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import Any, Final

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.strict_json import Fields, JsonError
from kafka_ordered_ops.core.window.plan import WindowPlan

#: A write's name becomes part of a statement.
_CLAIM_ID: Final = re.compile(r"[A-Za-z0-9_.-]+")
_TOKEN: Final = re.compile(r"[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class TableWrite:
    """One attempt's rows of one window."""

    group_id: str
    window_id: str
    claim_id: str
    attempt: int
    #: Tells two writes of the same attempt apart: a replay has the attempt of what it replaces.
    token: str

    def __post_init__(self) -> None:
        if not _CLAIM_ID.fullmatch(self.claim_id) or not _TOKEN.fullmatch(self.token):
            raise ConfigError(
                f"claim {self.claim_id[:140]!r} of window {self.window_id}, write {self.token[:20]!r}: letters, "
                "digits, '_', '.' and '-' are what rows can be told apart by"
            )

    @classmethod
    def of(cls, plan: WindowPlan) -> TableWrite:
        """Return a new write of this plan's attempt."""
        token = uuid.uuid4().hex[:12]
        return cls(plan.group_id, plan.window_id, plan.claim_id, plan.attempt, token)

    @property
    def name(self) -> str:
        """Its name in the stage."""
        return f"{self.claim_id}-{self.attempt}-{self.token}"

    @property
    def part(self) -> None:
        """A table gets whole windows."""
        return None

    def makes_worthless(self, name: str) -> bool:
        """Return whether staged rows of the same window are of no more use once this write shows."""
        claim_id, attempt, _ = name.rsplit("-", 2)
        return claim_id != self.claim_id or int(attempt) <= self.attempt

    def to_json(self) -> dict[str, Any]:
        """Return what the table's commit carries."""
        return {
            "group": self.group_id,
            "window_id": self.window_id,
            "claim_id": self.claim_id,
            "attempt": self.attempt,
            "token": self.token,
        }

    @classmethod
    def from_json(cls, fields: Fields) -> TableWrite:
        """Parse the JSON of `to_json`; raise `JsonError` if it is invalid."""
        try:
            write = cls(
                group_id=fields.text("group"),
                window_id=fields.text("window_id"),
                claim_id=fields.text("claim_id"),
                attempt=fields.integer("attempt", least=0),
                token=fields.text("token"),
            )
        except ConfigError as error:
            raise JsonError(str(error)) from error
        fields.done()
        return write
