"""What happens to a record whose function failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from math import isnan
from typing import Final, TypeAlias

from kafka_ordered_ops.core.arguments import TIMEOUT_S_MAX, check_count, check_function, shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.processing.record import Record

#: Returns after how many seconds a record is tried again, from the record, whose `attempt` failed, and the error.
Backoff: TypeAlias = Callable[[Record, BaseException], float]

RETRIES: Final = 5
RETRIES_MAX: Final = 1_000_000


class WhenExhausted(StrEnum):
    """What to do with a record that failed in its last attempt.

    `STOP` ends processing with its error; the record is not done. `SKIP`: it counts as done. `DEAD_LETTER`: it goes to
    the dead-letter topic, and then counts as done.
    """

    STOP = "stop"
    SKIP = "skip"
    DEAD_LETTER = "dead-letter"


def _check_seconds(value: object, *, what: str) -> None:
    if not isinstance(value, int | float) or not 0 <= value <= TIMEOUT_S_MAX:
        raise ConfigError(f"{what} is {shown(value)}: give seconds, from 0 to {TIMEOUT_S_MAX:,.0f}")


@dataclass(frozen=True, slots=True)
class FixedBackoff:
    """The same time before each attempt."""

    seconds: float

    def __post_init__(self) -> None:
        _check_seconds(self.seconds, what="seconds")

    def __call__(self, record: Record, error: BaseException) -> float:
        """Return the seconds to wait."""
        return self.seconds


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """Twice the time before each further attempt, up to a limit."""

    first_s: float = 0.2
    limit_s: float = 60.0

    def __post_init__(self) -> None:
        _check_seconds(self.first_s, what="first_s")
        _check_seconds(self.limit_s, what="limit_s")

    def __call__(self, record: Record, error: BaseException) -> float:
        """Return the seconds to wait."""
        # 2 to the power of more is beyond any limit, and at last beyond a float.
        return min(self.limit_s, self.first_s * 2.0 ** min(record.attempt - 1, 62))


def backoff_of(given: Backoff | float | None) -> Backoff:
    """Return the function for what a user gave: a function, a number of seconds, or None for the default."""
    if given is None:
        return ExponentialBackoff()
    if isinstance(given, int | float) and not isinstance(given, bool):
        _check_seconds(given, what="backoff")
        return FixedBackoff(given)
    if not callable(given):
        raise ConfigError(
            f"backoff is {shown(given)}: give seconds, or a function of record and error that returns seconds"
        )
    check_function(given, what="backoff", takes=2)
    return given


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """How often a record is tried, and what happens then."""

    #: Attempts after the first one; None: without a limit.
    retries: int | None = RETRIES
    backoff: Backoff = ExponentialBackoff()
    when_exhausted: WhenExhausted = WhenExhausted.STOP

    def __post_init__(self) -> None:
        if self.retries is not None:
            check_count(self.retries, what="retries", least=0, greatest=RETRIES_MAX)

    def retry_after_s(self, record: Record, error: BaseException) -> float | None:
        """Return after how many seconds to try again; None: no more."""
        if self.retries is not None and record.attempt > self.retries:
            return None
        after_s = float(self.backoff(record, error))
        return 0.0 if isnan(after_s) else min(max(0.0, after_s), TIMEOUT_S_MAX)
