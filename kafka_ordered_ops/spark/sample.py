"""Some of the records that a window's published output holds: enough for a picture of it."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kafka_ordered_ops.core.offset_set import Int64Array
from kafka_ordered_ops.core.picture_panels import Dots, RecordSample
from kafka_ordered_ops.core.time_ranges import rows_by_label
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.core.window.plan import WindowPlan
from kafka_ordered_ops.output.filesystem import data_names, files_for
from kafka_ordered_ops.output.records.columns import ORDER, offsets_of
from kafka_ordered_ops.output.records.pieces import Piece, pieces_of
from kafka_ordered_ops.output.staged_output import StagedOutput, read_marker

T = TypeVar("T")

#: Some tenths of a second of work, from four columns of the files.
ROWS_MAX: Final = 2_000_000
#: On a slow disk what was read by then is all that there is to see.
TIMEOUT_S: Final = 5.0

#: Each is opened, and has row groups of its own.
_FILES_MAX: Final = 200
_BATCH_ROWS: Final = 65_536
_BUFFER_BYTES: Final = 1 << 20

#: Partitions of which records are kept: a picture shows fewer.
_PARTITIONS_MAX: Final = 64
#: Of each partition, and as many again, before every other one is dropped.
_PLAIN_MAX: Final = 500
_RINGED_MAX: Final = 200

_Record = tuple[Int64Array, Int64Array]


def sample_output(
    plan: WindowPlan,
    output: StagedOutput,
    *,
    rows_max: int = ROWS_MAX,
    timeout_s: float = TIMEOUT_S,
) -> RecordSample | None:
    """Some records of a window, from the files that readers see; None where they do not hold its records.

    Memory is bounded, and so is what is read: the beginnings of all row groups, or of files evenly spread,
    so that each part of the output is seen. Of what is read, stragglers and late records come first.

    Args:
        plan: the window.
        output: where its output is.
        rows_max: rows that are read, about.
        timeout_s: reading ends after this time, with what there is.

    Raises:
        OSError, pyarrow.ArrowException: files could not be read: they may be replaced at this very moment.
        ConfigError: an output that is no local folder.
    """
    files, folder = files_for(output.root), output.final_path
    marker = read_marker(files, output.root, folder)
    if marker is None or marker.window_id != plan.window_id:
        return None
    names = _spread(data_names(files, folder), _FILES_MAX)
    kept = _Kept(plan)
    for batch in _batches([f"{folder}/{name}" for name in names], rows_max, timeout_s):
        if not kept.add(batch):
            return None
    dots, facts = kept.dots(), marker.facts
    if not dots and facts.get("records") != 0:
        return None
    # Of an older plan the sink has counted by the broker's index.
    stragglers = facts.get("stragglers") if plan.tells_stragglers else None
    return RecordSample(facts.get("records"), stragglers, facts.get("late"), dots)


def _batches(paths: Sequence[str], rows_max: int, timeout_s: float) -> Iterator[pa.RecordBatch]:
    """Records from the beginning of each row group, as many of each as of the others; none without the columns."""
    deadline = time.monotonic() + timeout_s
    every = [pq.read_metadata(path) for path in paths]
    if not all(_has_columns(one.schema.to_arrow_schema()) for one in every):
        return
    share = min(rows_max / max(sum(one.num_rows for one in every), 1), 1.0)
    for path, metadata in zip(paths, every, strict=True):
        with pq.ParquetFile(path, read_dictionary=["topic"], buffer_size=_BUFFER_BYTES) as file:
            for number in range(metadata.num_row_groups):
                left = math.ceil(metadata.row_group(number).num_rows * share)
                for batch in file.iter_batches(
                    min(_BATCH_ROWS, max(left, 1)), row_groups=[number], columns=list(ORDER)
                ):
                    if time.monotonic() > deadline:
                        return
                    yield batch.slice(0, left)
                    left -= batch.num_rows
                    if left <= 0:
                        break


def _has_columns(schema: pa.Schema) -> bool:
    """Whether each row says which record it is."""
    if not set(ORDER) <= set(schema.names):
        return False
    types = pa.types
    return (
        types.is_timestamp(schema.field("timestamp").type)
        and (types.is_string(schema.field("topic").type))
        and schema.field("partition").type == pa.int32()
        and schema.field("offset").type == pa.int64()
    )


class _Kept:
    """What is kept of each partition."""

    def __init__(self, plan: WindowPlan) -> None:
        pieces = pieces_of([plan])
        self._behind = {part.tp: part.may_have_stragglers for part in plan if part.taken}
        pieces.sort(key=lambda piece: (not self._behind[piece.tp], -piece.wanted.count))
        self._taken = {piece.tp: piece for piece in pieces}
        self._pieces = {piece.tp: piece for piece in pieces[:_PARTITIONS_MAX]}
        self._plain: Mapping[TopicPartition, _Thinned] = defaultdict(lambda: _Thinned(_PLAIN_MAX))
        self._ringed: Mapping[TopicPartition, _Thinned] = defaultdict(lambda: _Thinned(_RINGED_MAX))

    def add(self, batch: pa.RecordBatch) -> bool:
        """Takes some of a batch; False: these are not the plan's records."""
        columns = {name: batch.column(name) for name in ORDER}
        if any(column.null_count for column in columns.values()):
            return False
        topics: Any = columns["topic"]
        names = topics.dictionary.to_pylist()
        offsets = offsets_of(batch)
        stamps_ms = _milliseconds(columns["timestamp"])
        partitions = columns["partition"].to_numpy().astype(np.int64)
        labels = topics.indices.to_numpy().astype(np.int64) << 32 | partitions
        for label, rows in rows_by_label(labels):
            tp = TopicPartition(names[label >> 32], label & 0xFFFFFFFF)
            if not self._add(tp, offsets[rows], stamps_ms[rows]):
                return False
        return True

    def _add(self, tp: TopicPartition, offsets: Int64Array, stamps_ms: Int64Array) -> bool:
        piece = self._taken.get(tp)
        if piece is None or not piece.wanted.mask(offsets).all():
            return False
        if tp in self._pieces:
            dots = _judged(piece, offsets, stamps_ms)
            ringed = dots.stragglers | dots.late
            self._plain[tp].add(offsets[~ringed], stamps_ms[~ringed])
            self._ringed[tp].add(offsets[ringed], stamps_ms[ringed])
        return True

    def dots(self) -> dict[TopicPartition, Dots]:
        """What was kept."""
        found = {}
        for tp in self._plain:
            pairs = [self._ringed[tp].records(), self._plain[tp].records()]
            offsets, stamps_ms = (np.concatenate(columns) for columns in zip(*pairs, strict=True))
            found[tp] = _judged(self._pieces[tp], offsets, stamps_ms)
        return found


