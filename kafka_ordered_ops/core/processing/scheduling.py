"""Decide which records may be processed now: fair over partitions, and in order if an order is requested.

A *shard* is processed one record after another: a key of a partition, or a whole partition. A record waits while
an earlier record of its shard is being processed, or waits for a retry. Other shards do not wait for it. From a whole
partition, a function may get several consecutive records at once; later records wait until all of them are done.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import count

from kafka_ordered_ops.core.processing.record import Record, content_bytes
from kafka_ordered_ops.core.types import INT64_MAX, TopicPartition


class Ordering(StrEnum):
    """Which records are processed in the order of their offsets.

    `KEY`: records of one partition with the same key; records without a key have no order. `PARTITION`: all records of
    one partition. `UNORDERED`: none.
    """

    KEY = "key"
    PARTITION = "partition"
    UNORDERED = "unordered"


class Lane:
    """One partition's records that are not done, from its assignment to its end."""

    __slots__ = (
        "_at_once",
        "_blocked",
        "_due",
        "_kept_back",
        "_open",
        "_ordering",
        "below",
        "held_bytes",
        "in_flight",
        "is_dropped",
        "ready",
        "records",
        "retrying",
        "tp",
    )

    def __init__(self, tp: TopicPartition, ordering: Ordering, batch_size: int = 1) -> None:
        self.tp = tp
        #: Records that may be processed now.
        self.ready: deque[Record] = deque()
        #: The number of all held records: waiting, ready, being processed, and waiting for a retry.
        self.records = 0
        #: The size of their keys and values.
        self.held_bytes = 0
        self.in_flight = 0
        #: The number of records that wait for the time of their next attempt.
        self.retrying = 0
        self.is_dropped = False
        #: No record at or above this offset is started.
        self.below = INT64_MAX
        #: Records that are ready but not below `below`.
        self._kept_back: list[Record] = []
        self._ordering = ordering
        #: Only with `Ordering.PARTITION`: how many records a function gets at once; how many of the records offered to it
        #: are not done; and failed records that are due for a retry while others are not.
        self._at_once = batch_size
        self._open = 0
        self._due: list[Record] = []
        #: By shard with a record that is not done: the records that wait for it, or None.
        self._blocked: dict[bytes | None, deque[Record] | None] = {}

    def add(self, records: Sequence[Record]) -> None:
        """Take records, by offset."""
        is_unordered = self._ordering is Ordering.UNORDERED
        if self._ordering is Ordering.PARTITION:
            self.records += len(records)
            self._behind().extend(records)
            self._offer_next()
            return
        blocked = self._blocked
        # A limit is rare, and the call of `offer` takes time.
        offer = self.ready.append if self.below == INT64_MAX else self.offer
        self.records += len(records)
        for record in records:
            shard = record.key
            if is_unordered or shard is None:
                offer(record)
            elif shard not in blocked:
                blocked[shard] = None
                offer(record)
            elif (behind := blocked[shard]) is None:
                blocked[shard] = deque((record,))
            else:
                behind.append(record)

    def done(self, records: Sequence[Record]) -> None:
        """Mark records as done: the next records of their shards are ready."""
        self.records -= len(records)
        self.in_flight -= len(records)
        if self._ordering is Ordering.UNORDERED:
            return
        if self._ordering is Ordering.PARTITION:
            self._open -= len(records)
            self._offer_due()
            self._offer_next()
            return
        blocked = self._blocked
        for record in records:
            shard = record.key
            if shard is None:
                continue
            if behind := blocked[shard]:
                self.offer(behind.popleft())
            else:
                del blocked[shard]

    def offer_again(self, record: Record) -> None:
        """Offer a record that is due for a retry, before all others, as it has waited longest.

        With `Ordering.PARTITION`, it waits until all failed records of its batch are due: they are retried in order.
        """
        self.retrying -= 1
        if self._ordering is not Ordering.PARTITION:
            self.offer_first((record,))
            return
        self._due.append(record)
        self._offer_due()

    def _behind(self) -> deque[Record]:
        behind = self._blocked.get(None)
        if behind is None:
            behind = self._blocked[None] = deque()
        return behind

    def _offer_due(self) -> None:
        if self._due and not self.retrying and not self.in_flight:
            self.offer_first(sorted(self._due, key=_offset))
            self._due.clear()

    def _offer_next(self) -> None:
        """Offer the next records of a whole partition, unless earlier records are being processed or wait for a retry."""
        if self.in_flight or self.retrying or self._due:
            return
        behind = self._behind()
        while behind and self._open < self._at_once:
            self._open += 1
            self.offer(behind.popleft())

    def offer(self, record: Record) -> None:
        """Make a record ready, unless it is above the limit."""
        (self.ready if record.offset < self.below else self._kept_back).append(record)

    def offer_first(self, records: Sequence[Record]) -> None:
        """Make records ready before all others, unless they are above the limit."""
        self._kept_back += [record for record in records if record.offset >= self.below]
        self.ready.extendleft(record for record in reversed(records) if record.offset < self.below)

    def queued(self) -> Iterator[Record]:
        """Return the records that are neither taken nor waiting for a retry."""
        yield from self.ready
        yield from self._kept_back
        yield from self._due
        for behind in self._blocked.values():
            yield from behind or ()

    def limit(self, below: int) -> None:
        """Start only records below an offset; records that are being processed are not stopped."""
        self.below = below
        offered = [*self.ready, *sorted(self._kept_back, key=_offset)]
        self.ready.clear()
        self._kept_back.clear()
        for record in offered:
            self.offer(record)


