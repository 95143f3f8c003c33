"""The search for a record that makes a partition live: the offsets to read, and the results.

The broker's index narrows the search and never decides: its answer may be a transaction marker, an aborted record, or
the first of many records after one from the year 2100. Timestamps are read from there on, until the first record that
decides. A record from the future decides only once the clock is near its timestamp.

`Seen` remembers the offsets read, so that the next check continues after them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from kafka_ordered_ops.core.offset_set import EMPTY_SET, Int64Array, OffsetSet
from kafka_ordered_ops.core.planning.planning import FUTURE_TOLERANCE_MS
from kafka_ordered_ops.core.times import time_text
from kafka_ordered_ops.core.types import TopicPartition

#: Offsets read after the index's answer at first: enough for a record after a marker, and few enough for a thousand
#: partitions at once.
NEAR_OFFSETS: Final = 64


@dataclass(frozen=True, slots=True)
class LivenessRule:
    """When a partition counts as live, and when as idle."""

    cutoff_ms: int
    #: How far past the cutoff a record must be stamped.
    out_of_orderness_ms: int = 0
    #: A partition without a record from `live_from_ms` on is idle after this time; None means never.
    grace_ms: int | None = None

    @property
    def live_from_ms(self) -> int:
        """The time from which a visible record makes a partition live."""
        return self.cutoff_ms + self.out_of_orderness_ms

    @property
    def idle_from_ms(self) -> int | None:
        """The time from which a partition without such a record is idle."""
        return None if self.grace_ms is None else self.live_from_ms + self.grace_ms


@dataclass(frozen=True, slots=True)
class LogFacts:
    """The broker's answers about one partition: first the time, then the high watermark, then the end."""

    tp: TopicPartition
    topic_id: str
    log_start: int
    #: Last stable offset under read_committed, high watermark otherwise.
    end_offset: int
    high_watermark: int
    #: Every record below it is stamped before `live_from_ms`; None if all records are.
    index_offset: int | None
    #: False if the index has no answer, which proves nothing: `index_offset` is the log start then.
    index_is_proven: bool = True


@dataclass(frozen=True, slots=True)
class Stamp:
    """A visible record."""

    offset: int
    timestamp_ms: int

    def __str__(self) -> str:
        return f"offset {self.offset:,} is stamped {time_text(self.timestamp_ms)}"


@dataclass(frozen=True, slots=True)
class Seen:
    """The results of reading one partition so far."""

    topic_id: str
    #: Offsets that were read, or are known to have no visible record.
    offsets: OffsetSet = EMPTY_SET
    #: The greatest timestamp before `live_from_ms` among them.
    newest_ms: int | None = None
    #: The record that makes the partition live, or else the record from the future with the lowest timestamp.
    record: Stamp | None = None

    def kept_for(self, facts: LogFacts) -> Seen:
        """Return the results if they are still valid; none if the log was replaced or has lost the offsets."""
        same = self.topic_id == facts.topic_id
        cut_behind = bool(self.offsets) and self.offsets.end > facts.end_offset
        gone = self.record is not None and self.record.offset < facts.log_start
        return self if same and not cut_behind and not gone else Seen(facts.topic_id)

    def decides(self, now_ms: int) -> bool:
        """Return whether the record makes the partition live now."""
        return self.record is not None and self.record.timestamp_ms < now_ms + FUTURE_TOLERANCE_MS


class SeenFold:
    """Collect the records read from one partition; feed batches in offset order until it `decides`."""

    def __init__(self, seen: Seen, rule: LivenessRule, *, now_ms: int) -> None:
        self._seen = seen
        self._live_from_ms = rule.live_from_ms
        self._future_ms = now_ms + FUTURE_TOLERANCE_MS
        self._newest_ms = seen.newest_ms
        self._record = seen.record

    def decides(self) -> bool:
        """Return whether the records so far decide."""
        return self._record is not None and self._record.timestamp_ms < self._future_ms

    def feed(self, offsets: Int64Array, timestamps_ms: Int64Array) -> None:
        """Feed visible records, in offset order."""
        if self.decides() or not offsets.size:
            return
        late_enough = timestamps_ms >= self._live_from_ms
        deciding = np.flatnonzero(late_enough & (timestamps_ms < self._future_ms))
        if deciding.size:
            self._record = _stamp(offsets, timestamps_ms, int(deciding[0]))
            return
        if not late_enough.all():
            newest_ms = int(timestamps_ms[~late_enough].max())
            if self._newest_ms is None or newest_ms > self._newest_ms:
                self._newest_ms = newest_ms
        if late_enough.any():
            # Among records from the future, the one with the lowest timestamp decides first as time passes.
            at = int(np.flatnonzero(late_enough)[np.argmin(timestamps_ms[late_enough])])
            record = _stamp(offsets, timestamps_ms, at)
            if self._record is None or record.timestamp_ms < self._record.timestamp_ms:
                self._record = record

    def finish(self, looked_at: OffsetSet) -> Seen:
        """Return the results so far; `looked_at` are the offsets that were read, with or without records."""
        return Seen(
            self._seen.topic_id, self._seen.offsets | looked_at, self._newest_ms, self._record
        )


def unread(facts: LogFacts, seen: Seen) -> OffsetSet:
    """Return the offsets that may hold a record from `live_from_ms` on, and were not read yet."""
    if facts.index_offset is None:
        return EMPTY_SET
    start = max(facts.index_offset, facts.log_start)
    return OffsetSet.of((start, facts.end_offset)) - seen.offsets


def near(facts: LogFacts, seen: Seen) -> OffsetSet:
    """Return the offsets to read first: the record at the index's answer, and a few after it."""
    start = max(facts.index_offset or 0, facts.log_start)
    return unread(facts, seen).within(start, start + NEAR_OFFSETS)


def tail(facts: LogFacts, seen: Seen) -> OffsetSet:
    """Return the last offsets below the index's answer, or of the log: a waiting partition has its newest record there.

    The index also has the newest timestamp, but it may belong to a transaction marker.
    """
    end = (
        facts.end_offset
        if facts.index_offset is None
        else min(facts.index_offset, facts.end_offset)
    )
    start = max(end - NEAR_OFFSETS, facts.log_start)
    return OffsetSet.of((start, end)) - seen.offsets if start < end else EMPTY_SET


def far(facts: LogFacts, seen: Seen, *, offsets_max: int) -> OffsetSet:
    """Return the offsets to read next: the newest unread ones, up to a limit.

    They are the newest because timestamps increase towards the end of a log. A record from the year 2100 may be followed
    by days of records before the cutoff, and the record that decides is among the last ones.
    """
    left = unread(facts, seen)
    over = left.count - offsets_max
    if over <= 0:
        return left
    lengths = np.diff(left.bounds).ravel()
    passed = np.cumsum(lengths)
    at = int(np.searchsorted(passed, over, side="right"))
    start = int(left.bounds[at, 1]) - (int(passed[at]) - over)
    return left.within(start, left.end)


def _stamp(offsets: Int64Array, timestamps_ms: Int64Array, at: int) -> Stamp:
    return Stamp(int(offsets[at]), int(timestamps_ms[at]))
