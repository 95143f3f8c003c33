"""Write windows as Parquet files, in order, without Spark, for windows that one process can handle.

This process reads Kafka once. The files are complete before they are visible, so their readers need no access to
Kafka, and retries of the readers cost Kafka nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from kafka_ordered_ops.core.arguments import check_count, check_flag
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.offset_set import BoolArray, Int64Array
from kafka_ordered_ops.core.types import INT64_MAX, INT64_MIN
from kafka_ordered_ops.core.window.partition import columns_of
from kafka_ordered_ops.core.window.plan import WindowPlan, check_not_covered
from kafka_ordered_ops.decoding.decoder import DECODED_ROWS, Decoder, LeaveOut, decoder_of
from kafka_ordered_ops.decoding.discarded import Discarded
from kafka_ordered_ops.decoding.left_out import LeftOut
from kafka_ordered_ops.decoding.plain_types import plain_batch, plain_columns
from kafka_ordered_ops.kafka.ports import ReaderDoor, open_reader
from kafka_ordered_ops.kafka.read.reader import STALL_TIMEOUT_S
from kafka_ordered_ops.kafka.settings import ClientSettings, GivenSettings
from kafka_ordered_ops.ordered.records.columns import (
    STAGE_SCHEMA,
    OffsetsDone,
    judged,
    offsets_of,
    partition_of,
    timestamps_ms_of,
)
from kafka_ordered_ops.ordered.records.pieces import Piece, check_together, pieces_of
from kafka_ordered_ops.output.writing.bad_records import stage_bad
from kafka_ordered_ops.output.writing.draft import drafts_of
from kafka_ordered_ops.output.writing.in_order import HELD_BYTES_MAX, files_in_order
from kafka_ordered_ops.output.writing.stage_files import (
    ROWS_PER_FILE,
    Batch,
    Rows,
    StageFiles,
    as_they_come,
)
from kafka_ordered_ops.output.writing.staged_output import Facts, StagedOutput
from kafka_ordered_ops.output.writing.temporary import temporary_folder

#: ``(offsets done, offsets in all)``
Progress = Callable[[int, int], None]


def stage_window(
    plan: WindowPlan,
    settings: GivenSettings,
    root: str | os.PathLike[str],
    *,
    ordered: bool = True,
    limit_bytes: int = HELD_BYTES_MAX,
    rows_per_file: int = ROWS_PER_FILE,
    stall_timeout_s: float = STALL_TIMEOUT_S,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
    partition_by: str | None = None,
) -> StagedOutput:
    """Read a plan's records once and write them as Parquet: `stage_windows` for one plan."""
    (output,) = stage_windows(
        [plan],
        settings,
        root,
        ordered=ordered,
        limit_bytes=limit_bytes,
        rows_per_file=rows_per_file,
        stall_timeout_s=stall_timeout_s,
        progress=progress,
        storage_options=storage_options,
        partition_by=partition_by,
    )
    return output


