"""The records of one group in one partition that this server hands out: those that are read and not acknowledged."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_ordered_ops.core.errors import KafkaOrderedOpsError
from kafka_ordered_ops.core.offset_set import EMPTY_SET, Int64Array, OffsetSet
from kafka_ordered_ops.core.processing.record import Record, records_of
from kafka_ordered_ops.core.relay.group_progress import GroupProgress
from kafka_ordered_ops.core.relay.serving import Serving
from kafka_ordered_ops.core.types import INT64_MAX, TopicPartition
from kafka_ordered_ops.ordered.records.columns import offsets_of
from kafka_ordered_ops.relay.leases.feed import Fed, Feed

#: The limits of the bytes that one group may hold in one partition: an upper one, to leave a share for later groups, and a
#: lower one, so that records are not read one by one.
BYTES_MAX: Final = 64 * 1024**2
BYTES_LEAST: Final = 256 * 1024
#: Records that are read ahead of requests: twice as many each time that reading starts. For a group that takes few
#: records, few are read, because reading and requests share the interpreter.
_QUEUED_AT_FIRST: Final = 500
#: The approximate memory of a record without its contents.
_RECORD_BYTES: Final = 300
#: The share of the limits below which reading resumes.
_LOW_SHARE: Final = 0.5

_NO_OFFSETS: Final[Int64Array] = np.empty(0, dtype=np.int64)


class Handout:
    """Hold records until they are acknowledged, and read more while there is room."""

    def __init__(
        self,
        tp: TopicPartition,
        group: str,
        progress: GroupProgress,
        serving: Serving,
        feed: Feed,
        *,
        records_max: int,
        bytes_max: int,
    ) -> None:
        self.tp, self.group = tp, group
        self.progress, self.serving = progress, serving
        self._feed = feed
        self._records_max = records_max
        #: The limit of the held records' bytes.
        self.bytes_max = bytes_max
        #: Plain tuples, which the garbage collector skips. It stopped everything for 0.1 to 0.2 s each time to scan 160,000
        #: `Record`s.
        self._records: dict[int, tuple[Any, ...]] = {}
        self._bytes = 0
        self._queued_max = _QUEUED_AT_FIRST
        #: Whether reading has stopped because of the limits.
        self._is_full = False
        #: The offsets that are not read yet.
        self._left = progress.left(_wanted(progress))
        self._number = 0
        #: Whether the current reading has reached the end of the log.
        self._is_at_end = False
        #: Offsets without records that reading has passed.
        self._gaps: list[OffsetSet] = []
        #: Offsets whose dead letters are being written.
        self.burying: set[int] = set()
        #: The `time.monotonic` time to retry dead letters that could not be written, by offset.
        self.bury_at: dict[int, float] = {}
        #: Why dead letters were refused, by offset.
        self.refused: dict[int, KafkaOrderedOpsError] = {}
        #: The error that stopped reading, and when to retry.
        self.problem: KafkaOrderedOpsError | None = None
        self.again_at = 0.0
        self._read_on()

    def close(self) -> None:
        """Stop reading, and drop the records."""
        self._feed.stop(self.tp)
        self._number = 0
        self._records.clear()

    @property
    def held(self) -> int:
        """How many records are in memory."""
        return len(self._records)

    @property
    def record_bytes(self) -> float:
        """The average size of a record."""
        return self._bytes / max(len(self._records), 1)

    @property
    def is_known(self) -> bool:
        """Whether the available records are known: the end is reached, there is nothing to read, or reading fails."""
        return self._is_at_end or not self._number or not self._left or self.problem is not None

    def is_current(self, number: int) -> bool:
        """Return whether the number is that of the current reading."""
        return number == self._number

    def arrived(self, fed: Fed) -> None:
        """Add records that were read."""
        if not self.is_current(fed.number):
            return
        self._is_at_end = fed.is_end
        offsets = _NO_OFFSETS if fed.records is None else offsets_of(fed.records)
        passed = self._left.within(0, fed.position)
        self._left = self._left.within(fed.position, INT64_MAX)
        if fed.records is not None:
            self._keep(fed.records, offsets)
        self.serving.arrived(offsets, fed.position)
        read = OffsetSet.from_offsets(offsets)
        if (left := self.progress.left(read)).count < offsets.size:
            # Clients of another server acknowledged some of them in the meantime.
            self.forget(read - left)
        gaps = self.progress.left(passed - read)
        if gaps:
            self._gaps.append(gaps)
        self._is_full = self._has(1.0)
        if self._is_full or self.serving.queued >= self._queued_max:
            self._feed.stop(self.tp)
            self._number = 0

    def take(self, most: int, now_ms: int) -> list[tuple[int, OffsetSet]]:
        """Take offsets to hand out, and read more if there is room; see `Serving.take`."""
        taken = self.serving.take(most, now_ms)
        if not self._number:
            self._read_on()
        return taken

    def take_gaps(self) -> OffsetSet:
        """Return the offsets without records that reading has passed since the last call."""
        gaps = EMPTY_SET
        for gap in self._gaps:
            gaps |= gap
        self._gaps.clear()
        return gaps

    def put_back_gaps(self, gaps: OffsetSet) -> None:
        """Put back gaps that were not stored."""
        self._gaps.append(gaps)

    def forget(self, offsets: OffsetSet) -> None:
        """Drop acknowledged records, and read more if there is room."""
        if offsets.count <= len(self._records):
            for start, end in offsets:
                for offset in range(start, end):
                    self._drop(offset)
        else:
            for offset in [known for known in self._records if known in offsets]:
                self._drop(offset)
        if not self._number:
            self._read_on()

    def records(self, offsets: OffsetSet, attempt: int) -> list[Record]:
        """Return the held records with these offsets."""
        held = self._records
        records = [
            Record._make(held[offset])
            for start, end in offsets
            for offset in range(start, end)
            if offset in held
        ]
        if attempt == 1:
            return records
        return [record._replace(attempt=attempt) for record in records]

    def forget_done(self) -> None:
        """Drop all acknowledged records, after a snapshot was read that may include any of them."""
        self.forget(self.progress.acked)

    def failed(self, error: KafkaOrderedOpsError, again_at: float) -> None:
        """Record that the current reading failed."""
        self._number, self.problem, self.again_at = 0, error, again_at

    def lose(self, lost: OffsetSet) -> OffsetSet:
        """Continue without lost records; return the offsets of those that were still to be read."""
        gone = self._left & lost
        self._left = self._left - lost
        if gone:
            self._gaps.append(gone)
            self.again()
        return gone

    def again(self) -> None:
        """Resume reading after a failure."""
        self.problem, self._number = None, 0
        self._read_on()

    def _read_on(self) -> None:
        if self.serving.queued > self._queued_max * _LOW_SHARE:
            return
        # The share of this group may have shrunk.
        self._is_full = self._is_full or self._has(1.0)
        if self._is_full and self._has(_LOW_SHARE):
            return
        if self.problem is None and self._left:
            self._left = self.progress.left(self._left)
            if self._left:
                self._number = self._feed.add(self.tp, self._left)
                self._is_at_end = False
                self._queued_max = min(2 * self._queued_max, self._records_max)
                self._is_full = False

    def _has(self, share: float) -> bool:
        """Return whether it holds at least this share of its limits."""
        return (
            len(self._records) >= self._records_max * share or self._bytes >= self.bytes_max * share
        )

    def _keep(self, rows: pa.RecordBatch, offsets: Int64Array) -> None:
        self._records.update(
            zip(offsets.tolist(), map(tuple, records_of(self.tp, rows)), strict=True)
        )
        self._bytes += _content_bytes(rows) + rows.num_rows * _RECORD_BYTES

    def _drop(self, offset: int) -> None:
        values = self._records.pop(offset, None)
        if values is not None:
            self.burying.discard(offset)
            self.bury_at.pop(offset, None)
            self.refused.pop(offset, None)
            record = Record._make(values)
            named = sum(len(name.encode()) + len(value or b"") for name, value in record.headers)
            self._bytes -= _RECORD_BYTES + len(record.key or b"") + len(record.value or b"") + named


def _content_bytes(rows: pa.RecordBatch) -> int:
    """Return the bytes of all keys, values and headers: exactly those that dropping the records subtracts."""
    parts: list[Any] = [rows.column("key"), rows.column("value")]
    headers: Any = rows.column("headers")
    if headers.null_count < len(headers):
        parts += headers.flatten().flatten()
    return sum(pc.sum(pc.binary_length(array)).as_py() or 0 for array in parts)


def _wanted(progress: GroupProgress) -> OffsetSet:
    """Return all offsets of an opened group."""
    if progress.offsets is not None:
        return progress.offsets
    return OffsetSet.of((progress.start or 0, INT64_MAX))
