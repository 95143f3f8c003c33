"""Record batches as bytes, one after the other, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from kafka_ordered_ops.cli.records.choices import Bytes, Format, OnBad
from kafka_ordered_ops.cli.records.columns import (
    bytes_json,
    bytes_text,
    characters,
    guarded,
    headers_json,
    is_bad,
    joined,
    times_text,
)
from kafka_ordered_ops.cli.records.target import Target

#: Arrow data converted to text at once. The text may be six times as long, and a column holds at most 2 GiB.
_TEXT_BYTES: Final = 64 * 1024**2
#: Limits of a row group of a Parquet file, which is held in memory until it is written.
_GROUP_BYTES: Final = 64 * 1024**2
_GROUP_RECORDS: Final = 1_000_000


class Writer(Protocol):
    """Writes batches in one format."""

    def write(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Write the records; return those that were not skipped. Raises what the target raises."""

    def close(self) -> None:
        """Write the end of the format."""


@contextmanager
def writing(
    target: Target,
    form: Format,
    schema: pa.Schema,
    keys: Bytes,
    values: Bytes,
    *,
    guards_cells: bool = False,
    on_bad: OnBad = OnBad.FAIL,
) -> Iterator[Writer]:
    """Provide the writer of a format; it ends the format, unless the block raises.

    With `guards_cells`, no cell of a CSV begins as a formula of a spreadsheet does.
    """
    writer: Writer
    if form is Format.JSONL:
        writer = _lenient(_JsonLines(target, keys, values), on_bad)
    elif form is Format.CSV:
        writer = _lenient(_Csv(target, schema, keys, values, guards_cells=guards_cells), on_bad)
    elif form is Format.ARROW:
        writer = _Arrow(target, schema)
    else:
        writer = _Parquet(target, schema)
    try:
        yield writer
    except BaseException:
        target.end()
        raise
    finally:
        # Also after an error: otherwise Parquet's writer closes itself, and fails.
        writer.close()


