"""Encode the done ranges beyond a committed offset as text for the commit's metadata.

A committed offset means "all below is done". The map has the done ranges beyond it, in at most 4,096 bytes, next to
the offset itself. Every reader of a group's commits therefore knows its exact progress, and the ledger can be checked
against them.

Format (version 1)::

    ~koo1:<base64 of body>.

The tilde is outside the base64 alphabet, so other programs that keep maps there take this for foreign
text. The full stop ends the map: clients that append a NUL, or return bytes after the end, do no harm. The body is
big-endian:

=========  =====================================================================
bytes      meaning
=========  =====================================================================
1          encoding: 0 nothing beyond the base, 1 runs, 2 bits, 3 offsets, 127 see the ledger;
           plus 128 when the payload is compressed (zstd)
16         id of the topic
16         id of the ledger topic
8          sequence of the group's state in the ledger
8          base: the committed offset
4          length of the payload
n          payload
4          CRC-32 of all of the above
=========  =====================================================================

*Runs*: gap, length, gap, length, ... from the base. *Offsets*: the distance of each done offset from the
one before it (the first from the base). Both as LEB128 varints. *Bits*: bit i of byte j is set if base + 8 j + i is
done, least significant first.
"""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kafka_ordered_ops.core.errors import OffsetMapDecodeError, OffsetMapTooLargeError
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet

#: Kafka's default for ``offset.metadata.max.bytes``.
METADATA_BYTES_MAX: Final = 4_096

PREFIX: Final = b"~koo1:"
_END: Final = b"."
_HEAD: Final = struct.Struct(">B16s16sQqI")
_CRC: Final = struct.Struct(">I")

#: A map with more ranges than this cannot fit: a varint is a byte at least, and zstd finds little in them.
_RANGES_TRIED_MAX: Final = 50_000
#: Bits of a map tried as a bit set: 4,096 characters hold 24,000 plain; zstd seldom gains more than 40-fold.
_BITS_TRIED_MAX: Final = 1_000_000
#: The limit of a decompressed payload: a small one can claim gigabytes.
_PAYLOAD_BYTES_MAX: Final = 1 << 20
_COMPRESSED: Final = 0x80


class _Encoding(IntEnum):
    NOTHING = 0
    RUNS = 1
    BITS = 2
    OFFSETS = 3
    IN_LEDGER = 127


@dataclass(frozen=True, slots=True)
class OffsetMap:
    """The contents of commit metadata about one partition of a group."""

    #: 16 bytes each.
    topic_id: bytes
    ledger_id: bytes
    #: Of the group's state in the ledger, when the commit was made.
    sequence: int
    base: int
    #: Done offsets above the base; None where they did not fit and only the ledger has them.
    beyond: OffsetSet | None


def encode_offset_map(offset_map: OffsetMap, *, limit_bytes: int = METADATA_BYTES_MAX) -> bytes:
    """Return the metadata; the pointer form when the done ranges do not fit.

    Raises:
        OffsetMapTooLargeError: not even the pointer form fits the limit.
    """
    texts = [_frame(offset_map, tag, payload) for tag, payload in _payloads(offset_map)]
    fitting = next((text for text in texts if len(text) <= limit_bytes), None)
    if fitting is None:
        raise OffsetMapTooLargeError(
            f"an offset map needs at least {len(texts[-1])} bytes of commit metadata, and {limit_bytes} are "
            "allowed: raise the broker's offset.metadata.max.bytes"
        )
    return fitting


def is_offset_map(metadata: bytes) -> bool:
    """Return whether metadata claims to be such a map."""
    return metadata.startswith(PREFIX)


def decode_offset_map(metadata: bytes) -> OffsetMap | None:
    """Return the map; None where the metadata is something else.

    Raises:
        OffsetMapDecodeError: it claims to be a map, and is damaged.
    """
    if not is_offset_map(metadata):
        return None
    text, end, _ = metadata[len(PREFIX) :].partition(_END)
    try:
        body = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise _damaged(metadata, f"not base64: {error}") from error
    if not end or len(body) < _HEAD.size + _CRC.size:
        raise _damaged(metadata, f"cut short at {len(metadata)} bytes")
    if zlib.crc32(body[: -_CRC.size]) != _CRC.unpack(body[-_CRC.size :])[0]:
        raise _damaged(metadata, "its checksum differs")
    tag, topic_id, ledger_id, sequence, base, length = _HEAD.unpack_from(body)
    payload = body[_HEAD.size : -_CRC.size]
    if length != len(payload) or base < 0:
        raise _damaged(metadata, f"{len(payload)} bytes of payload where {length} are named")
    try:
        beyond = _decode_payload(tag, payload, base)
    except (ValueError, AssertionError, OverflowError, pa.ArrowException, OSError) as error:
        raise _damaged(metadata, str(error)) from error
    return OffsetMap(topic_id, ledger_id, sequence, base, beyond)


