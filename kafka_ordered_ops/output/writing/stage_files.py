"""Write records as Parquet files: sorted, cut to size, and separated by window."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.offset_set import Int64Array
from kafka_ordered_ops.ordered.records.columns import STAGE_SCHEMA
from kafka_ordered_ops.output.filesystem import LocalFiles, as_sink_error
from kafka_ordered_ops.output.ports import Files
from kafka_ordered_ops.output.writing.staged_output import Facts

#: A file is one row group, which a reader holds as a whole and never splits. With these limits, files are few, and one fits
#: every executor's memory several times.
ROWS_PER_FILE: Final = 500_000
FILE_BYTES_MAX: Final = 64 * 1024**2

#: How much unsorted windows hold until a file is full: a few files' worth, for all windows together.
PENDING_BYTES_MAX: Final = 8 * FILE_BYTES_MAX

#: The number of files that the five digits in a file's name can count.
FILES_MAX: Final = 100_000


#: The columns of a record with repeated values: dictionaries for other columns would cost time and be discarded.
_REPEATING: Final = ["topic", "partition", "timestamp_type"]


class Batch(NamedTuple):
    """Records of one partition, by offset."""

    #: Records with `STAGE_SCHEMA`.
    records: pa.RecordBatch
    #: The number of each record's window.
    windows: Int64Array


#: Files written concurrently: Arrow releases Python's lock, so writing and reading share the cores.
FILES_AT_ONCE: Final = 2

#: Returns the rows of a file; called in the thread that writes it.
Rows = Callable[[], pa.Table]

#: The number of a window, and records for one file of it.
FileOfWindow = tuple[int, Rows]


class StageFiles:
    """Write windows' files to their stages, named in order; a context manager.

    Several files are written concurrently by threads. An error of a thread is raised by the next call.
    """

    def __init__(
        self, folders: Sequence[str], where: Files | None = None, schema: pa.Schema = STAGE_SCHEMA
    ) -> None:
        self._folders = folders
        self._where: Files = where or LocalFiles()
        self._schema = schema
        self._files = [0] * len(folders)
        self._bytes = [0] * len(folders)
        self._writers = ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="stage-files")
        self._under_way: deque[tuple[int, Future[int]]] = deque()

    def __enter__(self) -> StageFiles:
        return self

    def __exit__(self, *_: object) -> None:
        # Also after an error: no thread may still write to the stage when it is removed.
        self._writers.shutdown(cancel_futures=True)

    def write(self, window: int, rows: Rows) -> None:
        """Add one more file of a window."""
        number = self._files[window]
        if number == FILES_MAX:
            raise ConfigError(
                f"a window needs more than {FILES_MAX:,} files, whose names would no longer be in order "
                f"({self._folders[window]}): raise rows_per_file"
            )
        self._wait(FILES_AT_ONCE - 1)
        path = f"{self._folders[window]}/part-{number:05d}.parquet"
        self._files[window] += 1
        self._under_way.append((window, self._writers.submit(_write_file, rows, path, self._where)))

    def close(self, window: int) -> Facts:
        """Return how much was written for a window: at least one file, even without rows."""
        if not self._files[window]:
            self.write(window, self._schema.empty_table)
        self._wait(0)
        return {"files": self._files[window], "bytes": self._bytes[window]}

    def _wait(self, left: int) -> None:
        """Wait until at most `left` files are being written."""
        while len(self._under_way) > left:
            window, writing = self._under_way.popleft()
            self._bytes[window] += writing.result()


def as_they_come(batches: Iterator[Batch], rows_per_file: int) -> Iterator[FileOfWindow]:
    """Yield each window's records in the order of arrival, file by file.

    A file is written once it is full, or if it is the largest when all waiting records exceed `PENDING_BYTES_MAX`.
    """
    pending = _Pending()
    for run in _runs(batches, rows_per_file):
        for window, table in _by_window(run):
            if pending.rows(window) + table.num_rows > rows_per_file:
                yield window, pending.take(window)
            pending.add(window, table)
            if pending.is_full(window, rows_per_file):
                yield window, pending.take(window)
        while pending.bytes_in_all > PENDING_BYTES_MAX:
            fullest = pending.fullest
            yield fullest, pending.take(fullest)
    for window in pending.windows:
        yield window, pending.take(window)


class _Pending:
    """Records that wait until their window's file is full."""

    def __init__(self) -> None:
        self._tables: dict[int, list[pa.Table]] = defaultdict(list)
        self._rows: Counter[int] = Counter()
        self._bytes: Counter[int] = Counter()
        self.bytes_in_all = 0

    @property
    def windows(self) -> list[int]:
        return sorted(self._tables)

    @property
    def fullest(self) -> int:
        return max(self._tables, key=self._bytes.__getitem__)

    def rows(self, window: int) -> int:
        return self._rows[window]

    def is_full(self, window: int, rows_per_file: int) -> bool:
        return self._rows[window] >= rows_per_file or self._bytes[window] >= FILE_BYTES_MAX

    def add(self, window: int, table: pa.Table) -> None:
        self._tables[window].append(table)
        self._rows[window] += table.num_rows
        self._bytes[window] += table.nbytes
        self.bytes_in_all += table.nbytes

    def take(self, window: int) -> Rows:
        self.bytes_in_all -= self._bytes.pop(window)
        del self._rows[window]
        return partial(pa.concat_tables, self._tables.pop(window))


def _runs(batches: Iterator[Batch], rows_per_file: int) -> Iterator[list[Batch]]:
    """Yield lists of batches, as many as one file of a single window holds."""
    pending: list[Batch] = []
    rows = held_bytes = 0
    for records, windows in batches:
        while records.num_rows:
            fitting = rows_per_file - rows
            piece = Batch(records.slice(0, fitting), windows[:fitting])
            records, windows = records.slice(fitting), windows[fitting:]
            pending.append(piece)
            rows += piece.records.num_rows
            held_bytes += piece.records.nbytes
            if rows == rows_per_file or held_bytes >= FILE_BYTES_MAX:
                yield pending
                pending, rows, held_bytes = [], 0, 0
    if pending:
        yield pending


def _by_window(run: Sequence[Batch]) -> Iterator[tuple[int, pa.Table]]:
    """Yield a run's records window by window, each in the order of the run."""
    table = pa.Table.from_batches([batch.records for batch in run], STAGE_SCHEMA)
    windows = np.concatenate([batch.windows for batch in run])
    numbers = np.unique(windows).tolist()
    if len(numbers) == 1:
        yield numbers[0], table
        return
    for number in numbers:
        # Combined into one chunk, because the rest of each batch may be a row or two.
        yield number, table.filter(pa.array(windows == number)).combine_chunks()


def _write_file(rows: Rows, path: str, where: Files) -> int:
    """Write one file; return the size of its rows in memory."""
    table = rows()
    with as_sink_error(f"{path} cannot be written"), where.sink(path) as file:
        pq.write_table(
            table,
            file,
            row_group_size=max(1, table.num_rows),
            compression="zstd",
            use_dictionary=_REPEATING if table.schema.equals(STAGE_SCHEMA) else True,  # type: ignore[arg-type]
        )
    return table.nbytes
