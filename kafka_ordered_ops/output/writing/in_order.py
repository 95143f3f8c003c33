"""Sort the records of windows in total order, in memory, and on disk beyond the memory limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from kafka_ordered_ops.core.release.ordered_release import Limits, OrderedRelease
from kafka_ordered_ops.core.release.sorting import BATCH_BYTES
from kafka_ordered_ops.core.release.sorting import Batch as Sorted
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.ordered.records.columns import STAGE_SCHEMA, partition_of
from kafka_ordered_ops.ordered.spill import SpillFiles
from kafka_ordered_ops.output.writing import stage_files
from kafka_ordered_ops.output.writing.stage_files import Batch, FileOfWindow

#: Arrow data in memory. At times, as much again is being written to disk, in addition to the client's queues.
HELD_BYTES_MAX: Final = 256 * 1024**2


class WindowsInOrder:
    """Records of several windows, each window in its own total order.

    A context manager, which removes its files on disk.

    Args:
        windows: how many windows there are.
        folder: creates the folder for spilled records; called when it is needed.
        held_bytes_max: how much Arrow data of all windows to hold in memory.
    """

    def __init__(
        self, windows: int, folder: Callable[[], str], *, held_bytes_max: int = HELD_BYTES_MAX
    ) -> None:
        self._held_bytes_max = held_bytes_max
        self._resources = ExitStack()
        self._spill = SpillFiles(folder)
        self._releases = [
            OrderedRelease(STAGE_SCHEMA, limits=Limits(nbytes=held_bytes_max), spill=self._spill)
            for _ in range(windows)
        ]
        for release in self._releases:
            self._resources.callback(release.close)
        #: For each window, the partitions with records of it, and the bytes that it holds in memory.
        self._known: list[set[TopicPartition]] = [set() for _ in range(windows)]
        self._held_bytes = [0] * windows

    def __enter__(self) -> WindowsInOrder:
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def hold(self, batches: Iterable[Batch]) -> None:
        """Add all records, each partition's by offset.

        Raises:
            SpillError: the disk fails.
        """
        held = 0
        for records, windows in batches:
            tp = partition_of(records)
            for window, rows in _by_window(records, windows):
                if tp not in self._known[window]:
                    self._known[window].add(tp)
                    self._releases[window].add(tp)
                self._releases[window].feed(tp, rows)
                held += self._grown(window)
            if held > self._held_bytes_max:
                # The records that one window holds become one run on disk.
                largest = int(np.argmax(self._held_bytes))
                self._releases[largest].to_disk()
                held += self._grown(largest)

    def _grown(self, window: int) -> int:
        """Return by how many bytes a window's memory has grown."""
        before = self._held_bytes[window]
        self._held_bytes[window] = self._releases[window].held.nbytes_in_memory
        return self._held_bytes[window] - before

    def sorted(self, window: int, *, bytes_max: int = BATCH_BYTES) -> Iterator[Sorted]:
        """Yield one window's records in order, in batches of up to about `bytes_max`; only once.

        Raises:
            SpillError: the disk fails.
        """
        release = self._releases[window]
        for tp in self._known[window]:
            release.finish(tp)
        yield from (batch for batch, _ in release.ready(bytes_max=bytes_max))
        release.close()


def in_total_order(
    batches: Iterable[Batch], folder: Callable[[], str], *, held_bytes_max: int = HELD_BYTES_MAX
) -> Iterator[pa.RecordBatch]:
    """Yield the records of one window by (timestamp, topic, partition, offset), in batches of `STAGE_SCHEMA`.

    Args:
        batches: the records as they are read: each partition's by offset.
        folder: creates the folder for spilled records when it is needed; its creator removes it.
        held_bytes_max: how much Arrow data to hold in memory.

    Raises:
        SpillError: the disk fails.
    """
    with WindowsInOrder(1, folder, held_bytes_max=held_bytes_max) as held:
        held.hold(batches)
        for batch in held.sorted(0):
            yield batch.rows()


def files_in_order(
    batches: Iterable[Batch],
    windows: int,
    rows_per_file: int,
    folder: Callable[[], str],
    *,
    held_bytes_max: int,
) -> Iterator[FileOfWindow]:
    """Yield window after window in total order, file by file; the thread that writes a file gathers its rows.

    Raises:
        SpillError: the disk fails.
    """
    with WindowsInOrder(windows, folder, held_bytes_max=held_bytes_max) as held:
        held.hold(batches)
        bytes_max = min(BATCH_BYTES, stage_files.FILE_BYTES_MAX)
        for window in range(windows):
            for parts in _files(held.sorted(window, bytes_max=bytes_max), rows_per_file):
                yield window, partial(_gather, parts)


def _files(batches: Iterable[Sorted], rows_per_file: int) -> Iterator[list[Sorted]]:
    """Yield lists of batches that make one file each."""
    parts: list[Sorted] = []
    rows = nbytes = 0
    for batch in batches:
        left = batch
        while left.num_rows:
            if rows == rows_per_file or (
                rows and nbytes + left.nbytes > stage_files.FILE_BYTES_MAX
            ):
                yield parts
                parts, rows, nbytes = [], 0, 0
            part, left = left.split(min(left.num_rows, rows_per_file - rows))
            parts.append(part)
            rows += part.num_rows
            nbytes += part.nbytes
    if parts:
        yield parts


def _gather(parts: Sequence[Sorted]) -> pa.Table:
    return pa.Table.from_batches([part.rows() for part in parts], STAGE_SCHEMA)


def _by_window(
    records: pa.RecordBatch, windows: np.typing.NDArray[np.int64]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    first = int(windows[0])
    if bool(np.all(windows == first)):
        yield first, records
        return
    for window in np.unique(windows).tolist():
        yield window, records.filter(pa.array(windows == window))
