"""The leftovers of attempts in the stages of a root, and which of them nobody will publish; see `cleaning`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.arguments import as_span
from kafka_ordered_ops.core.strict_json import JsonError
from kafka_ordered_ops.core.window.ownership import OutputOwner, check_root_owner
from kafka_ordered_ops.output.layout import Layout

#: Returns the outputs that the ledger still needs: those of windows that are open, or committed and not published.
Needed = Callable[[Sequence[OutputOwner]], Collection[OutputOwner]]


@dataclass(frozen=True)
class StageOrigin:
    """The owner of an attempt's stage, as far as its markers record it."""

    ledger_id: str | None = None
    group_id: str | None = None
    window_id: str | None = None


@dataclass(frozen=True)
class Left:
    """What one attempt has staged: the whole window, its parts and its drafts."""

    #: The name of the window's stages: its id, safe in a path.
    window: str
    #: The claim id and the number of the attempt.
    attempt: str
    origin: StageOrigin
    #: Whether the stage of the window, or of a part of it, is complete: it may have been committed.
    is_complete: bool
    files: int
    size: int
    #: The time of the last write to any of its files.
    modified: datetime

    @property
    def group_id(self) -> str | None:
        """The group, if the stage records it."""
        return self.origin.group_id

    @property
    def owner(self) -> OutputOwner | None:
        """The attempt; None if the stage does not record its owner."""
        claim_id, _, number = self.attempt.rpartition("-")
        origin = self.origin
        if origin.ledger_id is None or origin.group_id is None or origin.window_id is None:
            return None
        return OutputOwner(
            origin.ledger_id, origin.group_id, origin.window_id, claim_id, int(number)
        )

    def to_json(self) -> dict[str, Any]:
        """Return JSON for programs."""
        return {
            "window": self.window,
            "attempt": self.attempt,
            "group": self.group_id,
            "complete": self.is_complete,
            "files": self.files,
            "bytes": self.size,
            "modified": self.modified.isoformat().replace("+00:00", "Z"),
        }


class Leftovers(Protocol):
    """The stages of one root."""

    root: str

    def owner(self) -> str | None:
        """Return the ledger that the root belongs to; None if nothing was staged yet."""

    def found(self) -> list[Left]:
        """Return the leftovers, by window and attempt; raise `SinkError`."""

    def shown(self, left: Left) -> Layout | None:
        """Return the output of an attempt's window that readers see; None if they see none."""

    def remove(self, left: Left) -> int:
        """Remove what an attempt has left, unless it has written since; return how many files."""

    def remove_probes(self, before: datetime) -> int:
        """Remove leftovers of checks of the store; return how many objects."""


@dataclass(frozen=True)
class Choice:
    """Which stages are removed, and why the others stay."""

    dead: Sequence[Left]
    young: int
    #: Complete, and perhaps committed.
    needed: int
    #: Of another group, or of another ledger.
    others: int


def choose(
    stages: Leftovers,
    old_before: datetime,
    *,
    ledger_id: str | None = None,
    group_id: str | None = None,
    needed: Needed | None = None,
) -> Choice:
    """Return which stages are old and obsolete.

    Args:
        stages: the stages of a root.
        old_before: stages written to after this time stay.
        ledger_id: the ledger of the caller; None if unknown.
        group_id: selects stages of this group; None selects all groups.
        needed: asks the ledger; without it, complete stages stay unless readers see a newer output of their window.

    Raises:
        OutputOwnedError: the root belongs to another ledger.
        SinkError: the file system or the store failed.
    """
    root_owner = stages.owner()
    if ledger_id is not None and root_owner is not None:
        check_root_owner(ledger_id, root_owner, stages.root)
    attempts = stages.found()
    own = [
        left
        for left in attempts
        if left.origin.ledger_id in (None, root_owner) and group_id in (None, left.group_id)
    ]
    old = [left for left in own if left.modified < old_before]
    doubtful = [left for left in old if left.is_complete and not _is_superseded(stages, left)]
    if needed is None:
        alive = set(map(_key, doubtful))
    else:
        owners = {owner: left for left in doubtful if (owner := left.owner) is not None}
        alive = {_key(owners[output]) for output in needed(list(owners))}
        alive |= {_key(left) for left in doubtful if left.owner is None}
    dead = [left for left in old if _key(left) not in alive]
    return Choice(dead, len(own) - len(old), len(alive), len(attempts) - len(own))


def before(older_than: timedelta | str, *, what: str) -> datetime:
    """Return the time before which a stage is old; raise `ConfigError` for an invalid span."""
    span = as_span(older_than, what=what)
    try:
        return datetime.now(UTC) - span
    except OverflowError:
        # Nothing is that old.
        return datetime.min.replace(tzinfo=UTC)


def origin_in(contents: Iterable[bytes | None], *, limit_bytes: int) -> StageOrigin:
    """Return the owner in the first readable one of several markers, seals and drafts' markers."""
    for content in contents:
        try:
            value = strict_json.loads(content or b"", limit_bytes=limit_bytes)
        except JsonError:
            continue
        if isinstance(value, dict) and isinstance(value.get("output"), dict):
            value = value["output"]
        if isinstance(value, dict):
            names = [value.get(name) for name in ("ledger", "group", "window_id")]
            return StageOrigin(*(label if isinstance(label, str) else None for label in names))
    return StageOrigin()


def _key(left: Left) -> tuple[str, str]:
    return (left.window, left.attempt)


def _is_superseded(stages: Leftovers, left: Left) -> bool:
    """Return whether readers see an output that makes an attempt's obsolete."""
    owner, published = left.owner, stages.shown(left)
    if owner is None or published is None or published.ledger_id != owner.ledger_id:
        return False
    if published.claim_id == owner.claim_id:
        return published.attempt > owner.attempt
    return owner.claim_id in published.replaces
