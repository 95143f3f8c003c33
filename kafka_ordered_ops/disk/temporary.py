"""A temporary folder: gone at its end, and after a ``kill -9`` with the next one in the same place."""

from __future__ import annotations

import os
import re
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import IOBase
from typing import Final

from kafka_ordered_ops.disk.disk import PRIVATE_MODE, Disk, try_lock

_PREFIX: Final = "kafka-ordered-ops-"
_NAME: Final = re.compile(rf"{_PREFIX}[0-9a-f]{{32}}")
#: Locked for as long as the process that made the folder lives, or one that it has given the file to.
_IN_USE: Final = ".in-use"
#: What is yielded: one level below, so that what is beside it goes with it.
_CONTENT: Final = "content"


@contextmanager
def private_folder(parent: str | None = None) -> Iterator[tuple[str, IOBase]]:
    """Yield a new folder that nobody else may look into, and the locked file that says that it is in use.

    Args:
        parent: where it is made; None: in the system's folder for temporary files.

    Raises:
        OSError: it cannot be made.
    """
    parent = parent or system_folder()
    disk = Disk()
    disk.make_folder(parent)
    _remove_left(disk, parent)
    folder = f"{parent}/{_PREFIX}{uuid.uuid4().hex}"
    disk.make_private(folder)
    try:
        with _locked(disk, f"{folder}/{_IN_USE}") as lock:
            content = f"{folder}/{_CONTENT}"
            disk.make_private(content)
            try:
                yield content, lock
            finally:
                _remove(disk, folder)
    except BaseException:
        _remove(disk, folder)
        raise


def system_folder() -> str:
    """Return the system's folder for temporary files."""
    return os.path.abspath(tempfile.gettempdir())


@contextmanager
def _locked(disk: Disk, path: str) -> Iterator[IOBase]:
    # Locked before it has its name: whoever finds it by that name finds it locked.
    with disk.create(f"{path}.new", PRIVATE_MODE) as file:
        try_lock(file)
        disk.rename(f"{path}.new", path, durable=False)
        yield file


def _remove(disk: Disk, folder: str) -> None:
    with suppress(OSError):
        # What says whether it is in use goes last: whoever is killed meanwhile leaves a folder that the next one finds.
        disk.remove(folder, last=_IN_USE.__eq__)


def _remove_left(disk: Disk, parent: str) -> None:
    """Remove the folders of processes that were killed."""
    for name in disk.names(parent):
        # In use, on its way in or out, or another user's: none of this one's business.
        if _NAME.fullmatch(name) and disk.is_mine(folder := f"{parent}/{name}"):
            with suppress(OSError), disk.open_own(f"{folder}/{_IN_USE}") as file:
                if try_lock(file):
                    _remove(disk, folder)
