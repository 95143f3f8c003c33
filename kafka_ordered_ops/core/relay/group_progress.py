"""What the log says of one client group in one partition: what is acknowledged, and who holds what."""

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

#: Leases are compared with what is acknowledged after so many acknowledgements, or half as many as there are leases.
_SWEEP_AFTER: Final = 4_096
#: The order and the end of a lease that is not there.
_NEVER: Final = ((0, -1), 0)


@dataclass(slots=True, eq=False)
class LeaseState:
    """One lease: what was leased, joined with what became of it."""

    lease_id: str
    #: None: an extension or release was read before its lease, or the lease is void.
    leased: Leased | None = None
    #: Where the lease is in the log.
    position: int = 0
    extended_ms: int = 0
    #: The offsets that extensions name.
    extended: OffsetSet = EMPTY_SET
    released: OffsetSet = EMPTY_SET

    @property
    def until_ms(self) -> int:
        """When it ends, for offsets that are not released."""
        return max(self.extended_ms, self.leased.until_ms if self.leased else 0)

    @property
    def offsets(self) -> OffsetSet:
        """The leased offsets, also those that are released or acknowledged."""
        return self.leased.offsets if self.leased else EMPTY_SET

    @property
    def attempt(self) -> int:
        """The attempt that its client makes."""
        return self.leased.attempt if self.leased else 0

    @property
    def order(self) -> tuple[int, int]:
        """The newest lease of an offset has the highest."""
        return self.attempt, self.position

    def ends_ms(self, offset: int) -> int:
        """Return when one of its offsets may be handed out again."""
        return 0 if self.released and offset in self.released else self.until_ms

    @property
    def mentioned(self) -> OffsetSet:
        """All offsets that any of its records names."""
        if self.leased and not self.extended and not self.released:
            return self.leased.offsets
        return union_of([self.offsets, self.extended, self.released])

    def take(self, leased: Leased, position: int) -> bool:
        """Join the lease itself; return whether that changes anything."""
        if self.leased is not None and self.position <= position:
            return False
        self.leased, self.position = leased, position
        return True


class Watcher(Protocol):
    """Learns of each change at once."""

    def leased(self, lease: LeaseState) -> None:
        """Offsets were leased, or their lease ends later."""

    def released(self, lease: LeaseState, offsets: OffsetSet) -> None:
        """Offsets of a lease were given back."""

    def acknowledged(self, offsets: OffsetSet) -> None:
        """Offsets are done; some may have been before."""

    def voided(self) -> None:
        """Some leases never counted: a claim before them was read after them."""