class _Lenient:
    """Skips records that are not JSON, or writes them as text; the format's own writer gets all others."""

    def __init__(self, writer: _JsonLines | _Csv, on_bad: OnBad) -> None:
        self._writer, self._on_bad = writer, on_bad
        how = {"key": writer.keys, "value": writer.values}
        self._names = [name for name, form in how.items() if form is Bytes.JSON]

    def write(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Write the records; return those that were not skipped."""
        bad = is_bad(batch, self._names)
        if self._on_bad is OnBad.SKIP:
            good = batch.filter(pa.array(~bad)) if bad.any() else batch
            return self._writer.write(good)
        start = 0
        while start < len(batch):
            # In order: up to the next record of the other kind.
            changes = np.flatnonzero(bad[start:] != bad[start])
            end = start + int(changes[0]) if changes.size else len(batch)
            rows = batch.slice(start, end - start)
            if bad[start]:
                self._write_as_text(rows)
            else:
                self._writer.write(rows)
            start = end
        return batch

    def _write_as_text(self, rows: pa.RecordBatch) -> None:
        writer = self._writer
        keys, values = writer.keys, writer.values
        # Each column by itself: the value may be invalid JSON, and the key valid.
        for row in range(len(rows)):
            record = rows.slice(row, 1)
            text = {name for name in self._names if is_bad(record, [name]).any()}
            writer.keys = Bytes.TEXT if "key" in text else keys
            writer.values = Bytes.TEXT if "value" in text else values
            writer.write(record)
        writer.keys, writer.values = keys, values

    def close(self) -> None:
        """Write the end of the format."""
        self._writer.close()


def _lenient(writer: _JsonLines | _Csv, on_bad: OnBad) -> Writer:
    return writer if on_bad is OnBad.FAIL else _Lenient(writer, on_bad)


class _JsonLines:
    """One JSON object a line."""

    def __init__(self, target: Target, keys: Bytes, values: Bytes) -> None:
        self._target, self.keys, self.values = target, keys, values

    def write(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Write the records."""
        for piece in _pieces(batch):
            self._target.write(characters(self._lines(piece)))
        return batch

    def _lines(self, batch: pa.RecordBatch) -> Any:
        column: Any = batch.column
        return joined(
            '{"topic":"',
            # Topic names need no escaping.
            column("topic"),
            '","partition":',
            column("partition").cast(pa.string()),
            ',"offset":',
            column("offset").cast(pa.string()),
            ',"timestamp":"',
            times_text(batch),
            '","key":',
            bytes_json(batch, "key", self.keys),
            ',"value":',
            bytes_json(batch, "value", self.values),
            ',"headers":',
            headers_json(batch, self.values),
            ',"late":',
            column("late").cast(pa.string()),
            "}\n",
        )

    def close(self) -> None:
        """Do nothing: each line is complete."""


class _Csv:
    """A header line, and a line for each record; null is an empty cell, and an empty text is quoted."""

    def __init__(
        self, target: Target, schema: pa.Schema, keys: Bytes, values: Bytes, *, guards_cells: bool
    ) -> None:
        self._target, self._schema, self.keys, self.values = target, schema, keys, values
        self._guards_cells = guards_cells
        self._has_names = False

    def write(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Write the records."""
        for piece in _pieces(batch):
            self._put(self._rows(piece))
        return batch

    def _rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        column: Any = batch.column
        headers = headers_json(batch, self.values)
        rows = pa.RecordBatch.from_pydict(
            {
                "topic": column("topic"),
                "partition": column("partition"),
                "offset": column("offset"),
                "timestamp": times_text(batch),
                "key": bytes_text(batch, "key", self.keys),
                "value": bytes_text(batch, "value", self.values),
                "headers": pa.repeat(headers, len(batch)) if isinstance(headers, str) else headers,
                "late": column("late"),
            }
        )
        return guarded(rows) if self._guards_cells else rows

    def _put(self, rows: pa.RecordBatch) -> None:
        sink = pa.BufferOutputStream()
        options = pyarrow.csv.WriteOptions(include_header=not self._has_names)
        pyarrow.csv.write_csv(rows, sink, options)
        self._has_names = True
        self._target.write(sink.getvalue())

    def close(self) -> None:
        """Write the names, if there was no record."""
        if not self._has_names:
            self.write(pa.RecordBatch.from_pylist([], schema=self._schema))


class _Arrow:
    """Arrow's streaming format."""

    def __init__(self, target: Target, schema: pa.Schema) -> None:
        self._stream = pa.ipc.new_stream(pa.PythonFile(target, mode="w"), schema)

    def write(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Write the records."""
        self._stream.write_batch(batch)
        return batch

    def close(self) -> None:
        """Write the end of the stream."""
        self._stream.close()


class _Parquet:
    """One Parquet file."""

    def __init__(self, target: Target, schema: pa.Schema) -> None:
        self._schema = schema
        self._file = pq.ParquetWriter(pa.PythonFile(target, mode="w"), schema, compression="zstd")
        self._held: list[pa.RecordBatch] = []
        self._records = self._nbytes = 0

    def write(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Hold the records until there are enough for a row group."""
        self._held.append(batch)
        self._records += batch.num_rows
        self._nbytes += batch.nbytes
        if self._records >= _GROUP_RECORDS or self._nbytes >= _GROUP_BYTES:
            self._write_group()
        return batch

    def _write_group(self) -> None:
        group = pa.Table.from_batches(self._held, self._schema)
        self._held, self._records, self._nbytes = [], 0, 0
        self._file.write_table(group, row_group_size=max(group.num_rows, 1))

    def close(self) -> None:
        """Write the held records, and the end of the file."""
        if self._held:
            self._write_group()
        self._file.close()


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the records in pieces that are small enough for text."""
    if batch.nbytes <= _TEXT_BYTES or batch.num_rows <= 1:
        yield batch
        return
    middle = batch.num_rows // 2
    yield from _pieces(batch.slice(0, middle))
    yield from _pieces(batch.slice(middle))
