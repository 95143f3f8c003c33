"""Follow the lines of a job's log."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import PurePath
from typing import BinaryIO, Final

from kafka_ordered_ops.disk.disk import Disk

#: The largest piece of lines to read at once.
_LOG_BYTES: Final = 1024 * 1024

_disk: Final = Disk()


class LogLines:
    """Pass on new lines of a file."""

    def __init__(self, path: PurePath, take: Callable[[str], None] | None) -> None:
        self._path, self._take = path, take
        #: The file that was read, and the position: when the file is full, a new one gets its name.
        self._inode, self._position = 0, 0
        self._rest = b""

    def __enter__(self) -> LogLines:
        return self

    def __exit__(self, *_: object) -> None:
        self.hand_on()
        if self._take is not None and self._rest:
            self._take(self._rest.decode(errors="replace"))

    def hand_on(self) -> None:
        """Read the new lines. If a job fills a whole file in between, some lines are skipped."""
        if self._take is None:
            return
        # There is no file for an instant, while a full one is renamed.
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
