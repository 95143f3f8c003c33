"""Check in advance whether a store lets this process publish."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from threading import Barrier
from typing import Any, Final

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.output.address import control_folder
from kafka_ordered_ops.output.filesystem import as_sink_error
from kafka_ordered_ops.output.layout import WINDOW_PREFIX
from kafka_ordered_ops.output.objects.store import (
    State,
    Store,
    all_at_once,
    check_options,
    open_store,
    surroundings,
)

#: Concurrent writers: some stores check the condition first and write later.
_RACERS: Final = 8
#: Such a store sometimes lets in a single writer, above all while it is busy, but rarely in several races in a row.
_ROUNDS: Final = 5
_GATE_S: Final = 60.0


def check_store(root: str, storage_options: Mapping[str, Any] | None) -> None:
    """Write, replace, list and remove a small object beside the root; once for each root and process.

    Raises:
        ConfigError: the bucket does not exist, a right is missing, or the store does not honour conditional writes.
        SinkError: the store failed otherwise: it cannot be reached, for example.
    """
    options = check_options(storage_options)
    try:
        key = tuple(sorted(options.items()))
        hash(key)
    except TypeError:
        _probe(root, options)
        return
    _probed(root, key, surroundings())


@lru_cache(maxsize=256)
def _probed(
    root: str, options: tuple[tuple[str, Any], ...], _surroundings: tuple[object, ...]
) -> None:
    _probe(root, dict(options))


def _probe(root: str, options: Mapping[str, Any]) -> None:
    store = open_store(root, options)
    folder = f"{control_folder(root)}/probe"
    paths = [f"{folder}/{uuid.uuid4().hex}" for _ in range(_ROUNDS)]
    with as_sink_error(f"the output {root} cannot be used"):
        try:
            honoured = all(_honours_conditions(store, path) for path in paths)
            store.listed(f"{root}/{WINDOW_PREFIX}")
            store.delete(paths)
        except (FileNotFoundError, PermissionError) as error:
            with suppress(OSError):
                store.delete(paths)
            raise ConfigError(f"windows cannot be written to {root}: {error}") from None
    if not honoured:
        raise ConfigError(
            f"windows cannot be written to {root}: its store does not honour conditional writes (If-None-Match, If-Match), "
            "so of two processes that publish one window, the older could replace the newer. Update the store to a "
            "version that does, use another store, or write to a Delta or Iceberg table"
        )


def _honours_conditions(store: Store, path: str) -> bool:
    """Return whether at most one of several concurrent writers and a late one succeeds."""
    created = _raced(store, path, None)
    if created is None or store.put_if(path, b"late", None) is not None:
        return False
    replaced = _raced(store, path, created)
    return replaced is not None and store.put_if(path, b"late", created) is None


def _raced(store: Store, path: str, seen: State | None) -> State | None:
    """Return the object's state after a race of writers that all saw the same state; None if two of them won."""
    gate = Barrier(_RACERS)

    def write(content: bytes) -> State | None:
        gate.wait(_GATE_S)
        return store.put_if(path, content, seen)

    contents = [b"%d of %s" % (n, repr(seen).encode()) for n in range(_RACERS)]
    answers = all_at_once(write, contents)
    stored = store.get(path)
    # No writer has won if the winner's answer was lost and the winner asked again.
    if sum(answer is not None for answer in answers) > 1 or stored is None:
        return None
    return stored.state if stored.content in contents else None
