"""Missing rights of a principal, as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

#: Rights listed in one text.
_NAMED_MAX: Final = 20


class Resource(StrEnum):
    """The kind of resource that a right is granted on."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional id"


@dataclass(frozen=True, slots=True)
class MissingRight:
    """Operations on one resource that a principal needs and was not granted."""

    #: Kafka's names, such as ``READ``.
    operations: tuple[str, ...]
    resource: Resource
    name: str
    #: Whether the right is needed on all names that begin with `name`.
    is_prefix: bool = False
    #: When the right is needed, if not always.
    condition: str = ""

    def __str__(self) -> str:
        of = f"s that begin with {self.name}" if self.is_prefix else f" {self.name}"
        condition = f", {self.condition}" if self.condition else ""
        return f"{' and '.join(self.operations)} on {self.resource}{of}{condition}"

    def to_json(self) -> dict[str, object]:
        """Return the right as JSON values."""
        return {
            "operations": [*self.operations],
            "resource": self.resource.value,
            "name": self.name,
            "is_prefix": self.is_prefix,
            "condition": self.condition or None,
        }


def rights_text(missing: Sequence[MissingRight]) -> str:
    """Return the rights as text, at most the first `_NAMED_MAX`."""
    more = len(missing) - _NAMED_MAX
    named = "; ".join(map(str, missing[:_NAMED_MAX]))
    return f"{named}; and {more:,} more" if more > 0 else named
