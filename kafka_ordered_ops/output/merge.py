"""Sort more records than memory holds: sorted runs in files, merged batch by batch.

What fits one run is sorted in memory and no file is written. Otherwise each run is sorted and written as batches of
bounded size, and the runs are merged: of all that the runs have loaded, the rows up to the *frontier*, the least of
the runs' last loaded rows, can be followed by nothing smaller, and are handed out.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from typing import Any, Final

import pyarrow as pa

from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.output.filesystem import as_sink_error
from kafka_ordered_ops.output.records.columns import ORDER, STAGE_SCHEMA, partition_of
from kafka_ordered_ops.output.stage_files import Batch, in_order

#: Arrow data of one run; while it is sorted, some of its rows exist twice.
RUN_BYTES: Final = 256 * 1024**2
#: A batch of a run, and of what is handed out: one row at least.
BATCH_ROWS: Final = 65_536
BATCH_BYTES: Final = 8 * 1024**2
#: Runs merged at a time: each holds a batch. More of them are merged to longer runs first.
RUNS_AT_ONCE: Final = 16

#: A record's place in the total order.
_Key = tuple[Any, ...]


def in_total_order(
    batches: Iterable[Batch], folder: Callable[[], str], *, run_bytes: int = RUN_BYTES
) -> Iterator[pa.RecordBatch]:
    """Yield the records of one window by (timestamp, topic, partition, offset), in batches of `STAGE_SCHEMA`.

    Args:
        batches: the records as they are read: each partition's by offset.
        folder: makes the folder for the runs, when one is needed; whoever makes it removes it.
        run_bytes: how much to hold before a run is written.

    Raises:
        SinkError: a run cannot be written or read.
    """
    files: _RunFiles | None = None
    for held, is_last in _held(batches, run_bytes):
        if is_last and files is None:
            yield from _sorted(held)
            return
        files = files or _RunFiles(folder())
        files.write(_sorted(held))
    if files is not None:
        with as_sink_error(f"records cannot be put in order in {files.folder}"):
            yield from files.merged()


def _held(batches: Iterable[Batch], run_bytes: int) -> Iterator[tuple[list[Batch], bool]]:
    """Yield batches together, by partition and then by offset, and whether they are the last ones."""
    held: dict[TopicPartition, list[Batch]] = defaultdict(list)
    held_bytes = 0
    for batch in batches:
        if held_bytes >= run_bytes:
            yield _by_partition(held), False
            held.clear()
            held_bytes = 0
        held[partition_of(batch.records)].append(batch)
        held_bytes += batch.records.nbytes + batch.windows.nbytes
    if held:
        yield _by_partition(held), True


def _by_partition(held: dict[TopicPartition, list[Batch]]) -> list[Batch]:
    return [batch for tp in sorted(held) for batch in held[tp]]


def _sorted(held: Sequence[Batch]) -> Iterator[pa.RecordBatch]:
    for _, rows in in_order(held, BATCH_ROWS, BATCH_BYTES):
        yield from rows().to_batches()


class _RunFiles:
    """Sorted runs in a folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._names = map("run-{:06d}.arrow".format, count())
        self._paths: list[str] = []

    def write(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Write one more run."""
        path = os.path.join(self.folder, next(self._names))
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with (
            as_sink_error(f"records cannot be put in order: {path} cannot be written"),
            pa.OSFile(path, "wb") as file,
            pa.ipc.new_file(file, STAGE_SCHEMA, options=options) as writer,
        ):
            for batch in batches:
                writer.write_batch(batch)
        self._paths.append(path)

    def merged(self) -> Iterator[pa.RecordBatch]:
        """Yield all runs as one; more of them than are merged at a time are merged to longer ones first."""
        while len(self._paths) > RUNS_AT_ONCE:
            some, self._paths = self._paths[:RUNS_AT_ONCE], self._paths[RUNS_AT_ONCE:]
            self.write(_merged(some))
            for path in some:
                os.remove(path)
        yield from _merged(self._paths)


def _merged(paths: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield some runs as one."""
    with ExitStack() as stack:
        runs = [stack.enter_context(_Run(path)) for path in paths]
        while live := [run for run in runs if run.rows is not None]:
            frontier = min(run.last_key for run in live)
            parts = [part for run in live if (part := run.take(frontier)).num_rows]
            table = pa.Table.from_batches(parts, STAGE_SCHEMA)
            if len(parts) > 1:
                table = table.sort_by([(name, "ascending") for name in ORDER])
            yield from table.combine_chunks().to_batches(max_chunksize=BATCH_ROWS)


class _Run:
    """One run while it is merged: what of its loaded batch has not been handed out. A context manager."""

    def __init__(self, path: str) -> None:
        self._file = pa.OSFile(path, "rb")
        self._batches = pa.ipc.open_file(self._file)
        self._next = 0
        #: None: all of the run has been handed out.
        self.rows = self._load()

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def last_key(self) -> _Key:
        """The place of the last row that is loaded."""
        return self._key(self._loaded.num_rows - 1)

    def take(self, frontier: _Key) -> pa.RecordBatch:
        """Take the rows up to a place; load the next batch when all are taken."""
        rows = self._loaded
        end = bisect_right(range(rows.num_rows), frontier, key=self._key)
        self.rows = rows.slice(end) if end < rows.num_rows else self._load()
        return rows.slice(0, end)

    @property
    def _loaded(self) -> pa.RecordBatch:
        if self.rows is None:
            raise AssertionError("a run that has ended is merged no further")
        return self.rows

    def _key(self, row: int) -> _Key:
        time, *place = (self._loaded.column(name)[row] for name in ORDER)
        # As the number that it is: the calendar of datetime ends before Kafka's time does.
        return time.value, *(one.as_py() for one in place)

    def _load(self) -> pa.RecordBatch | None:
        if self._next == self._batches.num_record_batches:
            return None
        self._next += 1
        return self._batches.get_batch(self._next - 1)
