"""The identity of one attempt's rows of one window, in the ledger and in the table's commits."""

from __future__ import annotations

import hashlib
import re
import uuid
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.strict_json import Count, JsonError, Stored, Text
from kafka_ordered_ops.core.window.ownership import OutputOwner, Publisher
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.spark.write.table_evolution import Addition
from kafka_ordered_ops.spec.table import TableMode

#: A claim id becomes part of a write's name, and so of statements.
_CLAIM_ID: Final = re.compile(r"[A-Za-z0-9_.-]+")
_TOKEN: Final = re.compile(r"[0-9a-f]+")

#: Version of the JSON in a table's commit.
COMMIT_VERSION: Final = 1

#: The metadata of our commits has a few hundred bytes.
METADATA_BYTES_MAX: Final = 64 * 1024

#: The length of a window's key in hexadecimal digits: long enough that no two windows share one.
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
    #: Distinguishes two writes of the same attempt: a replay has the attempt of the output that it replaces.
    token: str
    #: Earlier claims of the window, whose rows these may replace. From the ledger, and not part of the identity.
    replaces: tuple[str, ...] = field(default=(), compare=False)
    #: Whether these rows may replace a larger number of rows.
    allow_fewer: bool = field(default=False, compare=False)
    #: The columns and fields that the table gets with these rows. From the ledger, and not part of the identity.
    adds: tuple[Addition, ...] = field(default=(), compare=False)

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
        """The write's name in the stage."""
        return f"{self.claim_id}-{self.attempt}-{self.token}"

    @property
    def window_key(self) -> str:
        """The name of the window in stages, because two ledgers or groups may use the same id."""
        return hashed([self.ledger_id, self.group_id, self.window_id])[:_KEY_LENGTH]

    @property
    def owner(self) -> OutputOwner:
        """The owner of these rows."""
        return OutputOwner(
            self.ledger_id, self.group_id, self.window_id, self.claim_id, self.attempt
        )

    @property
    def publisher(self) -> Publisher:
        """The publisher that wants to replace the window's visible rows."""
        claims = (self.claim_id, *self.replaces)
        return Publisher(self.ledger_id, self.group_id, self.window_id, claims)

    @property
    def part(self) -> None:
        """None: only whole windows are written to tables."""
        return None

    def is_same_window(self, other: TableWrite) -> bool:
        """Return whether another write is of the same window of the same ledger and group."""
        return (self.ledger_id, self.group_id, self.window_id) == (
            other.ledger_id,
            other.group_id,
            other.window_id,
        )

    def makes_worthless(self, name: str) -> bool:
        """Return whether staged rows of the same window are obsolete once this write is published."""
        claim_id, attempt, _ = name.rsplit("-", 2)
        return claim_id != self.claim_id or int(attempt) <= self.attempt

    def to_json(self) -> dict[str, Any]:
        """Return the JSON of the identity in the table's commit."""
        return {
            "ledger": self.ledger_id,
            "group": self.group_id,
            "window_id": self.window_id,
            "claim_id": self.claim_id,
            "attempt": self.attempt,
            "token": self.token,
        }


class StoredWrite(Stored, frozen=True, rename={"ledger_id": "ledger", "group_id": "group"}):
    """The JSON of a `TableWrite`."""

    ledger_id: Text
    group_id: Text
    window_id: Text
    claim_id: Text
    attempt: Count
    token: Text

    @property
    def write(self) -> TableWrite:
        """The write; raises `JsonError` for invalid names."""
        try:
            return TableWrite(**self.fields())
        except ConfigError as error:
            raise JsonError(str(error)) from error


@dataclass(frozen=True, slots=True)
class TableCommit:
    """The metadata of a table's commit about the window whose rows it shows."""

    write: TableWrite
    mode: TableMode
    #: The number of shown rows; None if the commit does not record it.
    records: int | None

    def to_json(self) -> dict[str, Any]:
        """Return versioned JSON for the commit."""
        return {
            "version": COMMIT_VERSION,
            "write": self.write.to_json(),
            "mode": self.mode.value,
            "records": self.records,
        }


class StoredCommit(Stored, frozen=True, forbid_unknown_fields=False):
    """The JSON of a `TableCommit`; a format may say more beside it."""

    what = "the commit"

    version: Literal[1]
    write: StoredWrite
    mode: TableMode
    records: Count | None

    @property
    def commit(self) -> TableCommit:
        """The commit; raises `JsonError` for one with an invalid write."""
        return TableCommit(self.write.write, self.mode, self.records)


def hashed(value: Any) -> str:
    """Return the hexadecimal digest of a JSON value, for names."""
    return hashlib.sha256(strict_json.dumps(value).encode()).hexdigest()
