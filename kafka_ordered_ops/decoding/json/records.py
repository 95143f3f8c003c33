"""Decode JSON texts to an Arrow type, each for itself: the exact values, or the reason why not.

Nothing is changed silently: a fraction is not an integer, a text is not a number, a key must not be there twice.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final, TypeAlias

import pyarrow as pa

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.strict_json import JsonError, check_depth, once
from kafka_ordered_ops.decoding.bad import BadValueError
from kafka_ordered_ops.decoding.json.sizes import size_check

_Read: TypeAlias = Callable[[Any], Any]
#: Whether a field without a column makes a value bad, by the field's value.
_Refuses: TypeAlias = Callable[[Any], bool] | None

#: Levels of lists and objects: each is a call of Python's parser.
_NESTING_MAX: Final = 128
#: How Python packs a float of so many bits.
_FLOATS: Final = {16: "<e", 32: "<f", 64: "<d"}
#: Digits of a number: more would take Python very long.
_DIGITS_MAX: Final = 400
_LONG_NUMBER: Final = re.compile(rb"[\d.]{401}")
#: RFC 3339; the zone may be missing where the column has none.
_MOMENT: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)?", re.ASCII
)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_CLOCK: Final = re.compile(r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?", re.ASCII)
#: Of a new field, where columns are inferred.
_NOT_INFERRED: Final = "is not among the inferred columns: infer='discard' leaves it out, infer='evolve' makes new fields columns"
_NANOSECONDS: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


def json_reader(
    arrow: pa.DataType, *, refuses_unknown: bool, but_blank: bool = False
) -> Callable[..., Any]:
    """Return what decodes a text, and passes the parsed value to its second argument; it raises `BadValueError`.

    Args:
        arrow: the type of the value.
        refuses_unknown: whether fields without a column are bad.
        but_blank: such fields are not bad if they are null, or a list or an object with nothing else in it.

    Raises:
        ConfigError: JSON cannot become this type.
    """
    read = json_converter(arrow, refuses_unknown=refuses_unknown, but_blank=but_blank)
    check_size = size_check(arrow)

    def whole(data: bytes, seen: Callable[[Any], object] = lambda _: None) -> Any:
        value = parsed_json(data)
        if check_size is not None:
            check_size(value, len(data))
        record = read(value)
        seen(value)
        return record

    return whole


def json_converter(
    arrow: pa.DataType, *, refuses_unknown: bool, but_blank: bool = False
) -> Callable[[Any], Any]:
    """Return what converts a value of `parsed_json`, which may be null; it raises `BadValueError`.

    Raises `ConfigError` for a type that JSON cannot become.
    """
    refuses: _Refuses = None
    if refuses_unknown:
        refuses = _says_something if but_blank else lambda _: True
    return _reader(arrow, refuses)


def is_blank(value: Any) -> bool:
    """Return whether a value is null, or a list or an object with nothing else in it: no type follows from it."""
    if isinstance(value, dict):
        return all(map(is_blank, value.values()))
    return value is None or (isinstance(value, list) and all(map(is_blank, value)))


def _says_something(value: Any) -> bool:
    return not is_blank(value)


def parsed_json(data: bytes) -> Any:
    """Return the value of a text, with decimals for numbers that have a point; raise `BadValueError`."""
    if _LONG_NUMBER.search(data):
        raise BadValueError(f"a number has more than {_DIGITS_MAX} digits")
    try:
        value = json.loads(
            data.decode(),
            object_pairs_hook=_unique_keys,
            parse_constant=_refuse_constant,
            parse_float=Decimal,
        )
        if type(value) in (dict, list) and data.count(b"[") + data.count(b"{") > _NESTING_MAX:
            check_depth(value, _NESTING_MAX)
    except UnicodeDecodeError as error:
        raise BadValueError(f"the text is not valid UTF-8: {error.reason}") from None
    except json.JSONDecodeError as error:
        raise BadValueError(f"the text is not valid JSON: {error}") from None
    except JsonError as error:
        raise BadValueError(str(error)) from None
    except InvalidOperation:
        raise BadValueError("a number has an exponent beyond those of decimals") from None
    except RecursionError:
        raise BadValueError(f"lists and objects more than {_NESTING_MAX} levels deep") from None
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    return result if len(result) == len(pairs) else once(pairs, "the key")


def _refuse_constant(name: str) -> Any:
    raise BadValueError(f"{name} is not JSON")


def _reader(arrow: pa.DataType, refuses: _Refuses) -> _Read:
    """Return what converts a parsed value that may be null."""
    read = _reader_of_value(arrow, refuses)
    return lambda value: None if value is None else read(value)


def _reader_of_value(arrow: pa.DataType, refuses: _Refuses) -> _Read:
    if pa.types.is_struct(arrow):
        return _struct(arrow, refuses)
    if pa.types.is_map(arrow) and pa.types.is_string(arrow.key_type):
        item = _reader(arrow.item_type, refuses)
        return lambda value: [(_string(key), item(part)) for key, part in _is(value, dict).items()]
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        item = _reader(arrow.value_type, refuses)
        return lambda value: [item(part) for part in _is(value, list)]
    if pa.types.is_integer(arrow):
        return _integer(arrow)
    if pa.types.is_decimal(arrow):
        return _decimal(arrow)
    if pa.types.is_timestamp(arrow):
        return lambda value: _moment(value, arrow)
    if pa.types.is_time(arrow):
        return lambda value: _time(value, arrow)
    if pa.types.is_date(arrow):
        return lambda value: _date(value, arrow)
    if pa.types.is_floating(arrow):
        return lambda value: _float(value, _FLOATS[arrow.bit_width])
    for matches, read in _SIMPLE:
        if matches(arrow):
            return read
    raise ConfigError(f"JSON has no values for the Arrow type {arrow}")


def _struct(arrow: pa.StructType, refuses: _Refuses) -> _Read:
    reads = {part.name: _reader(part.type, refuses) for part in arrow}
    where = _NOT_INFERRED if refuses is _says_something else "is not in the schema"
    required = [part.name for part in arrow if not part.nullable]

    def read(value: Any) -> dict[str, Any]:
        _is(value, dict)
        unknown = () if refuses is None else value.keys() - reads.keys()
        if refuses and (new := [name for name in unknown if refuses(value[name])]):
            raise BadValueError(f"the field {min(new)!r} {where}")
        record = {}
        for name, read_field in reads.items():
            try:
                record[name] = read_field(value.get(name))
            except BadValueError as error:
                raise BadValueError(f"{name}: {error}") from None
        for name in required:
            if record[name] is None:
                raise BadValueError(f"{name}: it must not be null")
        return record

    return read


def _integer(arrow: pa.DataType) -> _Read:
    bits = arrow.bit_width
    is_signed = pa.types.is_signed_integer(arrow)
    least = -(1 << bits - 1) if is_signed else 0
    greatest = (1 << bits - 1 if is_signed else 1 << bits) - 1

    def read(value: Any) -> int:
        if isinstance(value, Decimal) and value == value.to_integral_value():
            # 1.0 and 1e3 are whole numbers, as JSON Schema has them.
            value = int(value) if value.adjusted() < 40 else greatest + 1
        if type(value) is not int:
            raise _wrong(value, "a whole number")
        if not least <= value <= greatest:
            raise BadValueError(f"{value} is beyond {arrow}")
        return value

    return read


def _decimal(arrow: Any) -> _Read:
    precision, scale = arrow.precision, arrow.scale

    def read(value: Any) -> Decimal:
        if type(value) not in (int, Decimal, str):
            raise _wrong(value, "a number")
        try:
            number = Decimal(value)
        except InvalidOperation:
            raise _wrong(value, "a number") from None
        sign, digits, exponent = number.as_tuple()
        if not isinstance(exponent, int):
            raise _wrong(value, "a number")
        while digits and digits[-1] == 0 and exponent < -scale:
            digits, exponent = digits[:-1], exponent + 1
        if exponent < -scale or (any(digits) and number.adjusted() >= precision - scale):
            raise BadValueError(f"{value} does not fit {arrow} exactly")
        return Decimal((sign, digits, exponent)) if any(digits) else Decimal((0, (0,), -scale))

    return read


def _moment(value: Any, arrow: Any) -> int:
    """Return a number of the column's unit unchanged, and a text of RFC 3339 in that unit."""
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return int(_integer(pa.int64())(value))
    match = _MOMENT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise _wrong(value, "a time as in RFC 3339, or a number")
    day, clock, fraction, zone = match.groups()
    has_zone = bool(arrow.tz)
    if (zone is not None) != has_zone:
        expected = "a time with a zone" if has_zone else "a time without a zone"
        raise _wrong(value, expected)
    try:
        moment = datetime.fromisoformat(f"{day}T{clock}{(zone or '+00:00').upper()}")
        seconds = (moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
    except (ValueError, OverflowError):
        raise _wrong(value, "a time") from None
    return _in_unit(round(seconds) * 1_000_000_000 + _fraction(fraction), value, arrow)


def _boolean(value: Any) -> bool:
    return bool(_is(value, bool))


def _float(value: Any, code: str) -> float:
    if type(value) not in (int, Decimal):
        raise _wrong(value, "a number")
    try:
        number = float(value)
        # Fails beyond the range of a shorter type.
        struct.pack(code, number)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise BadValueError(f"{str(value)[:40]} is beyond the column's range")
    return number


def _string(value: Any) -> str:
    try:
        _is(value, str).encode()
    except UnicodeEncodeError:
        raise BadValueError("a text has half of a surrogate pair") from None
    return str(value)


def _binary(value: Any) -> bytes:
    try:
        return base64.b64decode(_is(value, str), validate=True)
    except ValueError:
        raise BadValueError("a text is not base64") from None


def _date(value: Any, arrow: Any) -> date | int:
    """Return a date; a number is in the column's unit, days or milliseconds, already."""
    if type(value) is int:
        return int(_integer(pa.int32() if pa.types.is_date32(arrow) else pa.int64())(value))
    if not isinstance(value, str) or not _DATE.fullmatch(value):
        raise _wrong(value, "a date")
    try:
        return date.fromisoformat(value)
    except ValueError:
        raise _wrong(value, "a date") from None


def _time(value: Any, arrow: Any) -> int:
    """Return a time of day as a number of the column's unit, which a number is already."""
    if type(value) is int:
        if not 0 <= value < 86_400_000_000_000 // _NANOSECONDS[arrow.unit]:
            raise _wrong(value, "a time of day")
        return value
    match = _CLOCK.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise _wrong(value, "a time of day without a zone")
    hours, minutes, seconds = (int(part or 0) for part in match.groups()[:3])
    if hours > 23 or minutes > 59 or seconds > 59:
        raise _wrong(value, "a time of day")
    nanoseconds = (hours * 3_600 + minutes * 60 + seconds) * 1_000_000_000
    return _in_unit(nanoseconds + _fraction(match[4]), value, arrow)


def _fraction(digits: str | None) -> int:
    """Return the digits after a second's point in nanoseconds."""
    return int((digits or "0").ljust(9, "0"))


def _in_unit(nanoseconds: int, value: object, arrow: Any) -> int:
    """Return nanoseconds in a column's unit, if they fit it exactly."""
    number, lost = divmod(nanoseconds, _NANOSECONDS[arrow.unit])
    if lost or not -(2**63) <= number < 2**63:
        raise BadValueError(f"{value!r} does not fit {arrow} exactly")
    return number


def _is(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        names = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
        raise _wrong(value, names[kind])
    return value


def _wrong(value: object, expected: str) -> BadValueError:
    text = str(value) if isinstance(value, Decimal) else ascii(value)
    return BadValueError(f"{text[:80]} where {expected} is expected")


_SIMPLE: Final[tuple[tuple[Callable[[pa.DataType], bool], _Read], ...]] = (
    (pa.types.is_boolean, _boolean),
    (pa.types.is_string, _string),
    (pa.types.is_large_string, _string),
    (pa.types.is_binary, _binary),
    (pa.types.is_large_binary, _binary),
)
