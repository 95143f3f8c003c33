"""Pack numbers, bits and bytes for offset maps, and unpack them from hostile input in bounded memory.

Every function that unpacks raises `OffsetMapDecodeError` with a reason and a part of a sentence; its caller adds the
metadata. A set is packed from its *edges*: the boundaries of its ranges, relative to the committed offset.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kafka_ordered_ops.core.errors import OffsetMapDecodeError, OffsetMapFault
from kafka_ordered_ops.core.offset_set import Int64Array, OffsetSet
from kafka_ordered_ops.core.types import INT64_MAX

#: Kafka's default for ``offset.metadata.max.bytes``.
METADATA_BYTES_MAX: Final = 4_096

#: Ranges of one map. Maps with more ranges are neither written nor accepted.
RANGES_MAX: Final = 1_000_000

#: Limit of an unpacked payload: `RANGES_MAX` ranges as four-byte numbers, or the bits of 67 million offsets. A few
#: compressed bytes can unpack to gigabytes.
PAYLOAD_BYTES_MAX: Final = 8 * RANGES_MAX

#: Levels of zstd: Parallel Consumer's, and for small payloads the highest level that only takes milliseconds.
_LEVEL: Final = 3
_SMALL_LEVEL: Final = 12
_SMALL_BYTES: Final = 1 << 16

#: Bytes of the longest varint that fits int64.
_VARINT_BYTES_MAX: Final = 9

_BITS_SET: Final = np.array([byte.bit_count() for byte in range(256)], dtype=np.uint8)

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def unreadable(reason: OffsetMapFault, why: str) -> OffsetMapDecodeError:
    """Return the error for a part of a map."""
    return OffsetMapDecodeError(why, reason=reason)


def unbase64(text: bytes) -> bytes:
    """Decode standard base64. Padding may be missing at the end, as Java allows."""
    try:
        return binascii.a2b_base64(text + b"=" * (-len(text) % 4), strict_mode=True)
    except binascii.Error as error:
        raise unreadable(OffsetMapFault.NOT_BASE64, f"it is not base64 ({error})") from error


def base64_of(body: bytes) -> bytes:
    """Return standard base64, padded, on one line."""
    return base64.b64encode(body)


def deflate(plain: bytes) -> bytes:
    """Return a zstd frame without its content size, as Parallel Consumer writes frames."""
    levels = (_LEVEL, _SMALL_LEVEL) if len(plain) <= _SMALL_BYTES else (_LEVEL,)
    frames = (
        pa.Codec("zstd", compression_level=level).compress(plain, asbytes=True) for level in levels
    )
    frame = min(frames, key=len)
    # RFC 8878, 3.1.1.1: four bytes of magic, the descriptor, the window unless bit 5 is set, and the size, whose width is
    # in the two highest bits. The size takes up to four bytes, which is much in a frame of twenty bytes (regular patterns).
    descriptor, single = frame[4], frame[4] & 0x20
    width = (int(bool(single)), 2, 4, 8)[descriptor >> 6]
    window = bytes([max((len(plain) - 1).bit_length() - 10, 0) << 3]) if single else frame[5:6]
    blocks = frame[5 + width if single else 6 + width :]
    return frame[:4] + bytes([descriptor & 0x1F]) + window + blocks


def inflate(frame: bytes) -> bytes:
    """Return the contents of zstd frames, at most `PAYLOAD_BYTES_MAX`; frames may omit their content size."""
    try:
        with pa.CompressedInputStream(pa.BufferReader(frame), "zstd") as stream:
            plain = bytes(stream.read(PAYLOAD_BYTES_MAX + 1))
    except (pa.ArrowException, OSError) as error:
        raise unreadable(OffsetMapFault.NOT_ZSTD, f"its zstd frame is damaged ({error})") from error
    if len(plain) > PAYLOAD_BYTES_MAX:
        raise unreadable(
            OffsetMapFault.TOO_LARGE, f"it unpacks to more than {PAYLOAD_BYTES_MAX:,} bytes"
        )
    return plain


def varints_of(values: Int64Array) -> bytes:
    """Return numbers that are not negative as LEB128."""
    lengths = np.ones(values.size, dtype=np.int64)
    for k in range(1, _VARINT_BYTES_MAX):
        lengths += values >= 1 << 7 * k
    starts = np.cumsum(lengths) - lengths
    packed = np.empty(int(lengths.sum()), dtype=np.uint8)
    for k in range(int(lengths.max(initial=0))):
        reached = lengths > k
        more = np.where(lengths[reached] > k + 1, 0x80, 0)
        packed[starts[reached] + k] = values[reached] >> 7 * k & 0x7F | more
    return packed.tobytes()


def from_varints(data: bytes, *, for_each_range: int = 2) -> Int64Array:
    """Return the numbers of `varints_of`; each range of the map has `for_each_range` numbers."""
    packed = np.frombuffer(data, dtype=np.uint8)
    last = np.flatnonzero(packed < 0x80).astype(np.int32)
    if packed.size and (not last.size or int(last[-1]) != packed.size - 1):
        raise unreadable(OffsetMapFault.CUT_SHORT, "its last number is cut short")
    _check_ranges(last.size // for_each_range)
    lengths = np.diff(last, prepend=np.int32(-1))
    longest = int(lengths.max(initial=0))
    if longest > _VARINT_BYTES_MAX:
        raise unreadable(OffsetMapFault.TOO_LARGE, f"a number has {longest} bytes")
    # From the last byte, which has the highest bits, to the first one.
    values = packed[last].astype(np.int64)
    for k in range(1, longest):
        reached = lengths > k
        values[reached] <<= 7
        values[reached] |= packed[last[reached] - k] & 0x7F
    return values


def numbers_of(values: Int64Array, kind: str) -> bytes:
    """Return numbers of a fixed width; `kind` is numpy's name of the type (">i2", ">i4")."""
    return values.astype(kind).tobytes()


