"""Convert the client's numbers to facts, here and nowhere else.

The client also answers with numbers that mean "none", "unknown" or "not asked" (-1, -1001 and others). It returns
them even with a success: `list_offsets` returns -1001 while a partition has no leader. Only "there is no such record"
and "nothing is committed" are answers. Any other number below 0 is no answer, and the request is repeated.
"""

from __future__ import annotations

from typing import Final

from kafka_ordered_ops.core.errors import BrokerUnreachableError

#: "No record at or after that time", from a broker that was asked by time.
_NO_RECORD: Final = -1
#: librdkafka's RD_KAFKA_OFFSET_INVALID: no position yet, nothing committed.
INVALID: Final = -1001
#: librdkafka's RD_KAFKA_OFFSET_STORED, which no broker returns: an offset with this value has no answer.
UNANSWERED: Final = -1000
#: The id of a topic from a broker without topic ids: sixteen zero bytes.
_NO_ID: Final = "A" * 22


class NoAnswerError(Exception):
    """The client reports success without a usable answer. Stays inside the room: the request is repeated."""


def offset(number: int) -> int:
    """Return an offset in a log."""
    if number < 0:
        raise NoAnswerError(f"{number} is not an offset")
    return int(number)


def offset_by_time(number: int) -> int | None:
    """Return an offset, or None for the broker's "no record at or after that time"."""
    return None if number == _NO_RECORD else offset(number)


def committed_offset(number: int) -> int | None:
    """Return an offset, or None where the group has committed nothing."""
    return None if number == INVALID else offset(number)


def leader_epoch(number: int | None) -> int | None:
    """Return the epoch of a leader, or None where the broker or the client has not reported one."""
    return position(number)


def position(number: int | None) -> int | None:
    """Return an offset, or None where the client has no position: nothing was handed out since the assignment."""
    return number if number is not None and number >= 0 else None


def text_id(found: object) -> str:
    """Return the id of a cluster or a topic: never empty, never the id that means "none"."""
    text = "" if found is None else str(found)
    if not text or text.rstrip("=") == _NO_ID:
        raise NoAnswerError(f"{found!r} is not an id")
    return text


def no_answer(doing: str, where: str, told: str) -> BrokerUnreachableError:
    """Return the error for a request without an answer in all of its time."""
    return BrokerUnreachableError(
        f"no broker could answer while {doing} ({where}): {told}. A leader may be changing. If the error persists, "
        "check kafka-topics.sh --describe --unavailable-partitions",
        code="OFFSET_NOT_AVAILABLE",
    )
