"""What one attempt has left in the stages of a root; see `cleaning`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.strict_json import JsonError
from kafka_ordered_ops.output.filesystem import MARKER_BYTES_MAX
from kafka_ordered_ops.output.layout import Layout


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


def any_stage(root: str) -> Layout:
    """Return a place below a root, for where its stages are."""
    return Layout(root, "any", "any", 0)


def group_of(content: bytes | None) -> str | None:
    """Return the group that a marker, a seal or the marker of a draft names; None if it names none."""
    try:
        value = strict_json.loads(content or b"", limit_bytes=MARKER_BYTES_MAX)
    except JsonError:
        return None
    if isinstance(value, dict) and isinstance(value.get("output"), dict):
        value = value["output"]
    group_id = value.get("group") if isinstance(value, dict) else None
    return group_id if isinstance(group_id, str) else None
