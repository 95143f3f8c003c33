"""Which records the owner of a partition hands out to one group, and when.

Each offset that was read and is not acknowledged is in one of four states:

- *new*: no lease that counts has held it;
- *taken*: the owner is writing a lease for it, or its dead letter;
- *held*: its newest lease has not ended;
- *free again*: its newest lease has ended, or was released.

New and free offsets wait in two queues. An offset is checked when it leaves a queue, and entries that are outdated by
a later change are dropped then, so a change needs no search. The newest lease has the highest attempt; among leases
with the same attempt, it is the last one in the log.

A lease may be extended at its very end, and the owner may take its offsets before it reads the extension. An extension
that is stored first counts: its client was promised the time. The owner reads it before the lease that it has written
itself, which is then dropped for these offsets (`outrun`). An older lease that is still running holds its offsets like
the newest one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import chain, count
from typing import Final

from kafka_ordered_ops.core.errors import invariant
from kafka_ordered_ops.core.numpy_later import np
from kafka_ordered_ops.core.offset_set import EMPTY_SET, Int64Array, OffsetSet
from kafka_ordered_ops.core.relay.group_progress import LeaseState
from kafka_ordered_ops.core.relay.known_offsets import known_offsets
from kafka_ordered_ops.core.relay.state import PartitionState
from kafka_ordered_ops.core.types import INT64_MAX

#: Ends of fully acknowledged leases are dropped when they are more than half of all, and at least this many.
_ENDS_SLACK: Final = 1_000
#: Up to this many offsets, Python is faster than numpy's calls.
_FEW: Final = 16

ATTEMPTS_MAX: Final = 5


class Serving:
    """The owner's decisions for one group in one partition. Not thread-safe.

    It follows changes of the state, until it is dropped, or until another instance follows the same group.

    Args:
        state: the joined state of the partition, read up to this server's claim.
        group: an opened group.
        attempts_max: how often a record is handed out; None means no limit.
    """

    def __init__(
        self, state: PartitionState, group: str, *, attempts_max: int | None = ATTEMPTS_MAX
    ) -> None:
        self._progress = state.groups[group]
        invariant(self._progress.is_opened, f"group {group} is served before it is opened")
        self._attempts_max = attempts_max
        #: The next offset to read.
        self.position = 0
        self._now_ms = 0
        #: Offsets that were read and are not acknowledged.
        self._arrived: set[int] = set()
        #: Taken offsets, with the time.
        self._taken: dict[int, int] = {}
        #: Taken offsets whose lease had ended, and of which an extension was read afterwards.
        self._outrun: set[int] = set()
        #: The newest lease of each offset that is not acknowledged, read or not.
        self._leases: dict[int, LeaseState] = {}
        #: Older leases that were extended, or were running when a newer one was read.
        self._older: dict[int, list[LeaseState]] = {}
        self._new: deque[int] = deque()
        #: A heap of free offsets.
        self._again: list[int] = []
        #: Offsets with no attempt left.
        self._exhausted: set[int] = set()
        #: Offsets with no attempt left that are handed out once more.
        self._spared: set[int] = set()
        #: A heap of the times at which leases end; an extended lease has several entries. Numbers make entries unique.
        self._ends: list[tuple[int, int, LeaseState]] = []
        self._number = count()
        for lease in self._progress.all_leases():
            self.leased(lease)
        self._progress.watch(self)

    @property
    def held(self) -> int:
        """The number of records that were read and are not acknowledged."""
        return len(self._arrived)

    @property
    def queued(self) -> int:
        """The maximum number of waiting offsets: clients of other servers may have acknowledged some of them."""
        return len(self._new) + len(self._again)

    def arrived(self, offsets: Int64Array, position: int) -> None:
        """Take the offsets that were read, and the position of reading. Acknowledged offsets are dropped."""
        self.position = max(self.position, position)
        if not offsets.size:
            return
        low, high = int(offsets[0]), int(offsets[-1]) + 1
        left = self._progress.left(OffsetSet.of((low, high)))
        open_offsets = offsets if left.covers(low, high - 1) else offsets[left.mask(offsets)]
        for offset in open_offsets.tolist():
            if offset not in self._arrived:
                self._arrived.add(offset)
                if offset in self._leases:
                    self._offer(offset)
                else:
                    self._new.append(offset)

    def take(self, most: int, now_ms: int) -> list[tuple[int, OffsetSet]]:
        """Return up to `most` offsets to hand out, by attempt: free offsets before new ones, each lowest first.

        They count as taken until a lease of them is applied to the state, or until `untake`.
        """
        self._pass(now_ms)
        by_attempt: dict[int, list[int]] = {}
        room = most
        while room > 0 and (self._again or self._new):
            offset = heappop(self._again) if self._again else self._new.popleft()
            if not self._is_free(offset):
                continue
            if self._is_last(offset):
                self._exhausted.add(offset)
                continue
            self._taken[offset] = self._now_ms
            by_attempt.setdefault(self.attempts(offset) + 1, []).append(offset)
            room -= 1
        return [(attempt, _set_of(offsets)) for attempt, offsets in by_attempt.items()]

    def untake(self, offsets: OffsetSet) -> None:
        """Put taken offsets back: their lease was not written."""
        for offset in known_offsets(offsets, self._taken):
            del self._taken[offset]
            self._outrun.discard(offset)
            self._offer(offset)

    def outrun(self, offsets: OffsetSet) -> OffsetSet:
        """Return the offsets of this owner's new lease whose earlier lease was extended before it in the log."""
        outrun = list(known_offsets(offsets, self._outrun))
        self._outrun.difference_update(outrun)
        return _set_of(outrun)

    def exhausted(self, now_ms: int) -> OffsetSet:
        """Return the free offsets with no attempt left, until they are acknowledged. `take` does not return them."""
        self._pass(now_ms)
        return _set_of([offset for offset in self._exhausted if self._is_free(offset)])

    def spare(self, offset: int) -> None:
        """Hand out an offset with no attempt left once more."""
        if offset in self._exhausted:
            self._exhausted.discard(offset)
            self._spared.add(offset)
            self._offer(offset)

    def attempts(self, offset: int) -> int:
        """Return the number of attempts that count, of an offset that is not acknowledged."""
        lease = self._leases.get(offset)
        return 0 if lease is None else lease.attempt

    def next_change_ms(self, now_ms: int) -> int | None:
        """Return when the next lease ends; None if no lease is running."""
        self._pass(now_ms)
        while self._ends:
            until_ms, _, lease = self._ends[0]
            if until_ms == lease.until_ms and next(self._held_by(lease), None) is not None:
                return until_ms
            heappop(self._ends)
        return None

    # --- what the state reports ----------------------------------------------------------------------

    def leased(self, lease: LeaseState) -> None:
        """Handle leased offsets, or a lease that ends later."""
        for start, end in self._progress.left(lease.offsets):
            for offset in range(start, end):
                other = self._leases.get(offset)
                if other is None or other.order < lease.order:
                    self._leases[offset] = lease
                    self._taken.pop(offset, None)
                    self._spared.discard(offset)
                    if other is not None:
                        self._keep_older(offset, other)
                    continue
                if other is not lease:
                    self._keep_older(offset, lease)
                if lease.ends_ms(offset) > self._taken.get(offset, INT64_MAX):
                    self._outrun.add(offset)
        if lease.offsets:
            heappush(self._ends, (lease.until_ms, next(self._number), lease))
        if len(self._ends) > 2 * len(self._leases) + _ENDS_SLACK:
            self._forget_ends()

    def released(self, lease: LeaseState, offsets: OffsetSet) -> None:
        """Handle released offsets of a lease."""
        for offset in known_offsets(offsets, self._leases):
            if self._holds(lease, offset):
                self._offer(offset)

    def acknowledged(self, offsets: OffsetSet) -> None:
        """Handle acknowledged offsets; some may have been acknowledged before."""
        for offset in known_offsets(offsets, self._arrived):
            self._arrived.discard(offset)
            self._taken.pop(offset, None)
            self._outrun.discard(offset)
            self._exhausted.discard(offset)
            self._spared.discard(offset)
        for offset in known_offsets(offsets, self._leases):
            del self._leases[offset]
            self._older.pop(offset, None)

    def voided(self) -> None:
        """Start over from the leases that count: some never did."""
        self._leases.clear()
        self._older.clear()
        self._outrun.clear()
        self._ends.clear()
        self._exhausted.clear()
        for lease in self._progress.all_leases():
            self.leased(lease)
        for offset in self._arrived:
            self._offer(offset)

    # --- one offset ----------------------------------------------------------------------------------

    def _is_last(self, offset: int) -> bool:
        return (
            self._attempts_max is not None
            and self.attempts(offset) >= self._attempts_max
            and offset not in self._spared
        )

    def _is_free(self, offset: int) -> bool:
        if offset not in self._arrived or offset in self._taken:
            return False
        lease = self._leases.get(offset)
        if lease is None:
            return True
        return lease.ends_ms(offset) <= self._now_ms and not self._is_held_before(offset)

    def _is_held_before(self, offset: int) -> bool:
        older = self._older.get(offset, ())
        return any(lease.ends_ms(offset) > self._now_ms for lease in older)

    def _holds(self, lease: LeaseState, offset: int) -> bool:
        return self._leases.get(offset) is lease or lease in self._older.get(offset, ())

    def _keep_older(self, offset: int, lease: LeaseState) -> None:
        """Remember a lease that is not the newest one as long as it is running."""
        running = [
            older for older in self._older.get(offset, ()) if older.ends_ms(offset) > self._now_ms
        ]
        if lease not in running and lease.ends_ms(offset) > self._now_ms:
            running.append(lease)
        if running:
            self._older[offset] = running
        else:
            self._older.pop(offset, None)

    def _offer(self, offset: int) -> None:
        """Queue an offset that may be free again."""
        if offset not in self._arrived or offset in self._taken:
            return
        if self._is_last(offset):
            self._exhausted.add(offset)
        else:
            heappush(self._again, offset)

    # --- time ----------------------------------------------------------------------------------------

    def _pass(self, now_ms: int) -> None:
        """Queue the offsets of leases that have ended. Time never goes back: free offsets would be lost."""
        self._now_ms = max(self._now_ms, now_ms)
        while self._ends and self._ends[0][0] <= self._now_ms:
            _, _, lease = heappop(self._ends)
            # An extended lease has another entry.
            if lease.until_ms <= self._now_ms:
                for offset in self._held_by(lease):
                    self._offer(offset)

    def _held_by(self, lease: LeaseState) -> Iterator[int]:
        """Yield the offsets that a lease holds, as the newest lease or as an older one that is still running."""
        for start, end in lease.offsets:
            for offset in range(start, end):
                if self._holds(lease, offset):
                    yield offset

    def _forget_ends(self) -> None:
        leases = chain(self._leases.values(), *self._older.values())
        running = {id(lease): lease for lease in leases if lease.until_ms > self._now_ms}
        self._ends = [(lease.until_ms, next(self._number), lease) for lease in running.values()]
        heapify(self._ends)


def _set_of(offsets: list[int]) -> OffsetSet:
    """Return distinct offsets as a set."""
    if not offsets:
        return EMPTY_SET
    first, last = min(offsets), max(offsets)
    if last - first + 1 == len(offsets):
        return OffsetSet.of((first, last + 1))
    if len(offsets) <= _FEW:
        return OffsetSet.from_ranges([(offset, offset + 1) for offset in offsets])
    return OffsetSet.from_offsets(np.array(offsets, dtype=np.int64))
