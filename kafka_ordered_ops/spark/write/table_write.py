"""The identity of one attempt's rows of one window: what the ledger keeps and the table's commits carry."""

from __future__ import annotations

import hashlib
import re
import uuid
from dataclasses import dataclass, field
from typing import Any, Final

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.strict_json import Fields, JsonError
from kafka_ordered_ops.core.window.ownership import OutputOwner, Publisher
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.spec.table import TableMode

#: A write's name becomes part of a statement.
_CLAIM_ID: Final = re.compile(r"[A-Za-z0-9_.-]+")
_TOKEN: Final = re.compile(r"[0-9a-f]+")

#: What a commit says of itself is some hundred bytes.
METADATA_BYTES_MAX: Final = 64 * 1024

#: Of 32 hexadecimal digits: two windows never have the same.
_KEY_LENGTH: Final = 32


@dataclass(frozen=True, slots=True)
class TableWrite:
    """One attempt's rows of one window."""

    #: The ledger of the window, as ``cluster id/topic id``.
    ledger_id: str
    group_id: str
    window_id: str
    claim_id: str
    attempt: int
    #: Tells two writes of the same attempt apart: a replay has the attempt of what it replaces.
    token: str
    #: Earlier claims of the window, whose rows these may replace. Known to the ledger, and no part of the identity.
    replaces: tuple[str, ...] = field(default=(), compare=False)
    #: Whether they may replace more rows than they are.
    allow_fewer: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        if not _CLAIM_ID.fullmatch(self.claim_id) or not _TOKEN.fullmatch(self.token):
            raise ConfigError(
                f"claim {self.claim_id[:140]!r} of window {self.window_id}, write {self.token[:20]!r}: letters, "
                "digits, '_', '.' and '-' are what rows can be told apart by"
            )

    @classmethod
    def of(cls, plan: WindowPlan) -> TableWrite:
        """Return a new write of this plan's attempt."""
        return cls(
            plan.ledger_id,
            plan.group_id,
            plan.window_id,
            plan.claim_id,
            plan.attempt,
            uuid.uuid4().hex[:12],
            replaces=plan.replaces,
            allow_fewer=plan.allow_fewer,
        )

    @property
    def name(self) -> str:
        """Its name in the stage."""
        return f"{self.claim_id}-{self.attempt}-{self.token}"

    @property
    def window_key(self) -> str:
        """The name, in stages, of its window: two ledgers or groups may use the same id."""
        return hashed([self.ledger_id, self.group_id, self.window_id])[:_KEY_LENGTH]

    @property
    def owner(self) -> OutputOwner:
        """Whose rows these are."""
        return OutputOwner(
            self.ledger_id, self.group_id, self.window_id, self.claim_id, self.attempt
        )

    @property
    def publisher(self) -> Publisher:
        """Who asks to replace what readers see of the window."""
        claims = (self.claim_id, *self.replaces)
        return Publisher(self.ledger_id, self.group_id, self.window_id, claims)

    @property
    def part(self) -> None:
        """A table gets whole windows."""
        return None

    def is_same_window(self, other: TableWrite) -> bool:
        """Return whether another write is of the same window of the same ledger and group."""
        return (self.ledger_id, self.group_id, self.window_id) == (
            other.ledger_id,
            other.group_id,
            other.window_id,
        )

    def makes_worthless(self, name: str) -> bool:
        """Return whether staged rows of the same window are of no more use once this write shows."""
        claim_id, attempt, _ = name.rsplit("-", 2)
        return claim_id != self.claim_id or int(attempt) <= self.attempt

    def to_json(self) -> dict[str, Any]:
        """Return its identity, as the table's commit carries it."""
        return {
            "ledger": self.ledger_id,
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
                ledger_id=fields.text("ledger"),
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


@dataclass(frozen=True, slots=True)
class TableCommit:
    """What a commit of a table says of the window whose rows it shows."""

    write: TableWrite
    mode: TableMode
    #: How many rows were shown; None: the commit does not say.
    records: int | None

    def to_json(self) -> dict[str, Any]:
        """Return what the commit carries."""
        return {"write": self.write.to_json(), "mode": self.mode.value, "records": self.records}

    @classmethod
    def from_json(cls, fields: Fields) -> TableCommit:
        """Parse the JSON of `to_json`; raise `JsonError` if it is invalid."""
        return cls(
            TableWrite.from_json(fields.object("write")),
            fields.choice("mode", TableMode),
            fields.integer_or_none("records", least=0),
        )


def hashed(value: Any) -> str:
    """Return the hexadecimal digest of a JSON value, for names."""
    return hashlib.sha256(strict_json.dumps(value).encode()).hexdigest()
