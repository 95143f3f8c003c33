"""Convert the client's numbers to facts; no other module does.

The client also returns numbers that mean "none", "unknown" or "not asked" (-1, -1001 and others), even with a success:
`list_offsets` returns -1001 while a partition has no leader. Of these, only "there is no such record" and "nothing is
committed" are answers. Any other negative number is not an answer, and the request is repeated.
"""

from __future__ import annotations

from typing import Final

from kafka_ordered_ops.core.errors import BrokerUnreachableError

#: "No record at or after that time", the answer to a look-up by time.
_NO_RECORD: Final = -1
#: librdkafka's RD_KAFKA_OFFSET_INVALID: no position yet, nothing committed.
INVALID: Final = -1001
#: librdkafka's RD_KAFKA_OFFSET_STORED, which no broker returns: an offset with this value has no answer.
UNANSWERED: Final = -1000
#: The id of a topic from a broker without topic ids: sixteen zero bytes.
_NO_ID: Final = "A" * 22


class NoAnswerError(Exception):
    """The client reports success without a usable answer. Only used inside this package: the request is repeated."""


def offset(number: int) -> int:
    """Return an offset in a log."""
    if number < 0:
        raise NoAnswerError(f"{number} is not an offset")
    return int(number)


def offset_by_time(number: int) -> int | None:
    """Return an offset, or None for the broker's "no record at or after that time"."""
    return None if number == _NO_RECORD else offset(number)


def committed_offset(number: int) -> int | None:
    """Return an offset, or None if the group has committed nothing."""
    return None if number == INVALID else offset(number)


def leader_epoch(number: int | None) -> int | None:
    """Return the epoch of a leader, or None if neither the broker nor the client reports one."""
    return position(number)


def position(number: int | None) -> int | None:
    """Return an offset, or None if the client has no position: it has returned no record since the assignment."""
    return number if number is not None and number >= 0 else None


def text_id(value: object) -> str:
    """Return the id of a cluster or a topic: never empty, never the id that means "none"."""
    text = "" if value is None else str(value)
    if not text or text.rstrip("=") == _NO_ID:
        raise NoAnswerError(f"{value!r} is not an id")
    return text


def no_answer(doing: str, where: str, reason: str) -> BrokerUnreachableError:
    """Return the error for a request without an answer before its deadline."""
    return BrokerUnreachableError(
        f"no broker could answer while {doing} ({where}): {reason}. A leader may be changing. If the error persists, "
        "check kafka-topics.sh --describe --unavailable-partitions",
        code="OFFSET_NOT_AVAILABLE",
    )
