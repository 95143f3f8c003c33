"""Parallel Consumer's offset maps: what the Java library wrote is read, and what is written equals it to the byte."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import struct
import tracemalloc
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kafka_ordered_ops import ConfigError, OffsetMapDecodeError, OffsetMapTooLargeError
from kafka_ordered_ops.core.errors import OffsetMapFault
from kafka_ordered_ops.core.offset_map.packing import METADATA_BYTES_MAX, RANGES_MAX, deflate
from kafka_ordered_ops.core.offset_map.parallel_consumer import (
    Encoding,
    decode_parallel_consumer_map,
    encode_parallel_consumer_map,
)
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from tests.support.strategies import large_offset_sets, members, offset_sets

#: Made by the library itself.
VECTORS: Final = json.loads(
    (Path(__file__).parent / "parallel_consumer_vectors.json").read_text(encoding="utf-8")
)
ENCODED: Final = [
    pytest.param(case, Encoding(VECTORS["magic"][label]), id=f"{case['name']}-{label}")
    for case in VECTORS["encode"]
    for label, written in case["metadata"].items()
    if "b64" in written
]
CHOSEN: Final = [case for case in VECTORS["encode"] if case["highest_succeeded"] >= case["base"]]

WRITTEN: Final = [one for one in Encoding if one.is_written]

#: Where the library takes offsets for done that nobody finished, or fails: what is read instead.
DIFFERENT: Final[dict[str, OffsetMapFault | int]] = {
    "run-length v2 no runs, base 0": -1,
    "run-length v1 run read as signed short (0xFFFF), incomplete run": OffsetMapFault.NEGATIVE,
    "run-length v1 run read as signed short (0xFFFF), complete run": OffsetMapFault.NEGATIVE,
    "bitset v1 negative length": OffsetMapFault.NEGATIVE,
    "kafka streams v1, IGNORE": OffsetMapFault.UNKNOWN_FORMAT,
    "kafka streams v2, IGNORE": OffsetMapFault.UNKNOWN_FORMAT,
}
#: The library's errors, by a part of their texts.
FAULTS: Final = {
    "BufferUnderflow": OffsetMapFault.CUT_SHORT,
    "Unexpected magic": OffsetMapFault.UNKNOWN_FORMAT,
    "Illegal base64": OffsetMapFault.NOT_BASE64,
    "ZstdIOException": OffsetMapFault.NOT_ZSTD,
}


def metadata_of(case: dict[str, Any], encoding: Encoding) -> bytes:
    """What the library wrote."""
    return str(case["metadata"][encoding.label]["b64"]).encode()


def text_of(encoding: Encoding, body: bytes) -> bytes:
    """Metadata with any body."""
    return base64.b64encode(
        bytes([encoding.value]) + (body if encoding is encoding.plain else deflate(body))
    )


def fault_of(metadata: bytes, base: int = 100) -> OffsetMapFault:
    """Why a map is refused."""
    with pytest.raises(OffsetMapDecodeError) as refused:
        decode_parallel_consumer_map(metadata, base)
    return refused.value.reason


@pytest.mark.parametrize(("case", "encoding"), ENCODED)
def test_what_the_library_wrote_is_read(case: dict[str, Any], encoding: Encoding) -> None:
    """All ten encodings: the same end, and the same offsets that are not done."""
    base = case["base"]
    found = decode_parallel_consumer_map(metadata_of(case, encoding), base)
    missing = OffsetSet.of((base, found.end)) - found.done
    decoded = case["metadata"][encoding.label]["decoded"]
    assert found.encoding is encoding
    assert found.end == decoded.get("highest_seen", found.end - 1) + 1
    assert missing.count == case["n_incomplete"]
    assert members(missing) == set(case.get("incompletes", members(missing)))


@pytest.mark.parametrize(("case", "encoding"), ENCODED)
def test_what_is_written_equals_the_librarys_to_the_byte(
    case: dict[str, Any], encoding: Encoding
) -> None:
    """Compressed maps equal it once they are unpacked."""
    base = case["base"]
    found = decode_parallel_consumer_map(metadata_of(case, encoding), base)
    if not (encoding.is_written and found.done):
        return
    text = encode_parallel_consumer_map(base, found.done, encoding=encoding, limit_bytes=2**20)
    if encoding is encoding.plain:
        assert text == metadata_of(case, encoding)
    else:
        assert decode_parallel_consumer_map(text, base) == found


@pytest.mark.parametrize("case", CHOSEN, ids=lambda case: case["name"])
def test_the_choice_of_the_encoding_is_the_librarys(case: dict[str, Any]) -> None:
    """One that the library chose for the same map; of those that it chose in turn, runs."""
    label = next(iter(case["chosen_in_runs"]))
    done = decode_parallel_consumer_map(metadata_of(case, Encoding[_name(label)]), case["base"])
    text = encode_parallel_consumer_map(case["base"], done.done, limit_bytes=2**20)
    chosen = decode_parallel_consumer_map(text, case["base"]).encoding
    assert chosen is not None
    assert chosen.label in case["chosen_in_runs"]
    assert chosen.label == "RunLength" or "RunLength" not in case["chosen_in_runs"]
    assert len(text) == case["chosen_len"]


def _name(label: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", label).upper()


@pytest.mark.parametrize("case", VECTORS["decode"], ids=lambda case: case["name"])
def test_odd_metadata_is_read_as_the_library_reads_it(case: dict[str, Any]) -> None:
    """Or refused for a reason, where the library fails or believes nonsense."""
    metadata, base, result = case["metadata"].encode(), case["base"], case["result"]
    expected = DIFFERENT.get(case["name"], result.get("highest_seen"))
    if "error" in result:
        expected = next(fault for text, fault in FAULTS.items() if text in result["error"])
    if isinstance(expected, OffsetMapFault):
        assert fault_of(metadata, base) is expected
        return
    found = decode_parallel_consumer_map(metadata, base)
    assert found.end == expected + 1
    assert members(OffsetSet.of((base, found.end)) - found.done) == set(result["incompletes"])


@pytest.mark.parametrize(
    "case", [one for one in VECTORS["e2e"] if "incompletes" in one], ids=lambda one: one["metadata"]
)
def test_what_a_running_consumer_committed_is_read_and_written(case: dict[str, Any]) -> None:
    """The consumer did all but the named offsets of 0 to 999."""
    base, metadata = case["committed_offset"], case["metadata"].encode()
    missing = OffsetSet.of(*((offset, offset + 1) for offset in case["incompletes"]))
    done = OffsetSet.of((base, 1_000)) - missing
    found = decode_parallel_consumer_map(metadata, base)
    assert (found.done, found.end) == (done, 1_000)
    assert encode_parallel_consumer_map(base, done) == metadata


@given(offset_sets, st.integers(0, 2**40), st.sampled_from([None, *WRITTEN]))
@example(OffsetSet.of((0, 1)), 0, Encoding.BIT_SET)
@example(OffsetSet.of((1, 2)), 2**40, None)
def test_a_map_survives_its_text(shape: OffsetSet, base: int, encoding: Encoding | None) -> None:
    """Every set in every encoding."""
    done = OffsetSet.of(*((base + start, base + end) for start, end in shape))
    text = encode_parallel_consumer_map(base, done, encoding=encoding)
    found = decode_parallel_consumer_map(text, base)
    assert (found.done, found.end) == (done, done.end if done else base)
    assert encoding is None or found.encoding is (encoding if done else None)


@given(
    st.lists(st.integers(1, 70), min_size=2, max_size=400).filter(lambda runs: len(runs) % 2 == 0)
)
def test_the_choice_is_never_larger_than_any_plain_encoding(runs: list[int]) -> None:
    """Whatever the map."""
    done = OffsetSet(np.cumsum(runs))
    text = encode_parallel_consumer_map(0, done, limit_bytes=2**20)
    for encoding in WRITTEN:
        if encoding is encoding.plain:
            other = encode_parallel_consumer_map(0, done, encoding=encoding, limit_bytes=2**20)
            assert len(text) <= len(other)


@given(large_offset_sets, st.sampled_from([None, *WRITTEN]))
def test_a_map_that_cannot_be_written_is_refused(
    done: OffsetSet, encoding: Encoding | None
) -> None:
    """Nothing is cut off in silence."""
    with contextlib.suppress(OffsetMapTooLargeError):
        text = encode_parallel_consumer_map(0, done, encoding=encoding)
        assert decode_parallel_consumer_map(text, 0).done == done
        assert len(text) <= METADATA_BYTES_MAX


def test_the_limit_holds_to_the_byte() -> None:
    """A map of exactly the limit is written."""
    done = OffsetSet.of((5, 6), (9, 12))
    size = len(encode_parallel_consumer_map(3, done))
    assert encode_parallel_consumer_map(3, done, limit_bytes=size)
    with pytest.raises(OffsetMapTooLargeError) as refused:
        encode_parallel_consumer_map(3, done, limit_bytes=size - 1)
    assert (refused.value.size, refused.value.limit) == (size, size - 1)


def test_an_encoding_that_the_library_cannot_read_is_not_written() -> None:
    """Byte arrays end the Java consumer."""
    with pytest.raises(ConfigError, match="ByteArrayCompressed can only be read"):
        encode_parallel_consumer_map(
            0, OffsetSet.of((1, 2)), encoding=Encoding.BYTE_ARRAY_COMPRESSED
        )


@pytest.mark.parametrize("encoding", [None, *WRITTEN])
def test_nothing_done_is_empty_metadata(encoding: Encoding | None) -> None:
    """Never ``bgAA``, which the library reads as offset 0 being done."""
    assert encode_parallel_consumer_map(0, EMPTY_SET, encoding=encoding) == b""


@pytest.mark.parametrize(
    ("metadata", "fault"),
    [
        (b"bgABAAk=\0", OffsetMapFault.NOT_BASE64),
        (b"=", OffsetMapFault.NOT_BASE64),
        (text_of(Encoding.BIT_SET_V2, b"\0\0\0"), OffsetMapFault.CUT_SHORT),
        (text_of(Encoding.BIT_SET_V2, b"\xff\xff\xff\xff"), OffsetMapFault.NEGATIVE),
        (text_of(Encoding.RUN_LENGTH_V2, b"\x7f\xff\xff\xff" * 2), OffsetMapFault.TOO_LARGE),
        (text_of(Encoding.RUN_LENGTH_V2, b"\x80\0\0\0"), OffsetMapFault.NEGATIVE),
        # Bombs: a few bytes that unpack to megabytes, each of another kind.
        (text_of(Encoding.BIT_SET_V2_COMPRESSED, bytes(64 << 20)), OffsetMapFault.TOO_LARGE),
        (
            text_of(
                Encoding.BIT_SET_V2_COMPRESSED, struct.pack(">i", 2**26 - 64) + b"\xaa" * 2**22
            ),
            OffsetMapFault.TOO_LARGE,
        ),
        (
            text_of(Encoding.RUN_LENGTH_COMPRESSED, b"\0\1" * (2 * RANGES_MAX + 2)),
            OffsetMapFault.TOO_LARGE,
        ),
        (
            text_of(Encoding.BYTE_ARRAY_COMPRESSED, b"\0\1" * (RANGES_MAX + 2)),
            OffsetMapFault.TOO_LARGE,
        ),
        (text_of(Encoding.RUN_LENGTH_COMPRESSED, b"\0\1" * 400)[:-8], OffsetMapFault.NOT_ZSTD),
    ],
)
def test_hostile_metadata_is_refused_in_bounded_memory(
    metadata: bytes, fault: OffsetMapFault
) -> None:
    """For a named reason."""
    assert len(metadata) <= 2 * METADATA_BYTES_MAX
    tracemalloc.start()
    try:
        assert fault_of(metadata) is fault
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_a_length_without_bits_is_nothing_done() -> None:
    """A map may cover two thousand million offsets, and take no memory for them."""
    found = decode_parallel_consumer_map(
        text_of(Encoding.BIT_SET_V2, struct.pack(">i", 2**31 - 1)), 5
    )
    assert (found.done, found.end) == (EMPTY_SET, 2**31 + 4)


def test_no_map_reaches_past_the_largest_offset() -> None:
    """Whatever the committed offset."""
    assert (
        fault_of(text_of(Encoding.RUN_LENGTH, b"\0\1\0\1"), 2**63 - 2) is OffsetMapFault.TOO_LARGE
    )


def test_runs_of_no_offsets_join_their_neighbours() -> None:
    """The library takes them, too."""
    runs = np.array([2, 0, 1, 3, 0, 4, 1, 0], dtype=">i2")
    found = decode_parallel_consumer_map(text_of(Encoding.RUN_LENGTH, runs.tobytes()), 10)
    assert (found.done, found.end) == (OffsetSet.of((13, 20)), 21)


@given(st.sampled_from(Encoding), st.binary(max_size=200), st.integers(0, 2**63 - 1))
def test_any_body_is_a_map_or_a_named_error(encoding: Encoding, body: bytes, base: int) -> None:
    """Fuzz: no crash, no other exception, and no offset outside the map."""
    with contextlib.suppress(OffsetMapDecodeError):
        found = decode_parallel_consumer_map(text_of(encoding, body), base)
        assert found.done <= OffsetSet.of((base, found.end))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_map_or_a_named_error(metadata: bytes) -> None:
    """Also behind base64, and as a frame of zstd."""
    for one in (
        metadata,
        base64.b64encode(metadata),
        *(base64.b64encode(bytes([encoding.value]) + metadata) for encoding in Encoding),
    ):
        with contextlib.suppress(OffsetMapDecodeError):
            decode_parallel_consumer_map(one, 7)
