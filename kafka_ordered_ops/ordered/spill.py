"""Sorted runs of records in Arrow files.

The reading thread writes them: a separate thread would wait for the interpreter lock at each step, and slow reading down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from itertools import count
from typing import Any, Final, cast

import pyarrow as pa

from kafka_ordered_ops.core.errors import SpillError
from kafka_ordered_ops.disk.disk import PRIVATE_MODE, Disk

_COMPRESSION: Final = pa.Codec("lz4")
#: Runs are compressed if a sample of the records shrinks below this ratio.
_WORTHWHILE: Final = 0.5
_SAMPLE_BYTES: Final = 256 * 1024

_disk: Final = Disk()


class SpillFiles:
    """Writes runs into a folder.

    Args:
        folder: creates the folder for the first run, and is responsible for its removal.
    """

    def __init__(self, folder: Callable[[], str]) -> None:
        self._folder = folder
        self._made: str | None = None
        self._names = map("run-{:06d}.arrow".format, count())

    def write(self, batches: Iterator[pa.RecordBatch]) -> SpillFile:
        """Write a run.

        Raises:
            SpillError: the run cannot be written, or the folder cannot be created.
        """
        self._made = self._made or self._folder()
        path = f"{self._made}/{next(self._names)}"
        try:
            return SpillFile(path, _write(path, batches))
        except BaseException:
            # So that a full disk has room for the next attempt.
            with suppress(OSError):
                _disk.remove(path)
            raise


class SpillFile:
    """One run."""

    def __init__(self, path: str, nbytes: int) -> None:
        self._path = path
        #: The size of the file.
        self.nbytes = nbytes
        self._file: BufferedReader | None = None
        self._reader: Any = None

    def __del__(self) -> None:
        # An iterator that is dropped early must not leave an open file.
        if self._file is not None:
            self._file.close()

    @property
    def num_batches(self) -> int:
        """The number of batches."""
        return int(self._open_reader().num_record_batches)

    def batch(self, number: int) -> pa.RecordBatch:
        """Read one batch.

        Raises:
            SpillError: the file cannot be read.
        """
        reader = self._open_reader()
        with _as_spill_error(self._path, "read"):
            return cast(pa.RecordBatch, reader.get_batch(number))

    def remove(self) -> None:
        """Remove the file; may be called twice."""
        file, self._file, self._reader = self._file, None, None
        if file is not None:
            file.close()
        with suppress(OSError):
            _disk.remove(self._path)

    def _open_reader(self) -> Any:
        if self._reader is None:
            with _as_spill_error(self._path, "read"):
                self._file = _disk.open(self._path, trusted=True)
                self._reader = pa.ipc.open_file(pa.PythonFile(self._file, mode="r"))
        return self._reader


def _write(path: str, batches: Iterator[pa.RecordBatch]) -> int:
    first = next(batches)
    options = pa.ipc.IpcWriteOptions(compression=_worthwhile(first))
    with _as_spill_error(path, "written"), _disk.create(path, PRIVATE_MODE) as file:
        with pa.ipc.new_file(
            pa.PythonFile(file, mode="w"), first.schema, options=options
        ) as writer:
            writer.write_batch(first)
            for batch in batches:
                writer.write_batch(batch)
        return file.tell()


def _worthwhile(batch: pa.RecordBatch) -> pa.Codec | None:
    """Return the compression if it pays: for random bytes it costs more time than it saves."""
    # A sample of rows, not of bytes: the first bytes belong to the first columns, whose values repeat.
    rows = max(1, batch.num_rows * _SAMPLE_BYTES // max(batch.nbytes, 1))
    plain = batch.slice(0, rows).serialize()
    packed = _COMPRESSION.compress(plain, asbytes=True)
    return _COMPRESSION if len(packed) < plain.size * _WORTHWHILE else None


@contextmanager
def _as_spill_error(path: str, what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise SpillError(
            f"{path}, a temporary file for records that do not fit into memory, cannot be {what}: {error}. Nothing is "
            "lost: free disk space, or choose another folder, and run again",
            path=path,
        ) from error
