"""Records that cannot be decoded, and are written elsewhere: to a topic, or to a folder or table beside the output.

A job leaves such records out of its output, and reports their places, which become part of the result in the ledger. So a
retry that only commits still has them. Those for a topic are read again by the commit, and written in its transaction.
Those for a place beside the output are staged there by the job, and published with the output.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kafka_ordered_ops.core.arguments import check_choice, check_count, shown
from kafka_ordered_ops.core.cluster.names import check_topic_names
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.strict_json import Count, Int32, JsonError, Stored, Text
from kafka_ordered_ops.core.window.formats import OnBad

#: The places and reasons of these records are at most 700 KB of JSON: a result in the ledger has at most 1 MiB.
MAX_BAD: Final = 1_000
#: Of a record; half of it each if both its key and its value are bad.
REASON_BYTES_MAX: Final = 200

#: What a folder or a table for bad records is called, after the output beside it.
_SUFFIX: Final = "__bad"

#: The key among those of a result.
_KEY: Final = "dead_letters"
_TEXT: Final = re.compile(r"dead_letter(?!:$)(?::([^:]*)(?::(?:([0-9]{1,9})|(0\.[0-9]{1,9})))?)?")
#: Digits of a share, in text.
_DIGITS: Final = 9


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Leave records that cannot be decoded out of the output, and write them elsewhere as the window is committed.

    As text: ``dead_letter:orders-bad``, or with `max_bad` ``dead_letter:orders-bad:50`` or ``dead_letter:orders-bad:0.01``;
    without a topic ``dead_letter``, ``dead_letter::50`` or ``dead_letter::0.01``.

    Args:
        topic: an existing topic for them. None means a folder or a table beside the output, with its name and ``__bad``.
        max_bad: a window with more of them fails, and nothing is committed or written: a number, or below 1 a share of the
            window's offsets. 1,000 is always the limit.

    Raises:
        ConfigError: no name of a topic, or neither a number from 1 to 1,000 nor a share between 0 and 1.
    """

    topic: str | None = None
    max_bad: int | float = MAX_BAD

    def __post_init__(self) -> None:
        if self.topic is not None:
            check_topic_names([self.topic], what="the topic for dead letters")
        if not isinstance(self.max_bad, float):
            check_count(self.max_bad, what="max_bad", least=1, greatest=MAX_BAD)
        elif not 0 < (share := round(self.max_bad, _DIGITS)) < 1:
            raise ConfigError(
                f"max_bad is {self.max_bad}: give a number of records, or a share of them between 0 and 1"
            )
        else:
            # As its text has it.
            object.__setattr__(self, "max_bad", share)

    def __str__(self) -> str:
        limit = "" if self.max_bad == MAX_BAD else f":{self._limit}"
        topic = ":" if limit else ""
        if self.topic is not None:
            topic = f":{self.topic}"
        return f"dead_letter{topic}{limit}"

    @property
    def _limit(self) -> str:
        if isinstance(self.max_bad, int):
            return str(self.max_bad)
        return f"{self.max_bad:.{_DIGITS}f}".rstrip("0")

    @property
    def greatest(self) -> int:
        """The number that no window may exceed, however many offsets it has."""
        return self.max_bad if isinstance(self.max_bad, int) else MAX_BAD

    def excess(self, bad: int, offsets: int) -> str | None:
        """Return a text if a window with so many offsets has too many bad records; None if not."""
        if isinstance(self.max_bad, int):
            return f"max_bad is {self.max_bad:,}" if bad > self.max_bad else None
        if bad > self.max_bad * offsets:
            return f"max_bad is {self._limit} of {offsets:,} offsets"
        return f"no window may have more than {MAX_BAD:,}" if bad > MAX_BAD else None


def as_on_bad(value: object) -> OnBad | DeadLetter:
    """Return what happens to bad values, passed as such or as text; raise `ConfigError` for anything else."""
    if isinstance(value, DeadLetter):
        return value
    if isinstance(value, str) and (parts := _TEXT.fullmatch(value)) is not None:
        topic, number, share = parts[1] or None, parts[2], parts[3]
        if share is not None:
            return DeadLetter(topic, float(share))
        return DeadLetter(topic) if number is None else DeadLetter(topic, int(number))
    if isinstance(value, str) and value.startswith("dead_letter"):
        raise ConfigError(
            f"on_bad is {shown(value)}: give dead_letter, dead_letter:TOPIC, or DeadLetter(TOPIC)"
        )
    if isinstance(value, str) and value not in tuple(OnBad):
        raise ConfigError(
            f"on_bad is {shown(value)}: give 'fail', 'keep', 'dead_letter' or 'dead_letter:TOPIC'"
        )
    return check_choice(value, OnBad, what="on_bad")


def bad_name(name: str) -> str:
    """Return the name of the folder or the table for bad records that is beside one of this name, which SQL may quote."""
    stem = name.removesuffix("`")
    return f"{stem.rstrip('/')}{_SUFFIX}{name[len(stem) :]}"


class BadRecord(NamedTuple):
    """The place of a record that cannot be decoded, and why: at least one of the two reasons."""

    topic: str
    partition: int
    offset: int
    key_error: str | None
    value_error: str | None

    @property
    def reason(self) -> str:
        """Which part cannot be decoded, and why."""
        parts = (("key", self.key_error), ("value", self.value_error))
        return "; ".join(
            f"the {name} cannot be decoded: {error}" for name, error in parts if error is not None
        )


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The records that a job has left out of a window's output, and the topic for them; None means beside the output."""

    topic: str | None
    records: tuple[BadRecord, ...] = ()

    def is_same(self, other: DeadLetters) -> bool:
        """Return whether both have the same records, whatever the reasons."""
        return [record[:3] for record in self.records] == [record[:3] for record in other.records]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {"topic": self.topic, "records": [list(record) for record in self.records]}


class StoredDeadLetters(Stored, frozen=True):
    """The JSON of `DeadLetters`."""

    topic: Text | None
    records: tuple[tuple[Text, Int32, Count, Text | None, Text | None], ...]

    @property
    def value(self) -> DeadLetters:
        """The records."""
        return DeadLetters(self.topic, tuple(BadRecord(*record) for record in self.records))


def with_dead_letters(result: Mapping[str, Any], letters: DeadLetters | None) -> dict[str, Any]:
    """Return a result that says which records were left out of the output; None changes nothing."""
    return {**result, **({} if letters is None else {_KEY: letters.to_json()})}


def without_dead_letters(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result without what `with_dead_letters` adds."""
    return {name: value for name, value in result.items() if name != _KEY}


def dead_letters_in(result: object) -> DeadLetters | None:
    """Return the records that a result says were left out; None if it says nothing about them."""
    content = result.get(_KEY) if isinstance(result, Mapping) else None
    try:
        return None if content is None else StoredDeadLetters.parse(content, _KEY).value
    except JsonError:
        # A sink of another program may use the same key.
        return None
