"""Encode ledger records as messages, and refuse any record that could not be read back.

An unreadable record locks its group for every process. Each record is therefore parsed before it is written, by the
same parser and with the same limits as when it is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.errors import LedgerRecordError
from kafka_ordered_ops.core.types import TopicPartition

#: Half of Kafka's default record limit: headers, keys and batch overhead fit beside it.
PART_BYTES_MAX: Final = 512 * 1024

#: A whole record: the largest plan, and its window's other fields.
RECORD_BYTES_MAX: Final = 64 * 1024 * 1024

GENERATION: Final = "koo-generation"
PARTS: Final = "koo-parts"

#: The header with a window's summary for lists.
SUMMARY: Final = "koo-summary"

#: Of the state: how many windows were forgotten so far. Of a tombstone: one of them.
FORGOTTEN: Final = "koo-forgotten"

#: One message with key and headers. Clients and brokers accept a megabyte by default.
MESSAGE_BYTES_MAX: Final = 1_000_000

#: Parts of one record.
RECORD_PARTS_MAX: Final = RECORD_BYTES_MAX // PART_BYTES_MAX

#: Errors of reading a record from a log that other programs may write to, except for a newer version.
UNREADABLE: Final = (
    ArithmeticError,
    AssertionError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


#: (key, value, headers); a value of None is a tombstone.
LedgerMessage = tuple[bytes, bytes | None, dict[str, str]]


class RecordName(NamedTuple):
    """Which record of a group: its kind, and the window id or partition it is about."""

    kind: str
    name: str = ""


STATE: Final = RecordName("state")

#: The kinds of records.
KINDS: Final = frozenset({"state", "window", "processed", "forgotten", "times"})

#: Longer than any key of this package: group, and window id or partition, each character as an escape.
_KEY_BYTES_MAX: Final = 16_384

#: Keys of this package have no space around them, whose handling takes half of the standard function's time.
_DECODER: Final = json.JSONDecoder()


def record_key(group_id: str, record: RecordName, part: int) -> bytes:
    """Return the key of one part of a record."""
    return strict_json.dumps([group_id, record.kind, record.name, part]).encode()


def parse_key(key: bytes, kinds: Collection[str] = KINDS) -> tuple[str, str, str, int] | None:
    """Return the four parts of a key of these kinds; None for a record of anybody else's."""
    if len(key) > _KEY_BYTES_MAX:
        return None
    try:
        text = key.decode()
        parts, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    if end != len(text) or not isinstance(parts, list):
        return None
    if [type(part) for part in parts] != [str, str, str, int]:
        return None
    group_id, kind, name, number = parts
    if kind not in kinds or not 0 <= number < RECORD_PARTS_MAX:
        return None
    # Half a surrogate pair, from an escape, could not even be named in an error.
    return (group_id, kind, name, number) if f"{group_id}{name}".isprintable() else None


def written(
    where: TopicPartition,
    group_id: str,
    record: RecordName,
    value: Mapping[str, Any],
    read: Callable[[Any], Any],
    headers: Mapping[str, str],
) -> Iterator[LedgerMessage]:
    """Yield the parts of a record, the first of them with these headers; `read` is the inverse of its JSON.

    Raises:
        LedgerRecordError: the record would be unreadable or too large. No part is returned then.
    """
    try:
        data = _checked(record, value, read)
        parts = [data[at : at + PART_BYTES_MAX] for at in range(0, len(data), PART_BYTES_MAX)]
        every = {GENERATION: headers[GENERATION], PARTS: str(len(parts))}
        made = [
            (record_key(group_id, record, number), part, every if number else {**headers, **every})
            for number, part in enumerate(parts)
        ]
        for key, part, part_headers in made:
            size = (
                len(key) + len(part) + sum(len(header.encode()) for header in part_headers.values())
            )
            if size > MESSAGE_BYTES_MAX:
                raise ValueError(f"a part of it has {size:,} bytes with its key")
    except UNREADABLE as error:
        raise LedgerRecordError(
            f"group {group_id}: the {_described(record)} cannot be written to the ledger {where}, because it could not be read back: "
            f"{error}. Nothing was written and the group is unchanged: plan a smaller window, or report less",
            kind=record.kind,
            name=record.name,
        ) from error
    yield from made


def _described(record: RecordName) -> str:
    match record.kind:
        case "window":
            return f"window {record.name}"
        case "processed":
            return f"record of the processed offsets of window {record.name}"
        case kind:
            return f"{kind} record"


def _checked(record: RecordName, value: Mapping[str, Any], read: Callable[[Any], Any]) -> bytes:
    """Return a record's text, which was read back; raises one of `UNREADABLE`."""
    data = strict_json.dumps(value).encode()
    if len(data) > RECORD_BYTES_MAX:
        sizes = {name: len(strict_json.dumps(content).encode()) for name, content in value.items()}
        largest = max(sizes, key=lambda name: sizes[name])
        raise ValueError(
            f"it has {len(data):,} bytes, and a record at most {RECORD_BYTES_MAX:,}; {largest!r} has "
            f"{sizes[largest]:,} of them"
        )
    read(strict_json.loads(data, limit_bytes=RECORD_BYTES_MAX))
    return data
