"""The state of one client group in one partition of the log: acknowledged offsets, and leases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol
from weakref import ReferenceType, ref

from kafka_ordered_ops.core.numpy_later import np
from kafka_ordered_ops.core.offset_set import (
    EMPTY_SET,
    BoolArray,
    Int64Array,
    OffsetSet,
    union_of,
)
from kafka_ordered_ops.core.relay.acknowledged import AcknowledgedOffsets
from kafka_ordered_ops.core.relay.log_records import (
    Acknowledged,
    Extended,
    Finished,
    Leased,
    Opened,
    Released,
    StateRecord,
    digest_of,
)

#: Leases are compared with acknowledged offsets after this many acknowledgements, or half as many as there are leases.
_SWEEP_AFTER: Final = 4_096
#: The order and the end of a lease that does not exist.
_NEVER: Final = ((0, -1), 0)


@dataclass(slots=True, eq=False)
class LeaseState:
    """One lease, joined with its extensions and releases."""

    lease_id: str
    #: None if an extension or release was read before its lease, or if the lease is void.
    leased: Leased | None = None
    #: The position of the lease in the log.
    position: int = 0
    extended_ms: int = 0
    #: The offsets of its extensions.
    extended: OffsetSet = EMPTY_SET
    released: OffsetSet = EMPTY_SET

    @property
    def until_ms(self) -> int:
        """The end of the lease, for offsets that are not released."""
        return max(self.extended_ms, self.leased.until_ms if self.leased else 0)

    @property
    def offsets(self) -> OffsetSet:
        """The leased offsets, including released and acknowledged ones."""
        return self.leased.offsets if self.leased else EMPTY_SET

    @property
    def attempt(self) -> int:
        """The number of the client's attempt."""
        return self.leased.attempt if self.leased else 0

    @property
    def order(self) -> tuple[int, int]:
        """The newest lease of an offset has the highest order."""
        return self.attempt, self.position

    def ends_ms(self, offset: int) -> int:
        """Return when an offset of the lease may be handed out again."""
        return 0 if self.released and offset in self.released else self.until_ms

    @property
    def mentioned(self) -> OffsetSet:
        """All offsets in any record of the lease."""
        if self.leased and not self.extended and not self.released:
            return self.leased.offsets
        return union_of([self.offsets, self.extended, self.released])

    def take(self, leased: Leased, position: int) -> bool:
        """Join the record of the lease itself; return whether it changes anything."""
        if self.leased is not None and self.position <= position:
            return False
        self.leased, self.position = leased, position
        return True


class Watcher(Protocol):
    """Called at each change."""

    def leased(self, lease: LeaseState) -> None:
        """Handle leased offsets, or a lease that ends later."""

    def released(self, lease: LeaseState, offsets: OffsetSet) -> None:
        """Handle released offsets of a lease."""

    def acknowledged(self, offsets: OffsetSet) -> None:
        """Handle acknowledged offsets; some may have been acknowledged before."""

    def voided(self) -> None:
        """Handle leases that never counted: an earlier claim was read after them."""