def stage_windows(
    plans: Sequence[WindowPlan],
    settings: GivenSettings,
    root: str | os.PathLike[str],
    *,
    ordered: bool = True,
    limit_bytes: int = HELD_BYTES_MAX,
    rows_per_file: int = ROWS_PER_FILE,
    stall_timeout_s: float = STALL_TIMEOUT_S,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
    partition_by: str | None = None,
) -> list[StagedOutput]:
    """Read the plans' records once and write them as Parquet, each window's into its stage below `root`.

    Columns: ``topic`` string, ``partition`` int32, ``offset`` int64, ``timestamp`` timestamp[ms, UTC],
    ``timestamp_type`` int32 (0 CreateTime, 1 LogAppendTime, null none), ``key`` binary, ``value`` binary,
    ``headers`` list<struct<key: string, value: binary>> (null if there are none), ``late`` bool. A window
    without records is one valid file without rows.

    Values and keys are decoded as the windows say. With `DeadLetter`, bad records are left out, the result has their places,
    and ``records`` does not count them. Without a topic for them, they are written to a stage of the root ``<root>__bad``.

    Facts of each result: ``records``, ``out_of_order`` (records after one stamped at or after the
    cutoff; null if the plan does not know them), ``late``, ``timestamp_ms_min`` and ``timestamp_ms_max``
    (null without records), ``bytes`` (Arrow), ``elapsed_ms`` (from the start to the window's completion),
    ``files``; and where columns are inferred and new fields are left out, ``discarded``, the values with such fields, and
    ``discarded:FIELD`` for each field.

    Args:
        plans: windows of one group and isolation, each once.
        settings: the brokers as ``host:port,...``, a mapping of librdkafka settings, or `ClientSettings`.
        root: the folder that holds the output of all windows, or a prefix in an object store.
        ordered: sort by (timestamp, topic, partition, offset), within files and over files in the order of
            their names. Otherwise records are written as they arrive, without being held in memory.
        limit_bytes: how much Arrow data of all windows to hold in memory for sorting; the rest is spilled to a
            temporary folder, beside the windows or, for an object store, in the system's.
        rows_per_file: the largest number of records in a file; files of large records have fewer.
        stall_timeout_s: how long to wait for progress of any partition.
        progress: called while records are read.
        storage_options: credentials and settings of an object store; None uses those of the environment.
        partition_by: ``date`` or ``hour``: put each window's folder below one of its date, or of its date and hour.

    Raises:
        SpillError: the temporary folder fails: its disk is full, for example.
        WindowCoveredError: a plan is empty because other windows have taken its records; an empty output
            would hide theirs.
        ConfigError: a limit that is not positive; no plan, or plans that cannot be read together, or that
            share offsets; a window that extends into another date or hour; or a root with windows of another `partition_by`.
        SinkError: the file system failed, the files do not hold what was written, or another group's window
            is in a window's place.
        ReadError, RecordsLostError, BrokerError: raised by the reader. All stages are removed.
    """
    settings = ClientSettings.of(settings)
    check_flag(ordered, what="ordered")
    limit_bytes = check_count(limit_bytes, what="limit_bytes", least=1, greatest=INT64_MAX)
    rows_per_file = check_count(rows_per_file, what="rows_per_file", least=1, greatest=INT64_MAX)
    check_together(plans)
    for plan in plans:
        check_not_covered(plan)
    pieces = pieces_of(plans)
    started = time.monotonic()
    decoder = decoder_of(plans[0].window, settings)
    limit = plans[0].window.dead_letter
    left_out = None if limit is None else LeftOut(limit, [plan.offsets for plan in plans])
    discarded = [Discarded() if decoder is not None and decoder.discards else None for _ in plans]
    outputs = [StagedOutput.of(plan, root, storage_options, partition_by) for plan in plans]
    partition = outputs[0].partition
    schema = STAGE_SCHEMA if decoder is None else written_columns(decoder, partition)
    reader = open_reader(
        settings,
        plans[0].group_id,
        plans[0].isolation,
        {piece.tp: piece.wanted for piece in pieces},
        stall_timeout_s=stall_timeout_s,
        topic_ids={name: topic_id for plan in plans for name, topic_id in plan.topic_ids.items()},
    )
    with drafts_of(outputs) as drafts, ExitStack() as resources:
        tally = Tally(plans)
        batches = counted(reader, pieces, tally, progress)
        if ordered:
            tables = files_in_order(
                batches,
                len(plans),
                rows_per_file,
                lambda: resources.enter_context(temporary_folder(outputs[0].root)),
                held_bytes_max=limit_bytes,
            )
        else:
            tables = as_they_come(batches, rows_per_file)
        sealed = []
        with StageFiles([draft.path for draft in drafts], drafts[0].files, schema) as files:
            for window, rows in tables:
                leave_out = None if left_out is None else partial(left_out.add_rows, window)
                files.write(
                    window,
                    rows
                    if decoder is None
                    else partial(_decoded, decoder, rows, schema, leave_out, discarded[window]),
                )
            for window, draft in enumerate(drafts):
                written = files.close(window)
                elapsed_ms = round((time.monotonic() - started) * 1000)
                counts = tally.facts(window, left_out, discarded[window])
                facts = {**counts, **written, "elapsed_ms": elapsed_ms}
                staged = draft.seal(facts)
                letters = None if left_out is None else left_out.letters(window)
                sealed.append(replace(staged, dead_letters=letters))
        if plans[0].window.has_bad_output:
            stage_bad(plans, sealed, settings, stall_timeout_s=stall_timeout_s)
    return sealed


