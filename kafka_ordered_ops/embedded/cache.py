"""Where downloads and generated files are kept between runs, and how processes share them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CACHE_VARIABLE = "KAFKA_ORDERED_OPS_CACHE"


def cache_dir() -> Path:
    """Return the cache folder of this user; created if it is missing."""
    explicit = os.environ.get(CACHE_VARIABLE)
    if explicit:
        folder = Path(explicit).expanduser().absolute()
    else:
        # The XDG rules require that a relative path is ignored.
        xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
        folder = (xdg if xdg.is_absolute() else Path.home() / ".cache") / "kafka-ordered-ops"
    # Java code runs from here: no other user may write to it.
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the lock `name` among all processes of this cache.

    The kernel frees it when its holder dies, so a killed process leaves nothing to clean up.
    """
    with (cache_dir() / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
