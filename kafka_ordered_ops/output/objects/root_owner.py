"""The owner of a root in an object store, recorded by conditional writes; see `output.root_owner`."""

from __future__ import annotations

import logging
from typing import Final

from kafka_ordered_ops.core.errors import SinkError
from kafka_ordered_ops.core.window.ownership import check_root_owner
from kafka_ordered_ops.output.layout import Layout
from kafka_ordered_ops.output.objects.layout import Manifest, is_published_file, manifests_folder
from kafka_ordered_ops.output.objects.store import State, Store
from kafka_ordered_ops.output.roots.root_owner import (
    WINDOWS_LOOKED_AT,
    RootOwner,
    lost_owner_error,
    owner_path,
)

_log = logging.getLogger(__name__)

#: How many other processes may change the owner while one tries to.
_TURNS: Final = 20


def found_owner(store: Store, root: str) -> tuple[RootOwner | None, State | None]:
    """Return the owner of a root with the state of its object; None if nothing was staged yet.

    If the object was lost, the owner is read from a window; raise `SinkError` if the manifests were lost too.
    """
    path = owner_path(root)
    if (stored := store.get(path)) is not None:
        return RootOwner.parse(stored.content, path), stored.state
    return _owner_of_windows(store, root), None


def _owner_of_windows(store: Store, root: str) -> RootOwner | None:
    # Files first: any that exist had a manifest before.
    paths = store.some(root)
    folder, like = manifests_folder(root), Layout(root, "none", "none", 0)
    names = [name for name in store.some(folder) if name.endswith(".json")]
    for name in names[:WINDOWS_LOOKED_AT]:
        stored = store.get(path := f"{folder}/{name}")
        manifest = None if stored is None else Manifest.parse(stored.content, like, path)
        if manifest is not None and manifest.output is not None:
            return RootOwner(manifest.output.ledger_id)
    if not names and (file := next(filter(is_published_file, paths), None)) is not None:
        raise lost_owner_error(root, f"{root}/{file}", f", or its manifest is gone from {folder}")
    return None


def check_root(store: Store, output: Layout) -> None:
    """Raise `OutputOwnedError` if the root belongs to another ledger."""
    owner, _ = found_owner(store, output.root)
    if owner is not None:
        check_root_owner(output.ledger_id, owner.ledger_id, output.root)


def own_root(store: Store, output: Layout) -> RootOwner:
    """Return the owner, recorded at first use; raise as `check_root`. The caller has checked the place."""
    owner, state = found_owner(store, output.root)
    owner = owner or RootOwner(output.ledger_id)
    check_root_owner(output.ledger_id, owner.ledger_id, output.root)
    if state is None and store.put_if(owner_path(output.root), owner.to_bytes(), None) is None:
        # Another process was first.
        owner = found_owner(store, output.root)[0] or owner
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
    """Make a ledger the owner of a root; return the former owner. Without a former owner, nothing is changed."""
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
