"""What a message of Protobuf would take in memory, from its bytes alone: two bytes are a message whose hundreds of fields are all missing.

The library keeps a place for each field of each message. Few schemas have messages that are so wide that a record must be looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from kafka_ordered_ops.decoding.bad import BadValueError
from kafka_ordered_ops.decoding.frames import varint

#: Fields that the messages of a record may have, whatever its length, and for each of its bytes. Each takes up to a hundred bytes
#: until it is in a column.
_FIELDS_MIN: Final = 20_000
_FIELDS_PER_BYTE: Final = 16
#: Of a message without a byte: its tag, and its length.
_BYTES_MIN: Final = 2


@dataclass(slots=True, eq=False)
class Shape:
    """The messages within a message."""

    #: How many fields it has, and those that come with it.
    width: int = 1
    #: By the number of their field.
    inner: dict[int, Shape] = field(default_factory=dict)


def length_without_look(shape: Shape) -> float:
    """Return up to which length no bytes can be a message of too many fields."""
    widest = max((part.width for part in _all_inner(shape)), default=0)
    fields_per_byte = widest / _BYTES_MIN - _FIELDS_PER_BYTE
    return math.inf if fields_per_byte <= 0 else _FIELDS_MIN / fields_per_byte


def _all_inner(shape: Shape) -> Iterator[Shape]:
    waiting, seen = [shape], {id(shape)}
    while waiting:
        for part in waiting.pop().inner.values():
            if id(part) not in seen:
                seen.add(id(part))
                waiting.append(part)
                yield part


def check_size(data: bytes, shape: Shape) -> None:
    """Raise `BadValueError` if the messages in bytes have too many fields; other errors are left to the library."""
    left = _FIELDS_MIN + _FIELDS_PER_BYTE * len(data)
    for part in _messages(data, shape):
        left -= part.width
        if left < 0:
            raise BadValueError(
                f"its {len(data):,} bytes are messages with more than {_FIELDS_MIN:,} fields, and {_FIELDS_PER_BYTE} for each byte"
            )


def _messages(data: bytes, shape: Shape) -> Iterator[Shape]:
    """Yield the messages in bytes, in their order, up to the first error."""
    at, open_messages = 0, [(len(data), shape)]
    while open_messages:
        end, shape = open_messages[-1]
        if at >= end:
            open_messages.pop()
            continue
        try:
            tag, at = varint(data, at)
            kind, part = tag & 7, shape.inner.get(tag >> 3)
            if kind == 0:
                _, at = varint(data, at)
            elif kind == 2:
                length, at = varint(data, at)
                if part is None:
                    at += length
                else:
                    open_messages.append((min(at + length, end), part))
                    yield part
            elif kind == 3:
                # A group: up to its end mark. Nothing in an unknown one is a message.
                open_messages.append((end, part or _UNKNOWN))
                yield part or _UNKNOWN
            elif kind == 4:
                open_messages.pop()
            elif kind in (1, 5):
                at += 8 if kind == 1 else 4
            else:
                return
        except BadValueError:
            return


_UNKNOWN: Final = Shape()
