"""Strict, bounded parsing of stored text: JSON, and whole numbers.

Everything stored outside of this process may be written by another program: ledger records, markers, tokens, files
between processes. The standard parser accepts NaN, lets the last of two equal keys win, fails on deep nesting and
very long integers, and makes gigabytes of a few megabytes. Here every text ends as a value or as a `JsonError`, in
bounded time and memory. Every field is known, typed and bounded, and errors name the path of the field.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any, Final, NoReturn, TypeVar

from kafka_ordered_ops.core.types import INT32_MAX, INT64_MAX, INT64_MIN

_Choice = TypeVar("_Choice", bound=StrEnum)
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

#: Levels of lists and objects within one another. What this package stores has at most ten, besides the results of
#: jobs.
NESTING_MAX: Final = 64
#: Lists and objects in one text, each some eighty bytes in memory. The largest record of the ledger, a window of
#: 10,000 parts, has a third of that.
CONTAINERS_MAX: Final = 500_000
#: Values in one text, far more than this package writes: jobs report what they like.
VALUES_MAX: Final = 4_000_000
#: Characters of one text field.
TEXT_LENGTH_MAX: Final = 65_536

#: A surrogate in escaped text; what this package writes has no escapes of letters.
_SURROGATE_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
#: Digits of the largest int64.
_DIGITS_MAX: Final = 19
#: Characters of a number with a fraction; Python writes at most 24.
_FLOAT_LENGTH_MAX: Final = 400
#: Types without a text or another value inside.
_PLAIN: Final = frozenset({int, float, bool, type(None)})
#: Unknown fields named in one error.
_NAMED_MAX: Final = 8


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
    """Parse JSON of at most `limit_bytes` in UTF-8; raises `JsonError`."""
    if len(text) > limit_bytes:
        raise JsonError(f"{len(text):,} bytes where at most {limit_bytes:,} are allowed")
    try:
        # Left to itself, the parser also takes bytes for UTF-16 and UTF-32.
        decoded = text if isinstance(text, str) else str(text, "utf-8")
        containers = decoded.count("[") + decoded.count("{")
        _check_count("lists and objects", containers, CONTAINERS_MAX)
        _check_count("values", containers + decoded.count(","), VALUES_MAX)
        value = json.loads(
            decoded,
            object_pairs_hook=_unique_keys,
            parse_constant=_refuse_constant,
            parse_float=_finite_float,
            parse_int=_bounded_int,
        )
        if isinstance(text, str):
            _check_no_surrogate(text)
        if containers > NESTING_MAX or _SURROGATE_ESCAPE.search(decoded):
            _check_inside(value)
    except JsonError:
        raise
    except (ValueError, RecursionError) as error:
        raise JsonError(f"not readable as JSON: {error}") from error
    return value


def once(pairs: Iterable[tuple[_Key, _Value]], what: str) -> dict[_Key, _Value]:
    """Return pairs as a mapping; raise `JsonError` if a key is there twice."""
    result: dict[_Key, _Value] = {}
    for key, value in pairs:
        if key in result:
            raise JsonError(f"{what} {ascii(key)[:80]} is there twice")
        result[key] = value
    return result


def whole_number(
    text: str | bytes | None, *, least: int = 0, greatest: int = INT64_MAX, what: str = "the number"
) -> int:
    """Parse a whole number in decimal ASCII digits; raises `JsonError` for any other text, and out of bounds.

    Python's own function also takes blanks, underscores and the digits of other scripts, and fails on long text.
    """
    found = text.decode("ascii", "replace") if isinstance(text, bytes) else text
    digits = "" if found is None else found.removeprefix("-")
    if found is None or not (digits.isascii() and digits.isdecimal()):
        raise JsonError(f"{what} is {_shown(found)}, not a whole number")
    if len(digits) > _DIGITS_MAX or not least <= (value := int(found)) <= greatest:
        raise JsonError(f"{what} is {_shown(found)}, not from {least} to {greatest}")
    return value


def _check_count(what: str, count: int, greatest: int) -> None:
    if count > greatest:
        raise JsonError(f"{count:,} {what}, and at most {greatest:,} are allowed")


def _check_no_surrogate(text: str, what: str = "a text") -> None:
    if not text.isascii() and _SURROGATE.search(text):
        raise JsonError(f"{what} has half a surrogate pair")


def _check_inside(value: Any) -> None:
    """Raise `JsonError` for deep nesting, and for text that cannot be encoded."""
    level, depth = [value], 0
    while level:
        inner: list[Any] = []
        for one in level:
            if isinstance(one, str):
                _check_no_surrogate(one)
            elif isinstance(one, dict):
                inner += (*one, *one.values())
            # Most lists hold numbers, millions of them.
            elif isinstance(one, list) and not _PLAIN.issuperset(map(type, one)):
                inner += one
        depth += any(isinstance(one, (list, dict)) for one in level)
        if depth > NESTING_MAX:
            raise JsonError(f"lists and objects more than {NESTING_MAX} levels deep")
        level = inner


def _shown(text: str | None) -> str:
    """Return a short text for an error, without characters that a terminal or an encoder trips over."""
    return "missing" if text is None else ascii(text if len(text) <= 24 else f"{text[:24]}...")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise JsonError("an object has a key twice")
    return result


def _refuse_constant(text: str) -> NoReturn:
    raise JsonError(f"{text[:20]} is not a JSON number")


def _finite_float(text: str) -> float:
    if len(text) > _FLOAT_LENGTH_MAX or not math.isfinite(value := float(text)):
        raise JsonError(f"the number {text[:24]} is too large")
    return value


def _bounded_int(text: str) -> int:
    if len(text) > _DIGITS_MAX + 1 or not INT64_MIN <= (value := int(text)) <= INT64_MAX:
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
        """Return whether an optional field is there."""
        return name in self._rest

    def integer(self, name: str, *, least: int = INT64_MIN, greatest: int = INT64_MAX) -> int:
        """Return an integer from `least` to `greatest`."""
        value: int = self._take(name, int)
        if not least <= value <= greatest:
            found = value if INT64_MIN <= value <= INT64_MAX else "beyond 64 bits"
            raise JsonError(f"{self._where}.{name} is {found}, not from {least} to {greatest}")
        return value

    def integer_or_none(
        self, name: str, *, least: int = INT64_MIN, greatest: int = INT64_MAX
    ) -> int | None:
        """Return an integer as `integer` does, or null."""
        is_null = self._rest.get(name, 0) is None and self._drop(name)
        return None if is_null else self.integer(name, least=least, greatest=greatest)

    def int32(self, name: str) -> int:
        """Return a number of Kafka's protocol that is not negative: a partition, or a leader's epoch."""
        return self.integer(name, least=0, greatest=INT32_MAX)

    def text(self, name: str, *, length_max: int = TEXT_LENGTH_MAX) -> str:
        """Return a string of at most `length_max` characters."""
        value: str = self._take(name, str)
        self._check_text(name, value, length_max)
        return value

    def text_or_none(self, name: str, *, length_max: int = TEXT_LENGTH_MAX) -> str | None:
        """Return a string as `text` does, or null."""
        is_null = self._rest.get(name, 0) is None and self._drop(name)
        return None if is_null else self.text(name, length_max=length_max)

    def boolean(self, name: str) -> bool:
        """Return true or false."""
        value: bool = self._take(name, bool)
        return value

    def texts(self, name: str, *, length_max: int = TEXT_LENGTH_MAX) -> tuple[str, ...]:
        """Return a list of strings of at most `length_max` characters each."""
        values = self._list(name)
        for value in values:
            if not isinstance(value, str):
                raise JsonError(f"{self._where}.{name} contains a value that is not text")
            self._check_text(name, value, length_max)
        return tuple(values)

    def integers(self, name: str) -> list[int]:
        """Return a list of int64."""
        values = self._list(name)
        if not all(type(value) is int for value in values):
            raise JsonError(f"{self._where}.{name} contains a value that is not an integer")
        if values and not INT64_MIN <= min(values) <= max(values) <= INT64_MAX:
            raise JsonError(f"{self._where}.{name} contains a number that does not fit 64 bits")
        return values

    def integers_or_text(self, name: str, *, length_max: int) -> list[int] | str:
        """Return a list as `integers` does, or a string as `text` does."""
        is_text = isinstance(self._rest.get(name), str)
        return self.text(name, length_max=length_max) if is_text else self.integers(name)

    def objects(self, name: str) -> Iterator[Fields]:
        """Return a list of objects."""
        values = self._list(name)
        return (Fields(value, f"{self._where}.{name}[{n}]") for n, value in enumerate(values))

    def object(self, name: str) -> Fields:
        """Return one object."""
        return Fields(self._take(name, dict), f"{self._where}.{name}")

    def object_or_none(self, name: str) -> Fields | None:
        """Return one object or null."""
        return None if self._rest.get(name, 0) is None and self._drop(name) else self.object(name)

    def mapping_or_none(self, name: str) -> dict[str, Any] | None:
        """Return a JSON object as it is, whatever its fields, or null: what a person or a host wrote."""
        value = self.anything(name)
        if value is not None and not isinstance(value, dict):
            raise JsonError(f"{self._where}.{name} is a {type(value).__name__}, not an object")
        return value

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
            raise JsonError(f"{self._where}.{name} is {_shown(value)}") from error

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
            names: Sequence[str] = sorted(map(_shown, self._rest))
            more = f" and {len(names) - _NAMED_MAX:,} more" if len(names) > _NAMED_MAX else ""
            raise JsonError(
                f"{self._where} has unknown fields: {', '.join(names[:_NAMED_MAX])}{more}"
            )

    def _list(self, name: str) -> list[Any]:
        values: list[Any] = self._take(name, list)
        if len(values) > VALUES_MAX:
            raise JsonError(f"{self._where}.{name} has {len(values):,} values")
        return values

    def _check_text(self, name: str, value: str, length_max: int) -> None:
        if len(value) > length_max:
            raise JsonError(
                f"{self._where}.{name} has {len(value):,} characters, and at most {length_max:,} are allowed"
            )
        _check_no_surrogate(value, f"{self._where}.{name}")

    def _drop(self, name: str) -> bool:
        self._rest.pop(name, None)
        return True
