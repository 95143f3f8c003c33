"""A temporary folder, removed at its end, or after a ``kill -9`` by the next temporary folder in the same place."""

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
#: Locked while the process that created the folder lives, or a process that inherited the file.
_IN_USE: Final = ".in-use"
#: The folder for the caller: one level below, so that the files beside it are removed with it.
_CONTENT: Final = "content"


@contextmanager
def private_folder(parent: str | None = None) -> Iterator[tuple[str, IOBase]]:
    """Yield a new folder that other users cannot read, and the locked file that marks it as in use.

    Args:
        parent: the folder to create it in; `None` means the system's folder for temporary files.

    Raises:
        OSError: it cannot be created.
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
    # Locked before it gets its name: another process never sees it unlocked.
    with disk.create(f"{path}.new", PRIVATE_MODE) as file:
        try_lock(file)
        disk.rename(f"{path}.new", path, durable=False)
        yield file


def _remove(disk: Disk, folder: str) -> None:
    with suppress(OSError):
        # The lock file is removed last: a process killed meanwhile leaves a folder that the next process removes.
        disk.remove(folder, last=_IN_USE.__eq__)


def _remove_left(disk: Disk, parent: str) -> None:
    """Remove the folders of processes that were killed."""
    for name in disk.names(parent):
        # Folders in use, being created or removed, or of another user, are left alone.
        if _NAME.fullmatch(name) and disk.is_mine(folder := f"{parent}/{name}"):
            with suppress(OSError), disk.open_own(f"{folder}/{_IN_USE}") as file:
                if try_lock(file):
                    _remove(disk, folder)
