"""Check in advance whether this process may publish in an HDFS."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.output.address import control_folder
from kafka_ordered_ops.output.filesystem import as_sink_error
from kafka_ordered_ops.output.hdfs.door import Door, check_options, open_door, surroundings
from kafka_ordered_ops.output.hdfs.files import TRY_PREFIX

#: The caller waits for a plan, so fail soon.
ANSWER_WAIT_S: Final = 20.0

#: The client tries the name nodes in turn, with growing pauses: for minutes, unless the options limit it.
_ATTEMPTS: Final = {"dfs.client.failover.max.attempts": "4"}


def check_hdfs(root: str, storage_options: Mapping[str, Any] | None) -> None:
    """Write and remove a small file where the root is or will be, and beside it; once for each root and process.

    Raises:
        ConfigError: the settings do not know the host, or the library or a right is missing.
        SinkError: HDFS failed otherwise: it cannot be reached, for example.
    """
    options = {**_ATTEMPTS, **check_options(storage_options)}
    _probed(root, tuple(sorted(options.items())), surroundings())


@lru_cache(maxsize=256)
def _probed(
    root: str, options: tuple[tuple[str, str], ...], _surroundings: tuple[object, ...]
) -> None:
    door = open_door(root, dict(options), wait_s=ANSWER_WAIT_S)
    with as_sink_error(f"the output {root} cannot be used"):
        for folder in dict.fromkeys(_nearest(door, path) for path in (root, control_folder(root))):
            _write(door, root, folder)


def _write(door: Door, root: str, folder: str) -> None:
    path = f"{folder}/{TRY_PREFIX}{uuid.uuid4().hex}"
    try:
        upload = door.create(path)
        # A name node may be reachable where its data nodes are not.
        upload.write(b"1")
        upload.sync()
        upload.close()
    except (PermissionError, NotADirectoryError) as error:
        raise ConfigError(
            f"windows cannot be written to {root}: {error}. Files are written there and to .koo beside it: give this user the "
            "right to write to both, or name another folder"
        ) from None
    finally:
        with suppress(OSError):
            door.delete(path, recursive=False)


def _nearest(door: Door, path: str) -> str:
    """Return the path, or the nearest of its parents that exists."""
    while True:
        try:
            door.entry(path)
        except (FileNotFoundError, NotADirectoryError):
            path = path.rpartition("/")[0]
        else:
            return path
