"""Records of the log that are read together, sorted by kind before they are decoded.

When a server starts, most records are acknowledgements of one range, or leases whose offsets are acknowledged in the
same batch. Many of these records have the same bytes before their offsets: these bytes are compared as a whole, and
only the first record of each is decoded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

from kafka_ordered_ops.core.numpy_later import np
from kafka_ordered_ops.core.offset_set import Int64Array
from kafka_ordered_ops.core.relay.log_records import (
    HEAD_BYTES,
    RANGE_BYTES,
    Acknowledged,
    Finished,
    LogRecord,
    Opened,
    Owned,
    Served,
    Snapshot,
    decode,
)


class LeaseRecords(NamedTuple):
    """Records about leases of one group, each with one range, not decoded."""

    positions: list[int]
    values: list[bytes]
    #: Rows of a start and an end.
    ranges: Int64Array


class LogBatch(NamedTuple):
    """Records that were read together; see `PartitionState.fold`."""

    #: The position after the last record.
    end: int
    #: Ranges by group, in any order.
    acknowledged: list[tuple[str, list[tuple[int, int]]]]
    leases: list[tuple[str, LeaseRecords]]
    #: Everything else, in the order of the log.
    others: list[tuple[int, LogRecord]]

    @property
    def groups(self) -> set[str]:
        """The groups that have begun, or have new acknowledgements."""
        others = [
            record.group
            for _, record in self.others
            if isinstance(record, Acknowledged | Opened | Finished)
        ]
        return {group for group, _ in self.acknowledged}.union(others)


#: By head of a record with one range: the length of the head and group, and of the whole record.
_Lengths = dict[bytes, tuple[int, int]]
_NO_LENGTHS: Final = (0, 0)
_NOT_SORTED: Final = (Owned, Served, Opened, Finished, Snapshot)


def sorted_batch(records: Iterable[tuple[int, bytes | None]], end: int) -> LogBatch:
    """Return records with their positions, sorted; raise `RelayLogCorruptError` or `RelayLogVersionError`.

    Damage in a lease's id or numbers is found when the lease is decoded.
    """
    acknowledged: dict[bytes, tuple[str, list[bytes]]] = {}
    lengths: _Lengths = {}
    groups: dict[bytes, str] = {}
    leases: defaultdict[str, list[tuple[int, bytes]]] = defaultdict(list)
    others: list[tuple[int, LogRecord]] = []
    for position, value in records:
        if value is not None:
            if (same_head := acknowledged.get(value[:-RANGE_BYTES])) is not None:
                same_head[1].append(value)
                continue
            stop, whole = lengths.get(value[:HEAD_BYTES], _NO_LENGTHS)
            if whole == len(value) and (name := groups.get(value[HEAD_BYTES:stop])) is not None:
                leases[name].append((position, value))
                continue
        record = decode(value)
        others.append((position, record))
        if value is None or isinstance(record, _NOT_SORTED) or len(record.offsets) != 1:
            continue
        if isinstance(record, Acknowledged):
            acknowledged[value[:-RANGE_BYTES]] = record.group, []
        else:
            group = record.group.encode()
            stop = HEAD_BYTES + len(group)
            lengths[value[:HEAD_BYTES]] = stop, len(value)
            groups[group] = record.group
    return LogBatch(
        end,
        [(group, _ranges(values).tolist()) for group, values in acknowledged.values() if values],
        [(group, _leases(group_records)) for group, group_records in leases.items()],
        others,
    )


def _leases(records: list[tuple[int, bytes]]) -> LeaseRecords:
    values = [value for _, value in records]
    return LeaseRecords([position for position, _ in records], values, _ranges(values))


def _ranges(values: list[bytes]) -> Int64Array:
    """Return the ranges at the ends of records; raise for the first invalid one."""
    ends = b"".join([value[-RANGE_BYTES:] for value in values])
    ranges: Int64Array = np.frombuffer(ends, "<i8").reshape(-1, 2).astype(np.int64)
    invalid = np.flatnonzero((ranges[:, 0] < 0) | (ranges[:, 0] >= ranges[:, 1]))
    if invalid.size:
        decode(values[invalid[0]])
    return ranges
