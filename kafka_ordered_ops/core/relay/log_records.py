"""The records of the relay's log, and their bytes.

A partition of the log is for one partition of a topic and all client groups. A server reads a million of these
records when it starts, so the format is fast to read: numbers have eight bytes, and the fields that are needed first
come first. All numbers are little-endian.

| bytes | field |
|---|---|
| 1 | version of this format: 1 to 31 |
| 1 | kind |
| 2, 2 | lengths of the first and the second text |
| 4 | number of ranges of offsets |
| | the texts, in UTF-8: a group, a lease's id, and so on |
| 8 each | numbers |
| 16 each | ranges: the first offset, and the offset after the last |

More than a few ranges are packed (`core.window.packed_ranges`). A snapshot has no texts and no ranges;
its numbers are followed by its records, each with its position (8 bytes) and length (4 bytes).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from operator import lt
from struct import Struct, error, unpack_from
from typing import Any, Final, NamedTuple, TypeAlias

from kafka_ordered_ops.core.errors import (
    RelayLogCorruptError,
    RelayLogRecordError,
    RelayLogVersionError,
)
from kafka_ordered_ops.core.numpy_later import np
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.window.packed_ranges import pack, unpack

#: Brokers accept records of 1,048,588 bytes by default, with headers and framing.
RECORD_BYTES_MAX: Final = 1_000_000
#: Limit of all other records: each of them fits into a snapshot.
STATE_RECORD_BYTES_MAX: Final = 900_000
#: Limit of a group's name and of ids, far longer than usual ones.
TEXT_CHARACTERS_MAX: Final = 255
#: Ranges of one record, as in a window's plan: compressed data must not fill the memory.
RANGES_MAX: Final = 1_000_000
#: Up to this many ranges are not compressed.
_PLAIN_RANGES_MAX: Final = 8
#: Hexadecimal digits of a digest.
_DIGITS: Final = 32
_VERSION: Final = 1
#: Greater first bytes are not versions: another program wrote the record, usually as text.
VERSION_MAX: Final = 31
#: Number of ranges that marks a group without an end.
_ENDLESS: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Owned:
    """A server claims the partition. The first claim of an epoch counts."""

    epoch: int
    server_id: str
    topic_id: str


@dataclass(frozen=True, slots=True)
class Served:
    """The servers of a relay group serve the partition. The last record of this kind counts; a new log has none."""

    relay_group: str


@dataclass(frozen=True, slots=True)
class Opened:
    """A group begins. The first record of this kind counts for a group."""

    group: str
    #: The first offset.
    start: int
    #: The exact offsets of a window; None for all offsets from `start` on.
    offsets: OffsetSet | None = None
    #: The name of the access token that began the group; None for a window, and on a server without tokens.
    begun_by: str | None = None


@dataclass(frozen=True, slots=True)
class Leased:
    """One client holds offsets until a time. All of them have the same attempt number.

    It is the number of attempts that count, including this one: a lease that does not count repeats the number of the
    lease before it. Among leases with the same number, the last one in the log is the newest.
    """

    group: str
    lease_id: str
    epoch: int
    offsets: OffsetSet
    until_ms: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Extended:
    """A lease ends later."""

    group: str
    lease_id: str
    until_ms: int
    #: The offsets of the lease: when all are acknowledged, the extension can be forgotten.
    offsets: OffsetSet


@dataclass(frozen=True, slots=True)
class Released:
    """Offsets of a lease may be handed out again at once."""

    group: str
    lease_id: str
    offsets: OffsetSet


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Offsets are done, whoever holds a lease on them."""

    group: str
    offsets: OffsetSet


