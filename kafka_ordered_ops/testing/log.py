"""One partition's log, with everything that takes an offset: records, transactions, markers, gaps."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kafka_ordered_ops.core.record_schema import CREATE_TIME
from kafka_ordered_ops.core.types import Isolation

#: Kafka's default for ``segment.ms``: a record stamped later than this after a segment's first one opens a new segment.
SEGMENT_MS: Final = 7 * 24 * 3_600_000

Headers = Sequence[tuple[str, bytes | None]]


class TransactionState(StrEnum):
    """The state of a transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(slots=True, eq=False)
class TransactionFate:
    """One transaction, as the entries that it wrote refer to it."""

    state: TransactionState = TransactionState.OPEN


@dataclass(frozen=True, slots=True)
class Message:
    """A record from a producer."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers = ()
    timestamp_type: int = CREATE_TIME


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry at an offset."""

    offset: int
    message: Message
    transaction: TransactionFate | None = None
    #: Whether it marks the end of a transaction: a marker takes an offset, and is not delivered.
    is_marker: bool = False

    def is_visible(self, isolation: Isolation) -> bool:
        """Return whether readers with this isolation level get the entry, once the end offset has passed it."""
        if self.is_marker:
            return False
        if self.transaction is None or isolation is Isolation.READ_UNCOMMITTED:
            return True
        return self.transaction.state is TransactionState.COMMITTED


@dataclass(slots=True)
class _Segment:
    """A segment of a log, up to the base of the next one."""

    base: int
    #: The timestamp of its first entry. Timestamps in a segment are at most `segment.ms` later.
    first_ms: int
    #: The greatest timestamp of all entries since the segment was opened or compacted, including deleted ones.
    greatest_ms: int


