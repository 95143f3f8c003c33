"""Convert times and durations: aware datetimes and ISO text outside, milliseconds since the epoch inside."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.types import INT64_MAX, INT64_MIN

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)

#: The range of a datetime in UTC: years 1 to 9999.
TIME_MS_MIN: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MS
TIME_MS_MAX: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MS

#: The longest duration of a timedelta.
SPAN_MS_MAX: Final = timedelta.max // _MS

# The text of `time_text` beyond the calendar of datetime (year 9999).
_BEYOND_CALENDAR = re.compile(r"@(-?\d{1,19})", re.ASCII)
# Weeks, days, hours, minutes and seconds; no months or years, whose length depends on the calendar.
_DURATION = re.compile(
    r"P(?:(?P<weeks>\d+)W)?(?:(?P<days>\d+)D)?"
    r"(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{1,3})?)S)?)?",
    re.ASCII,
)


def time_ms(moment: datetime, *, what: str) -> int:
    """Return the milliseconds since the epoch of an aware datetime, rounded down.

    Raises:
        ConfigError: not a datetime, no time zone, or outside the years 1 to 9999 in UTC.
    """
    if not isinstance(moment, datetime):
        raise ConfigError(
            f"{what} is {str(moment)[:60]!r}, a {type(moment).__name__}: give a datetime with a zone"
        )
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise ConfigError(
            f"{what} {moment.isoformat()} has no time zone: "
            "add one, such as +00:00 or tzinfo=timezone.utc"
        )
    # Not `moment - _EPOCH`: a subclass of datetime may return something else; pendulum's is not a timedelta.
    epoch_ms = datetime.__sub__(moment, _EPOCH) // _MS
    if not TIME_MS_MIN <= epoch_ms <= TIME_MS_MAX:
        raise ConfigError(
            f"{what} {moment.isoformat()} is outside the years 1 to 9999 in UTC: give a time within them"
        )
    return epoch_ms


def parse_time_ms(text: str, *, what: str) -> int:
    """Return the milliseconds since the epoch of an ISO 8601 time with a zone, such as 2026-11-20T12:00:00Z.

    Raises:
        ConfigError: not a time, without a zone, or beyond 64 bits.
    """
    _check_is_text(text, what)
    if match := _BEYOND_CALENDAR.fullmatch(text):
        if not INT64_MIN <= (epoch_ms := int(match[1])) <= INT64_MAX:
            raise ConfigError(f"{what} {text} does not fit 64 bits")
        return epoch_ms
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(
            f"{what} {text[:60]!r} is not an ISO 8601 time such as 2026-11-20T12:00:00Z"
        ) from error
    return time_ms(moment, what=what)


def time_at(timestamp_ms: int) -> datetime:
    """Return the UTC datetime of milliseconds since the epoch; raise `OverflowError` beyond the calendar."""
    return _EPOCH + timestamp_ms * _MS


def time_text(timestamp_ms: int) -> str:
    """Return ISO 8601 text in UTC, with milliseconds only if there are any; beyond year 9999 ``@<ms>``."""
    try:
        moment = time_at(timestamp_ms)
    except OverflowError:
        return f"@{timestamp_ms}"
    precision = "milliseconds" if timestamp_ms % 1000 else "seconds"
    return moment.isoformat(timespec=precision).replace("+00:00", "Z")


def parse_duration_ms(text: str, *, what: str) -> int:
    """Return the milliseconds of an ISO 8601 duration such as PT10M, P1D or P1DT12H.

    Raises:
        ConfigError: not a duration, or one with months or years, which have no fixed length.
    """
    _check_is_text(text, what)
    match = _DURATION.fullmatch(text)
    counts = {unit: count for unit, count in match.groupdict().items() if count} if match else {}
    if not counts:
        raise ConfigError(
            f"{what} {text[:60]!r} is not an ISO 8601 duration such as PT10M, PT1H or P1D"
        )
    try:
        # Seconds have at most three decimals.
        seconds = timedelta(seconds=float(counts.pop("seconds", 0)))
        return (timedelta(**{unit: int(count) for unit, count in counts.items()}) + seconds) // _MS
    except (OverflowError, ValueError) as error:
        raise ConfigError(f"{what} {text[:60]!r} is longer than datetime allows") from error


def duration_text(span_ms: int) -> str:
    """Return the ISO 8601 text of a duration, in as few parts as possible."""
    seconds, ms = divmod(span_ms, 1000)
    days, seconds = divmod(seconds, 86_400)
    hours, seconds = divmod(seconds, 3_600)
    minutes, seconds = divmod(seconds, 60)
    second_text = f"{seconds}.{ms:03d}S" if ms else f"{seconds}S" if seconds else ""
    time_part = f"{f'{hours}H' if hours else ''}{f'{minutes}M' if minutes else ''}{second_text}"
    text = f"P{f'{days}D' if days else ''}{f'T{time_part}' if time_part else ''}"
    return "PT0S" if text == "P" else text


def _check_is_text(text: object, what: str) -> None:
    if not isinstance(text, str):
        raise ConfigError(f"{what} is a {type(text).__name__}: give text")