def _payloads(offset_map: OffsetMap) -> list[tuple[int, bytes]]:
    """Return the encodings, the smallest first and the pointer last."""
    pointer = (int(_Encoding.IN_LEDGER), b"")
    beyond, base = offset_map.beyond, offset_map.base
    if beyond is None:
        return [pointer]
    if not beyond:
        return [(int(_Encoding.NOTHING), b"")]
    ways: list[tuple[int, bytes]] = []
    if len(beyond) <= _RANGES_TRIED_MAX:
        ways.append((_Encoding.RUNS, _varints(np.diff(beyond.boundaries, prepend=base))))
    if beyond.count <= _RANGES_TRIED_MAX:
        ways.append((_Encoding.OFFSETS, _varints(np.diff(_each(beyond), prepend=base))))
    if beyond.end - base <= _BITS_TRIED_MAX:
        inside = beyond.mask(np.arange(base, beyond.end, dtype=np.int64))
        ways.append((_Encoding.BITS, np.packbits(inside, bitorder="little").tobytes()))
    codec = pa.Codec("zstd")
    ways += [(tag | _COMPRESSED, codec.compress(payload, asbytes=True)) for tag, payload in ways]
    ways.sort(key=lambda way: (len(way[1]), way[0]))
    return [*ways[:1], pointer]


def _decode_payload(tag: int, payload: bytes, base: int) -> OffsetSet | None:
    if tag & _COMPRESSED:
        payload = _decompress(payload)
    match _Encoding(tag & ~_COMPRESSED):
        case _Encoding.NOTHING:
            return EMPTY_SET
        case _Encoding.IN_LEDGER:
            return None
        case _Encoding.RUNS:
            return OffsetSet(base + np.cumsum(_from_varints(payload)))
        case _Encoding.OFFSETS:
            return OffsetSet.from_offsets(base + np.cumsum(_from_varints(payload)))
        case _Encoding.BITS:
            bits = np.unpackbits(np.frombuffer(payload, dtype=np.uint8), bitorder="little")
            return OffsetSet.from_offsets(base + np.flatnonzero(bits).astype(np.int64))


def _frame(offset_map: OffsetMap, tag: int, payload: bytes) -> bytes:
    head = _HEAD.pack(
        tag,
        offset_map.topic_id,
        offset_map.ledger_id,
        offset_map.sequence,
        offset_map.base,
        len(payload),
    )
    body = head + payload
    return PREFIX + base64.b64encode(body + _CRC.pack(zlib.crc32(body))) + _END


def _decompress(payload: bytes) -> bytes:
    stream = pa.CompressedInputStream(pa.BufferReader(payload), "zstd")
    plain = stream.read(_PAYLOAD_BYTES_MAX + 1)
    if len(plain) > _PAYLOAD_BYTES_MAX:
        raise ValueError(f"it unpacks to more than {_PAYLOAD_BYTES_MAX:,} bytes")
    return bytes(plain)


def _each(offsets: OffsetSet) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.concatenate([np.arange(start, end, dtype=np.int64) for start, end in offsets])


def _varints(values: np.ndarray[Any, np.dtype[np.int64]]) -> bytes:
    out = bytearray()
    for value in values.tolist():
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)
    return bytes(out)


def _from_varints(data: bytes) -> np.ndarray[Any, np.dtype[np.int64]]:
    values: list[int] = []
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            values.append(value)
            value = shift = 0
        elif shift > 63:
            raise ValueError("a number is too long")
    if shift:
        raise ValueError("the last number is cut short")
    return np.array(values, dtype=np.int64)


def _damaged(metadata: bytes, why: str) -> OffsetMapDecodeError:
    return OffsetMapDecodeError(
        f"commit metadata {metadata[:24]!r}... ({len(metadata)} bytes) is a damaged offset map: {why}"
    )
