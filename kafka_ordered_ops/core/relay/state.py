"""The joined state of one partition of the relay's log.

The state is the join of the log's records, each with its position: acknowledged offsets are united, a lease ends at the
latest of its times, the first claim of an epoch counts. So the state does not depend on the order in which records are
read, or on how often; and the states of two servers can be joined.

A lease is *void* if a claim of a newer epoch is at a lower position: its server had been replaced before the lease was
stored, and never gave the records to a client. Positions decide this, not the order of reading.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import replace
from heapq import nlargest
from typing import Final, NamedTuple

from kafka_ordered_ops.core.numpy_later import np
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.relay.group_progress import GroupProgress
from kafka_ordered_ops.core.relay.log_batch import LogBatch
from kafka_ordered_ops.core.relay.log_records import (
    Acknowledged,
    Extended,
    Finished,
    Leased,
    LogRecord,
    Opened,
    Owned,
    Released,
    Served,
    Snapshot,
    StateRecord,
    decode,
)

#: Kept claims. No log has a lease that is read only after this many later claims.
_CLAIMS_MAX: Final = 1_000
#: Ends of windows that are kept, about 100 bytes each: a year of hourly windows. A late record for an older window is
#: taken as the beginning of a new group.
FINISHED_MAX: Final = 10_000
#: Size of a part of a snapshot, as estimated by `_bytes_most`.
_PART_BYTES_MAX: Final = 900_000
_CUT_RANGES: Final = 10_000


class Claim(NamedTuple):
    """A claim that counts: no earlier claim has its epoch or a newer one."""

    position: int
    owned: Owned


class PartitionState:
    """The joined state of one partition, for all groups. Not thread-safe."""

    def __init__(self) -> None:
        #: The next offset of the log.
        self.position = 0
        #: Sorted by position, with ascending epochs.
        self._claims: list[Claim] = []
        #: The newest record, with its position.
        self._served: tuple[int, Served] | None = None
        self._groups: dict[str, GroupProgress] = {}
        #: The positions at which windows have ended, by group.
        self._finished: dict[str, int] = {}

    @property
    def groups(self) -> Mapping[str, GroupProgress]:
        """The groups of all records, by name."""
        return self._groups

    def latest_groups(self, finished_max: int) -> list[str]:
        """Return the sorted names of groups, then the last `finished_max` windows that have ended, the newest first."""
        ended = nlargest(finished_max, self._finished, key=self._finished.__getitem__)
        return sorted([name for name in self._groups if name not in self._finished] + ended)

    def owner(self) -> Owned | None:
        """Return the newest claim that counts."""
        return self._claims[-1].owned if self._claims else None

    @property
    def relay_group(self) -> str | None:
        """The group of the servers; None if unknown."""
        return None if self._served is None else self._served[1].relay_group

    def counts(self, lease_id: str) -> bool:
        """Return whether a lease was read and is not void; a fully acknowledged lease may be forgotten."""
        return any(group.has_lease(lease_id) for group in self._groups.values())

    def apply(self, record: LogRecord, position: int) -> None:
        """Join a record of the log."""
        if position >= self.position:
            self.position = position + 1
        self._apply(record, position)

    def fold(self, batch: LogBatch) -> None:
        """Join records of the log that were read together; raise as `decode` does.

        Acknowledgements come first, whatever their order in the log. Records about leases of acknowledged offsets are
        not even decoded; when a server starts, these are nearly all records.
        """
        self.position = max(self.position, batch.end)
        for position, record in batch.others:
            self._apply(record, position)
        for name, ranges in batch.acknowledged:
            self._group(name).acknowledge(OffsetSet.from_ranges(ranges), len(ranges))
        for name, leases in batch.leases:
            matter = ~self._group(name).covers(leases.ranges)
            for index in np.flatnonzero(matter).tolist():
                self._apply(decode(leases.values[index]), leases.positions[index])

    def merge(self, other: PartitionState) -> None:
        """Join the state of another server."""
        self.position = max(self.position, other.position)
        for position, record in other.records():
            self._join(record, position)

    def snapshot(self) -> list[Snapshot]:
        """Return this state as snapshots, as few as the size limit allows. Together, they have the same state."""
        parts = list(_parts(self.records()))
        return [
            Snapshot(self.position, number, len(parts), tuple(part))
            for number, part in enumerate(parts, start=1)
        ]

    def forget_replaced(self) -> None:
        """Forget leases that were replaced by later ones; see `GroupProgress.forget_replaced`."""
        for group in self._groups.values():
            group.forget_replaced()

    def records(self) -> Iterator[tuple[int, StateRecord]]:
        """Yield records, with positions, whose join is this state; equal states yield the same records."""
        for claim in self._claims:
            yield claim.position, claim.owned
        if self._served is not None:
            yield self._served
        for name in sorted(self._groups):
            for position, record in self._groups[name].records():
                yield 0 if position is None else position, record

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PartitionState):
            return NotImplemented
        return self.position == other.position and list(self.records()) == list(other.records())

    __hash__ = None  # type: ignore[assignment]

    def _apply(self, record: LogRecord, position: int) -> None:
        if isinstance(record, Snapshot):
            for at, entry in record.records:
                self._join(entry, at)
        else:
            self._join(record, position)

    def _group(self, name: str) -> GroupProgress:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = GroupProgress(name)
        return group

    def _join(self, record: StateRecord, position: int) -> None:
        if isinstance(record, Owned):
            self._claim(record, position)
            return
        if isinstance(record, Served):
            if self._served is None or position > self._served[0]:
                self._served = position, record
            return
        group = self._group(record.group)
        match record:
            case Acknowledged():
                group.acknowledge(record.offsets)
            case Leased():
                if record.epoch >= self._epoch_before(position):
                    group.lease(record, position)
            case Extended():
                group.extend(record)
            case Released():
                group.release(record)
            case Opened():
                group.open(record, position)
            case Finished():
                group.finished(record, position)
                self._forget_finished(group)

    def _forget_finished(self, group: GroupProgress) -> None:
        """Forget the window that ended first, if there are too many: all servers forget it at the same position."""
        self._finished[group.group] = group.finished_at or 0
        if len(self._finished) > FINISHED_MAX:
            first = min(self._finished, key=lambda name: (self._finished[name], name))
            del self._finished[first], self._groups[first]

    def _claim(self, record: Owned, position: int) -> None:
        at = bisect_left(self._claims, position, key=lambda claim: claim.position)
        if at and self._claims[at - 1].owned.epoch >= record.epoch:
            return
        if at < len(self._claims) and self._claims[at].position == position:
            return
        end = at
        while end < len(self._claims) and self._claims[end].owned.epoch <= record.epoch:
            end += 1
        is_newest = at == len(self._claims)
        self._claims[at:end] = [Claim(position, record)]
        del self._claims[:-_CLAIMS_MAX]
        if not is_newest or position < self.position - 1:
            self._void()

    def _void(self) -> None:
        """Forget leases that became void by a claim read after them."""
        for group in self._groups.values():
            group.void(
                [
                    lease.lease_id
                    for lease in group.all_leases()
                    if lease.leased and lease.leased.epoch < self._epoch_before(lease.position)
                ]
            )

    def _epoch_before(self, position: int) -> int:
        """Return the newest epoch that was claimed before a position; 0 if there is none."""
        claims = self._claims
        if not claims:
            return 0
        # Most leases are after all claims.
        if claims[-1].position < position:
            return claims[-1].owned.epoch
        at = bisect_left(claims, position, key=lambda claim: claim.position)
        return claims[at - 1].owned.epoch if at else 0


def _parts(records: Iterator[tuple[int, StateRecord]]) -> Iterator[list[tuple[int, StateRecord]]]:
    """Yield the records in parts that fit into one record of the log; at least one part."""
    part: list[tuple[int, StateRecord]] = []
    size = 0
    for position, whole in records:
        for record in _cut(whole):
            added = _bytes_most(record)
            if part and size + added > _PART_BYTES_MAX:
                yield part
                part, size = [], 0
            part.append((position, record))
            size += added
    yield part


def _bytes_most(record: StateRecord) -> int:
    """Return an upper bound of the size: characters take up to four bytes, and compression may add a little."""
    if isinstance(record, Owned):
        names, ranges = (record.server_id, record.topic_id), 0
    elif isinstance(record, Served):
        names, ranges = (record.relay_group, ""), 0
    elif isinstance(record, Finished):
        names, ranges = (record.group, record.digest), 0
    elif isinstance(record, Opened):
        names, ranges = (record.group, record.begun_by or ""), len(record.offsets or ())
    elif isinstance(record, Acknowledged):
        names, ranges = (record.group, ""), len(record.offsets)
    else:
        names, ranges = (record.group, record.lease_id), len(record.offsets)
    return 100 + 4 * sum(map(len, names)) + 17 * ranges


def _cut(record: StateRecord) -> Iterator[StateRecord]:
    """Cut a record of joined offsets into parts that fit. Other records were in the log as they are, and fit."""
    if (
        not isinstance(record, Acknowledged | Extended | Released)
        or len(record.offsets) <= _CUT_RANGES
    ):
        yield record
        return
    edges = record.offsets.boundaries
    for at in range(0, len(edges), 2 * _CUT_RANGES):
        yield replace(record, offsets=OffsetSet(edges[at : at + 2 * _CUT_RANGES]))
