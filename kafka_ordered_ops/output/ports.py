"""What writing and counting a window's files needs of where they are."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, BinaryIO, Protocol

if TYPE_CHECKING:
    import pyarrow as pa


class Files(Protocol):
    """A file system, or an object store whose prefixes are folders. What fails is an `OSError`."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none when there is no folder."""

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the data files in a folder, with their sizes."""

    def open(self, path: str) -> BinaryIO:
        """Return a data file, to be read here and there."""

    def footer(self, path: str) -> BinaryIO:
        """Return a Parquet file, or its end, from which its metadata is read."""

    def sink(self, path: str) -> AbstractContextManager[pa.NativeFile]:
        """Take a new file's content in the block."""

    def write(self, path: str, content: bytes) -> None:
        """Write a small file so that it is there whole or not at all."""

    def move_all(self, moves: Sequence[tuple[str, str]]) -> None:
        """Move files, each to its new path."""

    def remove(self, path: str) -> None:
        """Remove a folder with all that is in it."""
