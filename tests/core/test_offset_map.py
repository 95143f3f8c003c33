"""The offset map in commit metadata: exact, bounded, and never believed when damaged."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kafka_ordered_ops.core.errors import OffsetMapDecodeError, OffsetMapTooLargeError
from kafka_ordered_ops.core.offset_map.ours import (
    METADATA_BYTES_MAX,
    OffsetMap,
    decode_offset_map,
    encode_offset_map,
)
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
