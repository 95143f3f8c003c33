"""The records of the relay's log as bytes: what is written is read back, and all else is refused."""

from __future__ import annotations

import zlib
from contextlib import suppress
from struct import Struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import RelayLogCorruptError, RelayLogRecordError, RelayLogVersionError
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.relay.log_batch import sorted_batch
from kafka_ordered_ops.core.relay.log_records import (
    RANGES_MAX,
    RECORD_BYTES_MAX,
    STATE_RECORD_BYTES_MAX,
    TEXT_CHARACTERS_MAX,
    Acknowledged,
    Extended,
    Finished,
    Leased,
    LogRecord,
    Opened,
    Owned,
    Released,
    Served,
    Snapshot,
    decode,
    encode,
)
from kafka_ordered_ops.core.relay.state import PartitionState
from kafka_ordered_ops.core.types import INT64_MAX

texts = st.text(
    st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=TEXT_CHARACTERS_MAX
)
whole = st.integers(0, INT64_MAX)
positive = st.integers(1, INT64_MAX)
offsets = st.lists(st.tuples(whole, whole), max_size=20).map(OffsetSet.from_ranges)
state_records = st.one_of(
    st.builds(Owned, positive, texts, texts),
    st.builds(Opened, texts, whole, st.none() | offsets, st.none() | texts),
    st.builds(Leased, texts, texts, positive, offsets, whole, whole),
    st.builds(Extended, texts, texts, whole, offsets),
    st.builds(Released, texts, texts, offsets),
    st.builds(Acknowledged, texts, offsets),
    st.builds(Finished, texts, whole, texts),
    st.builds(Served, texts),
)
snapshots = st.builds(
    Snapshot,
    whole,
    positive,
    positive,
    st.lists(st.tuples(whole, state_records), max_size=4).map(tuple),
)
records = state_records | snapshots


@given(records)
def test_a_record_is_read_back(record: LogRecord) -> None:
    """Whatever its names and numbers are."""
    assert decode(encode(record)) == record


@given(records, st.data())
def test_damage_is_named_or_harmless(record: LogRecord, data: st.DataObject) -> None:
    """A changed byte gives another record or the error for damage, and never anything else."""
    damaged = bytearray(encode(record))
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    for one in (bytes(damaged), cut):
        with suppress(RelayLogCorruptError, RelayLogVersionError):
            decode(one)


LEASED = Leased("g", "id", 3, OffsetSet.of((5, 7)), 1_000, 1)
MANY = Acknowledged("g", OffsetSet.from_ranges([(one, one + 1) for one in range(0, 40, 2)]))


def _changed(record: LogRecord, at: int, *values: int) -> bytes:
    """A record with other bytes at a place."""
    data = bytearray(encode(record))
    data[at : at + len(values)] = bytes(values)
    return bytes(data)


def _ending(record: LogRecord, cut: int, *numbers: int) -> bytes:
    """A record with other numbers at its end."""
    return encode(record)[:-cut] + Struct(f"<{len(numbers)}q").pack(*numbers)


def _many(steps: list[int], ranges: int = 20) -> bytes:
    """A record of many ranges with these steps."""
    packed = zlib.compress(Struct(f"<{len(steps)}q").pack(*steps))
    return encode(MANY)[:6] + ranges.to_bytes(4, "little") + b"g" + packed


def test_the_bytes_are_as_documented() -> None:
    """Version, kind, lengths, number of ranges, texts, numbers, ranges: other programs can read them."""
    head = Struct("<BBHHI").pack(1, 4, 1, 2, 1)
    assert encode(LEASED) == head + b"gid" + Struct("<5q").pack(3, 1_000, 1, 5, 7)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (None, "no value"),
        (b"", "no value"),
        (b"\xff", "unpack"),
        (b'{"v":1}', "unpack"),
        (b'{"v":1,"kind":"acknowledged"}', "version is 123"),
        (_changed(LEASED, 0, 0), "version is 0"),
        (_changed(LEASED, 0, 32), "version is 32"),
        (_changed(LEASED, 1, 0), "kind is 0"),
        (_changed(LEASED, 1, 99), "kind is 99"),
        (_changed(LEASED, 10, 0xFF), "utf-8"),
        (_changed(Released("g", "id", OffsetSet()), 1, 7), "second text"),
        (_ending(LEASED, 40, 0, 1_000, 1, 5, 7), "less than it may be"),
        (_ending(LEASED, 40, 3, -1, 1, 5, 7), "less than it may be"),
        (_ending(LEASED, 40, 3, 1_000, -1, 5, 7), "less than it may be"),
        (_ending(LEASED, 16, -5, 7), "do not rise"),
        (_ending(LEASED, 16, 7, 7), "do not rise"),
        (_ending(LEASED, 16), "0 bytes of 1 ranges"),
        (_ending(LEASED, 16, 5, 7, 9), "24 bytes of 1 ranges"),
        (encode(Owned(1, "s", "t")) + b"x", "1 bytes too many"),
        (_changed(LEASED, 6, 0xFF, 0xFF, 0xFF, 0xFF), "ranges of at most"),
        (_changed(LEASED, 6, 0, 0, 0, 1), "ranges of at most"),
        (_changed(LEASED, 6, 9), "decompressed"),
        (_many([1] * 39), "do not have 320 bytes"),
        (_many([1] * 41), "do not have 320 bytes"),
        (_many([1] * 40) + b"x", "do not have 320 bytes"),
        (_many([1] * 40)[:-1], "do not have 320 bytes"),
        (_many([1] * 39 + [0]), "do not rise"),
        (_many([-1] + [1] * 39), "do not rise"),
        (_many([INT64_MAX] + [1] * 39), "do not rise"),
        (_many([1] * 40, 2), "bytes of 2 ranges"),
        (b"\1" * (RECORD_BYTES_MAX + 1), "at most"),
        (_changed(Snapshot(1, 1, 1, ()), 6, 1), "no texts and no ranges"),
        (_ending(Snapshot(1, 1, 1, ()), 24, 1, 0, 1), "less than it may be"),
        (encode(Snapshot(1, 1, 1, ((1, LEASED),)))[:-1], "cut off"),
        (encode(Snapshot(1, 1, 1, ())) + b"x", "unpack"),
    ],
)
def test_damage_is_named(data: bytes | None, named: str) -> None:
    """The error says what is wrong, and what to do."""
    with pytest.raises(RelayLogCorruptError) as raised:
        decode(data)
    assert named in str(raised.value)
    assert len(str(raised.value)) < 700


