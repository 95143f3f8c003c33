"""Commit metadata that always fits the limit: as much of a map as possible, and how full it is."""

from __future__ import annotations

from typing import Final, NamedTuple

from kafka_ordered_ops.core.errors import OffsetMapTooLargeError
from kafka_ordered_ops.core.offset_map.packing import METADATA_BYTES_MAX
from kafka_ordered_ops.core.offset_map.parallel_consumer import encode_parallel_consumer_map
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet

#: Shares of the limit: a map above `FULL_SHARE` is nearly full, until it is below `ROOM_SHARE`. With a single limit, the
#: state could change with every record.
FULL_SHARE: Final = 0.75
ROOM_SHARE: Final = 0.65

#: The size of a range in base64, at most: two runs of four bytes.
_RANGE_BYTES_MAX: Final = 11
_HEAD_BYTES_MAX: Final = 4


class FittedMap(NamedTuple):
    """Metadata within the limit."""

    metadata: bytes
    #: The number of done ranges that did not fit, the highest ones. The metadata includes offsets of these ranges that an earlier commit had.
    left_out: int


def fitted_map(
    base: int,
    done: OffsetSet,
    *,
    committed: OffsetSet = EMPTY_SET,
    limit_bytes: int = METADATA_BYTES_MAX,
) -> FittedMap:
    """Return Parallel Consumer's metadata for a commit of `base`, with the lowest done ranges that fit.

    Args:
        base: the offset to commit.
        done: done offsets above the base.
        committed: done offsets in an earlier commit: they stay, and take precedence over new lower ones. They always fit.
        limit_bytes: the limit of the metadata.
    """
    if (whole := _encoded(base, done, limit_bytes)) is not None:
        return FittedMap(whole, 0)
    ranges = done.ranges
    best, low, high = _encoded(base, committed, limit_bytes) or b"", 0, len(ranges)
    while high - low > 1:
        count = (low + high) // 2
        part = _encoded(base, done.within(base, ranges[count - 1][1]) | committed, limit_bytes)
        if part is None:
            high = count
        else:
            best, low = part, count
    return FittedMap(best, len(ranges) - low)


def is_nearly_full(
    base: int, done: OffsetSet, *, was_full: bool, limit_bytes: int = METADATA_BYTES_MAX
) -> bool:
    """Return whether a map is so close to the limit that it should not grow."""
    allowed = int(limit_bytes * (ROOM_SHARE if was_full else FULL_SHARE))
    if len(done) * _RANGE_BYTES_MAX + _HEAD_BYTES_MAX <= allowed:
        return False
    return _encoded(base, done, allowed) is None


def _encoded(base: int, done: OffsetSet, limit_bytes: int) -> bytes | None:
    try:
        return encode_parallel_consumer_map(base, done, limit_bytes=limit_bytes)
    except OffsetMapTooLargeError:
        return None
