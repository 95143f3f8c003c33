"""Strict parsing of stored JSON.

The standard parser accepts NaN, lets the last of two equal keys win, and fails on deep nesting and very long
integers. Stored state decides what is delivered, so every field is known, typed and bounded, and errors name the
path of the field.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any, NoReturn, TypeVar

from kafka_ordered_ops.core.types import INT64_MAX, INT64_MIN

_Choice = TypeVar("_Choice", bound=StrEnum)


class JsonError(ValueError):
    """Invalid JSON, with its place; callers turn it into their own errors."""


def dumps(value: Any) -> str:
    """Return compact JSON with sorted keys: equal values give equal text."""
    return json.dumps(
        value, separators=(",", ":"), sort_keys=True, ensure_ascii=False, allow_nan=False
    )


def as_read_back(value: Any, *, limit_bytes: int) -> Any:
    """Return a value through `dumps` and `loads`; raise `JsonError` if it changes.

    For example, a number beyond 64 bits can be written but not read back.
    """
    try:
        return loads(dumps(value).encode(), limit_bytes=limit_bytes)
    except (TypeError, ValueError, RecursionError) as error:
        raise JsonError(str(error)) from error


def loads(text: str | bytes, *, limit_bytes: int) -> Any:
    """Parse JSON of at most `limit_bytes`; raises `JsonError`."""
    size = len(text)
    if size > limit_bytes:
        raise JsonError(f"{size:,} bytes where at most {limit_bytes:,} are allowed")
    try:
        return json.loads(
            text,
            object_pairs_hook=_unique_keys,
            parse_constant=_refuse_constant,
            parse_float=_finite_float,
            parse_int=_bounded_int,
        )
    except (ValueError, RecursionError) as error:
        raise JsonError(f"not readable as JSON: {error}") from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise JsonError("an object has a key twice")
    return result


def _refuse_constant(text: str) -> NoReturn:
    raise JsonError(f"{text[:20]} is not a JSON number")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise JsonError(f"the number {text[:24]} is too large")
    return value


def _bounded_int(text: str) -> int:
    if len(text) > 20 or not INT64_MIN <= (value := int(text)) <= INT64_MAX:
        raise JsonError(f"the number {text[:24]} does not fit 64 bits")
    return value


class JsonVersionError(JsonError):
    """The text was written by a newer version of this package."""


class Fields:
    """One JSON object, read field by field; `done` refuses unknown fields."""

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise JsonError(f"{where} is {type(value).__name__}, not an object")
        self._rest = dict(value)
        self._where = where

    def __contains__(self, name: str) -> bool:
        return name in self._rest

    def _take(self, name: str, kind: type | tuple[type, ...]) -> Any:
        if name not in self._rest:
            raise JsonError(f"{self._where}.{name} is missing")
        value = self._rest.pop(name)
        # bool is an int to isinstance, but true is not an offset.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            raise JsonError(f"{self._where}.{name} is {type(value).__name__}")
        return value

    def has(self, name: str) -> bool:
        """Return whether a field is there that records of older versions do not have."""
        return name in self._rest

    def integer(self, name: str, *, least: int = INT64_MIN) -> int:
        """Return an int64 of at least `least`."""
        value: int = self._take(name, int)
        if value < least:
            raise JsonError(f"{self._where}.{name} is {value}, below {least}")
        return value

    def integer_or_none(self, name: str, *, least: int = INT64_MIN) -> int | None:
        """Return an int64 of at least `least`, or null."""
        is_null = self._rest.get(name, 0) is None and self._drop(name)
        return None if is_null else self.integer(name, least=least)

    def text(self, name: str) -> str:
        """Return a string."""
        value: str = self._take(name, str)
        return value

    def text_or_none(self, name: str) -> str | None:
        """Return a string or null."""
        return None if self._rest.get(name, 0) is None and self._drop(name) else self.text(name)

    def boolean(self, name: str) -> bool:
        """Return true or false."""
        value: bool = self._take(name, bool)
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of strings."""
        values: list[Any] = self._take(name, list)
        if not all(isinstance(value, str) for value in values):
            raise JsonError(f"{self._where}.{name} contains a value that is not text")
        return tuple(values)

    def integers(self, name: str) -> list[int]:
        """Return a list of int64."""
        values: list[Any] = self._take(name, list)
        if not all(type(value) is int for value in values):
            raise JsonError(f"{self._where}.{name} contains a value that is not an integer")
        return values

    def objects(self, name: str) -> Iterator[Fields]:
        """Return a list of objects."""
        values: list[Any] = self._take(name, list)
        return (Fields(value, f"{self._where}.{name}[{n}]") for n, value in enumerate(values))

    def object(self, name: str) -> Fields:
        """Return one object."""
        return Fields(self._take(name, dict), f"{self._where}.{name}")

    def object_or_none(self, name: str) -> Fields | None:
        """Return one object or null."""
        return None if self._rest.get(name, 0) is None and self._drop(name) else self.object(name)

    def anything(self, name: str) -> Any:
        """Return any JSON value, written by a person or host: shown, never used for decisions."""
        if name not in self._rest:
            raise JsonError(f"{self._where}.{name} is missing")
        return self._rest.pop(name)

    def choice(self, name: str, kind: type[_Choice]) -> _Choice:
        """Return a member of a string enumeration."""
        value = self.text(name)
        try:
            return kind(value)
        except ValueError as error:
            raise JsonError(f"{self._where}.{name} is {value!r}") from error

    def choice_or_none(self, name: str, kind: type[_Choice]) -> _Choice | None:
        """Return a member of a string enumeration, or null."""
        return (
            None
            if self._rest.get(name, 0) is None and self._drop(name)
            else self.choice(name, kind)
        )

    def done(self) -> None:
        """Raise `JsonError` if unknown fields are left."""
        if self._rest:
            names: Sequence[str] = sorted(self._rest)
            raise JsonError(f"{self._where} has unknown fields: {', '.join(names)}")

    def _drop(self, name: str) -> bool:
        self._rest.pop(name, None)
        return True
