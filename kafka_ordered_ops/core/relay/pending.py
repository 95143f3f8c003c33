"""The number of records that each caller holds under leases of one server, so that no caller holds all of them.

A record counts from the moment its lease is written until it is acknowledged or released, or its lease has ended.
Every change takes O(1) for each of its records, and looking up a count takes O(1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.relay.known_offsets import known_offsets
from kafka_ordered_ops.core.types import TopicPartition

#: Ends of leases without records are dropped when they are more than half of all, and at least this many.
_ENDS_SLACK: Final = 1_000


@dataclass(slots=True, eq=False)
class _Lease:
    holder: Hashable
    place: tuple[TopicPartition, str]
    lease_id: str
    offsets: OffsetSet
    until_ms: int
    #: The number of its records that count.
    left: int


class PendingRecords:
    """Count the records of each holder. Not thread-safe."""

    def __init__(self) -> None:
        self._counts: Counter[Hashable] = Counter()
        self._leases: dict[str, _Lease] = {}
        #: The lease that holds each record.
        self._held: dict[tuple[TopicPartition, str], dict[int, _Lease]] = {}
        #: A heap of the times at which leases end; an extended lease moves when it is reached. Numbers make entries unique.
        self._ends: list[tuple[int, int, _Lease]] = []
        self._number = count()

    def count(self, holder: Hashable, now_ms: int) -> int:
        """Return the number of records that a holder has now."""
        while self._ends and self._ends[0][0] <= now_ms:
            _, _, lease = heappop(self._ends)
            if lease.left and lease.until_ms > now_ms:
                self._note_end(lease)
            else:
                self.release(lease.lease_id, lease.offsets)
        return self._counts[holder]

    def lease(
        self,
        holder: Hashable,
        tp: TopicPartition,
        group: str,
        lease_id: str,
        offsets: OffsetSet,
        until_ms: int,
    ) -> None:
        """Count leased records; they do not count for an earlier lease any more."""
        held = self._held.setdefault((tp, group), {})
        lease = self._leases[lease_id] = _Lease(
            holder, (tp, group), lease_id, offsets, until_ms, offsets.count
        )
        for start, end in offsets:
            for offset in range(start, end):
                if (before := held.get(offset)) is not None:
                    self._take_off(before)
                held[offset] = lease
        self._counts[holder] += offsets.count
        self._note_end(lease)
        if len(self._ends) > 2 * len(self._leases) + _ENDS_SLACK:
            self._ends = [entry for entry in self._ends if entry[2].left]
            heapify(self._ends)

    def extend(self, lease_id: str, until_ms: int) -> None:
        """Let a lease end later."""
        if (lease := self._leases.get(lease_id)) is not None:
            lease.until_ms = max(lease.until_ms, until_ms)

    def release(self, lease_id: str, offsets: OffsetSet) -> None:
        """Stop counting records of a lease: they were released, or the lease was not stored."""
        lease = self._leases.get(lease_id)
        if lease is None:
            return
        held = self._held[lease.place]
        for offset in known_offsets(offsets, held):
            if held[offset] is lease:
                del held[offset]
                self._take_off(lease)
        if not held:
            del self._held[lease.place]

    def acknowledge(self, tp: TopicPartition, group: str, offsets: OffsetSet) -> None:
        """Stop counting records: they are done."""
        held = self._held.get((tp, group))
        if held is None:
            return
        for offset in known_offsets(offsets, held):
            self._take_off(held.pop(offset))
        if not held:
            del self._held[tp, group]

    def drop(self, tp: TopicPartition) -> None:
        """Stop counting the records of a partition: another server hands them out."""
        for place in [key for key in self._held if key[0] == tp]:
            for lease in self._held.pop(place).values():
                self._take_off(lease)

    def _note_end(self, lease: _Lease) -> None:
        heappush(self._ends, (lease.until_ms, next(self._number), lease))

    def _take_off(self, lease: _Lease) -> None:
        """Count one record fewer."""
        lease.left -= 1
        self._counts[lease.holder] -= 1
        if not self._counts[lease.holder]:
            del self._counts[lease.holder]
        if not lease.left:
            del self._leases[lease.lease_id]