class PartitionLog:
    """A log. Not thread-safe."""

    def __init__(self, segment_ms: int = SEGMENT_MS) -> None:
        self._segment_ms = segment_ms
        self._segments: list[_Segment] = []
        self._entries: list[Entry] = []
        #: Open transactions, each with the first offset that it wrote.
        self._open: dict[TransactionFate, int] = {}
        #: The first offset of each leader epoch.
        self._epochs: dict[int, int] = {0: 0}
        #: The epoch of the current leader.
        self.leader_epoch = 0
        self.log_start = 0
        #: The end of the log as well: everything is replicated at once.
        self.high_watermark = 0

    @property
    def last_stable_offset(self) -> int:
        """The offset below which no transaction is open; never below the log start."""
        return max(min(self._open.values(), default=self.high_watermark), self.log_start)

    def end_offset(self, isolation: Isolation) -> int:
        """Return the end offset for readers with this isolation level."""
        if isolation is Isolation.READ_COMMITTED:
            return self.last_stable_offset
        return self.high_watermark

    def append(self, message: Message, transaction: TransactionFate | None = None) -> int:
        """Write one record; return its offset."""
        if transaction is not None:
            self._open.setdefault(transaction, self.high_watermark)
        return self._append(message, transaction)

    def end(self, transaction: TransactionFate, *, now_ms: int) -> None:
        """Mark the end of a transaction, if it has written to this log."""
        if self._open.pop(transaction, None) is None:
            return
        marker = Message(None, None, now_ms)
        self._append(marker, transaction, is_marker=True)

    def delete_before(self, offset: int) -> None:
        """Move the log start forward; segments stay, with the times of their former records."""
        self.log_start = max(self.log_start, min(offset, self.high_watermark))
        del self._entries[: self._index(self.log_start)]

    def drop_before(self, offset: int) -> None:
        """Move the log start forward by dropping whole segments, as retention does."""
        self.delete_before(offset)
        self._forget_what_is_gone()

    def remove(self, offsets: Collection[int]) -> list[int]:
        """Remove entries, as compaction does; return their offsets, which stay as gaps.

        Entries at or above the last stable offset stay: they may still be aborted.
        """
        stable = self.last_stable_offset
        gone = {entry.offset for entry in self.entries(0, stable) if entry.offset in offsets}
        self._entries = [entry for entry in self._entries if entry.offset not in gone]
        self._forget_what_is_gone()
        return sorted(gone)

    def change_leader(self) -> None:
        """Change the leader, with the next epoch."""
        self.leader_epoch += 1
        self._epochs[self.leader_epoch] = self.high_watermark

    def cut(self, end: int) -> None:
        """Lose everything from an offset on, as if only a lost leader had it."""
        del self._entries[self._index(end) :]
        self._open = {
            transaction: first for transaction, first in self._open.items() if first < end
        }
        self.high_watermark = min(self.high_watermark, end)
        self.log_start = min(self.log_start, self.high_watermark)
        self._epochs = {epoch: first for epoch, first in self._epochs.items() if first < end}
        self._forget_what_is_gone()

    def end_of_epoch(self, epoch: int) -> int:
        """Return the end of the records of this epoch and of earlier ones."""
        later = [first for number, first in self._epochs.items() if number > epoch]
        return min(later, default=self.high_watermark)

    def entries(self, start: int = 0, end: int | None = None) -> Iterator[Entry]:
        """Return the entries in [start, end), in order of offset."""
        stop = len(self._entries) if end is None else self._index(end)
        for index in range(self._index(start), stop):
            yield self._entries[index]

    def first_at_or_after(self, timestamp_ms: int, isolation: Isolation) -> int | None:
        """Return the index's answer, which counts markers and aborted records; None means that none is below the end.

        As on a broker, None may be wrong. A broker searches one segment, the first whose greatest timestamp reaches
        the time. If the record with this timestamp was deleted, it does not search further.
        """
        for number, segment in enumerate(self._segments):
            if segment.greatest_ms >= timestamp_ms:
                offsets = (
                    entry.offset
                    for entry in self.entries(segment.base, self._end_of(number))
                    if entry.message.timestamp_ms >= timestamp_ms
                )
                offset = next(offsets, None)
                # The index searches all entries first, and then only checks that the result is below the end.
                return None if offset is None or offset >= self.end_offset(isolation) else offset
        return None

    def greatest_timestamp_ms(self) -> int | None:
        """Return the greatest timestamp in the segments, including deleted records; None without segments."""
        return max((segment.greatest_ms for segment in self._segments), default=None)

    def _append(
        self, message: Message, transaction: TransactionFate | None, *, is_marker: bool = False
    ) -> int:
        offset, time_ms = self.high_watermark, message.timestamp_ms
        newest = self._segments[-1] if self._segments else None
        if newest is None or time_ms - newest.first_ms > self._segment_ms:
            newest = _Segment(offset, time_ms, time_ms)
            self._segments.append(newest)
        newest.greatest_ms = max(newest.greatest_ms, time_ms)
        self._entries.append(Entry(offset, message, transaction, is_marker))
        self.high_watermark = offset + 1
        return offset

    def _end_of(self, segment: int) -> int | None:
        """Return the end of a segment; None for the newest one."""
        following = self._segments[segment + 1 : segment + 2]
        return following[0].base if following else None

    def _forget_what_is_gone(self) -> None:
        """Update the segments' times to their remaining records; empty segments are removed."""
        left = []
        for number, segment in enumerate(self._segments):
            times = [
                entry.message.timestamp_ms
                for entry in self.entries(segment.base, self._end_of(number))
            ]
            if times:
                left.append(_Segment(segment.base, times[0], max(times)))
        self._segments = left

    def _index(self, offset: int) -> int:
        """Return the number of entries below an offset."""
        return bisect_left(self._entries, offset, key=lambda entry: entry.offset)


def compactable(log: PartitionLog) -> set[int]:
    """Return the offsets that a broker's compaction may remove from a log, sooner or later.

    The newest committed record of each key stays, unless it is a tombstone. The markers of transactions with remaining
    records stay as well.
    """
    newest: dict[bytes, Entry] = {}
    stable = list(log.entries(0, log.last_stable_offset))
    for entry in stable:
        key = entry.message.key
        if key is not None and entry.is_visible(Isolation.READ_COMMITTED):
            newest[key] = entry
    remaining = [entry for entry in newest.values() if entry.message.value is not None]
    offsets = {entry.offset for entry in remaining}
    writers = {entry.transaction for entry in remaining}
    return {
        entry.offset
        for entry in stable
        if entry.offset not in offsets and not (entry.is_marker and entry.transaction in writers)
    }
