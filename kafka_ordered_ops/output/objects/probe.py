"""Try, before anything depends on it, whether a store lets this process publish."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.output.address import control_folder
from kafka_ordered_ops.output.filesystem import as_sink_error
from kafka_ordered_ops.output.layout import WINDOW_PREFIX
from kafka_ordered_ops.output.objects.store import Store, check_options, open_store, surroundings


def check_store(root: str, storage_options: Mapping[str, Any] | None) -> None:
    """Write, replace, list and remove a small object beside the root; once for each root and process.

    Raises:
        ConfigError: the bucket does not exist, a right is missing, or the store does not honour conditional writes.
        SinkError: the store failed otherwise: it cannot be reached, say.
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
    path = f"{control_folder(root)}/probe/{uuid.uuid4().hex}"
    with as_sink_error(f"the output {root} cannot be used"):
        try:
            honoured = _honours_conditions(store, path)
            store.listed(f"{root}/{WINDOW_PREFIX}")
            store.delete([path])
        except (FileNotFoundError, PermissionError) as error:
            with suppress(OSError):
                store.delete([path])
            raise ConfigError(f"windows cannot be written to {root}: {error}") from None
    if not honoured:
        raise ConfigError(
            f"windows cannot be written to {root}: its store does not honour conditional writes (If-None-Match, If-Match), "
            "so of two processes that publish one window, the older could replace the newer. Update the store to a "
            "version that does, use another store, or write to a Delta or Iceberg table"
        )


def _honours_conditions(store: Store, path: str) -> bool:
    first = store.put_if(path, b"1", None)
    if first is None or store.put_if(path, b"2", None) is not None:
        return False
    second = store.put_if(path, b"3", first)
    return second is not None and store.put_if(path, b"4", first) is None
