"""Check arguments at the entry, by type and range, before anything is touched.

Every process of a group reads back from the ledger what a constructor accepted. A value is therefore refused by
name unless it reads back as itself.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from datetime import datetime, timedelta
from enum import StrEnum
from operator import index
from os import PathLike, fspath
from typing import Any, Final, TypeVar

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.times import (
    TIME_MS_MAX,
    parse_duration_ms,
    parse_time_ms,
    time_at,
    time_ms,
)

#: Client settings whose values are paths of files; `NO_FILES` are the values that are not paths.
FILE_SETTINGS: Final = (
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.keystore.location",
    "ssl.crl.location",
    "sasl.kerberos.keytab",
    "https.ca.location",
    "sasl.oauthbearer.assertion.private.key.file",
    "sasl.oauthbearer.assertion.file",
    "sasl.oauthbearer.assertion.jwt.template.file",
)
NO_FILES: Final = ("", "probe")

#: Longest run id: hosts use less than half of it.
RUN_ID_LENGTH_MAX: Final = 512

#: Longest owner: the ids of a DAG and a task have 250 characters each.
OWNER_LENGTH_MAX: Final = 1_024

#: Longest time limit for one call: a month. Beyond some weeks, clients count milliseconds wrongly.
TIMEOUT_S_MAX: Final = 31 * 86_400.0


class DefaultTimeout(float):
    """A time limit that the caller did not set. If no broker accepts a connection, the call fails before it has passed."""


#: Length of a value in an error message.
_SHOWN_LENGTH: Final = 60

_Choice = TypeVar("_Choice", bound=StrEnum)


def shown(value: object) -> str:
    """Return the text of a value for an error message, cut short."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - the error to report is about the argument, not about its repr
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}..."


def first_of(names: Sequence[str], most: int) -> str:
    """Return the first names for a message, and the number of the others."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def check_choice(value: object, kind: type[_Choice], *, what: str) -> _Choice:
    """Return the member of an enumeration, passed as a member or as text; raise `ConfigError` for others."""
    if isinstance(value, str):
        try:
            return kind(value)
        except ValueError:
            pass
    raise ConfigError(
        f"{what} is {shown(value)}: give one of {', '.join(repr(member.value) for member in kind)}"
    )


def check_flag(value: object, *, what: str) -> bool:
    """Return a boolean; raise `ConfigError` for any other type."""
    if not isinstance(value, bool):
        raise ConfigError(f"{what} is {shown(value)}: give True or False")
    return value


def check_count(value: object, *, what: str, least: int, greatest: int) -> int:
    """Return a whole number from `least` to `greatest`; raise `ConfigError` for others."""
    number = _whole(value)
    if number is None or not least <= number <= greatest:
        raise ConfigError(
            f"{what} is {shown(value)}: give a whole number from {least:,} to {greatest:,}"
        )
    return number


def check_text(value: object, *, what: str, length_max: int, least: int = 1) -> str:
    """Return printable text of a limited length; raise `ConfigError` for others.

    Line breaks, control characters and halves of surrogate pairs are not printable.
    """
    if not isinstance(value, str):
        raise ConfigError(f"{what} is {shown(value)}: give text")
    if not least <= len(value) <= length_max or not value.isprintable():
        raise ConfigError(
            f"{what} {shown(value)} has {len(value):,} characters: use {least} to {length_max:,} "
            "printable characters"
        )
    # A plain str, also for a subclass of str.
    return str.__str__(value)


def check_texts(value: object, *, what: str) -> tuple[str, ...]:
    """Return a list or tuple of strings as a tuple; raise `ConfigError` for others, including a set or a string."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray | memoryview):
        raise ConfigError(f"{what} is {shown(value)}: give a name or pattern, or a list of them")
    for name in value:
        if not isinstance(name, str):
            raise ConfigError(f"{what} contains {shown(name)}: give a list of names or patterns")
    return tuple(str.__str__(name) for name in value)


def check_span(value: object, *, what: str) -> timedelta:
    """Return a duration that is not negative; raise `ConfigError` for others."""
    if not isinstance(value, timedelta):
        raise ConfigError(f"{what} is {shown(value)}: give a timedelta")
    if value < timedelta(0):
        raise ConfigError(f"{what} {value} is negative: a duration must not be negative")
    return value


def as_names(value: object, *, what: str) -> tuple[str, ...]:
    """Return names or patterns, passed as a list, a tuple or one string; raise `ConfigError` for others."""
    return check_texts([value] if isinstance(value, str) else value, what=what)


def path_text(value: object) -> str | None:
    """Return the text of a path, passed as text or as a `Path`; None for anything else, and for bytes."""
    text = value
    if isinstance(value, PathLike):
        with suppress(TypeError):
            text = fspath(value)
    return str.__str__(text) if isinstance(text, str) else None


