"""The cache of downloads and generated files, which processes share."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kafka_ordered_ops.disk.disk import Disk
from kafka_ordered_ops.embedded.errors import EmbeddedKafkaError

CACHE_VARIABLE = "KAFKA_ORDERED_OPS_CACHE"


def cache_dir() -> Path:
    """Return the cache folder of this user; created if it is missing.

    Raises:
        EmbeddedKafkaError: other users may write there, and Java code runs from it.
    """
    explicit = os.environ.get(CACHE_VARIABLE)
    if explicit:
        folder = Path(explicit).expanduser().absolute()
    else:
        # The XDG rules require that a relative path is ignored.
        xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
        folder = (xdg if xdg.is_absolute() else Path.home() / ".cache") / "kafka-ordered-ops"
    disk = Disk()
    try:
        disk.make_folder(str(folder.parent))
        disk.own_private(str(folder))
    except OSError as error:
        raise EmbeddedKafkaError(
            f"the cache folder {folder} cannot be used: {error.strerror}. Set {CACHE_VARIABLE} to another folder"
        ) from error
    return folder


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the lock `name` among all processes of this cache.

    The kernel frees it when its holder dies, so a killed process leaves nothing to clean up.
    """
    with Disk().lock(str(cache_dir() / f"{name}.lock")) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
