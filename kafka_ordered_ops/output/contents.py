"""Count what the files of an output hold, as seen by the process that will publish them.

Tasks say how many rows they have written, and write through the eyes of their own machine. Where one of them
sees another folder by the same name, its files are missing here, and nothing fails. So an output is complete
only once its files, counted here, hold what the job has counted; and it is published only while they are the
files that were counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from kafka_ordered_ops.core.errors import SinkError
from kafka_ordered_ops.core.strict_json import Fields
from kafka_ordered_ops.output.ports import Files

#: Footers read at a time: on a mounted folder the way there takes longer than the reading.
_FOOTERS_AT_ONCE: Final = 8

_PARQUET: Final = ".parquet"


@dataclass(frozen=True)
class Holding:
    """The data files of a folder, distinguished from any others."""

    files: int
    bytes: int
    #: Of the names and sizes.
    digest: str
    #: In all files, by their footers; None unless all of them are Parquet.
    rows: int | None = None

    @classmethod
    def of(cls, sizes: Mapping[str, int], rows: int | None = None) -> Holding:
        """Describe files by their names and sizes."""
        digest = hashlib.sha256()
        for name in sorted(sizes):
            digest.update(f"{name}\0{sizes[name]}\0".encode(errors="surrogateescape"))
        return cls(len(sizes), sum(sizes.values()), digest.hexdigest(), rows)

    def relevant(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return those of some files that are of the kind that was counted: beside Parquet files, others are no rows."""
        return {
            name: size
            for name, size in sizes.items()
            if self.rows is None or name.endswith(_PARQUET)
        }

    def is_of(self, sizes: Mapping[str, int]) -> bool:
        """Return whether files of these names and sizes are those that were counted."""
        return self.digest == Holding.of(self.relevant(sizes)).digest

    def to_json(self) -> dict[str, Any]:
        """Return what a marker stores."""
        return {
            "files": self.files,
            "bytes": self.bytes,
            "digest": self.digest,
            "rows": self.rows,
        }

    @classmethod
    def from_json(cls, fields: Fields) -> Holding:
        """Parse the JSON of `to_json`; raise `JsonError` if it is invalid."""
        holding = cls(
            fields.integer("files", least=0),
            fields.integer("bytes", least=0),
            fields.text("digest"),
            fields.integer_or_none("rows"),
        )
        fields.done()
        return holding

    def difference(self, sizes: Mapping[str, int]) -> str:
        """Return what was counted, and what is there now."""
        found = Holding.of(self.relevant(sizes))
        return (
            f"{self.files:,} files of {self.bytes:,} bytes were written, but {found.files:,} of "
            f"{found.bytes:,} bytes exist"
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
    # Late: hosts import this room where nothing is read.
    import pyarrow as pa
    import pyarrow.parquet as pq

    def rows(name: str) -> int:
        path = f"{folder}/{name}"
        try:
            with files.footer(path) as file:
                found: int = pq.read_metadata(file).num_rows
                return found
        except (OSError, pa.ArrowException) as error:
            raise SinkError(
                f"{path} cannot be read back as Parquet: {error}. It was damaged or truncated after it was "
                "written. Nothing was published: run the same window again"
            ) from error

    with ThreadPoolExecutor(_FOOTERS_AT_ONCE, thread_name_prefix="footers") as pool:
        return sum(pool.map(rows, names))


def check_rows(window_id: str, path: str, holding: Holding, records: int | None) -> None:
    """Raise `SinkError` unless the files hold the rows that were written; a window without rows has a file, too."""
    # Readers find the columns in it.
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
