"""The records of one group in one partition that this server hands out: read, and not acknowledged."""

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

#: Bytes of records that are held, of one group in one partition: at most, so that one does not take the share of others that come
#: later; and at least, so that records are not read one by one.
BYTES_MAX: Final = 64 * 1024**2
BYTES_LEAST: Final = 256 * 1024
#: Records that are read before anybody asks for them: twice as many each time that reading begins. For a group that takes
#: few, few are read: reading and requests share the interpreter.
_QUEUED_AT_FIRST: Final = 500
#: What a record takes in memory beside its contents, about.
_RECORD_BYTES: Final = 300
#: A share of the limits: below it, reading goes on.
_LOW_SHARE: Final = 0.5

_NO_OFFSETS: Final[Int64Array] = np.empty(0, dtype=np.int64)


class Handout:
    """Holds the records until they are acknowledged, and reads on while there is room."""

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
        #: Of the records that it holds.
        self.bytes_max = bytes_max
        #: Plain tuples: the garbage collector leaves them out. It looked at 160,000 `Record`s for 0.1 to 0.2 s each time, while
        #: nothing else ran.
        self._records: dict[int, tuple[Any, ...]] = {}
        self._bytes = 0
        self._queued_max = _QUEUED_AT_FIRST
        #: It stopped reading because of the limits.
        self._is_full = False
        #: What is not read yet.
        self._left = progress.left(_wanted(progress))
        self._number = 0
        #: The present reading has come to the end of the log.
        self._is_at_end = False
        #: Offsets that reading has passed and that no record has.
        self._gaps: list[OffsetSet] = []
        #: In the dead-letter topic soon.
        self.burying: set[int] = set()
        #: When dead letters that could not be written now are tried again; by offset, of `time.monotonic`.
        self.bury_at: dict[int, float] = {}
        #: Why dead letters were refused, by offset.
        self.refused: dict[int, KafkaOrderedOpsError] = {}
        #: What keeps it from reading, and when it tries again.
        self.problem: KafkaOrderedOpsError | None = None
        self.again_at = 0.0
        self._read_on()

    def close(self) -> None:
        """Hand out nothing more."""
        self._feed.stop(self.tp)
        self._number = 0
        self._records.clear()

    @property
    def held(self) -> int:
        """How many records are in memory."""
        return len(self._records)

    @property
    def record_bytes(self) -> float:
        """What a record takes, on average."""
        return self._bytes / max(len(self._records), 1)

    @property
    def is_known(self) -> bool:
        """Whether it is known what can be handed out now: the end is reached, nothing is to be read, or it cannot be."""
        return self._is_at_end or not self._number or not self._left or self.problem is not None

    def is_current(self, number: int) -> bool:
        """Return whether something that was read is of the present reading."""
        return number == self._number

    def arrived(self, fed: Fed) -> None:
        """Take what was read."""
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
            # Acknowledged while they were being read, by clients of another server.
            self.forget(read - left)
        gaps = self.progress.left(passed - read)
        if gaps:
            self._gaps.append(gaps)
        self._is_full = self._has(1.0)
        if self._is_full or self.serving.queued >= self._queued_max:
            self._feed.stop(self.tp)
            self._number = 0

    def take(self, most: int, now_ms: int) -> list[tuple[int, OffsetSet]]:
        """Take offsets to hand out, and read on if there is room; see `Serving.take`."""
        taken = self.serving.take(most, now_ms)
        if not self._number:
            self._read_on()
        return taken

    def take_gaps(self) -> OffsetSet:
        """Return offsets without a record that reading has passed since the last call."""
        found = EMPTY_SET
        for one in self._gaps:
            found |= one
        self._gaps.clear()
        return found

    def put_back_gaps(self, gaps: OffsetSet) -> None:
        """Keep gaps that are not stored."""
        self._gaps.append(gaps)

    def forget(self, offsets: OffsetSet) -> None:
        """Drop acknowledged records, and read on if there is room."""
        if offsets.count <= len(self._records):
            for start, end in offsets:
                for offset in range(start, end):
                    self._drop(offset)
        else:
            for offset in [one for one in self._records if one in offsets]:
                self._drop(offset)
        if not self._number:
            self._read_on()

    def records(self, offsets: OffsetSet, attempt: int) -> list[Record]:
        """Return those of the records that are held."""
        found = self._records
        records = [
            Record._make(found[offset])
            for start, end in offsets
            for offset in range(start, end)
            if offset in found
        ]
        if attempt == 1:
            return records
        return [one._replace(attempt=attempt) for one in records]

    def forget_done(self) -> None:
        """Drop all acknowledged records: a snapshot may say so of any."""
        self.forget(self.progress.acked)

    def failed(self, error: KafkaOrderedOpsError, again_at: float) -> None:
        """Take note that the present reading failed."""
        self._number, self.problem, self.again_at = 0, error, again_at

    def lose(self, lost: OffsetSet) -> OffsetSet:
        """Read on without records that are gone; return those that were wanted."""
        gone = self._left & lost
        self._left = self._left - lost
        if gone:
            self._gaps.append(gone)
            self.again()
        return gone

    def again(self) -> None:
        """Read on after a failure."""
        self.problem, self._number = None, 0
        self._read_on()

    def _read_on(self) -> None:
        if self.serving.queued > self._queued_max * _LOW_SHARE:
            return
        # Its share may have become smaller.
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
        """Return whether it holds at least a share of what it may."""
        return (
            len(self._records) >= self._records_max * share or self._bytes >= self.bytes_max * share
        )

    def _keep(self, rows: pa.RecordBatch, offsets: Int64Array) -> None:
        self._records.update(
            zip(offsets.tolist(), map(tuple, records_of(self.tp, rows)), strict=True)
        )
        self._bytes += _content_bytes(rows) + rows.num_rows * _RECORD_BYTES

    def _drop(self, offset: int) -> None:
        found = self._records.pop(offset, None)
        if found is not None:
            self.burying.discard(offset)
            self.bury_at.pop(offset, None)
            self.refused.pop(offset, None)
            record = Record._make(found)
            named = sum(len(name.encode()) + len(value or b"") for name, value in record.headers)
            self._bytes -= _RECORD_BYTES + len(record.key or b"") + len(record.value or b"") + named


def _content_bytes(rows: pa.RecordBatch) -> int:
    """Return the bytes of all keys, values and headers: exactly those that dropping the records takes off."""
    parts: list[Any] = [rows.column("key"), rows.column("value")]
    headers: Any = rows.column("headers")
    if headers.null_count < len(headers):
        parts += headers.flatten().flatten()
    return sum(pc.sum(pc.binary_length(one)).as_py() or 0 for one in parts)


def _wanted(progress: GroupProgress) -> OffsetSet:
    """Return all offsets of a group that has been opened."""
    if progress.offsets is not None:
        return progress.offsets
    return OffsetSet.of((progress.start or 0, INT64_MAX))
