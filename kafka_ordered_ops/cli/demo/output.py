"""The demo's published files, read with neither Spark nor this package's reader."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kafka_ordered_ops.cli.demo.data import Int64Array
from kafka_ordered_ops.cli.demo.story import BoolArray, Step, Story
from kafka_ordered_ops.output.layout import WINDOW_PREFIX

_COLUMNS: Final[dict[str, pa.DataType]] = {
    "id": pa.int64(),
    "carrier": pa.string(),
    "flight": pa.int32(),
    "tailnum": pa.string(),
    "origin": pa.string(),
    "dest": pa.string(),
    "delay_min": pa.int32(),
    "timestamp": pa.timestamp("ms", tz="UTC"),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "late": pa.bool_(),
}
#: The published columns, and the story's index of the window whose folder held the record.
SCHEMA: Final = pa.schema({**_COLUMNS, "window": pa.int32()})


@dataclass(frozen=True, slots=True)
class Published:
    """All published records, by window, and in each window in the order of its files' names."""

    table: pa.Table
    #: Missing and unexpected folders.
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]

    def __len__(self) -> int:
        return self.table.num_rows

    def int64(self, name: str) -> Int64Array:
        """Return a column of whole numbers; of a time, its milliseconds since the epoch."""
        column = self.table[name]
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
        return cast(Int64Array, column.to_numpy().astype(np.int64))

    def bools(self, name: str) -> BoolArray:
        """Return a column of booleans."""
        return cast(BoolArray, self.table[name].to_numpy().astype(np.bool_))

    def out_of_order(self, story: Story) -> BoolArray:
        """Return for each record whether an offset range would miss it.

        In its partition, it sits after a record stamped at or after its window's cutoff.
        """
        partition, offset, stamp = (self.int64(n) for n in ("partition", "offset", "timestamp"))
        cutoffs = np.array([step.cutoff_ms for step in story.steps], dtype=np.int64)
        cutoff = cutoffs[self.int64("window")]
        mask = np.zeros(len(self), dtype=np.bool_)
        for number in np.unique(partition):
            places = np.flatnonzero(partition == number)
            places = places[np.argsort(offset[places])]
            highest = np.maximum.accumulate(stamp[places])
            # A record stamped before its cutoff is not itself the one past it.
            mask[places] = (highest >= cutoff[places]) & (stamp[places] < cutoff[places])
        return mask


def window_folder(root: Path, step: Step) -> Path:
    """Return where readers find a step's window."""
    return root / f"{WINDOW_PREFIX}{step.window_id}"


def read_published(root: Path, story: Story) -> Published:
    """Read every window's folder below `root`."""
    folders = [window_folder(root, step) for step in story.steps]
    tables = [_read_window(folder, n) for n, folder in enumerate(folders) if folder.is_dir()]
    there = {path.name for path in root.glob(f"{WINDOW_PREFIX}*")}
    expected = {folder.name for folder in folders}
    return Published(
        table=pa.concat_tables([SCHEMA.empty_table(), *tables]).combine_chunks(),
        missing=tuple(sorted(expected - there)),
        unexpected=tuple(sorted(there - expected)),
    )


def _read_window(folder: Path, place: int) -> pa.Table:
    tables = [
        # One file, one table: a folder read as a data set has no order, and extra columns from its name.
        pq.ParquetFile(path).read(columns=list(_COLUMNS))
        for path in sorted(folder.glob("*.parquet"))
    ]
    rows = sum(table.num_rows for table in tables)
    window = pa.array(np.full(rows, place, dtype=np.int32))
    if not tables:
        return SCHEMA.empty_table()
    return (
        pa.concat_tables(tables).append_column("window", window).select(SCHEMA.names).cast(SCHEMA)
    )
