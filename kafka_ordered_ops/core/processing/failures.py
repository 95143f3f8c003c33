"""What to do with a record whose function failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from math import isnan
from typing import Final, TypeAlias

from kafka_ordered_ops.core.arguments import TIMEOUT_S_MAX, check_count, check_function, shown
from kafka_ordered_ops.core.errors import (
    AuthenticationError,
    ConfigError,
    DecodeError,
    KafkaOrderedOpsError,
    RecordFailedError,
    RegistryError,
)
from kafka_ordered_ops.core.processing.record import Record

#: Returns the seconds before the next attempt, from the record, whose `attempt` failed, and the error.
Backoff: TypeAlias = Callable[[Record, BaseException], float]

RETRIES: Final = 5
#: Characters of an error's text in a message.
_TEXT_MAX: Final = 500
RETRIES_MAX: Final = 1_000_000


class WhenExhausted(StrEnum):
    """What to do with a record that failed in its last attempt.

    `STOP` ends processing with its error; the record is not done. `SKIP` counts it as done. `DEAD_LETTER` writes it to
    the dead-letter topic, and then counts it as done.
    """

    STOP = "stop"
    SKIP = "skip"
    DEAD_LETTER = "dead-letter"


def _check_seconds(value: object, *, what: str) -> None:
    if not isinstance(value, int | float) or not 0 <= value <= TIMEOUT_S_MAX:
        raise ConfigError(f"{what} is {shown(value)}: give seconds, from 0 to {TIMEOUT_S_MAX:,.0f}")


@dataclass(frozen=True, slots=True)
class FixedBackoff:
    """Wait the same time before each attempt."""

    seconds: float

    def __post_init__(self) -> None:
        _check_seconds(self.seconds, what="seconds")

    def __call__(self, record: Record, error: BaseException) -> float:
        """Return the seconds to wait."""
        return self.seconds


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """Double the wait before each further attempt, up to a limit."""

    first_s: float = 0.2
    limit_s: float = 60.0

    def __post_init__(self) -> None:
        _check_seconds(self.first_s, what="first_s")
        _check_seconds(self.limit_s, what="limit_s")

    def __call__(self, record: Record, error: BaseException) -> float:
        """Return the seconds to wait."""
        # A greater power of 2 exceeds any limit, and eventually the range of a float.
        return min(self.limit_s, self.first_s * 2.0 ** min(record.attempt - 1, 62))


def backoff_of(backoff: Backoff | float | None) -> Backoff:
    """Return the backoff function for a function, a number of seconds, or None for the default."""
    if backoff is None:
        return ExponentialBackoff()
    if isinstance(backoff, int | float) and not isinstance(backoff, bool):
        _check_seconds(backoff, what="backoff")
        return FixedBackoff(backoff)
    if not callable(backoff):
        raise ConfigError(
            f"backoff is {shown(backoff)}: give seconds, or a function of record and error that returns seconds"
        )
    check_function(backoff, what="backoff", takes=2)
    return backoff


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """How many attempts a record gets, and what happens after the last one."""

    #: Attempts after the first one; None means no limit.
    retries: int | None = RETRIES
    backoff: Backoff = ExponentialBackoff()
    when_exhausted: WhenExhausted = WhenExhausted.STOP

    def __post_init__(self) -> None:
        if self.retries is not None:
            check_count(self.retries, what="retries", least=0, greatest=RETRIES_MAX)

    def retry_after_s(self, record: Record, error: BaseException) -> float | None:
        """Return the seconds before the next attempt; None if this was the last one.

        A record that cannot be decoded has no further attempt. While schemas cannot be looked up, a record has any number of them:
        nothing is wrong with it.
        """
        is_last = self.retries is not None and record.attempt > self.retries
        is_last = is_last and not isinstance(error, RegistryError)
        if is_last or isinstance(error, DecodeError | AuthenticationError):
            return None
        after_s = float(self.backoff(record, error))
        return 0.0 if isnan(after_s) else min(max(0.0, after_s), TIMEOUT_S_MAX)

    def stops(self, error: BaseException) -> bool:
        """Return whether processing ends with a record that failed in its last attempt.

        Refused credentials, of the schema registry for example, would fail every record.
        """
        return self.when_exhausted is WhenExhausted.STOP or isinstance(error, AuthenticationError)


def stopped_by(record: Record, error: BaseException) -> RecordFailedError:
    """Return the error for a record that failed in its last attempt and ends processing."""
    failure = RecordFailedError(
        f"{record} failed in attempt {record.attempt}, its last one: {type(error).__name__}: {error_text(error)}. Processing "
        "stopped, and the record is not done. To go on without such records, give a dead_letter_topic, or "
        "when_exhausted='skip'",
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        attempts=record.attempt,
    )
    failure.__cause__ = error
    return failure


def error_text(error: BaseException) -> str:
    """Return the text of an error, cut to fit into a message."""
    try:
        return error.message if isinstance(error, KafkaOrderedOpsError) else str(error)[:_TEXT_MAX]
    except BaseException:  # noqa: BLE001 - the user's class
        return "without a text"
