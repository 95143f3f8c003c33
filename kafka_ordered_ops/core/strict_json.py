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
from collections.abc import Iterable
from itertools import chain
from typing import Annotated, Any, ClassVar, Final, NoReturn, Self, TypeVar, get_args

import msgspec
from msgspec import Meta

from kafka_ordered_ops.core.types import INT32_MAX, INT64_MAX, INT64_MIN

#: What parsers of other libraries raise for bytes that they do not expect.
PARSER_ERRORS: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)

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

#: Digits of the largest int64.
_DIGITS_MAX: Final = 19
#: Only where a text has so many digits in a row may it have a number that does not fit 64 bits. The least one that
#: does is common: it stands for no start in time.
_LONG_NUMBER: Final = re.compile(rb"\d{19}(?<!-9223372036854775808)")
#: Characters of a number with a fraction; Python writes at most 24.
_FLOAT_LENGTH_MAX: Final = 400
_NESTED: Final = frozenset({dict, list})
#: Characters of what is wrong with a field: it may quote the text.
_MESSAGE_MAX: Final = 200


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
        data = text.encode() if isinstance(text, str) else text
        containers = data.count(b"[") + data.count(b"{")
        values = containers + data.count(b",")
        if containers > CONTAINERS_MAX or values > VALUES_MAX:
            raise JsonError(
                f"{containers:,} lists and objects and {values:,} values, and at most {CONTAINERS_MAX:,} and {VALUES_MAX:,} "
                "are allowed"
            )
        value = None if _LONG_NUMBER.search(data) else msgspec.json.decode(data)
        # What this package wrote is the same when it is written again. Any other text may have a key twice.
        if msgspec.json.encode(value) != data:
            value = _loads_with_care(data)
        if containers > NESTING_MAX and type(value) in _NESTED:
            check_depth(value, NESTING_MAX)
    except JsonError:
        raise
    except (ValueError, RecursionError) as error:
        raise JsonError(f"not readable as JSON: {error}") from error
    return value


def _loads_with_care(data: bytes) -> Any:
    """Parse what this package would write in other words; refuse equal keys, and numbers beyond 64 bits."""
    # Left to itself, the standard parser also takes bytes for UTF-16 and UTF-32.
    value = json.loads(
        str(data, "utf-8"),
        object_pairs_hook=_unique_keys,
        parse_constant=_refuse_constant,
        parse_float=_finite_float,
        parse_int=_bounded_int,
    )
    # Fails on halves of surrogate pairs, which escapes can make.
    msgspec.json.encode(value)
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
    decoded = text.decode("ascii", "replace") if isinstance(text, bytes) else text
    digits = "" if decoded is None else decoded.removeprefix("-")
    if decoded is None or not (digits.isascii() and digits.isdecimal()):
        raise JsonError(f"{what} is {_excerpt(decoded)}, not a whole number")
    if len(digits) > _DIGITS_MAX or not least <= (value := int(decoded)) <= greatest:
        raise JsonError(f"{what} is {_excerpt(decoded)}, not from {least} to {greatest}")
    return value


def check_depth(value: Any, most: int) -> None:
    """Raise `JsonError` for a list or an object with more levels."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > most:
            raise JsonError(f"lists and objects more than {most} levels deep")
        inner = chain.from_iterable(item.values() if type(item) is dict else item for item in level)
        level = [item for item in inner if type(item) in _NESTED]


def _excerpt(text: str | None) -> str:
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
    """The text has another version than the one that this package reads: a newer package wrote it."""


#: Types of fields of `Stored`.
Count = Annotated[int, Meta(ge=0, le=INT64_MAX)]
#: A number of Kafka's protocol that is not negative: a partition, or a leader's epoch.
Int32 = Annotated[int, Meta(ge=0, le=INT32_MAX)]
#: Without halves of surrogate pairs, which cannot be encoded.
Text = Annotated[str, Meta(max_length=TEXT_LENGTH_MAX, pattern="\\A[^\ud800-\udfff]*\\Z")]
Texts = tuple[Text, ...]


class Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One object of stored JSON: its fields with their types and bounds, and no others.

    A format with a version has a field `version`, a `Literal` of the one that is read, and names itself in `what`.
    """

    what: ClassVar[str] = ""

    @classmethod
    def parse(cls, value: Any, where: str) -> Self:
        """Return parsed JSON as this object; raise `JsonError`, or `JsonVersionError` for another version."""
        try:
            return msgspec.convert(value, cls)
        except ValueError as error:
            _check_versions(value, cls)
            message, _, place = str(error).rpartition(" - at `$")
            detail = ascii(message or place)[1:-1][:_MESSAGE_MAX]
            raise JsonError(f"{where}{place[:-1] if message else ''}: {detail}") from error

    def fields(self, **others: Any) -> dict[str, Any]:
        """Return the fields by their names in Python, some of them replaced, without the version."""
        values = {**msgspec.structs.asdict(self), **others}
        values.pop("version", None)
        return values

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        content: dict[str, Any] = msgspec.to_builtins(self)
        return content


def _check_versions(value: Any, kind: type[Stored]) -> None:
    """Raise `JsonVersionError` if the value has a version, anywhere, that is not the one of its format."""
    for field in msgspec.structs.fields(kind) if isinstance(value, dict) else ():
        content = value.get(field.encode_name)
        if field.name == "version" and type(content) is int and content >= 1:
            if content not in (versions := get_args(field.type)):
                raise JsonVersionError(
                    f"{kind.what} has version {content}; this package reads version {versions[0]}"
                )
        elif isinstance(field.type, type) and issubclass(field.type, Stored):
            _check_versions(content, field.type)
