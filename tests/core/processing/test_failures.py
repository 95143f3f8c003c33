"""How often a failed record is tried again, and when."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import ConfigError
from kafka_ordered_ops.core.arguments import TIMEOUT_S_MAX
from kafka_ordered_ops.core.processing.failures import (
    ExponentialBackoff,
    FailurePolicy,
    FixedBackoff,
    backoff_of,
)
from kafka_ordered_ops.processing import Record

RECORD = Record("t", 0, 7, 0, None, None)
ERROR = ValueError("no")


@given(st.none() | st.integers(0, 20), st.integers(1, 40))
def test_a_record_has_one_attempt_more_than_retries(retries: int | None, attempt: int) -> None:
    """Attempt n is followed by another exactly while n is at most the retries; None has no end."""
    policy = FailurePolicy(retries, FixedBackoff(0.5))
    after_s = policy.retry_after_s(RECORD._replace(attempt=attempt), ERROR)
    assert after_s == (0.5 if retries is None or attempt <= retries else None)


@given(
    st.integers(1, 10**6),
    st.floats(0, 100, allow_nan=False),
    st.floats(0, TIMEOUT_S_MAX, allow_nan=False),
)
def test_exponential_backoff_rises_to_its_limit(
    attempt: int, first_s: float, limit_s: float
) -> None:
    """It never falls, never passes the limit, and begins with the first time."""
    backoff = ExponentialBackoff(first_s, limit_s)
    now, later = (
        backoff(RECORD._replace(attempt=number), ERROR) for number in (attempt, attempt + 1)
    )
    assert 0 <= now <= later <= limit_s
    assert backoff(RECORD, ERROR) == min(first_s, limit_s)


@pytest.mark.parametrize(
    ("told", "waited"),
    [
        (-1, 0.0),
        (math.nan, 0.0),
        (math.inf, TIMEOUT_S_MAX),
        (-math.inf, 0.0),
        (True, 1.0),
        (3, 3.0),
    ],
)
def test_whatever_a_function_tells_is_a_time(told: float, waited: float) -> None:
    """No wait is negative, endless, or not a number."""
    assert FailurePolicy(None, lambda record, error: told).retry_after_s(RECORD, ERROR) == waited


@pytest.mark.parametrize(
    "make",
    [
        lambda: FixedBackoff(-1),
        lambda: FixedBackoff(math.nan),
        lambda: ExponentialBackoff(1, math.inf),
        lambda: ExponentialBackoff("1"),  # type: ignore[arg-type]
        lambda: FailurePolicy(-1),
        lambda: FailurePolicy(1.5),  # type: ignore[arg-type]
        lambda: backoff_of("2.0"),  # type: ignore[arg-type]
    ],
)
def test_bad_numbers_are_refused(make: Any) -> None:
    """Before anything is processed."""
    with pytest.raises(ConfigError):
        make()


def test_seconds_are_a_fixed_backoff() -> None:
    """A number is as good as a function, nothing stands for the default, and 0 for no pause."""
    assert backoff_of(None) == ExponentialBackoff()
    assert [backoff_of(given)(RECORD, ERROR) for given in (0, 2.5)] == [0, 2.5]
