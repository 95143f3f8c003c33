"""What one attempt has left in the stages of a root; see `cleaning`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol


@dataclass(frozen=True)
class Left:
    """What one attempt has staged: all that the whole window, its parts and drafts have there."""

    #: The name of the window's stages: its id, safe in a path.
    window: str
    #: Claim and attempt.
    attempt: str
    #: The group, if the stage says it.
    group_id: str | None
    files: int
    size: int
    #: When something of it was written last.
    modified: datetime

    def to_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "window": self.window,
            "attempt": self.attempt,
            "group": self.group_id,
            "files": self.files,
            "bytes": self.size,
            "modified": self.modified.isoformat().replace("+00:00", "Z"),
        }


class Leftovers(Protocol):
    """The stages of one root."""

    def found(self) -> list[Left]:
        """Return what attempts have left, by window and attempt; raise `SinkError`."""

    def remove(self, left: Left) -> int:
        """Remove what an attempt has left, unless it has written since; return how many files."""

    def remove_probes(self, before: datetime) -> int:
        """Remove what is left of checks of the store; return how many objects."""
