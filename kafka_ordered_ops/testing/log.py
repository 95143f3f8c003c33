"""One partition's log, with all that takes an offset in it: records, transactions, markers, holes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kafka_ordered_ops.core.record_schema import CREATE_TIME
from kafka_ordered_ops.core.types import Isolation

#: Kafka's default for ``segment.ms``: a record stamped so much later than a segment's first one opens another.
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
    #: Whether it is a transaction's end: it takes an offset, and is not delivered.
    is_marker: bool = False

    def is_visible(self, isolation: Isolation) -> bool:
        """Return whether a reader of that isolation is given it, once the end offset has passed it."""
        if self.is_marker:
            return False
        if self.transaction is None or isolation is Isolation.READ_UNCOMMITTED:
            return True
        return self.transaction.state is TransactionState.COMMITTED


@dataclass(slots=True)
class _Segment:
    """A stretch of a log, up to the next one's base."""

    base: int
    #: Of its first entry: a segment spans this many ms of the records' own time, and no more.
    first_ms: int
    #: Of all that it ever held since it was opened or compacted, deleted or not.
    greatest_ms: int


class PartitionLog:
    """A log; not for use by several threads at once."""

    def __init__(self, segment_ms: int = SEGMENT_MS) -> None:
        self._segment_ms = segment_ms
        self._segments: list[_Segment] = []
        self._entries: list[Entry] = []
        #: Open transactions, each with the first offset that it wrote.
        self._open: dict[TransactionFate, int] = {}
        #: First offsets of leaders' epochs, by epoch.
        self._epochs: dict[int, int] = {0: 0}
        #: Of the leader.
        self.leader_epoch = 0
        self.log_start = 0
        #: Everything is replicated at once.
        self.high_watermark = 0

    @property
    def last_stable_offset(self) -> int:
        """Below it no transaction is open; never below the log start."""
        return max(min(self._open.values(), default=self.high_watermark), self.log_start)

    def end_offset(self, isolation: Isolation) -> int:
        """Return where a reader of that isolation ends."""
        if isolation is Isolation.READ_COMMITTED:
            return self.last_stable_offset
        return self.high_watermark

    def append(self, message: Message, transaction: TransactionFate | None = None) -> int:
        """Write one record; its offset."""
        if transaction is not None:
            self._open.setdefault(transaction, self.high_watermark)
        return self._append(message, transaction)

    def end(self, transaction: TransactionFate, *, now_ms: int) -> None:
        """Mark the end of a transaction, if it has written here."""
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
        """Remove entries, as compaction does; their offsets stay as holes, and are returned.

        Entries at or above the last stable offset stay: they may still be aborted.
        """
        stable = self.last_stable_offset
        gone = {one.offset for one in self.entries(0, stable) if one.offset in offsets}
        self._entries = [one for one in self._entries if one.offset not in gone]
        self._forget_what_is_gone()
        return sorted(gone)

    def change_leader(self) -> None:
        """Change the leader, with the next epoch."""
        self.leader_epoch += 1
        self._epochs[self.leader_epoch] = self.high_watermark

    def cut(self, end: int) -> None:
        """Lose everything from an offset on, with the leader that alone had it."""
        del self._entries[self._index(end) :]
        self._open = {one: first for one, first in self._open.items() if first < end}
        self.high_watermark = min(self.high_watermark, end)
        self.log_start = min(self.log_start, self.high_watermark)
        self._epochs = {epoch: first for epoch, first in self._epochs.items() if first < end}
        self._forget_what_is_gone()

    def end_of_epoch(self, epoch: int) -> int:
        """Return where the records of this epoch, and of those before it, end."""
        later = [first for one, first in self._epochs.items() if one > epoch]
        return min(later, default=self.high_watermark)

    def entries(self, start: int = 0, end: int | None = None) -> Iterator[Entry]:
        """Return the entries in [start, end), in order of offset."""
        stop = len(self._entries) if end is None else self._index(end)
        for index in range(self._index(start), stop):
            yield self._entries[index]

    def first_at_or_after(self, timestamp_ms: int, isolation: Isolation) -> int | None:
        """Return the index's answer: it counts markers and aborted records, and None is "none below the end".

        Like a broker's, None may be wrong. A broker searches one segment, the first whose greatest timestamp reaches
        the time. If the record with this timestamp was deleted, it searches no further.
        """
        for number, segment in enumerate(self._segments):
            if segment.greatest_ms >= timestamp_ms:
                found = (
                    one.offset
                    for one in self.entries(segment.base, self._end_of(number))
                    if one.message.timestamp_ms >= timestamp_ms
                )
                offset = next(found, None)
                # First in the log, visible or not; only then the visible records.
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
        """Return where a segment ends; None: it is the newest."""
        following = self._segments[segment + 1 : segment + 2]
        return following[0].base if following else None

    def _forget_what_is_gone(self) -> None:
        """Update the segments' times to their remaining records; empty segments are removed."""
        left = []
        for number, segment in enumerate(self._segments):
            times = [
                one.message.timestamp_ms for one in self.entries(segment.base, self._end_of(number))
            ]
            if times:
                left.append(_Segment(segment.base, times[0], max(times)))
        self._segments = left

    def _index(self, offset: int) -> int:
        """Return how many entries are below an offset."""
        return bisect_left(self._entries, offset, key=lambda one: one.offset)


def compactable(log: PartitionLog) -> set[int]:
    """Return the offsets that a broker's compaction may take out of a log, sooner or later.

    The newest committed record of each key stays, unless it is a tombstone, and the markers of transactions with
    remaining records.
    """
    newest: dict[bytes, Entry] = {}
    stable = list(log.entries(0, log.last_stable_offset))
    for one in stable:
        key = one.message.key
        if key is not None and one.is_visible(Isolation.READ_COMMITTED):
            newest[key] = one
    kept = [one for one in newest.values() if one.message.value is not None]
    offsets, writers = {one.offset for one in kept}, {one.transaction for one in kept}
    return {
        one.offset
        for one in stable
        if one.offset not in offsets and not (one.is_marker and one.transaction in writers)
    }
