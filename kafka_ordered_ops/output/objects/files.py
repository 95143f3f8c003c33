"""Objects below a prefix as the files of a folder, with the operations that writing a window's files needs."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from kafka_ordered_ops.output.filesystem import is_data
from kafka_ordered_ops.output.objects.store import Copy, Store

if TYPE_CHECKING:
    import pyarrow as pa

#: Enough for the footers of most Parquet files, in one request.
_TAIL_BYTES: Final = 64 * 1024
#: Longer than the footer of any file of this package: a longer one is not read.
_FOOTER_BYTES_MAX: Final = 64 * 1024**2
_MAGIC: Final = b"PAR1"


class ObjectFiles:
    """The objects of a store, by folder and name."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder, sorted."""
        return [name for name in self._store.listed(folder) if "/" not in name]

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the data files in a folder, with their sizes."""
        return {
            name: entry.size
            for name, entry in self._store.listed(folder).items()
            if "/" not in name and is_data(name)
        }

    def open(self, path: str) -> BinaryIO:
        """Return a small file."""
        stored = self._store.get(path)
        if stored is None:
            raise FileNotFoundError(f"{path} does not exist")
        return io.BytesIO(stored.content)

    def footer(self, path: str) -> BinaryIO:
        """Return the end of a Parquet file, which holds its metadata."""
        tail = self._store.tail(path, _TAIL_BYTES)
        if len(tail) == _TAIL_BYTES and tail[-4:] == _MAGIC:
            length = int.from_bytes(tail[-8:-4], "little") + 8
            if len(tail) < length <= _FOOTER_BYTES_MAX:
                tail = self._store.tail(path, length)
        return io.BytesIO(tail)

    def write(self, path: str, content: bytes) -> None:
        """Write a file atomically."""
        self._store.put(path, content)

    @contextmanager
    def sink(self, path: str) -> Iterator[pa.NativeFile]:
        """Take a file's content in the block; the file is written atomically at the block's end."""
        import pyarrow as pa

        content: Any = pa.BufferOutputStream()
        yield content
        self._store.put(path, memoryview(content.getvalue()).cast("B"))

    def move_all(self, moves: Sequence[tuple[str, str]]) -> None:
        """Rename files; repeating it after a crash in between changes nothing."""
        folders = {source.rpartition("/")[0] for source, _ in moves}
        sizes = {
            f"{folder}/{name}": entry.size
            for folder in folders
            for name, entry in self._store.listed(folder).items()
        }
        self._store.copy([Copy(source, target, sizes.get(source, 0)) for source, target in moves])
        self._store.delete([source for source, _ in moves])

    def remove(self, path: str) -> None:
        """Remove a folder with all that is in it."""
        self._store.delete([f"{path}/{name}" for name in self._store.listed(path)])
