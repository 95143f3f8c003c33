"""Encode many ranges of offsets in few bytes: records in random order take about two bits each.

The encoding stores the steps from each boundary to the next, mostly small numbers. The bytes of the steps are
transposed: first the lowest byte of every step, then the second byte of every step, and so on. The higher bytes are
nearly all zero, and zlib compresses them to almost nothing.
"""

from __future__ import annotations

import zlib
from typing import Final

from kafka_ordered_ops.core.numpy_later import np
from kafka_ordered_ops.core.offset_set import OffsetSet

_STEP_BYTES: Final = 8


def pack(offsets: OffsetSet) -> bytes:
    """Return the ranges of a set as bytes."""
    steps = np.diff(offsets.boundaries, prepend=0).astype("<i8")
    return zlib.compress(steps.view(np.uint8).reshape(-1, _STEP_BYTES).T.tobytes(), level=1)


def unpack(data: bytes, ranges: int) -> OffsetSet:
    """Return the set with this number of ranges, at least one; raise `ValueError` for bytes of no such set."""
    planes = np.frombuffer(_inflated(data, 2 * ranges * _STEP_BYTES), dtype=np.uint8)
    steps = np.ascontiguousarray(planes.reshape(_STEP_BYTES, -1).T).view("<i8").ravel()
    edges = np.cumsum(steps, dtype=np.int64)
    # A sum that overflows int64 becomes negative.
    if edges[0] < 0 or not (edges[:-1] < edges[1:]).all():
        raise ValueError("its offsets do not rise")
    return OffsetSet(edges)


def _inflated(data: bytes, size: int) -> bytes:
    inflate = zlib.decompressobj()
    try:
        content = inflate.decompress(data, size)
        # Reaching the end may need one more call, which must return nothing.
        more = b"" if inflate.eof else inflate.decompress(inflate.unconsumed_tail, 1)
    except zlib.error as cause:
        raise ValueError(f"its ranges cannot be decompressed ({cause})") from cause
    if len(content) != size or more or not inflate.eof or inflate.unused_data:
        raise ValueError(f"its ranges do not have {size:,} bytes")
    return content
