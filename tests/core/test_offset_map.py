"""The offset map in commit metadata: exact, bounded, and never believed when damaged."""

from __future__ import annotations

import base64
import contextlib
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kafka_ordered_ops import OffsetMapDecodeError, OffsetMapTooLargeError
from kafka_ordered_ops.core.errors import OffsetMapFault
from kafka_ordered_ops.core.offset_map.ours import (
    METADATA_BYTES_MAX,
    OffsetMap,
    decode_offset_map,
    encode_offset_map,
)
from kafka_ordered_ops.core.offset_map.packing import (
    RANGES_MAX,
    deflate,
    from_varints,
    inflate,
    varints_of,
)
from kafka_ordered_ops.core.offset_map.parallel_consumer import encode_parallel_consumer_map
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from tests.support.strategies import large_offset_sets, offset_sets

ids = st.binary(min_size=16, max_size=16)


def a_map(beyond: OffsetSet | None, base: int = 0) -> OffsetMap:
    """A map of which only the ranges matter."""
    return OffsetMap(b"t" * 16, b"l" * 16, 7, base, beyond)


@given(ids, ids, st.integers(0, 2**64 - 1), st.integers(0, 2**40), offset_sets)
def test_a_map_survives_its_text(
    topic_id: bytes, ledger_id: bytes, sequence: int, base: int, shape: OffsetSet
) -> None:
    """Every field and every range, whatever the encoding."""
    beyond = OffsetSet.of(*((base + 1 + start, base + 1 + end) for start, end in shape))
    written = OffsetMap(topic_id, ledger_id, sequence, base, beyond)
    assert decode_offset_map(encode_offset_map(written)) == written


@given(large_offset_sets)
def test_ranges_far_apart_survive(beyond: OffsetSet) -> None:
    """Runs of up to 2**62 offsets are no bit set."""
    beyond = beyond - OffsetSet.of((0, 1))
    assert decode_offset_map(encode_offset_map(a_map(beyond))) == a_map(beyond)


@pytest.mark.parametrize(
    ("beyond", "most"),
    [
        (EMPTY_SET, 90),
        (OffsetSet.of((1, 1_000_000)), 100),
        (OffsetSet.of(*((n, n + 1) for n in range(1, 20_000, 2))), 200),
        (OffsetSet.of(*((n * n, n * n + 1) for n in range(1, 1_000))), 2_600),
    ],
)
def test_maps_are_small(beyond: OffsetSet, most: int) -> None:
    """The smallest encoding is taken, compressed where that helps."""
    assert len(encode_offset_map(a_map(beyond))) <= most


def test_what_does_not_fit_points_to_the_ledger() -> None:
    """Too large a map is never dropped in silence: the metadata says that the ledger has it."""
    squares = OffsetSet.of(*((n * n, n * n + 1) for n in range(1, 40_000)))
    text = encode_offset_map(a_map(squares))
    assert len(text) <= METADATA_BYTES_MAX
    assert decode_offset_map(text) == a_map(None)
    with pytest.raises(OffsetMapTooLargeError, match="at least"):
        encode_offset_map(a_map(squares), limit_bytes=50)


def test_every_encoding_is_chosen_and_read() -> None:
    """Each is the smallest for some set."""
    regular = np.random.default_rng(1).integers(1, 9, 40)
    shapes = {
        "nothing": EMPTY_SET,
        "runs": OffsetSet.of((300, 900), (5_000, 9_000)),
        "bits": OffsetSet.of((1, 2), (4, 5), (7, 9)),
        "offsets": OffsetSet.of((1_000, 1_001), (2_000, 2_001)),
        "holes": OffsetSet.of((1, 300), (301, 400)),
        "runs of 2 bytes": OffsetSet.of((20_000, 40_000)),
        "runs of 4 bytes": OffsetSet.of((2**30, 2**31)),
        "runs, compressed": OffsetSet(np.cumsum(np.tile(regular, 200))),
    }
    for name, beyond in shapes.items():
        found = decode_offset_map(encode_offset_map(a_map(beyond)))
        assert found == a_map(beyond)
        assert found.encoding == name


