"""The lines of a job's log, as they come."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import PurePath
from typing import BinaryIO, Final

from kafka_ordered_ops.disk.disk import Disk

#: Lines are handed on in pieces of this size at most.
_LOG_BYTES: Final = 1024 * 1024

_disk: Final = Disk()


class LogLines:
    """Passes on new lines of a file."""

    def __init__(self, path: PurePath, take: Callable[[str], None] | None) -> None:
        self._path, self._take = path, take
        #: Which file was read, and up to where: when it is full, another one gets its name.
        self._inode, self._position = 0, 0
        self._rest = b""

    def __enter__(self) -> LogLines:
        return self

    def __exit__(self, *_: object) -> None:
        self.hand_on()
        if self._take is not None and self._rest:
            self._take(self._rest.decode(errors="replace"))

    def hand_on(self) -> None:
        """Read the new lines. If a job fills a whole file in between, lines are left out."""
        if self._take is None:
            return
        # For an instant, while a full file gets another name, there is none.
        with suppress(FileNotFoundError), _disk.open(str(self._path), trusted=True) as file:
            inode = os.fstat(file.fileno()).st_ino
            if self._inode not in (0, inode):
                with (
                    suppress(FileNotFoundError),
                    _disk.open(f"{self._path}.1", trusted=True) as older,
                ):
                    if os.fstat(older.fileno()).st_ino == self._inode:
                        self._read(older, self._take)
                self._position, self._rest = 0, b""
            self._inode = inode
            self._read(file, self._take)

    def _read(self, file: BinaryIO, take: Callable[[str], None]) -> None:
        file.seek(self._position)
        while content := file.read(_LOG_BYTES):
            self._position += len(content)
            *lines, self._rest = (self._rest + content).split(b"\n")
            self._rest = self._rest[-_LOG_BYTES:]
            for line in lines:
                take(line.decode(errors="replace"))
