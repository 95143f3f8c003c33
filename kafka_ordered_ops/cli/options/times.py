"""Times and spans as people give them to a command."""

from __future__ import annotations

import re
from contextvars import ContextVar
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.times import duration_text, parse_duration_ms, parse_time_ms

_AGO: Final = re.compile(r"-((?:\d+[smhdw])+|P\S+)", re.ASCII)
_PIECE: Final = re.compile(r"(\d+)([smhdw])", re.ASCII)
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

#: When the command began: all of its relative times count from there.
_STARTED: Final = ContextVar[datetime]("started")


def begin() -> None:
    """A command begins: `now` is now, to the second."""
    _STARTED.set(datetime.now(UTC).replace(microsecond=0))


def moment(text: str, *, what: str) -> datetime:
    """The moment that a text names.

    An ISO 8601 time with a zone; a bare date, which is midnight in UTC; ``now``; ``today`` and ``yesterday``, at
    midnight in UTC; or a span ago, as ``-1h``, ``-1d12h`` or ``-PT1H``.

    Raises:
        ConfigError: none of them.
    """
    if (relative := _relative(text, what=what)) is not None:
        return relative
    try:
        return datetime.combine(date.fromisoformat(text), time(), UTC)
    except ValueError:
        pass
    try:
        parse_time_ms(text, what=what)
    except ConfigError as error:
        raise ConfigError(_advice(text, what)) from error
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"{what} {text!r} lies beyond the calendar") from error


def bound(text: str) -> str:
    """A bound as `core` reads it, from one that may have a relative time; what is neither stays as it is.

    A span as ``-1h`` counts from the cutoff here, as ``-PT1H`` does.

    Raises:
        ConfigError: a time without a zone, or beyond the calendar.
    """
    what = "starting offsets"
    if match := _AGO.fullmatch(text):
        ago = match[1] if match[1].startswith("P") else _iso(match[1], what=what)
        return f"-{ago}"
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return moment(text, what=what).isoformat() if _relative(text, what=what) else text
    return moment(text, what=what).isoformat()


def span(text: str, *, what: str) -> timedelta:
    """The length of an ISO 8601 span; raises `ConfigError`."""
    try:
        return timedelta(milliseconds=parse_duration_ms(text, what=what))
    except OverflowError as error:
        raise ConfigError(f"{what} {text!r} is longer than the calendar") from error


def _relative(text: str, *, what: str) -> datetime | None:
    now = _STARTED.get(None) or datetime.now(UTC)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    words = {"now": now, "today": midnight, "yesterday": midnight - timedelta(days=1)}
    if (match := _AGO.fullmatch(text)) is None:
        return words.get(text)
    try:
        ago = match[1] if match[1].startswith("P") else _iso(match[1], what=what)
        return now - span(ago, what=what)
    except OverflowError as error:
        raise ConfigError(f"{what} {text!r} lies beyond the calendar") from error


def _iso(text: str, *, what: str) -> str:
    """The ISO 8601 text of a span as 1d12h."""
    pieces = _PIECE.findall(text)
    try:
        length = sum(
            (timedelta(**{_UNITS[unit]: int(count)}) for count, unit in pieces), timedelta()
        )
    except OverflowError as error:
        raise ConfigError(f"{what} '-{text}' lies beyond the calendar") from error
    return duration_text(length // timedelta(milliseconds=1))


def _advice(text: str, what: str) -> str:
    try:
        has_zone = datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        has_zone = True
    if not has_zone:
        return f"{what} {text!r} has no time zone: write {text}Z for UTC, or {text}+01:00"
    return (
        f"{what} {text!r} is not an ISO 8601 time such as 2026-11-20T12:00:00Z. A bare date is midnight in UTC; now, today, "
        "yesterday and -1h count from now"
    )