def written_columns(decoder: Decoder, partition: str | None) -> pa.Schema:
    """Return the columns of the files; raise `ConfigError` for those that files cannot have."""
    columns = plain_columns(decoder.schema_of(STAGE_SCHEMA), STAGE_SCHEMA)
    # Readers take these from the names of folders.
    added = {"window_id", *columns_of(partition)}
    if taken := [name for name in columns.names if name.lower() in added]:
        raise ConfigError(
            f"decoded values have the field {', '.join(taken)}, a column that the folders add: use flatten=False"
        )
    return columns


def _decoded(
    decoder: Decoder,
    rows: Rows,
    columns: pa.Schema,
    leave_out: LeaveOut | None,
    discarded: Discarded | None,
) -> pa.Table:
    """Return a file's rows decoded, in the thread that writes it."""
    table = rows()
    batches = (
        decoder.decoded(batch, leave_out, discarded) for batch in table.to_batches(DECODED_ROWS)
    )
    return pa.Table.from_batches((plain_batch(batch, columns) for batch in batches), columns)


class Tally:
    """Counts for each window, updated as records are read."""

    def __init__(self, plans: Sequence[WindowPlan]) -> None:
        windows = len(plans)
        self._tells_out_of_order = [plan.tells_out_of_order for plan in plans]
        self._records, self._late, self._out_of_order = np.zeros((3, windows), dtype=np.int64)
        self._least = np.full(windows, INT64_MAX)
        self._greatest = np.full(windows, INT64_MIN)

    def add(self, batch: pa.RecordBatch, windows: Int64Array, out_of_order: BoolArray) -> None:
        """Count records of one partition."""
        late: BoolArray = batch.column("late").to_numpy(zero_copy_only=False)
        timestamps_ms, count = timestamps_ms_of(batch), self._records.size
        self._records += np.bincount(windows, minlength=count)
        self._late += np.bincount(windows[late], minlength=count)
        self._out_of_order += np.bincount(windows[out_of_order], minlength=count)
        np.minimum.at(self._least, windows, timestamps_ms)
        np.maximum.at(self._greatest, windows, timestamps_ms)

    def facts(
        self, window: int, left_out: LeftOut | None = None, discarded: Discarded | None = None
    ) -> Facts:
        """Return the counts of one window so far; only ``records`` does not count those that are left out."""
        records, is_known = int(self._records[window]), self._tells_out_of_order[window]
        bad = {} if left_out is None else {"dead_letters": left_out.count(window)}
        return {
            **bad,
            "records": records - bad.get("dead_letters", 0),
            "late": int(self._late[window]),
            "out_of_order": int(self._out_of_order[window]) if is_known else None,
            "timestamp_ms_min": int(self._least[window]) if records else None,
            "timestamp_ms_max": int(self._greatest[window]) if records else None,
            **({} if discarded is None else discarded.facts()),
        }


def counted(
    reader: ReaderDoor, pieces: Sequence[Piece], tally: Tally, progress: Progress | None
) -> Iterator[Batch]:
    """Yield the records as they arrive, counted, each with the number of its window."""
    by_partition = {piece.tp: piece for piece in pieces}
    done = OffsetsDone({piece.tp: piece.wanted for piece in pieces})
    with reader:
        for batch in reader.batches():
            if not batch.num_rows:
                continue
            piece, offsets = by_partition[partition_of(batch)], offsets_of(batch)
            records, owners = judged(batch, piece)
            windows = piece.windows_of(owners)
            tally.add(records, windows, piece.out_of_order_of(owners, offsets))
            yield Batch(records, windows)
            if progress is not None:
                progress(done.reached(piece.tp, int(offsets[-1])), done.total)
    if progress is not None:
        # The offsets after the last record of a partition have no records; they count as done.
        progress(done.total, done.total)
