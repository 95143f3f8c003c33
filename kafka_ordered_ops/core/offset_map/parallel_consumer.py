"""Read and write the offset maps of Confluent's Parallel Consumer, a Java library.

The library commits the first offset that is not done, with the done offsets above it in the commit's metadata: base64 of
one byte, the *magic*, and a body. All numbers are big-endian and signed, and relative to the committed offset, which is
not in the map.

=================  ==========  ======================================================
encoding           magic       body
=================  ==========  ======================================================
RunLength          ``n``       runs of 2 bytes, alternating: not done, done, not done, ...
RunLengthV2        ``e``       runs of 4 bytes
BitSet             ``l``       2 bytes: the number of offsets; a bit for each, 1 is done,
                               the least significant first; one zero byte
BitSetV2           ``o``       the same with a number of 4 bytes
ByteArray          ``L``       a byte for each offset, 1 is done; one zero byte
=================  ==========  ======================================================

Each encoding has a variant whose body is compressed with zstd: ``J``, ``p``, ``a``, ``s`` and the byte EE. The library
writes the first four and their variants, and fails on byte arrays.

Source: package ``io.confluent.parallelconsumer.offsets``, version 0.5.3.3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np

from kafka_ordered_ops.core.errors import (
    ConfigError,
    OffsetMapDecodeError,
    OffsetMapFault,
    OffsetMapTooLargeError,
    invariant,
)
from kafka_ordered_ops.core.offset_map.packing import (
    METADATA_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    RANGES_MAX,
    base64_of,
    bits_pay,
    counted_bits_of,
    deflate,
    edges_of_bits,
    from_counted_bits,
    from_numbers,
    inflate,
    numbers_of,
    set_of_edges,
    set_of_runs,
    unbase64,
    unreadable,
)
from kafka_ordered_ops.core.offset_set import EMPTY_SET, Int64Array, OffsetSet
from kafka_ordered_ops.core.types import INT64_MAX

#: The library compresses only if no plain form is smaller than this (``LARGE_ENCODED_SIZE_THRESHOLD_BYTES``).
_SMALL_BYTES: Final = 200

_INT16_MAX: Final = 2**15 - 1
_INT32_MAX: Final = 2**31 - 1


class Encoding(Enum):
    """The encoding of a map; the value is the magic byte."""

    RUN_LENGTH = 0x6E
    RUN_LENGTH_COMPRESSED = 0x4A
    RUN_LENGTH_V2 = 0x65
    RUN_LENGTH_V2_COMPRESSED = 0x70
    BIT_SET = 0x6C
    BIT_SET_COMPRESSED = 0x61
    BIT_SET_V2 = 0x6F
    BIT_SET_V2_COMPRESSED = 0x73
    #: Only read: the library fails on both.
    BYTE_ARRAY = 0x4C
    BYTE_ARRAY_COMPRESSED = 0xEE

    @property
    def label(self) -> str:
        """The library's name of the encoding."""
        return self.name.title().replace("_", "")

    @property
    def is_written(self) -> bool:
        """Whether the library can read this encoding."""
        return self.plain is not Encoding.BYTE_ARRAY

    @property
    def plain(self) -> Encoding:
        """The encoding of the same body without compression."""
        return Encoding[self.name.removesuffix("_COMPRESSED")]

    @property
    def compressed(self) -> Encoding:
        """The encoding of the same body with compression."""
        return Encoding[f"{self.plain.name}_COMPRESSED"]


#: Types of the numbers in the plain encodings: of runs, and of lengths.
_RUNS: Final = {Encoding.RUN_LENGTH: ">i2", Encoding.RUN_LENGTH_V2: ">i4"}
_LENGTHS: Final = {Encoding.BIT_SET: ">i2", Encoding.BIT_SET_V2: ">i4"}
_MOST: Final = {">i2": _INT16_MAX, ">i4": _INT32_MAX}


@dataclass(frozen=True, slots=True)
class ParallelConsumerMap:
    """The contents of one map."""

    #: The committed offset, which is not in the metadata.
    base: int
    #: The offset after the highest one that the map covers; the base if the map is empty.
    end: int
    #: Done offsets in [base, end).
    done: OffsetSet
    #: None for empty metadata.
    encoding: Encoding | None


def encode_parallel_consumer_map(
    base: int,
    done: OffsetSet,
    *,
    encoding: Encoding | None = None,
    limit_bytes: int = METADATA_BYTES_MAX,
) -> bytes:
    """Return the metadata for a commit of `base`; empty if no offset at or above the base is done.

    Without an encoding, the choice is the library's: the smallest plain encoding, and compression only if none is below
    200 bytes.

    Args:
        base: the offset to commit.
        done: done offsets, none below the base.
        encoding: an encoding that the library reads.
        limit_bytes: the limit of the metadata: the broker's ``offset.metadata.max.bytes``, and the library's own limit
            of 4,096.

    Raises:
        ConfigError: the encoding can only be read.
        OffsetMapTooLargeError: the map exceeds the limit, or the encoding's numbers.
    """
    if encoding is not None and not encoding.is_written:
        raise ConfigError(
            f"encoding {encoding.label} can only be read: Parallel Consumer fails on it. Choose another encoding"
        )
    if not done:
        return b""
    invariant(done.first >= base, f"offset {done.first} is done below the base {base}")
    _check_sizes(base, done)
    edges = done.boundaries - base
    text = (
        _smallest(base, edges)
        if encoding is None
        else _framed(encoding, _body_of(base, edges, encoding))
    )
    if len(text) > limit_bytes:
        raise OffsetMapTooLargeError(
            f"the offset map beyond offset {base} ({len(done):,} done ranges up to {done.end}) needs {len(text):,} "
            f"bytes of commit metadata, and {limit_bytes:,} are allowed: complete more of the offsets that are not done",
            size=len(text),
            limit=limit_bytes,
        )
    return text