def as_set(value: object, *, what: str) -> frozenset[str]:
    """Return names as a set, from anything that `as_names` takes or from a set; raise `ConfigError` for others."""
    return frozenset(as_names(tuple(value) if isinstance(value, Set) else value, what=what))


def as_paths(value: object, *, what: str) -> tuple[str, ...]:
    """Return paths, passed as a list, a tuple or one path, each text or a `Path`; raise `ConfigError` for others."""
    paths = [value] if isinstance(value, str | PathLike) else value
    if not isinstance(paths, Sequence) or isinstance(paths, bytes | bytearray | memoryview):
        raise ConfigError(f"{what} is {shown(value)}: give a path, or a list of them")
    texts = []
    for path in paths:
        text = path_text(path)
        if not text or "\0" in text:
            raise ConfigError(f"{what} has {shown(path)} in it: give a list of paths")
        texts.append(text)
    return tuple(texts)


def as_span(value: object, *, what: str) -> timedelta:
    """Return a duration, passed as a timedelta or as ISO 8601 text such as PT15M; raise `ConfigError` for others."""
    if isinstance(value, str):
        return timedelta(milliseconds=parse_duration_ms(value, what=what))
    if not isinstance(value, timedelta):
        raise ConfigError(
            f"{what} is {shown(value)}: give a timedelta, or ISO 8601 text such as 'PT15M'"
        )
    return check_span(value, what=what)


def as_moment(value: object, *, what: str) -> datetime:
    """Return a time in UTC and whole milliseconds, passed as an aware datetime or as ISO 8601 text with a zone.

    Raises:
        ConfigError: another type, without a zone, or outside the years 1 to 9999.
    """
    if isinstance(value, str):
        try:
            return time_at(parse_time_ms(value, what=what))
        except OverflowError as error:
            raise ConfigError(f"{what} {shown(value)} is beyond the calendar") from error
    if not isinstance(value, datetime):
        raise ConfigError(
            f"{what} is {shown(value)}: give a datetime with a zone, or ISO 8601 text such as "
            "'2026-11-20T12:00:00Z'"
        )
    return time_at(time_ms(value, what=what))


def check_timeout_s(value: object, *, what: str) -> float:
    """Return a time limit in seconds, above zero and at most `TIMEOUT_S_MAX`; raise `ConfigError` for others."""
    number = _number(value)
    if number is None or not 0 < number <= TIMEOUT_S_MAX:
        raise ConfigError(
            f"{what} is {shown(value)}: give seconds, more than 0 and at most {TIMEOUT_S_MAX:,.0f}"
        )
    return value if isinstance(value, DefaultTimeout) else number


def check_run_id(value: object) -> str | None:
    """Return a valid run id, or None; raise `ConfigError` for others."""
    if value is None:
        return None
    return check_text(value, what="run_id", length_max=RUN_ID_LENGTH_MAX, least=0)


def check_owner_name(value: object) -> str | None:
    """Return a valid owner, or None; raise `ConfigError` for others."""
    if value is None:
        return None
    return check_text(value, what="owner", length_max=OWNER_LENGTH_MAX)


def check_function(value: object, *, what: str, takes: int | None = None) -> None:
    """Raise `ConfigError` unless the value is callable and, if its signature is known, takes this number of arguments."""
    if not callable(value):
        raise ConfigError(f"{what} is {shown(value)}: give a function")
    if takes is not None and (error := call_error(value, *range(takes))) is not None:
        raise ConfigError(
            f"{what} is {shown(value)}, and is called with {takes} argument{'s' * (takes > 1)}: {error}"
        )


def call_error(function: Callable[..., Any], *arguments: object, **keywords: object) -> str | None:
    """Return why a function does not take these arguments; None if it does, or if its signature is unknown."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # Some C functions have no signature.
        return None
    try:
        signature.bind(*arguments, **keywords)
    except TypeError as error:
        return str(error)
    return None


def checked_clock(clock: Callable[[], Any]) -> Callable[[], float]:
    """Wrap a clock: it returns seconds from 1970 to 9999, or raises `ConfigError`."""
    if not callable(clock):
        raise ConfigError(f"clock is {shown(clock)}: give a function such as time.time")

    def now() -> float:
        try:
            value = clock()
        except Exception as error:
            raise ConfigError(
                f"the clock failed: {type(error).__name__}: {shown(error)}"
            ) from error
        now_s = _number(value)
        if now_s is None or not 0 <= now_s <= TIME_MS_MAX / 1000:
            raise ConfigError(
                f"the clock returned {shown(value)}: give a function that returns seconds since 1970, before the year "
                "10000"
            )
        return now_s

    return now


def _whole(value: Any) -> int | None:
    """Return a whole number, also from a NumPy integer; None for anything else, and for a bool."""
    if isinstance(value, bool):
        return None
    try:
        return index(value)
    except TypeError:
        return None


def _number(value: object) -> float | None:
    """Return a finite number; None for anything else."""
    number = value if isinstance(value, float) else _whole(value)
    if number is None:
        return None
    try:
        number = float(number)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
