"""Times on the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextvars import ContextVar
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

from kafka_ordered_ops.core.arguments import as_moment, as_span, shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.times import duration_text

_AGO: Final = re.compile(r"-((?:\d+[smhdw])+|P\S+)", re.ASCII)
_PIECE: Final = re.compile(r"(\d+)([smhdw])", re.ASCII)
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

_MS: Final = timedelta(milliseconds=1)

#: The start of the command, from which all relative times count.
_STARTED: Final = ContextVar[datetime]("started")


def begin() -> None:
    """Start a command: its relative times count from now, to the second."""
    _STARTED.set(datetime.now(UTC).replace(microsecond=0))


def moment(text: str, *, what: str) -> datetime:
    """Return the time that a text means, in UTC.

    Accepts an ISO 8601 time with a zone; a bare date, which is midnight in UTC; ``now``; ``today`` and ``yesterday``,
    at midnight in UTC; and a span ago, such as ``-1h``, ``-1d12h`` or ``-PT1H``.

    Raises:
        ConfigError: any other text.
    """
    if (relative := _relative(text, what=what)) is not None:
        return relative
    try:
        return datetime.combine(date.fromisoformat(text), time(), UTC)
    except ValueError:
        pass
    try:
        has_zone = datetime.fromisoformat(text).tzinfo is not None
    except ValueError as error:
        raise ConfigError(
            f"{what} {shown(text)} is not an ISO 8601 time such as 2026-11-20T12:00:00Z. A bare date is midnight in UTC; "
            "now, today, yesterday and -1h count from now"
        ) from error
    if not has_zone:
        raise ConfigError(
            f"{what} {text!r} has no time zone: write {text}Z for UTC, or {text}+01:00"
        )
    return as_moment(text, what=what)


def optional_span(option: str, text: str | None) -> timedelta | None:
    """Return the span of an option, if it is given."""
    return None if text is None else as_span(text, what=option.strip("-").replace("-", " "))


def bound(text: str) -> str:
    """Replace a relative time in a bound; any other text is returned unchanged.

    Here a span such as ``-1h`` counts from the cutoff, as ``-PT1H`` does.

    Raises:
        ConfigError: a time without a zone, or beyond the calendar.
    """
    what = "starting offsets"
    if match := _AGO.fullmatch(text):
        return f"-{duration_text(_ago(match[1], what=what) // _MS)}"
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return moment(text, what=what).isoformat() if _relative(text, what=what) else text
    return moment(text, what=what).isoformat()


def bounds(
    texts: Sequence[str], topics: Sequence[str], *, option: str, otherwise: str | None = None
) -> dict[str, str] | str | None:
    """Return one bound for all topics, or one for each; None without any.

    Args:
        texts: each ``TOPIC=BOUND``, or ``BOUND`` for all other topics.
        topics: the topics of the command.
        option: the option's name.
        otherwise: the default bound of a topic; `None` means no default.

    Raises:
        ConfigError: a topic has two bounds, or is not among the topics.
    """
    by_topic: dict[str | None, str] = {}
    for text in texts:
        # No bound has this sign.
        topic, sign, start = text.rpartition("=")
        name = topic if sign else None
        if name in by_topic:
            raise ConfigError(
                f"{option} is given twice for {name or 'all topics'}: {by_topic[name]} and {start}"
            )
        if name is not None and name not in topics:
            raise ConfigError(
                f"{option} {text} is for {name}, which is not among the topics: {', '.join(topics)}"
            )
        by_topic[name] = bound(start)
    default = by_topic.pop(None, otherwise)
    if not by_topic:
        return default
    per_topic = {topic: by_topic.get(topic, default) for topic in topics}
    return {topic: start for topic, start in per_topic.items() if start is not None}


def _relative(text: str, *, what: str) -> datetime | None:
    now = _STARTED.get(None) or datetime.now(UTC)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    words = {"now": now, "today": midnight, "yesterday": midnight - timedelta(days=1)}
    if (match := _AGO.fullmatch(text)) is None:
        return words.get(text)
    try:
        return now - _ago(match[1], what=what)
    except OverflowError as error:
        raise ConfigError(f"{what} {shown(text)} is beyond the calendar") from error


def _ago(text: str, *, what: str) -> timedelta:
    """Return the length of 1d12h, or of an ISO 8601 span."""
    if text.startswith("P"):
        return as_span(text, what=what)
    pieces = _PIECE.findall(text)
    try:
        return sum((timedelta(**{_UNITS[unit]: int(count)}) for count, unit in pieces), timedelta())
    except (OverflowError, ValueError) as error:
        # A ValueError for more digits than Python parses.
        raise ConfigError(f"{what} {shown(f'-{text}')} is longer than any calendar") from error