def decode_parallel_consumer_map(metadata: bytes, base: int) -> ParallelConsumerMap:
    """Return the map in the metadata of a commit of `base`.

    It is read as the library reads it, except where that would wrongly treat offsets as done: negative
    numbers are refused, and ``bgAA`` covers nothing, even at offset 0.

    Raises:
        OffsetMapDecodeError: the metadata is something else, damaged, or larger than any map.
    """
    if not metadata:
        return ParallelConsumerMap(base, base, EMPTY_SET, None)
    try:
        body = unbase64(metadata)
        if not body:
            raise unreadable(OffsetMapFault.CUT_SHORT, "it has no bytes")
        encoding = encoding_of(body)
        if encoding is None:
            raise unreadable(OffsetMapFault.UNKNOWN_FORMAT, f"no encoding has the magic {body[0]}")
        plain = body[1:] if encoding is encoding.plain else inflate(body[1:])
        count, done = _decode_body(encoding.plain, plain, base)
        if count > min(_INT32_MAX, INT64_MAX - base):
            raise unreadable(OffsetMapFault.TOO_LARGE, f"it covers {count:,} offsets")
    except OffsetMapDecodeError as error:
        raise OffsetMapDecodeError(
            f"commit metadata {metadata[:24]!r} ({len(metadata)} bytes) of offset {base} is not an offset map of Parallel "
            f"Consumer: {error.message}",
            reason=error.reason,
        ) from error
    return ParallelConsumerMap(base, base + count, done, encoding)


def encoding_of(body: bytes) -> Encoding | None:
    """Return the encoding of the first byte; None for any other byte."""
    return next((encoding for encoding in Encoding if encoding.value == body[0]), None)


def _check_sizes(base: int, done: OffsetSet) -> None:
    for what, size, limit in (
        ("covers {} offsets", done.end - base, _INT32_MAX),
        ("has {} done ranges", len(done), RANGES_MAX),
    ):
        if size > limit:
            raise OffsetMapTooLargeError(
                f"the offset map beyond offset {base} {what.format(f'{size:,}')}, and {limit:,} are possible: complete "
                "more of the offsets that are not done",
                size=size,
                limit=limit,
            )


def _smallest(base: int, edges: Int64Array) -> bytes:
    sizes = dict(_sizes(edges))
    # Among equal sizes, the first one: runs.
    best = min(sizes, key=lambda kind: sizes[kind])
    plain = _framed(best, _body_of(base, edges, best))
    if sizes[best] < _SMALL_BYTES:
        return plain
    tried = [kind.compressed for kind in sizes if kind in _RUNS or bits_pay(edges)]
    packed = [_framed(kind, _body_of(base, edges, kind)) for kind in tried]
    return min([plain, *packed], key=len)


def _sizes(edges: Int64Array) -> Iterator[tuple[Encoding, int]]:
    """Yield each plain encoding that can hold the map, with the size of its body; the preferred encodings first."""
    longest, count = int(_runs(edges).max()), int(edges[-1])
    for runs, lengths in zip(_RUNS, _LENGTHS, strict=True):
        width = np.dtype(_RUNS[runs]).itemsize
        if longest <= _MOST[_RUNS[runs]]:
            yield runs, width * edges.size
        if count <= _MOST[_LENGTHS[lengths]]:
            yield lengths, width + (count + 7) // 8 + 1


def _runs(edges: Int64Array) -> Int64Array:
    return np.diff(edges, prepend=0)


def _body_of(base: int, edges: Int64Array, encoding: Encoding) -> bytes:
    plain = encoding.plain
    if (kind := _RUNS.get(plain)) is not None:
        runs = _runs(edges)
        _check_fits(base, encoding, "a run of", int(runs.max()), _MOST[kind])
        body = numbers_of(runs, kind)
    else:
        kind = _LENGTHS[plain]
        count = int(edges[-1])
        _check_fits(base, encoding, "", count, _MOST[kind])
        _check_fits(base, encoding, "", count, 8 * PAYLOAD_BYTES_MAX)
        body = counted_bits_of(edges, kind)
    return body if encoding is plain else deflate(body)


def _check_fits(base: int, encoding: Encoding, what: str, size: int, limit: int) -> None:
    if size > limit:
        raise OffsetMapTooLargeError(
            f"the offset map beyond offset {base} has {what} {size:,} offsets, and {encoding.label} holds {limit:,}: "
            "leave the choice of the encoding to the package",
            size=size,
            limit=limit,
        )


def _framed(encoding: Encoding, body: bytes) -> bytes:
    return base64_of(bytes([encoding.value]) + body)


def _decode_body(plain: Encoding, body: bytes, base: int) -> tuple[int, OffsetSet]:
    """Return the number of offsets that the map covers, and the done offsets."""
    if (kind := _RUNS.get(plain)) is not None:
        runs = from_numbers(body, kind)
        return int(runs.sum()), set_of_runs(base, runs)
    if (kind := _LENGTHS.get(plain)) is not None:
        count, edges = from_counted_bits(body, kind)
        return count, set_of_edges(base, edges)
    count = max(len(body) - 1, 0)
    done = np.frombuffer(body, dtype=np.uint8, count=count) == 1
    return count, set_of_edges(
        base, edges_of_bits(np.packbits(done, bitorder="little").tobytes(), count)
    )
