"""Count what the files of an output hold, as seen by the process that will publish them.

Tasks report how many rows they wrote, each to the folder that its own machine sees. If one of them sees another folder
under the same name, its files are missing here and nothing fails. So an output is complete only once its files,
counted here, hold the rows that the job counted, and it is published only while those files are unchanged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from kafka_ordered_ops.core.errors import SinkError
from kafka_ordered_ops.core.strict_json import Count, Stored, Text
from kafka_ordered_ops.output.ports import Files

#: Footers read at a time: on a mounted folder, latency takes longer than reading.
_FOOTERS_AT_ONCE: Final = 8

_PARQUET: Final = ".parquet"


class Holding(Stored, frozen=True):
    """The data files of a folder, distinguished from any others."""

    files: Count
    bytes: Count
    #: Of the names and sizes.
    digest: Text
    #: In all files, by their footers; None unless all of them are Parquet.
    rows: int | None

    @classmethod
    def of(cls, sizes: Mapping[str, int], rows: int | None = None) -> Holding:
        """Describe files by their names and sizes."""
        digest = hashlib.sha256()
        for name in sorted(sizes):
            digest.update(f"{name}\0{sizes[name]}\0".encode(errors="surrogateescape"))
        return cls(len(sizes), sum(sizes.values()), digest.hexdigest(), rows)

    def relevant(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the files of the kind that was counted: files beside Parquet files hold no rows."""
        return {
            name: size
            for name, size in sizes.items()
            if self.rows is None or name.endswith(_PARQUET)
        }

    def is_of(self, sizes: Mapping[str, int]) -> bool:
        """Return whether files of these names and sizes are those that were counted."""
        return self.digest == Holding.of(self.relevant(sizes)).digest

    def difference(self, sizes: Mapping[str, int]) -> str:
        """Return a text on what was counted, and what is there now."""
        present = Holding.of(self.relevant(sizes))
        return (
            f"{self.files:,} files of {self.bytes:,} bytes were written, but {present.files:,} of "
            f"{present.bytes:,} bytes exist"
        )


def count(files: Files, folder: str) -> Holding:
    """Count what the data files in a folder hold, including rows.

    Raises:
        SinkError: a file that is damaged, or cannot be read.
    """
    sizes = files.sizes(folder)
    return Holding.of(sizes, rows_in(files, folder, sorted(sizes)))


def rows_in(files: Files, folder: str, names: Sequence[str]) -> int | None:
    """Return the rows in all of these files, by their footers alone; None unless all of them are Parquet.

    Raises:
        SinkError: a file that is damaged, or cannot be read.
    """
    if not all(name.endswith(_PARQUET) for name in names):
        return None
    # Imported late: hosts import this module where no file is read.
    import pyarrow as pa
    import pyarrow.parquet as pq

    def rows(name: str) -> int:
        path = f"{folder}/{name}"
        try:
            with files.footer(path) as file:
                num_rows: int = pq.read_metadata(file).num_rows
                return num_rows
        except (OSError, pa.ArrowException) as error:
            raise SinkError(
                f"{path} cannot be read back as Parquet: {error}. It was damaged or truncated after it was "
                "written. Nothing was published: run the same window again"
            ) from error

    with ThreadPoolExecutor(_FOOTERS_AT_ONCE, thread_name_prefix="footers") as pool:
        return sum(pool.map(rows, names))


def check_rows(window_id: str, path: str, holding: Holding, records: int | None) -> None:
    """Raise `SinkError` unless the files hold the rows that were written; a window without rows has a file too."""
    # A file without rows still gives readers the columns.
    if holding.files and (records is None or holding.rows in (None, records)):
        return
    raise SinkError(
        f"window {window_id}: {records or 0:,} rows were written to {path}, and the {holding.files:,} "
        f"files that this process sees there hold {holding.rows or 0:,}. Some executors write to a folder that this "
        "process does not see: use a folder that the driver and all executors share, and check that it is mounted on each "
        "of them. Nothing was committed",
        window_id=window_id,
        records=records,
        found=holding.rows or 0,
    )
