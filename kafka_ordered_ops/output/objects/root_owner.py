"""The owner of a root in an object store, recorded by conditional writes; see `output.root_owner`."""

from __future__ import annotations

import logging
from typing import Final

from kafka_ordered_ops.core.errors import SinkError
from kafka_ordered_ops.core.window.ownership import check_root_owner
from kafka_ordered_ops.output.layout import Layout
from kafka_ordered_ops.output.objects.store import State, Store
from kafka_ordered_ops.output.root_owner import RootOwner, owner_path

_log = logging.getLogger(__name__)

#: Processes that may change it at the same moment, one after the other.
_TURNS: Final = 20


def found_owner(store: Store, root: str) -> tuple[RootOwner | None, State | None]:
    """Return the owner of a root with the state of its object; None if none was staged yet."""
    path = owner_path(root)
    found = store.get(path)
    return (None, None) if found is None else (RootOwner.parse(found.content, path), found.state)


def check_root(store: Store, output: Layout) -> None:
    """Raise `OutputOwnedError` if the root belongs to another ledger."""
    owner, _ = found_owner(store, output.root)
    if owner is not None:
        check_root_owner(output.ledger_id, owner.ledger_id, output.root)


def own_root(store: Store, output: Layout) -> RootOwner:
    """Return the owner, after it was recorded at first use; raise as `check_root`."""
    owner, _ = found_owner(store, output.root)
    if owner is None:
        store.put_if(owner_path(output.root), RootOwner(output.ledger_id).to_bytes(), None)
        # Another process may have been first.
        owner, _ = found_owner(store, output.root)
    owner = owner or RootOwner(output.ledger_id)
    check_root_owner(output.ledger_id, owner.ledger_id, output.root)
    return owner


def record_group(store: Store, output: Layout) -> None:
    """Record that a group publishes, at its first publication; raise as `check_root`."""
    for turn in range(_TURNS):
        owner, state = found_owner(store, output.root)
        owner = owner or RootOwner(output.ledger_id)
        check_root_owner(output.ledger_id, owner.ledger_id, output.root)
        if (newer := owner.with_group(output)) is None:
            return
        note = owner.note_on(output.group_id or "", output.topics, output.root)
        if note is not None and turn == 0:
            _log.warning("%s", note)
        if store.put_if(owner_path(output.root), newer.to_bytes(), state) is not None:
            return
    raise SinkError(
        f"{owner_path(output.root)} was changed by other processes {_TURNS} times at the same moment: run the same window "
        "again"
    )


def take_root(store: Store, root: str, ledger_id: str) -> str | None:
    """Make a ledger the owner of a root; return the former owner. Without one nothing is changed."""
    for _ in range(_TURNS):
        owner, state = found_owner(store, root)
        if owner is None or owner.ledger_id == ledger_id:
            return None
        content = RootOwner(ledger_id).to_bytes()
        if store.put_if(owner_path(root), content, state) is not None:
            return owner.ledger_id
    raise SinkError(
        f"{owner_path(root)} was changed by other processes {_TURNS} times at the same moment: try again"
    )