@dataclass(frozen=True, slots=True)
class Finished:
    """All offsets of a window are acknowledged: other records of the group do not matter any more."""

    group: str
    #: The offset after the last one of the window.
    base: int
    #: A digest of the offsets, which detects another window with the same name; see `digest_of`.
    digest: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Records, with their positions in the log, that replace all records below `position`, or a part of them."""

    position: int
    #: The number of this part, and of all parts: a large state does not fit into one record.
    part: int
    parts: int
    records: tuple[tuple[int, StateRecord], ...]


StateRecord: TypeAlias = (
    Owned | Served | Opened | Leased | Extended | Released | Acknowledged | Finished
)
LogRecord: TypeAlias = StateRecord | Snapshot

HEAD_BYTES: Final = 10
#: The size of one range that is not compressed.
RANGE_BYTES: Final = 16
_HEAD: Final = Struct("<BBHHI")
_ENTRY: Final = Struct("<qI")
_SNAPSHOT: Final = 1
_SNAPSHOT_NUMBERS: Final = Struct("<qqq")


class _Parts(NamedTuple):
    """The parts of any record."""

    first: str
    second: str
    numbers: tuple[int, ...]
    offsets: OffsetSet | None


class _Length(NamedTuple):
    """The allowed length of a text."""

    least: int
    most: int


_NO_TEXT: Final = _Length(0, 0)
_ANY_TEXT: Final = _Length(0, TEXT_CHARACTERS_MAX)
_TEXT: Final = _Length(1, TEXT_CHARACTERS_MAX)


class _Kind(NamedTuple):
    """The format of records of one kind."""

    number: int
    numbers: Struct
    #: The least value of each number.
    least: tuple[int, ...]
    second: _Length
    has_offsets: bool
    parts: Callable[[Any], _Parts]
    made: Callable[[str, str, tuple[int, ...], Any], StateRecord]


_KINDS: Final[dict[type[StateRecord], _Kind]] = {
    Owned: _Kind(
        2,
        Struct("<q"),
        (1,),
        _TEXT,
        False,
        lambda record: _Parts(record.server_id, record.topic_id, (record.epoch,), EMPTY_SET),
        lambda first, second, numbers, _: Owned(numbers[0], first, second),
    ),
    Opened: _Kind(
        3,
        Struct("<q"),
        (0,),
        _ANY_TEXT,
        True,
        lambda record: _Parts(record.group, record.begun_by or "", (record.start,), record.offsets),
        lambda first, second, numbers, offsets: Opened(first, numbers[0], offsets, second or None),
    ),
    Leased: _Kind(
        4,
        Struct("<qqq"),
        (1, 0, 0),
        _TEXT,
        True,
        lambda record: _Parts(
            record.group,
            record.lease_id,
            (record.epoch, record.until_ms, record.attempt),
            record.offsets,
        ),
        lambda first, second, numbers, offsets: Leased(
            first, second, numbers[0], offsets, numbers[1], numbers[2]
        ),
    ),
    Extended: _Kind(
        5,
        Struct("<q"),
        (0,),
        _TEXT,
        True,
        lambda record: _Parts(record.group, record.lease_id, (record.until_ms,), record.offsets),
        lambda first, second, numbers, offsets: Extended(first, second, numbers[0], offsets),
    ),
    Released: _Kind(
        6,
        Struct("<"),
        (),
        _TEXT,
        True,
        lambda record: _Parts(record.group, record.lease_id, (), record.offsets),
        lambda first, second, _, offsets: Released(first, second, offsets),
    ),
    Acknowledged: _Kind(
        7,
        Struct("<"),
        (),
        _NO_TEXT,
        True,
        lambda record: _Parts(record.group, "", (), record.offsets),
        lambda first, _, __, offsets: Acknowledged(first, offsets),
    ),
    Finished: _Kind(
        8,
        Struct("<q"),
        (0,),
        _TEXT,
        False,
        lambda record: _Parts(record.group, record.digest, (record.base,), EMPTY_SET),
        lambda first, second, numbers, _: Finished(first, numbers[0], second),
    ),
    Served: _Kind(
        9,
        Struct("<"),
        (),
        _NO_TEXT,
        False,
        lambda record: _Parts(record.relay_group, "", (), EMPTY_SET),
        lambda first, _, __, ___: Served(first),
    ),
}
_BY_NUMBER: Final = {kind.number: kind for kind in _KINDS.values()}


class _DamageError(ValueError):
    """A record is damaged; the message has the reason."""


def encode(record: LogRecord) -> bytes:
    """Return a record as bytes; raise `RelayLogRecordError` for a record that could not be read back."""
    try:
        if isinstance(record, Snapshot):
            return _within(_snapshot(record), RECORD_BYTES_MAX)
        return _within(_encoded(record), STATE_RECORD_BYTES_MAX)
    except (_DamageError, UnicodeEncodeError, error) as cause:
        kind = type(record).__name__.lower()
        raise RelayLogRecordError(
            f"a record of kind {kind} cannot be written to the relay's log: {cause}. A record has at most "
            f"{STATE_RECORD_BYTES_MAX:,} bytes, and a name at most {TEXT_CHARACTERS_MAX} characters: use a shorter name, or a "
            "window with fewer ranges of offsets",
            kind=kind,
        ) from cause


def decode(data: bytes | None) -> LogRecord:
    """Return a record of the log; raise `RelayLogCorruptError` or `RelayLogVersionError`."""
    try:
        if not data:
            raise _DamageError("it has no value")
        if _VERSION < data[0] <= VERSION_MAX:
            raise RelayLogVersionError(
                f"a record of the relay's log has version {data[0]}, and this server reads version {_VERSION}: a newer "
                "server wrote it. Update this one",
                version=data[0],
            )
        if len(data) > RECORD_BYTES_MAX:
            raise _DamageError(
                f"{len(data):,} bytes where at most {RECORD_BYTES_MAX:,} are allowed"
            )
        if data[1:2] == bytes([_SNAPSHOT]):
            return _decoded_snapshot(data)
        return _decoded(data)
    except (_DamageError, UnicodeDecodeError, error) as cause:
        raise RelayLogCorruptError(
            f"a record of the relay's log is unreadable: {cause}. It is damaged, or another program writes to the topic. "
            f"It begins with {(data or b'')[:60]!r}"
        ) from cause


def digest_of(offsets: OffsetSet) -> str:
    """Return a short text that differs for different offsets."""
    return hashlib.sha256(offsets.boundaries.astype("<i8").tobytes()).hexdigest()[:_DIGITS]


# --- writing ---------------------------------------------------------------------------------------------


def _encoded(record: StateRecord) -> bytes:
    kind = _KINDS[type(record)]
    first, second, numbers, offsets = kind.parts(record)
    _check_text(first, _TEXT)
    _check_text(second, kind.second)
    _check_numbers(numbers, kind.least)
    texts = first.encode(), second.encode()
    ranges = _ENDLESS if offsets is None else len(offsets)
    head = _HEAD.pack(_VERSION, kind.number, len(texts[0]), len(texts[1]), ranges)
    return b"".join((head, *texts, kind.numbers.pack(*numbers), _encoded_ranges(offsets)))


def _encoded_ranges(offsets: OffsetSet | None) -> bytes:
    if not offsets:
        return b""
    if len(offsets) > RANGES_MAX:
        raise _DamageError(f"it has {len(offsets):,} ranges of at most {RANGES_MAX:,}")
    if len(offsets) <= _PLAIN_RANGES_MAX:
        edges = offsets.edges
        return Struct(f"<{len(edges)}q").pack(*edges)
    return pack(offsets)


def _snapshot(record: Snapshot) -> bytes:
    numbers = record.position, record.part, record.parts
    _check_numbers(numbers, (0, 1, 1))
    chunks = [_HEAD.pack(_VERSION, _SNAPSHOT, 0, 0, 0), _SNAPSHOT_NUMBERS.pack(*numbers)]
    for position, entry in record.records:
        _check_numbers((position,), (0,))
        data = _encoded(entry)
        chunks += (_ENTRY.pack(position, len(data)), data)
    return b"".join(chunks)


def _within(data: bytes, limit: int) -> bytes:
    if len(data) > limit:
        raise _DamageError(f"it has {len(data):,} bytes of at most {limit:,}")
    return data


# --- reading ---------------------------------------------------------------------------------------------


def _decoded(data: bytes) -> StateRecord:
    version, number, first, second, ranges = _HEAD.unpack_from(data)
    _check_version(version)
    kind = _BY_NUMBER.get(number)
    if kind is None:
        raise _DamageError(f"its kind is {number}")
    middle = HEAD_BYTES + first
    at = middle + second
    texts = data[HEAD_BYTES:middle].decode(), data[middle:at].decode()
    _check_text(texts[0], _TEXT)
    if second and kind.second is _NO_TEXT:
        raise _DamageError("it has a second text")
    _check_text(texts[1], kind.second)
    numbers = kind.numbers.unpack_from(data, at)
    _check_numbers(numbers, kind.least)
    at += kind.numbers.size
    if kind.has_offsets:
        return kind.made(*texts, numbers, _decoded_ranges(data, at, ranges, number))
    if ranges or len(data) != at:
        raise _DamageError(f"it has {len(data) - at} bytes too many")
    return kind.made(*texts, numbers, None)


def _decoded_ranges(data: bytes, at: int, ranges: int, kind: int) -> OffsetSet | None:
    if ranges == 1 and len(data) == at + RANGE_BYTES:
        # The usual case.
        start, end = unpack_from("<qq", data, at)
        if 0 <= start < end:
            return OffsetSet.from_edges((start, end))
    if ranges == _ENDLESS and kind == _KINDS[Opened].number and len(data) == at:
        return None
    if ranges > RANGES_MAX:
        raise _DamageError(f"it has {ranges:,} ranges of at most {RANGES_MAX:,}")
    if ranges <= _PLAIN_RANGES_MAX:
        if len(data) != at + RANGE_BYTES * ranges:
            raise _DamageError(f"it has {len(data) - at:,} bytes of {ranges} ranges")
        edges = np.frombuffer(data, "<i8", 2 * ranges, at)
    else:
        try:
            return unpack(data[at:], ranges)
        except ValueError as cause:
            raise _DamageError(str(cause)) from cause
    if ranges and (edges[0] < 0 or not (edges[:-1] < edges[1:]).all()):
        raise _DamageError("its offsets do not rise")
    return OffsetSet(edges.astype(np.int64))


def _decoded_snapshot(data: bytes) -> Snapshot:
    version, _, *rest = _HEAD.unpack_from(data)
    _check_version(version)
    if any(rest):
        raise _DamageError("a snapshot has no texts and no ranges")
    position, part, parts = _SNAPSHOT_NUMBERS.unpack_from(data, HEAD_BYTES)
    _check_numbers((position, part, parts), (0, 1, 1))
    at = HEAD_BYTES + _SNAPSHOT_NUMBERS.size
    records = []
    while at < len(data):
        place, length = _ENTRY.unpack_from(data, at)
        at += _ENTRY.size
        _check_numbers((place,), (0,))
        if at + length > len(data):
            raise _DamageError("a record in it is cut off")
        records.append((place, _decoded(data[at : at + length])))
        at += length
    return Snapshot(position, part, parts, tuple(records))


# --- both ------------------------------------------------------------------------------------------------


def _check_version(version: int) -> None:
    if version != _VERSION:
        raise _DamageError(f"its version is {version}")


def _check_text(text: str, length: _Length) -> None:
    if not length.least <= len(text) <= length.most:
        raise _DamageError(
            f"{text[:60]!r} does not have {length.least} to {length.most} characters"
        )


def _check_numbers(numbers: tuple[int, ...], least: tuple[int, ...]) -> None:
    if any(map(lt, numbers, least)):
        raise _DamageError(f"one of its numbers {numbers} is less than it may be: {least}")