@given(
    st.lists(st.integers(1, 300) | st.integers(1, 2**21), min_size=2, max_size=200).filter(
        lambda runs: len(runs) % 2 == 0
    ),
    st.integers(1, 5),
)
@example([20_000] * 20, 1)
@example([2**28] * 4, 1)
def test_a_payload_is_never_larger_than_parallel_consumers(runs: list[int], times: int) -> None:
    """Of the same set: it is plain wherever that one is, and has all of its encodings."""
    beyond = OffsetSet(np.cumsum(runs * times))
    theirs = base64.b64decode(encode_parallel_consumer_map(0, beyond, limit_bytes=2**30))
    frame = len(base64.b64decode(encode_offset_map(a_map(EMPTY_SET))[6:-1]))
    ours = base64.b64decode(encode_offset_map(a_map(beyond), limit_bytes=2**30)[6:-1])
    assert len(ours) - frame <= len(theirs) - 1


#: Of a map about offset 10: base64 of the topic's id, the ledger's and the sequence.
_STORED_HEAD = b"R0dHR0dHR0dHR0dHR0dHRsbGxsbGxsbGxsbGxsbGxsAAAAAAAAAAcAAAAAAAAACgAAAA"


@pytest.mark.parametrize(
    ("metadata", "beyond"),
    [
        (b"~koo1:AH" + _STORED_HEAD + b"DQgGt1.", EMPTY_SET),
        (b"~koo1:AX" + _STORED_HEAD + b"QBtYQ9FfPfiA==.", OffsetSet.of((11, 1_000_000))),
        (b"~koo1:An" + _STORED_HEAD + b"FkojItOQ==.", OffsetSet.of((12, 13), (15, 17))),
        (
            b"~koo1:A3" + _STORED_HEAD + b"ToB8YPQ5Mjiw==.",
            OffsetSet.of((1_010, 1_011), (3_000, 3_001)),
        ),
        (
            b"~koo1:gX" + _STORED_HEAD[:-1] + b"BMotS/9YBZNTQAAEAEBAQARzg6w87UFUA==.",
            OffsetSet.of(*((n, n + 1) for n in range(11, 20_000, 2))),
        ),
        (
            b"~koo1:g3" + _STORED_HEAD[:-1] + b"BIotS/9IMZNAAAQrAIBAMEohwU8SCo+.",
            OffsetSet.of(*((n, n + 1) for n in range(310, 29_800, 300))),
        ),
        (b"~koo1:f3" + _STORED_HEAD + b"AE0q2X.", None),
    ],
)
def test_maps_stored_by_earlier_versions_are_read(
    metadata: bytes, beyond: OffsetSet | None
) -> None:
    """Groups keep them as long as nobody commits."""
    assert decode_offset_map(metadata) == a_map(beyond, base=10)


def _with_payload(tag: int, payload: bytes, base: int = 10) -> bytes:
    """A whole map with any payload."""
    head = struct.pack(">B16s16sQqI", tag, b"t" * 16, b"l" * 16, 7, base, len(payload))
    body = head + payload
    return b"~koo1:" + base64.b64encode(body + struct.pack(">I", zlib.crc32(body))) + b"."


@pytest.mark.parametrize(
    ("metadata", "fault"),
    [
        (_with_payload(1, b"\x05\x80"), OffsetMapFault.CUT_SHORT),
        (_with_payload(1, b"\x80" * 9 + b"\x01"), OffsetMapFault.TOO_LARGE),
        (_with_payload(1, (b"\xff" * 8 + b"\x7f") * 2), OffsetMapFault.TOO_LARGE),
        (_with_payload(3, varints_of(np.array([2**63 - 11]))), OffsetMapFault.TOO_LARGE),
        (_with_payload(4, b"\xff\xff\0\1"), OffsetMapFault.NEGATIVE),
        (_with_payload(0x81, b"\1\2\3\4"), OffsetMapFault.NOT_ZSTD),
        (_with_payload(0x81, deflate(b"\1" * 2_000_004)), OffsetMapFault.TOO_LARGE),
        (_with_payload(0x83, deflate(b"\2" * 1_000_001)), OffsetMapFault.TOO_LARGE),
        (_with_payload(0x86, deflate(b"\2" * 1_000_001)), OffsetMapFault.TOO_LARGE),
        (_with_payload(3, b"\5\0"), OffsetMapFault.NEGATIVE),
        (_with_payload(6, b"\0\5\0"), OffsetMapFault.NEGATIVE),
        (_with_payload(0x82, deflate(b"\xaa" * 2**20)), OffsetMapFault.TOO_LARGE),
        (_with_payload(0x82, deflate(bytes(2**26))), OffsetMapFault.TOO_LARGE),
        (_with_payload(99, b""), OffsetMapFault.UNKNOWN_FORMAT),
        (_with_payload(0, b"", base=-1), OffsetMapFault.NEGATIVE),
        (_with_payload(0, b"").replace(b"dHR0", b"dHR1", 1), OffsetMapFault.CHECKSUM),
    ],
)
def test_a_hostile_payload_is_a_named_error(metadata: bytes, fault: OffsetMapFault) -> None:
    """Also behind a right checksum."""
    with pytest.raises(OffsetMapDecodeError) as refused:
        decode_offset_map(metadata)
    assert refused.value.reason is fault


