"""The loop of `read`: from the reader to the writer."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from kafka_ordered_ops.cli.records.formats import Writer
from kafka_ordered_ops.cli.records.stop import Stop, stoppable
from kafka_ordered_ops.cli.records.target import Target
from kafka_ordered_ops.cli.show.reading import View
from kafka_ordered_ops.ordered.ordered_reader import OrderedReader

#: Between two looks at signals, the pipe and the table, while there is no record.
_LOOK_S: Final = 0.1
#: After a signal, for records that can be released: only what is written whole is committed.
_REST_S: Final = 0.25
#: For one turn of the reader.
_AT_ONCE_S: Final = 0.001


@dataclass
class Copied:
    """What was written so far."""

    records: int = 0
    late: int = 0
    #: Not JSON, and left out.
    skipped: int = 0
    #: Whether Ctrl-C was the end.
    is_interrupted: bool = False

    def __str__(self) -> str:
        noun = "record" if self.records == 1 else "records"
        late = f", {self.late:,} of them late" if self.late else ""
        return f"{self.records:,} {noun}{late}" + (
            f"; {self.skipped:,} skipped, which are not JSON" if self.skipped else ""
        )


def copy(
    reader: OrderedReader,
    writer: Writer,
    target: Target,
    view: View,
    *,
    follow: bool,
    limit: int | None,
) -> Copied:
    """Write the records up to the limit, or the end; without `follow`, Ctrl-C raises at once."""
    copied = Copied()
    with ExitStack() as stack:
        stop = stack.enter_context(stoppable()) if follow else Stop()
        while not (reader.is_done or stop.is_asked or copied.records == limit):
            batch = reader.poll(_LOOK_S)
            view.show(reader, copied.records, 0 if batch is None else batch.num_rows)
            if batch is None:
                target.check_read()
            else:
                _write(batch, writer, copied, limit)
        if stop.is_asked:
            _write_rest(reader, writer, copied, limit)
        copied.is_interrupted = stop.is_interrupt
    return copied


def _write_rest(reader: OrderedReader, writer: Writer, copied: Copied, limit: int | None) -> None:
    """Write what is released already; then all that was written is done with, and is committed on closing."""
    deadline = time.monotonic() + _REST_S
    while time.monotonic() < deadline and copied.records != limit:
        batch = reader.poll(_AT_ONCE_S)
        if batch is None:
            return
        _write(batch, writer, copied, limit)


def _write(batch: pa.RecordBatch, writer: Writer, copied: Copied, limit: int | None) -> None:
    if limit is not None:
        batch = batch.slice(0, limit - copied.records)
    written = writer.write(batch)
    late: Any = written.column("late")
    copied.records += written.num_rows
    copied.skipped += batch.num_rows - written.num_rows
    copied.late += late.true_count