class GroupProgress:
    """The joined records of one group. `PartitionState` applies records, and decides which leases count."""

    def __init__(self, group: str) -> None:
        self.group = group
        self._opened: tuple[int, Opened] | None = None
        #: Once the group is finished, nothing else is kept.
        self._finished: tuple[int, Finished] | None = None
        self._acked = AcknowledgedOffsets()
        self._leases: dict[str, LeaseState] = {}
        #: An offset of a window that was not acknowledged at the last look-up.
        self._missing: int | None = None
        self._acks_since_sweep = 0
        self._is_swept = True
        #: A weak reference: its owner drops the watcher with the partition.
        self._watcher: ReferenceType[Watcher] | None = None

    @property
    def is_opened(self) -> bool:
        """Whether the group has begun in this partition."""
        return self._opened is not None or self._finished is not None

    @property
    def is_window(self) -> bool:
        """Whether the group has the exact offsets of a window."""
        return self._finished is not None or self.offsets is not None

    @property
    def start(self) -> int | None:
        """The first offset; None if the group is not opened yet, or finished."""
        return self._opened[1].start if self._opened else None

    @property
    def begun_by(self) -> str | None:
        """The name of the access token that began the group; None if there was no token, or the group is finished."""
        return self._opened[1].begun_by if self._opened else None

    @property
    def offsets(self) -> OffsetSet | None:
        """The offsets of a window; None for all offsets from `start` on, or if not opened yet, or finished."""
        return self._opened[1].offsets if self._opened else None

    def is_about(self, offsets: OffsetSet) -> bool:
        """Return whether the group is a window with exactly these offsets."""
        if self._finished is not None:
            return self._finished[1].digest == digest_of(offsets)
        return self.offsets == offsets

    @property
    def acked(self) -> OffsetSet:
        """The acknowledged offsets; none for a finished window. For a few offsets, `left` is faster."""
        return self._acked.all

    def left(self, offsets: OffsetSet) -> OffsetSet:
        """Return the offsets that are not acknowledged."""
        return EMPTY_SET if self._finished is not None else self._acked.left(offsets)

    @property
    def base(self) -> int | None:
        """The first offset that is not acknowledged; the end of a finished window; None if not opened yet."""
        if self._finished is not None:
            return self._finished[1].base
        if self._opened is None:
            return None
        opened = self._opened[1]
        if opened.offsets is None:
            return self.acked.first_missing(opened.start)
        left = self.left(opened.offsets)
        if left:
            return left.first
        return opened.offsets.end if opened.offsets else opened.start

    @property
    def is_done(self) -> bool:
        """Whether every offset of a window is acknowledged; never true for a group without an end."""
        if self._finished is not None:
            return True
        if self.offsets is None or (self._missing is not None and self._missing not in self._acked):
            return False
        left = self.left(self.offsets)
        self._missing = left.first if left else None
        return not left

    def finish(self) -> Finished | None:
        """Return the record to write when all offsets of a window are acknowledged; None before, and once it is read."""
        if self._finished is not None or self.offsets is None or not self.is_done:
            return None
        return Finished(self.group, self.base or 0, digest_of(self.offsets))

    @property
    def leases(self) -> Mapping[str, LeaseState]:
        """The leases that count and are not fully acknowledged, by id."""
        self._sweep()
        return {key: lease for key, lease in self._leases.items() if lease.leased is not None}

    def has_lease(self, lease_id: str) -> bool:
        """Return whether a lease was read and is not void."""
        lease = self._leases.get(lease_id)
        return lease is not None and lease.leased is not None

    def until_ms(self, lease_id: str) -> int | None:
        """Return when a lease ends; None if it was not read, is void, or is fully acknowledged."""
        lease = self._leases.get(lease_id)
        return lease.until_ms if lease is not None and lease.leased is not None else None

    def pending(self, now_ms: int) -> OffsetSet:
        """Return the offsets under a running lease that are not acknowledged."""
        running = [
            lease for lease in self._leases.values() if lease.leased and lease.until_ms > now_ms
        ]
        # Most leases have no released offsets, and need no subtraction.
        return self.left(
            union_of(
                [
                    lease.offsets - lease.released if lease.released else lease.offsets
                    for lease in running
                ]
            )
        )

    def oldest_until_ms(self, now_ms: int) -> int | None:
        """Return when the first of the running leases ends; None if no lease is running."""
        ends = (lease.until_ms for lease in self.leases.values())
        return min((until_ms for until_ms in ends if until_ms > now_ms), default=None)

    def watch(self, watcher: Watcher) -> None:
        """Report changes to a watcher, which replaces another one, for as long as something else references it."""
        self._watcher = ref(watcher)

    # --- joining -------------------------------------------------------------------------------------

    def open(self, record: Opened, position: int) -> None:
        """Join the group's beginning: the first one in the log counts."""
        if self._finished is None and (self._opened is None or position < self._opened[0]):
            self._opened = (position, record)
            self._missing = None

    @property
    def finished_at(self) -> int | None:
        """The position of a window's end in the log; None if it has not ended."""
        return None if self._finished is None else self._finished[0]

    def finished(self, record: Finished, position: int) -> None:
        """Join the end of a window: it stays done, whatever is read later. The first end in the log counts."""
        watcher = self._watching()
        if watcher and self._finished is None and self.offsets:
            watcher.acknowledged(self.offsets)
        if self._finished is None or position < self._finished[0]:
            self._finished = position, record
        self._opened = self._missing = None
        self._acked = AcknowledgedOffsets()
        self._leases.clear()

    def lease(self, record: Leased, position: int) -> None:
        """Join a lease that counts."""
        if self._finished is not None:
            return
        lease = self._lease(record.lease_id)
        if lease.take(record, position) and (watcher := self._watching()):
            watcher.leased(lease)
            if lease.released:
                watcher.released(lease, lease.released)

    def extend(self, record: Extended) -> None:
        """Join an extension."""
        if self._finished is not None:
            return
        lease = self._lease(record.lease_id)
        lease.extended_ms = max(lease.extended_ms, record.until_ms)
        lease.extended |= record.offsets
        if lease.leased and (watcher := self._watching()):
            watcher.leased(lease)

    def release(self, record: Released) -> None:
        """Join a release."""
        if self._finished is not None:
            return
        lease = self._lease(record.lease_id)
        lease.released |= record.offsets
        if lease.leased and (watcher := self._watching()):
            watcher.released(lease, record.offsets)

    def acknowledge(self, offsets: OffsetSet, count: int = 1) -> None:
        """Join acknowledgements of `count` records of the log."""
        if self._finished is not None:
            return
        self._acked.add(offsets)
        if watcher := self._watching():
            watcher.acknowledged(offsets)
        self._acks_since_sweep += count
        self._is_swept = False
        if self._acks_since_sweep >= max(_SWEEP_AFTER, len(self._leases) // 2):
            self._sweep()

    def covers(self, pairs: Int64Array) -> BoolArray:
        """Return, for each range (a row of start and end), whether its leases do not matter any more."""
        if self._finished is not None:
            return np.ones(len(pairs), dtype=np.bool_)
        boundaries = self.acked.boundaries
        low = np.searchsorted(boundaries, pairs[:, 0], side="right")
        covered: BoolArray = (low % 2 == 1) & (
            low == np.searchsorted(boundaries, pairs[:, 1] - 1, side="right")
        )
        return covered

    def void(self, lease_ids: list[str]) -> None:
        """Forget leases that never counted."""
        for lease_id in lease_ids:
            lease = self._leases[lease_id]
            lease.leased = None
            if not lease.mentioned:
                del self._leases[lease_id]
        if lease_ids and (watcher := self._watching()):
            watcher.voided()

    def forget_replaced(self) -> None:
        """Forget leases whose offsets were all leased again later, for at least as long, or acknowledged.

        Call it only for a state that was read in the order of the log: the later leases cannot become void then.
        """
        self._sweep()
        newest: dict[int, tuple[tuple[int, int], int]] = {}
        for lease in sorted(self.leases.values(), key=lambda state: state.order, reverse=True):
            left = [
                offset for begin, end in self.left(lease.offsets) for offset in range(begin, end)
            ]
            if all(_is_replaced(lease, offset, *newest.get(offset, _NEVER)) for offset in left):
                del self._leases[lease.lease_id]
                continue
            for offset in left:
                order, until_ms = newest.get(offset, _NEVER)
                newest[offset] = max(order, lease.order), max(until_ms, lease.ends_ms(offset))

    def records(self) -> Iterator[tuple[int | None, StateRecord]]:
        """Yield records with the same state, each with its position if that matters."""
        if self._finished is not None:
            yield self._finished
            return
        if self._opened is not None:
            yield self._opened
        if acked := self.acked:
            yield None, Acknowledged(self.group, acked)
        self._sweep()
        for key in sorted(self._leases):
            lease = self._leases[key]
            if lease.leased is not None:
                yield lease.position, lease.leased
            if lease.extended_ms:
                yield None, Extended(self.group, key, lease.extended_ms, lease.extended)
            if released := self.left(lease.released):
                yield None, Released(self.group, key, released)

    def all_leases(self) -> Iterator[LeaseState]:
        """Yield each lease, including fully acknowledged ones."""
        return iter(self._leases.values())

    def _lease(self, lease_id: str) -> LeaseState:
        lease = self._leases.get(lease_id)
        if lease is None:
            lease = self._leases[lease_id] = LeaseState(lease_id)
        self._is_swept = False
        return lease

    def _watching(self) -> Watcher | None:
        return None if self._watcher is None else self._watcher()

    def _sweep(self) -> None:
        """Forget leases whose offsets are all acknowledged: their attempts do not matter any more."""
        if self._is_swept:
            return
        self._is_swept, self._acks_since_sweep = True, 0
        leases = list(self._leases.values())
        mentioned = [lease.mentioned for lease in leases]
        done = _covered(self.acked, mentioned)
        for lease, is_done in zip(leases, done, strict=True):
            if is_done:
                del self._leases[lease.lease_id]


def _is_replaced(lease: LeaseState, offset: int, order: tuple[int, int], until_ms: int) -> bool:
    """Return whether a later lease holds an offset, and one lasts at least as long as this one."""
    return order > lease.order and until_ms >= lease.ends_ms(offset)


def _covered(acked: OffsetSet, sets: list[OffsetSet]) -> list[bool]:
    """Return, for each set, whether all of it is acknowledged. Most sets have one range, and are looked up together."""
    first = np.array([offsets.first if offsets else 0 for offsets in sets], dtype=np.int64)
    last = np.array([offsets.end - 1 if offsets else 0 for offsets in sets], dtype=np.int64)
    low = np.searchsorted(acked.boundaries, first, side="right")
    high = np.searchsorted(acked.boundaries, last, side="right")
    is_one_range: list[bool] = ((low % 2 == 1) & (low == high)).tolist()
    # A set that begins outside is not covered. Of the others, only sets of several ranges may still be covered.
    begins_inside: list[bool] = (low % 2 == 1).tolist()
    return [
        not offsets or is_inside or (begins and len(offsets) > 1 and offsets <= acked)
        for offsets, is_inside, begins in zip(sets, is_one_range, begins_inside, strict=True)
    ]
