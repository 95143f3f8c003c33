"""Encode the done ranges beyond a committed offset as text for the commit's metadata.

A committed offset means "all below is done". The map has the done ranges beyond it, in at most 4,096 bytes, next to
the offset itself. Every reader of a group's commits therefore knows its exact progress, and the ledger can be checked
against them.

Format (version 1)::

    ~koo1:<base64 of body>.

The tilde is outside the base64 alphabet, so other programs that store maps there recognize it as foreign
text. The full stop ends the map: it stays readable if clients append a NUL, or return bytes after the end. The body is
big-endian:

=========  =====================================================================
bytes      meaning
=========  =====================================================================
1          encoding of the payload, plus 128 if it is compressed (zstd)
16         id of the topic
16         id of the ledger topic
8          sequence of the group's state in the ledger
8          base: the committed offset
4          length of the payload
n          payload
8          signed: the time, in ms, before which windows have delivered everything; missing if none has
4          CRC-32 of all of the above
=========  =====================================================================

=========  =====================================================================
encoding   payload
=========  =====================================================================
0          none: no offset is done beyond the base
1          runs from the base as LEB128 varints, alternating: not done, done, not done, ...
2          bits: bit i of byte j is set if base + 8 j + i is done, least significant first
3          the distance of each done offset from the one before it, the first from the base, as LEB128 varints
4, 5       the runs as numbers of 2 or 4 bytes
6          like 3, for the offsets that are not done; the last one is the end of the map
7, 8       the number of bits as a number of 2 or 4 bytes, the bits, a zero byte
127        none: only the ledger has the done ranges
=========  =====================================================================
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import numpy as np

from kafka_ordered_ops.core.errors import (
    OffsetMapDecodeError,
    OffsetMapFault,
    OffsetMapTooLargeError,
)
from kafka_ordered_ops.core.offset_map.packing import (
    METADATA_BYTES_MAX as METADATA_BYTES_MAX,
)
from kafka_ordered_ops.core.offset_map.packing import (
    RANGES_MAX,
    base64_of,
    bits_of,
    bits_pay,
    counted_bits_of,
    deflate,
    edges_of_bits,
    from_counted_bits,
    from_numbers,
    from_varints,
    inflate,
    numbers_of,
    set_of_edges,
    set_of_holes,
    set_of_offsets,
    set_of_runs,
    unbase64,
    unreadable,
    varints_of,
)
from kafka_ordered_ops.core.offset_set import EMPTY_SET, Int64Array, OffsetSet

#: The beginning of every version.
_MARK: Final = b"~koo"
_VERSION: Final = 1
_VERSIONED: Final = re.compile(re.escape(_MARK) + rb"([0-9]{1,9}):")
PREFIX: Final = b"%s%d:" % (_MARK, _VERSION)
_END: Final = b"."
_HEAD: Final = struct.Struct(">B16s16sQqI")
_CRC: Final = struct.Struct(">I")
_TIME: Final = struct.Struct(">q")

#: Payloads up to this size are not compressed: zstd's frame alone takes half of that. Parallel Consumer does not compress
#: maps up to eight times this size either.
_PLAIN_BYTES_MAX: Final = 24
_COMPRESSED: Final = 0x80


class _Encoding(IntEnum):
    NOTHING = 0
    RUNS = 1
    BITS = 2
    OFFSETS = 3
    RUNS_OF_2_BYTES = 4
    RUNS_OF_4_BYTES = 5
    HOLES = 6
    BITS_AFTER_2_BYTES = 7
    BITS_AFTER_4_BYTES = 8
    IN_LEDGER = 127


#: Numpy's name and the largest number of each type. These four encodings are Parallel Consumer's: with them, no payload
#: is larger than that program's.
_WIDTHS: Final = {
    _Encoding.RUNS_OF_2_BYTES: (">i2", 2**15 - 1),
    _Encoding.RUNS_OF_4_BYTES: (">i4", 2**31 - 1),
    _Encoding.BITS_AFTER_2_BYTES: (">i2", 2**15 - 1),
    _Encoding.BITS_AFTER_4_BYTES: (">i4", 2**31 - 1),
}
_COUNTED_BITS: Final = (_Encoding.BITS_AFTER_2_BYTES, _Encoding.BITS_AFTER_4_BYTES)


@dataclass(frozen=True, slots=True)
class OffsetMap:
    """The contents of commit metadata about one partition of a group."""

    #: 16 bytes each.
    topic_id: bytes
    ledger_id: bytes
    #: The sequence of the group's state in the ledger at the time of the commit.
    sequence: int
    base: int
    #: Done offsets above the base; None if they did not fit, and only the ledger has them.
    beyond: OffsetSet | None
    #: The greatest cutoff of the group's committed windows. Unlike offsets, it holds on a mirrored cluster too. None: there
    #: is none.
    delivered_before_ms: int | None = None
    #: The name of the encoding from which the map was read; None for a map that was not read.
    encoding: str | None = field(default=None, compare=False)


def encode_offset_map(offset_map: OffsetMap, *, limit_bytes: int = METADATA_BYTES_MAX) -> bytes:
    """Return the metadata, in the pointer form (encoding 127) if the done ranges do not fit.

    Raises:
        OffsetMapTooLargeError: not even the pointer form fits the limit.
    """
    text = _frame(offset_map, *_payload(offset_map))
    if len(text) > limit_bytes:
        text = _frame(offset_map, _Encoding.IN_LEDGER, b"")
    if len(text) > limit_bytes:
        raise OffsetMapTooLargeError(
            f"an offset map needs at least {len(text)} bytes of commit metadata, and {limit_bytes} are "
            "allowed: raise the broker's offset.metadata.max.bytes",
            size=len(text),
            limit=limit_bytes,
        )
    return text


def is_offset_map(metadata: bytes) -> bool:
    """Return whether metadata claims to be an offset map of this package, of this version or a later one."""
    return metadata.startswith(_MARK)


def decode_offset_map(metadata: bytes) -> OffsetMap | None:
    """Return the map; None if the metadata is something else.

    Raises:
        OffsetMapDecodeError: it claims to be a map, but cannot be read.
    """
    if not is_offset_map(metadata):
        return None
    try:
        return _decode(metadata)
    except OffsetMapDecodeError as error:
        raise OffsetMapDecodeError(
            f"commit metadata {metadata[:24]!r}... ({len(metadata)} bytes) is an offset map that cannot be read: {error.message}",
            reason=error.reason,
        ) from error


def _decode(metadata: bytes) -> OffsetMap:
    if not metadata.startswith(PREFIX):
        raise unreadable(OffsetMapFault.UNKNOWN_FORMAT, _unknown_version(metadata))
    text, end, _ = metadata[len(PREFIX) :].partition(_END)
    body = unbase64(text) if end else b""
    if len(body) < _HEAD.size + _CRC.size:
        raise unreadable(OffsetMapFault.CUT_SHORT, f"cut short at {len(metadata)} bytes")
    if zlib.crc32(body[: -_CRC.size]) != _CRC.unpack(body[-_CRC.size :])[0]:
        raise unreadable(OffsetMapFault.CHECKSUM, "its checksum differs")
    tag, topic_id, ledger_id, sequence, base, length = _HEAD.unpack_from(body)
    rest = body[_HEAD.size : -_CRC.size]
    payload, time = rest[:length], rest[length:]
    if length != len(payload) or len(time) not in (0, _TIME.size):
        raise unreadable(
            OffsetMapFault.CUT_SHORT, f"it has {len(rest)} bytes of payload instead of {length}"
        )
    if base < 0:
        raise unreadable(OffsetMapFault.NEGATIVE, f"it is about offset {base}")
    beyond, encoding = _decode_payload(tag, payload, base)
    delivered_before_ms = _TIME.unpack(time)[0] if time else None
    return OffsetMap(topic_id, ledger_id, sequence, base, beyond, delivered_before_ms, encoding)


def _unknown_version(metadata: bytes) -> str:
    """Return why metadata with the mark of all versions is not of this version."""
    if (match := _VERSIONED.match(metadata)) is None:
        return "it has no version: it was cut"
    return (
        f"it has version {match[1].decode()}, and this package reads version {_VERSION}: a newer version of this package "
        "wrote it"
    )


def _payload(offset_map: OffsetMap) -> tuple[int, bytes]:
    """Return the smallest payload with its encoding."""
    beyond, base = offset_map.beyond, offset_map.base
    if beyond is None or len(beyond) > RANGES_MAX:
        return _Encoding.IN_LEDGER, b""
    if not beyond:
        return _Encoding.NOTHING, b""
    ways = _ways(beyond, base)
    smallest = min(ways, key=lambda way: len(way[1]))
    if len(smallest[1]) <= _PLAIN_BYTES_MAX:
        return smallest
    packed = [(tag | _COMPRESSED, deflate(payload)) for tag, payload in ways]
    return min([smallest, *packed], key=lambda way: len(way[1]))


def _ways(beyond: OffsetSet, base: int) -> list[tuple[int, bytes]]:
    """Return the payload in each encoding that may be the smallest."""
    edges = beyond.boundaries - base
    runs = np.diff(edges, prepend=0)
    ways: list[tuple[int, bytes]] = [(_Encoding.RUNS, varints_of(runs))]
    # Try wider numbers as well: zstd finds patterns in them that narrow numbers hide.
    for tag, (kind, most) in _WIDTHS.items():
        if tag not in _COUNTED_BITS and int(runs.max()) <= most:
            ways.append((tag, numbers_of(runs, kind)))
        elif tag in _COUNTED_BITS and int(edges[-1]) <= most and bits_pay(edges):
            ways.append((tag, counted_bits_of(edges, kind)))
    # For single offsets, done or not, between long ranges, runs would store a length of 1 for each.
    starts, ends = edges[::2], edges[1::2]
    if beyond.count <= min(2 * starts.size, RANGES_MAX):
        ways.append((_Encoding.OFFSETS, varints_of(np.diff(_each(starts, ends), prepend=0))))
    if int(runs[::2].sum()) < min(2 * starts.size + 1, RANGES_MAX):
        holes = _each(np.append(0, ends[:-1]), starts)
        ways.append((_Encoding.HOLES, varints_of(np.diff(holes, prepend=0, append=ends[-1]))))
    if bits_pay(edges):
        ways.append((_Encoding.BITS, bits_of(edges)))
    return ways


def _decode_payload(tag: int, payload: bytes, base: int) -> tuple[OffsetSet | None, str]:
    """Return the done offsets, and the name of the encoding."""
    try:
        encoding = _Encoding(tag & ~_COMPRESSED)
    except ValueError:
        raise unreadable(
            OffsetMapFault.UNKNOWN_FORMAT,
            f"a newer version of this package wrote it (encoding {tag & ~_COMPRESSED})",
        ) from None
    name = encoding.name.lower().replace("_", " ")
    if tag & _COMPRESSED:
        payload, name = inflate(payload), f"{name}, compressed"
    return _done(encoding, payload, base), name


def _done(encoding: _Encoding, payload: bytes, base: int) -> OffsetSet | None:
    match encoding:
        case _Encoding.NOTHING:
            return EMPTY_SET
        case _Encoding.IN_LEDGER:
            return None
        case _Encoding.RUNS:
            return set_of_runs(base, from_varints(payload))
        case _Encoding.OFFSETS:
            return set_of_offsets(base, from_varints(payload, for_each_range=1))
        case _Encoding.HOLES:
            return set_of_holes(base, from_varints(payload, for_each_range=1))
        case _Encoding.BITS:
            return set_of_edges(base, edges_of_bits(payload, 8 * len(payload)))
        case _Encoding.RUNS_OF_2_BYTES | _Encoding.RUNS_OF_4_BYTES:
            return set_of_runs(base, from_numbers(payload, _WIDTHS[encoding][0]))
        case _Encoding.BITS_AFTER_2_BYTES | _Encoding.BITS_AFTER_4_BYTES:
            return set_of_edges(base, from_counted_bits(payload, _WIDTHS[encoding][0])[1])


def _frame(offset_map: OffsetMap, tag: int, payload: bytes) -> bytes:
    head = _HEAD.pack(
        tag,
        offset_map.topic_id,
        offset_map.ledger_id,
        offset_map.sequence,
        offset_map.base,
        len(payload),
    )
    time_ms = offset_map.delivered_before_ms
    body = head + payload + (b"" if time_ms is None else _TIME.pack(time_ms))
    return PREFIX + base64_of(body + _CRC.pack(zlib.crc32(body))) + _END


def _each(starts: Int64Array, ends: Int64Array) -> Int64Array:
    """Return every offset of the ranges."""
    lengths = ends - starts
    # Count up through all ranges, and add for each range the distance of its start from the count.
    skipped: Int64Array = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    return skipped + np.arange(skipped.size, dtype=np.int64)
