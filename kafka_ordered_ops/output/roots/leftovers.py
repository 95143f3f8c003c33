"""What attempts have left in the stages of a root, and which of it nobody will publish; see `cleaning`."""

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

#: Returns which of some outputs their ledger still needs: of windows that are open, or committed and not published.
Needed = Callable[[Sequence[OutputOwner]], Collection[OutputOwner]]


@dataclass(frozen=True)
class Told:
    """Whose an attempt's stage is, as far as its markers say it."""

    ledger_id: str | None = None
    group_id: str | None = None
    window_id: str | None = None


@dataclass(frozen=True)
class Left:
    """What one attempt has staged: all that the whole window, its parts and drafts have there."""

    #: The name of the window's stages: its id, safe in a path.
    window: str
    #: Claim and attempt.
    attempt: str
    told: Told
    #: Whether the stage of the window, or of a part of it, is complete: it may have been committed.
    is_complete: bool
    files: int
    size: int
    #: When something of it was written last.
    modified: datetime

    @property
    def group_id(self) -> str | None:
        """The group, if the stage says it."""
        return self.told.group_id

    @property
    def owner(self) -> OutputOwner | None:
        """The attempt; None if the stage does not say whose it is."""
        claim_id, _, number = self.attempt.rpartition("-")
        told = self.told
        if told.ledger_id is None or told.group_id is None or told.window_id is None:
            return None
        return OutputOwner(told.ledger_id, told.group_id, told.window_id, claim_id, int(number))

    def to_json(self) -> dict[str, Any]:
        """Return it for programs."""
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
        """Return what attempts have left, by window and attempt; raise `SinkError`."""

    def shown(self, left: Left) -> Layout | None:
        """Return what readers see of the window of an attempt; None if they see nothing of it."""

    def remove(self, left: Left) -> int:
        """Remove what an attempt has left, unless it has written since; return how many files."""

    def remove_probes(self, before: datetime) -> int:
        """Remove what is left of checks of the store; return how many objects."""


@dataclass(frozen=True)
class Choice:
    """Which stages go, and why the others stay."""

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
    """Return which stages are old and of no use.

    Args:
        stages: the stages of a root.
        old_before: what was written later stays.
        ledger_id: the ledger of the caller; None: not known.
        group_id: only stages of this group; None: of all groups.
        needed: asks the ledger; None: complete stages stay, unless readers see something newer of their window.

    Raises:
        OutputOwnedError: the root belongs to another ledger.
        SinkError: the file system or the store failed.
    """
    root_owner = stages.owner()
    if ledger_id is not None and root_owner is not None:
        check_root_owner(ledger_id, root_owner, stages.root)
    found = stages.found()
    mine = [
        one
        for one in found
        if one.told.ledger_id in (None, root_owner) and group_id in (None, one.group_id)
    ]
    old = [one for one in mine if one.modified < old_before]
    doubtful = [one for one in old if one.is_complete and not _is_superseded(stages, one)]
    if needed is None:
        kept = set(map(_key, doubtful))
    else:
        owners = {owner: one for one in doubtful if (owner := one.owner) is not None}
        kept = {_key(owners[one]) for one in needed(list(owners))}
        kept |= {_key(one) for one in doubtful if one.owner is None}
    dead = [one for one in old if _key(one) not in kept]
    return Choice(dead, len(mine) - len(old), len(kept), len(found) - len(mine))


def before(older_than: timedelta | str, *, what: str) -> datetime:
    """Return the time before which a stage is old; raise `ConfigError` for an invalid span."""
    span = as_span(older_than, what=what)
    try:
        return datetime.now(UTC) - span
    except OverflowError:
        # Nothing is so old.
        return datetime.min.replace(tzinfo=UTC)


def told_by(contents: Iterable[bytes | None], *, limit_bytes: int) -> Told:
    """Return what the first of some markers, seals and markers of drafts says."""
    for content in contents:
        try:
            value = strict_json.loads(content or b"", limit_bytes=limit_bytes)
        except JsonError:
            continue
        if isinstance(value, dict) and isinstance(value.get("output"), dict):
            value = value["output"]
        if isinstance(value, dict):
            names = [value.get(name) for name in ("ledger", "group", "window_id")]
            return Told(*(one if isinstance(one, str) else None for one in names))
    return Told()


def _key(left: Left) -> tuple[str, str]:
    return (left.window, left.attempt)


def _is_superseded(stages: Leftovers, left: Left) -> bool:
    """Return whether readers see what makes an attempt's output worthless."""
    owner, shown = left.owner, stages.shown(left)
    if owner is None or shown is None or shown.ledger_id != owner.ledger_id:
        return False
    if shown.claim_id == owner.claim_id:
        return shown.attempt > owner.attempt
    return owner.claim_id in shown.replaces
