"""The storage operations that writing, counting and publishing a window's files need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, BinaryIO, Protocol

if TYPE_CHECKING:
    import pyarrow as pa


class Files(Protocol):
    """A file system, or an object store whose prefixes are folders. Failures are `OSError`."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; empty if there is no folder."""

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the data files in a folder, with their sizes."""

    def open(self, path: str) -> BinaryIO:
        """Return a data file for random access."""

    def footer(self, path: str) -> BinaryIO:
        """Return a Parquet file, or its end, for reading its metadata."""

    def sink(self, path: str) -> AbstractContextManager[pa.NativeFile]:
        """Take a new file's content in the block."""

    def write(self, path: str, content: bytes) -> None:
        """Write a small file atomically."""

    def move_all(self, moves: Sequence[tuple[str, str]]) -> None:
        """Move files, each to its new path."""

    def remove(self, path: str) -> None:
        """Remove a folder with all that is in it."""


class Folders(Files, Protocol):
    """A file system that renames a folder in one step. Failures are `OSError`."""

    @property
    def windows_together(self) -> int:
        """How many windows one block of `locked` may cover."""

    def read(self, path: str, *, limit_bytes: int = ...) -> bytes | None:
        """Return the content of a small file, cut one byte past the limit; None if there is no file."""

    def write(self, path: str, content: bytes, *, durable: bool = True) -> None:
        """Write a small file atomically; with `durable`, it survives a crash of the system."""

    def create(self, path: str, content: bytes) -> bool:
        """Write a small file unless there is one; return whether it was written. The caller holds the lock."""

    def exists(self, path: str) -> bool:
        """Return whether anything has this name."""

    def is_folder(self, path: str) -> bool:
        """Return whether this is a folder."""

    def make_folder(self, path: str, *, durable: bool = True) -> None:
        """Make a folder and its parents, where missing; with `durable`, they survive a crash of the system."""

    def rename(self, source: str, target: str) -> None:
        """Rename a folder in one step; `target` does not exist. Durable, in a block of `together` at its end."""

    def together(self, *folders: str) -> AbstractContextManager[None]:
        """Make the new names of what the block renames durable at its end, and the names in `folders` after them.

        After a crash of the system, other old names may be there as well.
        """

    def exchange(self, first: str, second: str) -> bool:
        """Exchange two folders in one step; return False, with nothing changed, where that is not supported."""

    def move(self, source: str, target: str) -> None:
        """Move a file in one step; durable once the target's folder has been settled."""

    def remove_if_empty(self, folder: str) -> None:
        """Remove a folder that holds nothing."""

    def below(self, folder: str) -> Iterator[tuple[bool, int, float]]:
        """Yield, for a folder and everything in it, whether it is a file, its size, and its modification time in s."""

    def settle(self, folder: str, *, names: bool = True) -> None:
        """Make durable the data that others wrote below a folder; without `names`, not the names in the folder itself."""

    def locked(self, folder: str, window_folder: str) -> AbstractContextManager[None]:
        """Keep other publishers out, across processes: out of the whole folder, or at least out of the window's part of it.

        Raises:
            SinkError: another process did not release the lock in time, or `folder` is not a folder.
        """