@given(records, st.integers(2, 31), st.binary())
def test_a_newer_version_is_no_damage(record: LogRecord, version: int, more: bytes) -> None:
    """Whatever else it has, also if it is read together with others."""
    data = _changed(record, 0, version) + more
    for read in (decode, lambda one: sorted_batch([(0, one)], 1)):
        with pytest.raises(RelayLogVersionError) as raised:
            read(data)
        assert raised.value.version == version


def test_damage_among_others_is_named() -> None:
    """Records that are read together are checked as well, before and when they are joined."""
    again = [(at, encode(LEASED)) for at in range(3)]
    done = encode(Acknowledged("g", OffsetSet.of((1, 2))))
    for good, bad in (
        (encode(LEASED), _ending(LEASED, 16, 7, 7)),
        (done, done[:-16] + Struct("<2q").pack(-1, 3)),
    ):
        with pytest.raises(RelayLogCorruptError, match="do not rise"):
            sorted_batch([(0, good), (1, good), (2, bad)], 3)
    state = PartitionState()
    with pytest.raises(RelayLogCorruptError, match="less than it may be"):
        state.fold(sorted_batch([*again, (3, _ending(LEASED, 40, 0, 1_000, 1, 5, 7))], 4))


@pytest.mark.parametrize(
    "record",
    [
        Acknowledged("", OffsetSet.of((1, 2))),
        Acknowledged("x" * (TEXT_CHARACTERS_MAX + 1), OffsetSet.of((1, 2))),
        Acknowledged("\ud800", OffsetSet.of((1, 2))),
        Owned(0, "s", "t"),
        Opened("g", -1),
        Opened("g", 0, None, "x" * (TEXT_CHARACTERS_MAX + 1)),
        Extended("g", "id", INT64_MAX + 1, OffsetSet()),
        Acknowledged("g", OffsetSet(np.arange(2 * RANGES_MAX + 2))),
        Snapshot(0, 0, 1, ()),
        Snapshot(0, 1, 1, ((-1, Owned(1, "s", "t")),)),
    ],
)
def test_what_would_not_be_read_back_is_not_written(record: LogRecord) -> None:
    """Else the server that reads it stops for ever."""
    with pytest.raises(RelayLogRecordError) as raised:
        encode(record)
    assert f"{STATE_RECORD_BYTES_MAX:,}" in str(raised.value)


def test_the_largest_record_is_written() -> None:
    """The limit is the limit: one byte more is too many."""
    steps = np.random.default_rng(1).integers(1, 2**40, 2 * 90_000)
    edges = np.cumsum(steps)

    def size(ranges: int) -> int:
        return len(encode(Opened("g", 0, OffsetSet(edges[: 2 * ranges]))))

    low, high = 1, 90_000
    while low + 1 < high:
        middle = (low + high) // 2
        try:
            size(middle)
            low = middle
        except RelayLogRecordError:
            high = middle
    left = STATE_RECORD_BYTES_MAX - size(low)
    assert 0 <= left < 30
    largest = Opened("g" * (1 + left), 0, OffsetSet(edges[: 2 * low]))
    assert len(encode(largest)) == STATE_RECORD_BYTES_MAX
    assert decode(encode(largest)) == largest
    with pytest.raises(RelayLogRecordError):
        encode(Opened("g" * (2 + left), 0, OffsetSet(edges[: 2 * low])))