@pytest.mark.parametrize(
    ("tag", "payload"),
    [
        (0x81, b"\1" * 2 * RANGES_MAX),
        (0x82, b"\2" + (b"\2" + bytes(7)) * (RANGES_MAX - 1)),
        (0x83, b"\2" * RANGES_MAX),
        (0x85, b"\0\0\0\1" * 2 * RANGES_MAX),
        (0x86, b"\0" + b"\2" * (RANGES_MAX - 1)),
    ],
)
def test_the_most_ranges_of_a_map_are_read_in_bounded_memory(tag: int, payload: bytes) -> None:
    """Every second offset, or as far apart as the bits can be: a few hundred bytes of metadata."""
    metadata = _with_payload(tag, deflate(payload))
    assert len(metadata) < METADATA_BYTES_MAX
    tracemalloc.start()
    try:
        found = decode_offset_map(metadata)
        assert tracemalloc.get_traced_memory()[1] < 96 << 20
    finally:
        tracemalloc.stop()
    assert found is not None
    assert found.beyond is not None
    assert RANGES_MAX - 1 <= len(found.beyond) <= RANGES_MAX


@given(
    st.sampled_from([*range(9), 127]),
    st.binary(max_size=100),
    st.booleans(),
    st.integers(0, 2**63 - 1),
)
def test_any_payload_is_a_map_or_a_named_error(
    encoding: int, payload: bytes, compressed: bool, base: int
) -> None:
    """Fuzz behind the checksum: no crash, no other exception."""
    tag, payload = (
        (encoding | 0x80, deflate(payload or b"x")) if compressed else (encoding, payload)
    )
    with contextlib.suppress(OffsetMapDecodeError):
        assert decode_offset_map(_with_payload(tag, payload, base)) is not None


@given(st.lists(st.integers(0, 2**63 - 1) | st.integers(0, 300)))
def test_numbers_survive_their_varints(values: list[int]) -> None:
    """Of all sizes."""
    assert from_varints(varints_of(np.array(values, dtype=np.int64))).tolist() == values


@given(st.binary(min_size=1, max_size=3_000), st.sampled_from([1, 30, 3_000]))
@example(b"a" * 256, 1)
@example(b"a" * 257, 1)
@example(b"a" * 65_791, 1)
@example(b"a" * 65_792, 1)
@example(b"ab", 4_000_000)
def test_bytes_survive_their_frame(plain: bytes, times: int) -> None:
    """Whatever size zstd has noted, and we have removed."""
    assert inflate(deflate(plain * times)) == plain * times


@given(st.binary(max_size=300))
@example(b"")
@example(b"bgAA")
@example(b"host-1:4711")
def test_metadata_of_others_is_no_map(metadata: bytes) -> None:
    """Whatever another program wrote there is left alone."""
    assert decode_offset_map(b"x" + metadata) is None


@given(offset_sets, st.data())
def test_damage_is_found(shape: OffsetSet, data: st.DataObject) -> None:
    """Any byte changed, or the text cut short: a named error, never another map."""
    text = bytearray(encode_offset_map(a_map(shape - OffsetSet.of((0, 1)))))
    place = data.draw(st.integers(len(b"~koo1:"), len(text) - 1))
    text[place] ^= data.draw(st.sampled_from([1, 2, 4, 8, 16, 32, 64]))
    with pytest.raises(OffsetMapDecodeError):
        decode_offset_map(bytes(text))
    with pytest.raises(OffsetMapDecodeError):
        decode_offset_map(encode_offset_map(a_map(shape))[:place])


@given(st.binary(max_size=400))
def test_anything_behind_the_prefix_is_a_map_or_a_named_error(body: bytes) -> None:
    """Fuzz: no crash, no other exception."""
    with contextlib.suppress(OffsetMapDecodeError):
        decode_offset_map(b"~koo1:" + body)


@given(offset_sets, st.binary(max_size=40))
def test_bytes_behind_the_end_do_no_harm(shape: OffsetSet, tail: bytes) -> None:
    """Clients append a NUL to metadata, or hand back what lies behind it in memory."""
    written = a_map(shape - OffsetSet.of((0, 1)))
    assert decode_offset_map(encode_offset_map(written) + b"\0" + tail) == written
