"""The lines of a job's log, as they come."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

#: Lines are handed on in pieces of this size at most.
_LOG_BYTES: Final = 1024 * 1024


class LogLines:
    """Passes on new lines of a file."""

    def __init__(self, path: Path, take: Callable[[str], None] | None) -> None:
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
        if self._take is None or not self._path.exists():
            return
        if self._inode not in (0, self._path.stat().st_ino):
            older = Path(f"{self._path}.1")
            if older.exists() and older.stat().st_ino == self._inode:
                self._read(older, self._take)
            self._position, self._rest = 0, b""
        self._inode = self._path.stat().st_ino
        self._read(self._path, self._take)

    def _read(self, path: Path, take: Callable[[str], None]) -> None:
        with open(path, "rb") as file:
            file.seek(self._position)
            while content := file.read(_LOG_BYTES):
                self._position += len(content)
                *lines, self._rest = (self._rest + content).split(b"\n")
                self._rest = self._rest[-_LOG_BYTES:]
                for line in lines:
                    take(line.decode(errors="replace"))
