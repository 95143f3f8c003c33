"""Commit metadata that always fits: as much of a map as there is room for, and how full the room is."""

from __future__ import annotations

from typing import Final, NamedTuple

from kafka_ordered_ops.core.errors import OffsetMapTooLargeError
from kafka_ordered_ops.core.offset_map.packing import METADATA_BYTES_MAX
from kafka_ordered_ops.core.offset_map.parallel_consumer import encode_parallel_consumer_map
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet

#: Of the limit: a map above the first is nearly full, until it is below the second. One limit alone would be passed
#: back and forth with every record.
FULL_SHARE: Final = 0.75
ROOM_SHARE: Final = 0.65

#: A range takes no more in base64: two runs of four bytes.
_RANGE_BYTES_MAX: Final = 11
_HEAD_BYTES_MAX: Final = 4


class FittedMap(NamedTuple):
    """Metadata within the limit."""

    metadata: bytes
    #: Done ranges that did not fit, the highest ones; what was to be kept of them is in it.
    left_out: int


def fitted_map(
    base: int,
    done: OffsetSet,
    *,
    kept: OffsetSet = EMPTY_SET,
    limit_bytes: int = METADATA_BYTES_MAX,
) -> FittedMap:
    """Return Parallel Consumer's metadata for a commit of `base`, with the lowest done ranges that fit.

    Args:
        base: the offset to commit.
        done: done offsets above the base.
        kept: those of them that an earlier commit has: they stay, before lower ones that are new. They fit by themselves.
        limit_bytes: of the metadata.
    """
    if (whole := _encoded(base, done, limit_bytes)) is not None:
        return FittedMap(whole, 0)
    ranges = done.ranges
    best, low, high = _encoded(base, kept, limit_bytes) or b"", 0, len(ranges)
    while high - low > 1:
        count = (low + high) // 2
        part = _encoded(base, done.within(base, ranges[count - 1][1]) | kept, limit_bytes)
        if part is None:
            high = count
        else:
            best, low = part, count
    return FittedMap(best, len(ranges) - low)


def is_nearly_full(
    base: int, done: OffsetSet, *, was_full: bool, limit_bytes: int = METADATA_BYTES_MAX
) -> bool:
    """Return whether a map takes so much of the limit that it should not grow."""
    allowed = int(limit_bytes * (ROOM_SHARE if was_full else FULL_SHARE))
    if len(done) * _RANGE_BYTES_MAX + _HEAD_BYTES_MAX <= allowed:
        return False
    return _encoded(base, done, allowed) is None


def _encoded(base: int, done: OffsetSet, limit_bytes: int) -> bytes | None:
    try:
        return encode_parallel_consumer_map(base, done, limit_bytes=limit_bytes)
    except OffsetMapTooLargeError:
        return None