class Scheduler:
    """The records that wait to be processed. Not thread-safe: its owner locks it.

    Args:
        ordering: which records keep their order.
        batch_size: the maximum number of records that a function gets at once.
    """

    def __init__(self, ordering: Ordering, batch_size: int = 1) -> None:
        self._ordering = ordering
        self._batch_size = batch_size
        self._lanes: dict[TopicPartition, Lane] = {}
        #: Lanes with ready records, the next one first.
        self._turns: deque[Lane] = deque()
        #: Retries: the time, a number that keeps the order of equal times, the lane, and the record.
        self._later: list[tuple[float, int, Lane, Record]] = []
        self._numbers = count()
        #: The number of held records, over all partitions.
        self.records = 0
        #: The size of their keys and values.
        self.held_bytes = 0
        #: The number of records that may be processed now.
        self.ready = 0
        #: The number of records that are being processed.
        self.in_flight = 0

    def lane(self, tp: TopicPartition) -> Lane:
        """Return a partition's lane; the first call creates it."""
        lane = self._lanes.get(tp)
        if lane is None:
            lane = self._lanes[tp] = Lane(tp, self._ordering, self._batch_size)
        return lane

    def add(self, tp: TopicPartition, records: Sequence[Record]) -> None:
        """Take a partition's next records, by offset."""
        lane = self.lane(tp)
        ready, added_bytes = len(lane.ready), content_bytes(records)
        lane.add(records)
        lane.held_bytes += added_bytes
        self.held_bytes += added_bytes
        self.records += len(records)
        self._changed(lane, ready)

    def take(self, records_max: int) -> tuple[Lane, Sequence[Record]] | None:
        """Take ready records of the partition whose turn it is; return None if none are ready."""
        if not self._turns:
            return None
        lane = self._turns.popleft()
        ready = lane.ready
        taken = [ready.popleft() for _ in range(min(records_max, len(ready)))]
        lane.in_flight += len(taken)
        self.in_flight += len(taken)
        self.ready -= len(taken)
        if ready:
            self._turns.append(lane)
        return lane, taken

    def done(self, lane: Lane, records: Sequence[Record]) -> int:
        """Mark taken records as done, whatever their result; return the bytes that are not held any more."""
        if lane.is_dropped:
            return 0
        ready = len(lane.ready)
        done_bytes = content_bytes(records)
        lane.done(records)
        lane.held_bytes -= done_bytes
        self.held_bytes -= done_bytes
        self.records -= len(records)
        self.in_flight -= len(records)
        self._changed(lane, ready)
        return done_bytes

    def give_back(self, lane: Lane, records: Sequence[Record]) -> None:
        """Return taken records that were not started: they are ready again, before the others."""
        if lane.is_dropped:
            return
        ready = len(lane.ready)
        lane.in_flight -= len(records)
        self.in_flight -= len(records)
        lane.offer_first(records)
        self._changed(lane, ready)

    def retry(self, lane: Lane, record: Record, due_s: float) -> None:
        """Schedule a taken record for a retry at a time; its shard waits for it."""
        if lane.is_dropped:
            return
        lane.in_flight -= 1
        lane.retrying += 1
        self.in_flight -= 1
        again = record._replace(attempt=record.attempt + 1)
        heapq.heappush(self._later, (due_s, next(self._numbers), lane, again))

    def queued(self) -> list[Record]:
        """Return the records that are neither taken nor waiting for a retry."""
        return [record for lane in self._lanes.values() for record in lane.queued()]

    def retrying(self) -> list[Record]:
        """Return the records that wait for a retry."""
        return [record for _, _, _, record in self._later]

    def wake(self, now_s: float) -> None:
        """Make the records ready whose retry is due."""
        while self._later and self._later[0][0] <= now_s:
            _, _, lane, record = heapq.heappop(self._later)
            ready = len(lane.ready)
            lane.offer_again(record)
            self._changed(lane, ready)

    def limit(self, tp: TopicPartition, below: int) -> None:
        """Start only records of a partition that are below an offset; `INT64_MAX` means all."""
        lane = self._lanes.get(tp)
        if lane is None:
            return
        ready = len(lane.ready)
        lane.limit(below)
        self._changed(lane, ready)

    def drop(self, tp: TopicPartition) -> None:
        """Forget a partition; results of records that are being processed are ignored."""
        lane = self._lanes.pop(tp, None)
        if lane is None:
            return
        lane.is_dropped, lane.below = True, 0
        self.records -= lane.records
        self.held_bytes -= lane.held_bytes
        self.in_flight -= lane.in_flight
        ready = len(lane.ready)
        lane.ready.clear()
        self._changed(lane, ready)
        self._later = [entry for entry in self._later if entry[2] is not lane]
        heapq.heapify(self._later)

    def _changed(self, lane: Lane, ready_before: int) -> None:
        """Count the records that became ready, and give the lane a turn, or take it away."""
        self.ready += len(lane.ready) - ready_before
        if lane.ready and not ready_before:
            self._turns.append(lane)
        elif ready_before and not lane.ready:
            self._turns.remove(lane)


def _offset(record: Record) -> int:
    return record.offset