def from_numbers(data: bytes, kind: str) -> Int64Array:
    """Return the numbers of `numbers_of`, none of them negative; an incomplete last one is ignored."""
    count = len(data) // np.dtype(kind).itemsize
    _check_ranges(count // 2)
    values = np.frombuffer(data, dtype=kind, count=count).astype(np.int64)
    if count and (least := int(values.min())) < 0:
        raise unreadable(OffsetMapFault.NEGATIVE, f"it has a run of {least} offsets")
    return values


def bits_pay(edges: Int64Array) -> bool:
    """Return whether bits may be the smallest form, compressed or not.

    They are not if they take more than eight bytes for each edge: then runs are smaller, and zstd compresses a few
    numbers better than long runs of zeros.
    """
    return int(edges[-1]) // 8 <= 8 * edges.size


def bits_of(edges: Int64Array) -> bytes:
    """Return a bit for each offset up to the last edge, the least significant first; O(edges + bits / 8)."""
    packed = np.zeros((int(edges[-1]) + 7) // 8, dtype=np.uint8)
    inner = edges[:-1]
    # First set only the bits at which the set changes...
    places = inner >> 3
    firsts = np.flatnonzero(np.diff(places, prepend=-1))
    changes = np.left_shift(1, inner & 7).astype(np.uint8)
    packed[places[firsts]] = np.bitwise_or.reduceat(changes, firsts)
    # ... then each bit becomes the parity of all bits up to it: in its byte, and in all bytes before.
    for shift in (1, 2, 4):
        packed ^= packed << shift
    packed[1:] ^= np.bitwise_xor.accumulate(packed >> 7)[:-1] * 0xFF
    _clear_from(packed, int(edges[-1]))
    return packed.tobytes()


def edges_of_bits(data: bytes, count: int) -> Int64Array:
    """Return the edges of the first `count` bits; missing bytes are zeros."""
    used = min((count + 7) // 8, len(data))
    # A zero after the end closes the last range.
    packed = np.zeros(used + 1, dtype=np.uint8)
    packed[:used] = np.frombuffer(data, dtype=np.uint8, count=used)
    _clear_from(packed[:used], count)
    changes = (packed ^ packed << 1).astype(np.uint8, copy=False)
    changes[1:] ^= packed[:-1] >> 7
    _check_ranges(int(_BITS_SET[changes].sum(dtype=np.int64)) // 2)
    places = np.flatnonzero(changes)
    rows, bits = np.nonzero(np.unpackbits(changes[places, None], axis=1, bitorder="little"))
    edges: Int64Array = places[rows] * 8 + bits
    return edges


def counted_bits_of(edges: Int64Array, kind: str) -> bytes:
    """Return the number of bits, as a number of a fixed width, the bits, and a zero byte."""
    return numbers_of(edges[-1:], kind) + bits_of(edges) + b"\0"


def from_counted_bits(data: bytes, kind: str) -> tuple[int, Int64Array]:
    """Return the number of bits, and their edges; the zero byte may be missing."""
    width = np.dtype(kind).itemsize
    if len(data) < width:
        raise unreadable(OffsetMapFault.CUT_SHORT, f"its length has {len(data)} of {width} bytes")
    count = int.from_bytes(data[:width], "big", signed=True)
    if count < 0:
        raise unreadable(OffsetMapFault.NEGATIVE, f"it covers {count} offsets")
    return count, edges_of_bits(data[width:], count)


def set_of_runs(base: int, runs: Int64Array) -> OffsetSet:
    """Return the done offsets of alternating runs from the base: not done, done, not done, ..."""
    edges = np.cumsum(runs, dtype=np.int64)
    # Sums of numbers that are not negative only decrease if they overflow int64.
    if bool(np.any(edges[1:] < edges[:-1])):
        raise _past_largest()
    return set_of_edges(base, edges)


def set_of_offsets(base: int, steps: Int64Array) -> OffsetSet:
    """Return offsets, each a step after the one before it, the first after the base."""
    return set_of_runs(base, np.column_stack((_between(steps), _ones(steps))).ravel())


def set_of_holes(base: int, steps: Int64Array) -> OffsetSet:
    """Return all offsets from the base except those of these steps; the last step leads to the end."""
    holes = _ones(steps)
    holes[:1] = 0
    return set_of_runs(base, np.column_stack((holes, _between(steps))).ravel())


def set_of_edges(base: int, edges: Int64Array) -> OffsetSet:
    """Return the set of ascending edges, which may repeat; a last edge without a partner is ignored."""
    edges = edges[: edges.size // 2 * 2]
    if not edges.size:
        return OffsetSet()
    if int(edges[-1]) > INT64_MAX - base:
        raise _past_largest()
    if not bool(np.all(edges[:-1] < edges[1:])):
        # Empty runs: edges at the same place cancel each other.
        firsts = np.flatnonzero(np.diff(edges, prepend=-1))
        edges = edges[firsts[np.diff(firsts, append=edges.size) % 2 == 1]]
    return OffsetSet(base + edges)


def _between(steps: Int64Array) -> Int64Array:
    """Return the number of offsets between the offsets of the steps, the first one counted from the base."""
    between = steps - 1
    between[:1] += 1
    if between.size and int(between.min()) < 0:
        raise unreadable(OffsetMapFault.NEGATIVE, "it has an offset twice")
    return between


def _ones(steps: Int64Array) -> Int64Array:
    return np.ones(steps.size, dtype=np.int64)


def _past_largest() -> OffsetMapDecodeError:
    return unreadable(OffsetMapFault.TOO_LARGE, "it reaches past the largest offset")


def _clear_from(packed: _Bytes, count: int) -> None:
    """Clear the bits at or after `count` in the last byte."""
    if packed.size and packed.size * 8 > count:
        packed[-1] &= 0xFF >> packed.size * 8 - count


def _check_ranges(count: int) -> None:
    if count > RANGES_MAX:
        raise unreadable(
            OffsetMapFault.TOO_LARGE, f"it has {count:,} ranges; {RANGES_MAX:,} are the limit"
        )
