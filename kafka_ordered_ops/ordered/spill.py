"""Runs of records in Arrow files, written by a thread while more records are read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from itertools import count
from threading import Event
from typing import Any, cast

import pyarrow as pa

from kafka_ordered_ops.core.errors import SpillError


class SpillFiles:
    """Writes runs into a folder, one at a time; a context manager that ends its thread.

    Args:
        folder: makes the folder, when there is a first run; whoever makes it removes it, after this has ended.
    """

    def __init__(self, folder: Callable[[], str]) -> None:
        self._folder = folder
        self._made: str | None = None
        self._names = map("run-{:06d}.arrow".format, count())
        self._writer: ThreadPoolExecutor | None = None
        self._last: SpillFile | None = None

    def __enter__(self) -> SpillFiles:
        return self

    def __exit__(self, *_: object) -> None:
        if self._last is not None:
            self._last.stop()
        writer, self._writer = self._writer, None
        if writer is not None:
            # Whoever removes the folder must not meet a thread that still writes there.
            writer.shutdown(cancel_futures=True)

    def write(self, batches: Iterator[pa.RecordBatch]) -> SpillFile:
        """Begin a run, as soon as the one before it is written.

        Raises:
            SpillError: the run before it cannot be written, or the folder cannot be made.
        """
        if self._last is not None:
            # A second one would hold as much memory again.
            self._last.wait()
        self._made = self._made or self._folder()
        self._writer = self._writer or ThreadPoolExecutor(1, thread_name_prefix="spill")
        path = os.path.join(self._made, next(self._names))
        self._last = SpillFile(path, batches, self._writer)
        return self._last


class SpillFile:
    """One run, which a thread writes."""

    def __init__(
        self, path: str, batches: Iterator[pa.RecordBatch], writer: ThreadPoolExecutor
    ) -> None:
        self._path = path
        self._is_stopped = Event()
        self._written: Future[int] = writer.submit(_write, path, batches, self._is_stopped)
        self._file: pa.OSFile | None = None
        self._reader: Any = None

    @property
    def nbytes(self) -> int:
        """The size of the file; 0 until it is written."""
        done = self._written.done() and self._written.exception() is None
        return self._written.result() if done else 0

    @property
    def num_batches(self) -> int:
        """How many batches; waits until they are written."""
        return int(self._opened().num_record_batches)

    def batch(self, number: int) -> pa.RecordBatch:
        """Read one batch.

        Raises:
            SpillError: the file cannot be written or read.
        """
        reader = self._opened()
        with _as_spill_error(self._path, "read"):
            return cast(pa.RecordBatch, reader.get_batch(number))

    def wait(self) -> None:
        """Wait until the file is written; raise `SpillError` if it cannot be, unless nobody wants it any more."""
        try:
            self._written.result()
        except SpillError:
            if not self._is_stopped.is_set():
                raise

    def stop(self) -> None:
        """Write no more of it: nobody will read it."""
        self._is_stopped.set()

    def remove(self) -> None:
        """Remove the file; may be called twice, and while it is being written."""
        self.stop()
        # Otherwise the thread makes the file after this has removed it.
        wait([self._written])
        file, self._file, self._reader = self._file, None, None
        if file is not None:
            file.close()
        with suppress(OSError):
            os.remove(self._path)

    def _opened(self) -> Any:
        # No cached_property: Python 3.11 locks it for all runs, and this one may wait for the thread that reads others.
        if self._reader is None:
            self._written.result()
            with _as_spill_error(self._path, "read"):
                self._file = pa.OSFile(self._path, "rb")
                self._reader = pa.ipc.open_file(self._file)
        return self._reader


def _write(path: str, batches: Iterator[pa.RecordBatch], is_stopped: Event) -> int:
    if is_stopped.is_set():
        return 0
    first = next(batches)
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with _as_spill_error(path, "written"):
        with (
            pa.OSFile(path, "wb") as file,
            pa.ipc.new_file(file, first.schema, options=options) as writer,
        ):
            writer.write_batch(first)
            for batch in batches:
                if is_stopped.is_set():
                    break
                writer.write_batch(batch)
        return os.path.getsize(path)


@contextmanager
def _as_spill_error(path: str, what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise SpillError(
            f"{path}, a temporary file for records that memory does not hold, cannot be {what}: {error}. Nothing is "
            "lost: free the disk, or choose another folder, and run again",
            path=path,
        ) from error