class GroupProgress:
    """The joined records of one group. `PartitionState` applies them, and decides which leases count."""

    def __init__(self, group: str) -> None:
        self.group = group
        self._opened: tuple[int, Opened] | None = None
        #: Once it is there, nothing else is kept.
        self._finished: tuple[int, Finished] | None = None
        self._acked = AcknowledgedOffsets()
        self._leases: dict[str, LeaseState] = {}
        #: A window's offset that was not acknowledged when it was last looked up.
        self._missing: int | None = None
        self._acks_since_sweep = 0
        self._is_swept = True
        #: Its owner keeps it; a lost partition's is gone by itself.
        self._watcher: ReferenceType[Watcher] | None = None

    @property
    def is_opened(self) -> bool:
        """Whether the group has begun here."""
        return self._opened is not None or self._finished is not None

    @property
    def is_window(self) -> bool:
        """Whether it has begun with exactly the offsets of a window."""
        return self._finished is not None or self.offsets is not None

    @property
    def start(self) -> int | None:
        """The first offset; None: not opened yet, or finished."""
        return self._opened[1].start if self._opened else None

    @property
    def begun_by(self) -> str | None:
        """The name of the access token that began the group; None: begun without a token, or finished."""
        return self._opened[1].begun_by if self._opened else None

    @property
    def offsets(self) -> OffsetSet | None:
        """The offsets of a window; None: all from `start` on, not opened yet, or finished."""
        return self._opened[1].offsets if self._opened else None

    def is_about(self, offsets: OffsetSet) -> bool:
        """Return whether a window has exactly these offsets."""
        if self._finished is not None:
            return self._finished[1].digest == digest_of(offsets)
        return self.offsets == offsets

    @property
    def acked(self) -> OffsetSet:
        """The acknowledged offsets, of a finished window none. For some offsets `left` is quicker."""
        return self._acked.all

    def left(self, offsets: OffsetSet) -> OffsetSet:
        """Return those of the offsets that are not acknowledged."""
        return EMPTY_SET if self._finished is not None else self._acked.left(offsets)

    @property
    def base(self) -> int | None:
        """The first offset that is not acknowledged; of a finished window, its end; None: not opened yet."""
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
        """Whether every offset of a window is acknowledged; never of a group without an end."""
        if self._finished is not None:
            return True
        if self.offsets is None or (self._missing is not None and self._missing not in self._acked):
            return False
        left = self.left(self.offsets)
        self._missing = left.first if left else None
        return not left

    def finish(self) -> Finished | None:
        """Return the record to write of a window whose offsets are all acknowledged; None: not so, or not any more."""
        if self._finished is not None or self.offsets is None or not self.is_done:
            return None
        return Finished(self.group, self.base or 0, digest_of(self.offsets))

    @property
    def leases(self) -> Mapping[str, LeaseState]:
        """By id: the leases that count and are not fully acknowledged."""
        self._sweep()
        return {key: one for key, one in self._leases.items() if one.leased is not None}

    def has_lease(self, lease_id: str) -> bool:
        """Return whether a lease was read and is not void."""
        found = self._leases.get(lease_id)
        return found is not None and found.leased is not None

    def until_ms(self, lease_id: str) -> int | None:
        """Return when a lease ends; None: not read, void, or all its offsets are acknowledged."""
        found = self._leases.get(lease_id)
        return found.until_ms if found is not None and found.leased is not None else None

    def pending(self, now_ms: int) -> OffsetSet:
        """Return the offsets under a lease that has not ended, and not acknowledged."""
        running = [one for one in self._leases.values() if one.leased and one.until_ms > now_ms]
        # Most leases have nothing released: these are joined in one go.
        return self.left(
            union_of(
                [one.offsets - one.released if one.released else one.offsets for one in running]
            )
        )

    def oldest_until_ms(self, now_ms: int) -> int | None:
        """Return when the first of the running leases ends; None: there is none."""
        ends = (one.until_ms for one in self.leases.values())
        return min((one for one in ends if one > now_ms), default=None)

    def watch(self, watcher: Watcher) -> None:
        """Report changes to a watcher, instead of another one, for as long as something else keeps it."""
        self._watcher = ref(watcher)

    # --- joining -------------------------------------------------------------------------------------

    def open(self, record: Opened, position: int) -> None:
        """Join the group's beginning: the first one in the log counts."""
        if self._finished is None and (self._opened is None or position < self._opened[0]):
            self._opened = (position, record)
            self._missing = None

    @property
    def finished_at(self) -> int | None:
        """Where the end of a window is in the log; None: it has none."""
        return None if self._finished is None else self._finished[0]

    def finished(self, record: Finished, position: int) -> None:
        """Join the end of a window: it stays done, whatever else is read. The first one in the log counts."""
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
        """Join acknowledgements, of so many records of the log."""
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
        """Return for each range, in rows of its start and end, whether nothing about its leases matters any more."""
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

        Only for a state that was read in the order of the log: then nothing makes the later leases void any more.
        """
        self._sweep()
        newest: dict[int, tuple[tuple[int, int], int]] = {}
        for lease in sorted(self.leases.values(), key=lambda one: one.order, reverse=True):
            left = [one for begin, end in self.left(lease.offsets) for one in range(begin, end)]
            if all(_is_replaced(lease, one, *newest.get(one, _NEVER)) for one in left):
                del self._leases[lease.lease_id]
                continue
            for one in left:
                order, until_ms = newest.get(one, _NEVER)
                newest[one] = max(order, lease.order), max(until_ms, lease.ends_ms(one))

    def records(self) -> Iterator[tuple[int | None, StateRecord]]:
        """Yield records that mean the same, each with its position where that matters."""
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
        """Yield each lease, also those that are fully acknowledged."""
        return iter(self._leases.values())

    def _lease(self, lease_id: str) -> LeaseState:
        found = self._leases.get(lease_id)
        if found is None:
            found = self._leases[lease_id] = LeaseState(lease_id)
        self._is_swept = False
        return found

    def _watching(self) -> Watcher | None:
        return None if self._watcher is None else self._watcher()

    def _sweep(self) -> None:
        """Forget leases whose offsets are all acknowledged: their attempts matter no more."""
        if self._is_swept:
            return
        self._is_swept, self._acks_since_sweep = True, 0
        leases = list(self._leases.values())
        mentioned = [one.mentioned for one in leases]
        done = _covered(self.acked, mentioned)
        for lease, is_done in zip(leases, done, strict=True):
            if is_done:
                del self._leases[lease.lease_id]


def _is_replaced(lease: LeaseState, offset: int, order: tuple[int, int], until_ms: int) -> bool:
    """Return whether a later lease has an offset, and all that hold it last as long as this one."""
    return order > lease.order and until_ms >= lease.ends_ms(offset)


def _covered(acked: OffsetSet, sets: list[OffsetSet]) -> list[bool]:
    """Return for each set whether all of it is acknowledged: most are one range, and all of these one question."""
    edges = [one.edges for one in sets]
    first = np.array([one[0] if one else 0 for one in edges], dtype=np.int64)
    last = np.array([one[-1] - 1 if one else 0 for one in edges], dtype=np.int64)
    low = np.searchsorted(acked.boundaries, first, side="right")
    high = np.searchsorted(acked.boundaries, last, side="right")
    is_one_range: list[bool] = ((low % 2 == 1) & (low == high)).tolist()
    # One that begins outside is not covered; of the others, only those of several ranges can be, gap by gap.
    begins_inside: list[bool] = (low % 2 == 1).tolist()
    return [
        not one or is_inside or (begins and len(one) > 1 and one <= acked)
        for one, is_inside, begins in zip(sets, is_one_range, begins_inside, strict=True)
    ]
