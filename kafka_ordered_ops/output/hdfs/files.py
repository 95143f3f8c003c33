"""The file system operations that publishing by renames needs, for HDFS."""

from __future__ import annotations

import io
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from kafka_ordered_ops.output.filesystem import MARKER_BYTES_MAX, foreign_file_error, is_data
from kafka_ordered_ops.output.hdfs.door import Door, File, Upload
from kafka_ordered_ops.output.hdfs.turn import Turn

if TYPE_CHECKING:
    import pyarrow as pa

#: The size of one read or write request.
_BUFFER_BYTES: Final = 1024 * 1024
#: Enough for the footers of most Parquet files.
_FOOTER_BYTES: Final = 64 * 1024


#: A file that checks whether this process may write, before its removal; and a small file before its rename.
TRY_PREFIX: Final = ".koo-try-"
_SCRAP: Final = re.compile(rf"{re.escape(TRY_PREFIX)}[0-9a-f]{{32}}|.+\.[0-9a-f]{{8}}\.tmp")


def is_scrap(path: str) -> bool:
    """Return whether a path is of a file that only a killed process leaves behind."""
    return _SCRAP.fullmatch(path.rpartition("/")[2]) is not None


class HdfsFiles:
    """The files below one root in HDFS. A change is durable when the call returns.

    Args:
        door: the connection to HDFS.
        root: the root of the outputs.
    """

    #: A lock covers one window.
    windows_together = 1

    def __init__(self, door: Door, root: str) -> None:
        self._door, self._root = door, root
        #: The turn that this process holds.
        self._turn: Turn | None = None

    # --- looking -----------------------------------------------------------------------------------

    def read(self, path: str, *, limit_bytes: int = MARKER_BYTES_MAX) -> bytes | None:
        """Return the content of a small file, cut one byte past the limit; None if there is no file."""
        try:
            return self._door.open(path).content(0, limit_bytes + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def open(self, path: str) -> BinaryIO:
        """Return a data file for random access."""
        return cast("BinaryIO", io.BufferedReader(_Reader(self._door.open(path)), _BUFFER_BYTES))

    def footer(self, path: str) -> BinaryIO:
        """Return a Parquet file, for reading its metadata."""
        return cast("BinaryIO", io.BufferedReader(_Reader(self._door.open(path)), _FOOTER_BYTES))

    def exists(self, path: str) -> bool:
        """Return whether anything has this name."""
        try:
            self._door.entry(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def is_folder(self, path: str) -> bool:
        """Return whether this is a folder."""
        try:
            return self._door.entry(path).is_folder
        except (FileNotFoundError, NotADirectoryError):
            return False

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; empty if there is no folder."""
        try:
            return [entry.name for entry in self._door.listed(folder)]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the data files in a folder, with their sizes.

        Raises:
            SinkError: something with the name of a data file is not a file.
        """
        sizes = {}
        try:
            entries = self._door.listed(folder)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        for entry in entries:
            if not is_data(entry.name):
                continue
            if entry.is_folder:
                raise foreign_file_error(f"{folder}/{entry.name}")
            sizes[entry.name] = entry.size
        return sizes

    # --- changing ----------------------------------------------------------------------------------

    @contextmanager
    def sink(self, path: str) -> Iterator[pa.NativeFile]:
        """Take a file's content in the block; after an error, the file is not completed."""
        import pyarrow as pa

        upload = self._door.create(path)
        buffered = _Buffered(upload)
        yield pa.PythonFile(cast("io.IOBase", buffered), mode="w")
        buffered.flush()
        _complete(upload)

    def write(self, path: str, content: bytes, *, durable: bool = True) -> None:
        """Write a small file atomically."""
        temporary = f"{path}.{uuid.uuid4().hex[:8]}.tmp"
        if self._turn is not None:
            temporary = self._turn.temporary()
        self._put(temporary, path, content, overwrite=True)

    def create(self, path: str, content: bytes) -> bool:
        """Write a small file unless there is one; return whether it was written."""
        temporary = f"{path}.{uuid.uuid4().hex[:8]}.tmp"
        try:
            self._put(temporary, path, content, overwrite=False)
        except OSError:
            if self.exists(path):
                return False
            raise
        return True

    def _put(self, temporary: str, path: str, content: bytes, *, overwrite: bool) -> None:
        try:
            upload = self._door.create(temporary)
            upload.write(content)
            _complete(upload)
            self._door.rename(temporary, path, overwrite=overwrite)
        except OSError:
            with suppress(OSError):
                self._door.delete(temporary, recursive=False)
            raise

    def make_folder(self, path: str, *, durable: bool = True) -> None:
        """Make a folder and its parents, where missing."""
        self._door.make_folder(path, parents=True)

    def rename(self, source: str, target: str) -> None:
        """Rename a folder in one step; `target` does not exist."""
        if self._turn is None or not self._turn.rename(source, target):
            self._door.rename(source, target, overwrite=False)

    @contextmanager
    def together(self, *folders: str) -> Iterator[None]:
        """Do nothing: each rename is durable by itself."""
        yield

    def exchange(self, first: str, second: str) -> bool:
        """Return False: HDFS has no such operation."""
        return False

    def move(self, source: str, target: str) -> None:
        """Move a file in one step."""
        self._door.rename(source, target, overwrite=True)

    def move_all(self, moves: Sequence[tuple[str, str]]) -> None:
        """Move files, each in one step."""
        for source, target in moves:
            self.move(source, target)

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it."""
        if self._turn is None or not self._turn.remove(path):
            self._door.delete(path, recursive=True)

    def remove_if_empty(self, folder: str) -> None:
        """Remove a folder that holds nothing."""
        with suppress(OSError):
            self._door.delete(folder, recursive=False)

    def below(self, folder: str) -> Iterator[tuple[bool, int, float]]:
        """Yield, for a file, or a folder and everything in it, whether it is a file, its size, and its modification time in s."""
        try:
            itself = self._door.entry(folder)
            yield not itself.is_folder, itself.size, itself.modified_ms / 1000
            for entry in self._door.listed(folder) if itself.is_folder else ():
                if entry.is_folder:
                    yield from self.below(f"{folder}/{entry.name}")
                else:
                    yield True, entry.size, entry.modified_ms / 1000
        except FileNotFoundError:
            # Its job has just moved or removed the file.
            return

    def settle(self, folder: str, *, names: bool = True) -> None:
        """Do nothing: a closed file is durable, and HDFS decides who may read it."""

    @contextmanager
    def locked(self, folder: str, window_folder: str) -> Iterator[None]:
        """Take the window's turn; see `turn`. A process takes one turn at a time: with more, two could wait for each other.

        Raises:
            SinkError: another process did not end its turn in time.
        """
        turn = Turn(self._door, folder, window_folder, self._root)
        turn.take()
        self._turn = turn
        try:
            yield
        except BaseException:
            # The next turn puts back what this one was moving.
            with suppress(OSError):
                turn.end()
            raise
        else:
            turn.end()
        finally:
            self._turn = None


def _complete(upload: Upload) -> None:
    # Without it, a name node that learns of the last block late would be asked again only after half a second.
    # Erasure-coded files do not support it: closing reports what is wrong, if anything is.
    with suppress(OSError):
        upload.sync()
    upload.close()


class _Reader(io.RawIOBase):
    """A file in HDFS, for random access."""

    def __init__(self, file: File) -> None:
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        starts = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}
        self._at = starts[whence] + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        content = self._file.content(self._at, len(buffer))
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)


class _Buffered:
    """A write buffer. Closing it does not complete the file: it is closed after an error too."""

    def __init__(self, upload: Upload) -> None:
        self._upload, self._held = upload, bytearray()
        self.closed = False

    def write(self, content: Any) -> int:
        self._held += content
        if len(self._held) >= _BUFFER_BYTES:
            self.flush()
        return len(content)

    def flush(self) -> None:
        if self._held:
            self._upload.write(bytes(self._held))
            self._held.clear()

    def close(self) -> None:
        self.closed = True
