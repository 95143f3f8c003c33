"""Decide which records may be processed now: fair over partitions, in order where an order is asked for.

A *shard* is what is processed one record after another: a key of a partition, or a whole partition. A record waits while
an earlier one of its shard is being processed, or waits to be tried again. Nothing else waits for it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from itertools import count

from kafka_ordered_ops.core.processing.record import Record, content_bytes
from kafka_ordered_ops.core.types import INT64_MAX, TopicPartition


class Ordering(StrEnum):
    """Which records are processed in the order of their offsets.

    `KEY`: those of one partition with the same key; records without a key have no order. `PARTITION`: those of one
    partition. `UNORDERED`: none.
    """

    KEY = "key"
    PARTITION = "partition"
    UNORDERED = "unordered"


class Lane:
    """One partition's records that are not done with, from its assignment to its end."""

    __slots__ = (
        "_blocked",
        "_kept_back",
        "_ordering",
        "below",
        "held_bytes",
        "in_flight",
        "is_dropped",
        "ready",
        "records",
        "tp",
    )

    def __init__(self, tp: TopicPartition, ordering: Ordering) -> None:
        self.tp = tp
        #: What may be processed now.
        self.ready: deque[Record] = deque()
        #: Held in all: waiting, ready, being processed, and waiting to be tried again.
        self.records = 0
        #: Their keys and values.
        self.held_bytes = 0
        self.in_flight = 0
        self.is_dropped = False
        #: No record at or above this offset is begun.
        self.below = INT64_MAX
        #: They would be ready.
        self._kept_back: list[Record] = []
        self._ordering = ordering
        #: Shards with a record that is not done with: what waits behind it; None: nothing.
        self._blocked: dict[bytes | None, deque[Record] | None] = {}

    def add(self, records: Sequence[Record]) -> None:
        """Take records, by offset."""
        is_unordered, by_key = (
            self._ordering is Ordering.UNORDERED,
            self._ordering is Ordering.KEY,
        )
        blocked = self._blocked
        # A limit is rare, and a call has its price.
        offer = self.ready.append if self.below == INT64_MAX else self.offer
        self.records += len(records)
        for record in records:
            shard = record.key if by_key else None
            if is_unordered or (by_key and shard is None):
                offer(record)
            elif shard not in blocked:
                blocked[shard] = None
                offer(record)
            elif (behind := blocked[shard]) is None:
                blocked[shard] = deque((record,))
            else:
                behind.append(record)

    def done(self, records: Sequence[Record]) -> None:
        """Records are done with: what waits behind them is ready."""
        self.records -= len(records)
        self.in_flight -= len(records)
        if self._ordering is Ordering.UNORDERED:
            return
        by_key, blocked = self._ordering is Ordering.KEY, self._blocked
        for record in records:
            shard = record.key if by_key else None
            if by_key and shard is None:
                continue
            if behind := blocked[shard]:
                self.offer(behind.popleft())
            else:
                del blocked[shard]

    def offer(self, record: Record) -> None:
        """A record is ready, unless it is above the limit."""
        (self.ready if record.offset < self.below else self._kept_back).append(record)

    def offer_first(self, records: Sequence[Record]) -> None:
        """Records are ready before all others, unless they are above the limit."""
        self._kept_back += [one for one in records if one.offset >= self.below]
        self.ready.extendleft(one for one in reversed(records) if one.offset < self.below)

    def limit(self, below: int) -> None:
        """Begin only records below an offset; what is being processed goes on."""
        self.below = below
        offered = [*self.ready, *sorted(self._kept_back, key=_offset)]
        self.ready.clear()
        self._kept_back.clear()
        for record in offered:
            self.offer(record)


class Scheduler:
    """The records that wait to be processed. Pure; its owner locks it.

    Args:
        ordering: which records keep their order.
    """

    def __init__(self, ordering: Ordering) -> None:
        self._ordering = ordering
        self._lanes: dict[TopicPartition, Lane] = {}
        #: Lanes with ready records, the next one first.
        self._turns: deque[Lane] = deque()
        #: When, a number that keeps the order of equal times, and the record of its lane.
        self._later: list[tuple[float, int, Lane, Record]] = []
        self._numbers = count()
        #: Held in all, over all partitions.
        self.records = 0
        #: Their keys and values.
        self.held_bytes = 0
        #: May be processed now.
        self.ready = 0
        #: Are being processed.
        self.in_flight = 0

    def lane(self, tp: TopicPartition) -> Lane:
        """Return a partition's lane; it begins with the first call."""
        lane = self._lanes.get(tp)
        if lane is None:
            lane = self._lanes[tp] = Lane(tp, self._ordering)
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
        """Take some ready records of one partition, the next one's turn; None: nothing is ready."""
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
        """Records that were taken are done with, whatever came of them; return the bytes that are held no longer."""
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
        """Records that were taken were not begun: they are ready again, before the others."""
        if lane.is_dropped:
            return
        ready = len(lane.ready)
        lane.in_flight -= len(records)
        self.in_flight -= len(records)
        lane.offer_first(records)
        self._changed(lane, ready)

    def retry(self, lane: Lane, record: Record, due_s: float) -> None:
        """A record that was taken is to be tried again at a time; its shard waits for it."""
        if lane.is_dropped:
            return
        lane.in_flight -= 1
        self.in_flight -= 1
        again = record._replace(attempt=record.attempt + 1)
        heapq.heappush(self._later, (due_s, next(self._numbers), lane, again))

    def wake(self, now_s: float) -> None:
        """Make ready what is due to be tried again."""
        while self._later and self._later[0][0] <= now_s:
            _, _, lane, record = heapq.heappop(self._later)
            ready = len(lane.ready)
            # It has waited longest.
            lane.offer_first((record,))
            self._changed(lane, ready)

    def limit(self, tp: TopicPartition, below: int) -> None:
        """Begin only those records of a partition that are below an offset; `INT64_MAX`: all."""
        lane = self._lanes.get(tp)
        if lane is None:
            return
        ready = len(lane.ready)
        lane.limit(below)
        self._changed(lane, ready)

    def drop(self, tp: TopicPartition) -> None:
        """Forget a partition; what comes of records that are being processed changes nothing any more."""
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
        self._later = [one for one in self._later if one[2] is not lane]
        heapq.heapify(self._later)

    def _changed(self, lane: Lane, ready_before: int) -> None:
        """Count what became ready, and give the lane a turn, or take it away."""
        self.ready += len(lane.ready) - ready_before
        if lane.ready and not ready_before:
            self._turns.append(lane)
        elif ready_before and not lane.ready:
            self._turns.remove(lane)


def _offset(record: Record) -> int:
    return record.offset
