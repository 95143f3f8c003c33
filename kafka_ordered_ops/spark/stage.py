"""A window as Parquet files, in order, without Spark: for windows that fit one worker.

Kafka is read once, by this process. The files are complete before anybody sees them, so whatever reads
them needs no access to Kafka, and a retry of that reading costs Kafka nothing.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kafka_ordered_ops.core.errors import ConfigError, HeldLimitError, WindowCoveredError
from kafka_ordered_ops.core.offset_set import Int64Array
from kafka_ordered_ops.core.plan import PartitionPlan, WindowPlan
from kafka_ordered_ops.core.types import PlanContent, TopicPartition
from kafka_ordered_ops.kafka.reader import STALL_TIMEOUT_S, RangeReader
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.spark.columns import (
    STAGE_SCHEMA,
    OffsetsDone,
    offsets_of,
    partition_of,
    timestamps_ms_of,
    with_late,
)
from kafka_ordered_ops.spark.output import Facts, StagedOutput

#: Arrow data held at once to put it in order. A usual worker has 4 GiB; one file's rows exist twice while
#: they are gathered, and the client's queues come on top.
HELD_BYTES_MAX: Final = 2 * 1024**3

#: A file is one row group, which a reader holds whole and never splits: in this range files are few and
#: one still fits every executor's memory several times.
ROWS_PER_FILE: Final = 500_000
FILE_BYTES_MAX: Final = 64 * 1024**2

#: What the five digits of a file's name hold.
FILES_MAX: Final = 100_000

#: ``(offsets done, offsets in all)``
Progress = Callable[[int, int], None]


def stage_window(
    plan: WindowPlan,
    settings: ClientSettings,
    root: str | os.PathLike[str],
    *,
    ordered: bool = True,
    limit_bytes: int = HELD_BYTES_MAX,
    rows_per_file: int = ROWS_PER_FILE,
    stall_timeout_s: float = STALL_TIMEOUT_S,
    progress: Progress | None = None,
) -> StagedOutput:
    """Reads a plan's records once and writes them as Parquet into the window's stage below `root`.

    Columns: ``topic`` string, ``partition`` int32, ``offset`` int64, ``timestamp`` timestamp[ms, UTC],
    ``timestamp_type`` int32 (0 CreateTime, 1 LogAppendTime, null none), ``key`` binary, ``value`` binary,
    ``headers`` list<struct<key: string, value: binary>> (null when there are none), ``late`` bool. A window
    without records is one valid file without rows.

    Facts of the result: ``records``, ``stragglers`` (written behind a record stamped at or after the
    cutoff), ``late``, ``timestamp_ms_min`` and ``timestamp_ms_max`` (null without records), ``bytes``
    (Arrow), ``elapsed_ms``, ``files``.

    Args:
        plan: the window.
        settings: how to reach the cluster.
        root: the folder that holds the output of all windows.
        ordered: by (timestamp, topic, partition, offset), within files and over files in the order of
            their names. Otherwise records are written as they arrive and never held.
        limit_bytes: how much Arrow data to hold for the order.
        rows_per_file: at most so many records a file; large records make smaller files.
        stall_timeout_s: how long to wait for any partition to move.
        progress: called as reading goes on.

    Raises:
        HeldLimitError: the records do not fit `limit_bytes`.
        WindowCoveredError: the plan is empty because other windows have taken its records; an empty
            output would hide theirs.
        ReadError, RecordsLostError, BrokerError: as the reader raises them. The stage is removed.
    """
    if limit_bytes < 1 or rows_per_file < 1:
        raise ConfigError(
            f"limit_bytes={limit_bytes} and rows_per_file={rows_per_file} must be positive"
        )
    check_has_output(plan)
    started = time.monotonic()
    output = StagedOutput.of(plan, root)
    output.prepare()
    try:
        tally = _Tally()
        reader = RangeReader(
            settings, plan.group, plan.isolation, plan.taken, stall_timeout_s=stall_timeout_s
        )
        batches = _read(plan, reader, tally, progress)
        if ordered:
            tables = _in_order(_hold(plan, batches, limit_bytes), rows_per_file)
        else:
            tables = _as_they_come(batches, rows_per_file)
        files = _write(tables, output.stage_path)
        elapsed_ms = round((time.monotonic() - started) * 1000)
        return output.seal({**tally.facts(), "elapsed_ms": elapsed_ms, "files": files})
    except BaseException:
        output.discard()
        raise


def check_has_output(plan: WindowPlan) -> None:
    """Raises `WindowCoveredError` for a plan whose records other windows deliver."""
    if plan.content is PlanContent.COVERED:
        raise WindowCoveredError(
            f"window {plan.window_id} of group {plan.group} has no records of its own: other windows have "
            "taken all that it asks for, and an empty output in its place would hide theirs. Replay one of "
            "them, or skip this window",
            window_id=plan.window_id,
        )


class _Tally:
    """What is counted while records pass by."""

    def __init__(self) -> None:
        self.records = self.stragglers = self.late = self.bytes = 0
        self.timestamp_ms_min: int | None = None
        self.timestamp_ms_max: int | None = None

    def add(self, batch: pa.RecordBatch, timestamps_ms: Int64Array) -> None:
        least, greatest = int(timestamps_ms.min()), int(timestamps_ms.max())
        self.records += batch.num_rows
        self.bytes += batch.nbytes
        if self.timestamp_ms_min is None or least < self.timestamp_ms_min:
            self.timestamp_ms_min = least
        if self.timestamp_ms_max is None or greatest > self.timestamp_ms_max:
            self.timestamp_ms_max = greatest

    def facts(self) -> Facts:
        return dict(vars(self))


def _read(
    plan: WindowPlan, reader: RangeReader, tally: _Tally, progress: Progress | None
) -> Iterator[pa.RecordBatch]:
    """Batches of `STAGE_SCHEMA`, each of one partition and in the order of its offsets; counted."""
    parts = {part.tp: part for part in plan if part.taken}
    done = OffsetsDone(parts)
    with reader:
        for batch in reader.batches():
            if not batch.num_rows:
                continue
            part = parts[partition_of(batch)]
            yield _judged(batch, part, tally)
            if progress is not None:
                progress(done.reached(part.tp, int(offsets_of(batch)[-1])), done.total)
    if progress is not None:
        # Offsets behind the last record of a partition have none; they are done all the same.
        progress(done.total, done.total)


def _judged(batch: pa.RecordBatch, part: PartitionPlan, tally: _Tally) -> pa.RecordBatch:
    offsets, timestamps_ms = offsets_of(batch), timestamps_ms_of(batch)
    late = part.late.mask(offsets, timestamps_ms)
    result = with_late(batch, late)
    tally.add(result, timestamps_ms)
    tally.late += int(np.count_nonzero(late))
    tally.stragglers += int(np.count_nonzero(offsets >= part.head_end))
    return result


def _hold(
    plan: WindowPlan, batches: Iterator[pa.RecordBatch], limit_bytes: int
) -> list[pa.RecordBatch]:
    """All batches, by partition and then by offset."""
    held: dict[TopicPartition, list[pa.RecordBatch]] = defaultdict(list)
    held_bytes = records = 0
    for batch in batches:
        held[partition_of(batch)].append(batch)
        held_bytes += batch.nbytes
        records += batch.num_rows
        if held_bytes > limit_bytes:
            raise HeldLimitError(
                f"window {plan.window_id} of group {plan.group} does not fit the memory for putting it in "
                f"order: {held_bytes:,} bytes after {records:,} records of at most {plan.offsets:,}, limit "
                f"{limit_bytes:,}. Read it with Spark (engine python), take it without order "
                "(ordered=False), or raise limit_bytes on a worker with more memory",
                limit=limit_bytes,
                held_bytes=held_bytes,
                records=records,
            )
    return [batch for tp in sorted(held) for batch in held[tp]]


def _in_order(batches: list[pa.RecordBatch], rows_per_file: int) -> Iterator[pa.Table]:
    """One table a file. Only the times are sorted, and only one file's rows exist twice."""
    if not batches:
        return
    # The batches lie by (topic, partition, offset): a stable sort by time completes the order.
    order = np.argsort(np.concatenate([timestamps_ms_of(b) for b in batches]), kind="stable")
    rows = np.array([batch.num_rows for batch in batches])
    row_bytes = np.repeat([-(-batch.nbytes // batch.num_rows) for batch in batches], rows)[order]
    starts = np.concatenate(([0], np.cumsum(rows)))
    for first, end in _cuts(np.cumsum(row_bytes), rows_per_file):
        yield _gather(batches, starts, order[first:end])


def _cuts(bytes_up_to: Int64Array, rows_per_file: int) -> Iterator[tuple[int, int]]:
    """Row ranges of files that keep both limits; a row larger than a file gets one of its own."""
    first, rows = 0, len(bytes_up_to)
    while first < rows:
        before = int(bytes_up_to[first - 1]) if first else 0
        fitting = int(np.searchsorted(bytes_up_to, before + FILE_BYTES_MAX, side="right"))
        end = max(first + 1, min(fitting, first + rows_per_file, rows))
        yield first, end
        first = end


def _gather(batches: list[pa.RecordBatch], starts: Int64Array, wanted: Int64Array) -> pa.Table:
    """The rows with these numbers, counted over all batches, in this order."""
    # Row by row from each batch first: taking from all batches at once would join them all, every time,
    # and binary columns of 2 GiB cannot be joined at all.
    by_place = np.argsort(wanted)
    places = wanted[by_place]
    bounds = np.searchsorted(places, starts)
    pieces = [
        batches[n].take(places[bounds[n] : bounds[n + 1]] - starts[n])
        for n in np.flatnonzero(np.diff(bounds))
    ]
    back = np.empty_like(by_place)
    back[by_place] = np.arange(by_place.size)
    return pa.Table.from_batches(pieces, STAGE_SCHEMA).combine_chunks().take(back)


def _as_they_come(batches: Iterator[pa.RecordBatch], rows_per_file: int) -> Iterator[pa.Table]:
    """One table a file, holding no more than one."""
    pending: list[pa.RecordBatch] = []
    rows = held_bytes = 0
    for batch in batches:
        while batch.num_rows:
            piece = batch.slice(0, rows_per_file - rows)
            batch = batch.slice(piece.num_rows)
            pending.append(piece)
            rows += piece.num_rows
            held_bytes += piece.nbytes
            if rows == rows_per_file or held_bytes >= FILE_BYTES_MAX:
                yield pa.Table.from_batches(pending, STAGE_SCHEMA)
                pending, rows, held_bytes = [], 0, 0
    if pending:
        yield pa.Table.from_batches(pending, STAGE_SCHEMA)


def _write(tables: Iterator[pa.Table], folder: str) -> int:
    """Writes one file a table, named in order; at least one. Returns how many."""
    files = 0
    for table in tables:
        if files == FILES_MAX:
            raise ConfigError(
                f"the window needs more than {FILES_MAX:,} files, whose names would no longer be in order: "
                "raise rows_per_file"
            )
        _write_file(table, f"{folder}/part-{files:05d}.parquet")
        files += 1
    if not files:
        _write_file(STAGE_SCHEMA.empty_table(), f"{folder}/part-{files:05d}.parquet")
        files = 1
    return files


def _write_file(table: pa.Table, path: str) -> None:
    pq.write_table(
        table,
        path,
        row_group_size=max(1, table.num_rows),
        compression="zstd",
        # The others seldom repeat: building dictionaries for them costs time and is then thrown away.
        use_dictionary=["topic", "partition", "timestamp_type"],  # type: ignore[arg-type]
    )
