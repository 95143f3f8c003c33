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

#: Time between two checks of signals, the pipe and the table, while no record arrives.
_LOOK_S: Final = 0.1
#: Time after a signal to write the records that are released already.
_REST_S: Final = 0.25
#: Timeout of one poll in that time.
_AT_ONCE_S: Final = 0.001


@dataclass
class Copied:
    """The counts of written records so far."""

    records: int = 0
    late: int = 0
    #: Records left out because they are not JSON.
    skipped: int = 0
    #: Whether Ctrl-C was the end.
    is_interrupted: bool = False

    def __str__(self) -> str:
        noun = "record" if self.records == 1 else "records"
        late = f", {self.late:,} of them late" if self.late else ""
        return f"{self.records:,} {noun}{late}" + (
            f"; {self.skipped:,} skipped, which cannot be decoded" if self.skipped else ""
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
        while not (reader.is_done or stop.is_requested or copied.records == limit):
            batch = reader.poll(_LOOK_S)
            view.show(reader, copied.records, 0 if batch is None else batch.num_rows)
            if batch is None:
                target.check_read()
            else:
                _write(batch, writer, copied, limit)
        if stop.is_requested:
            _write_rest(reader, writer, copied, limit)
        copied.is_interrupted = stop.is_interrupt
    return copied


def _write_rest(reader: OrderedReader, writer: Writer, copied: Copied, limit: int | None) -> None:
    """Write the records that are released already. Closing the reader then commits all written records."""
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