class _Thinned:
    """Records evenly spread over those that were given: at least so many, and less than twice as many."""

    def __init__(self, least: int) -> None:
        self._least = least
        self._stride = 1
        self._seen = 0
        self._offsets: Int64Array = np.empty(0, dtype=np.int64)
        self._stamps_ms: Int64Array = np.empty(0, dtype=np.int64)

    def add(self, offsets: Int64Array, stamps_ms: Int64Array) -> None:
        """Takes every so many of these."""
        first = -self._seen % self._stride
        self._seen += offsets.size
        self._offsets = np.concatenate((self._offsets, offsets[first :: self._stride]))
        self._stamps_ms = np.concatenate((self._stamps_ms, stamps_ms[first :: self._stride]))
        while self._offsets.size >= 2 * self._least:
            self._offsets, self._stamps_ms = self._offsets[::2], self._stamps_ms[::2]
            self._stride *= 2

    def records(self) -> _Record:
        """Offsets, and timestamps in ms."""
        return self._offsets, self._stamps_ms


def _judged(piece: Piece, offsets: Int64Array, stamps_ms: Int64Array) -> Dots:
    owners = np.zeros(offsets.size, dtype=np.int64)
    return Dots(
        offsets,
        stamps_ms,
        piece.stragglers_of(owners, offsets),
        piece.late_of(owners, offsets, stamps_ms),
    )


def _milliseconds(column: Any) -> Int64Array:
    found: Int64Array = (
        column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False).view(pa.int64()).to_numpy()
    )
    return found


def _spread(names: Sequence[T], count: int) -> list[T]:
    """At most so many, evenly spread."""
    if len(names) <= count:
        return list(names)
    return [names[n * len(names) // count] for n in range(count)]
