"""Decode records of a writer's Avro schema to a reader's, each for itself: the exact values, or the reason why not.

Schema resolution as in the specification of Avro 1.12. Every byte is checked: a record is bad if it is too short, or
too long, or has an unknown symbol, an invalid text, or a number that its type does not hold.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, TypeAlias

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.decoding.avro_schema import (
    AvroField,
    AvroType,
    member_name,
    values_of,
)
from kafka_ordered_ops.decoding.bad import BadValueError

#: Takes bytes and a position; returns a value as pyarrow takes it, and the position after it.
Read: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
_Convert: TypeAlias = Callable[[Any], Any]

#: Items without bytes in one array: a few bytes could ask for gigabytes.
_EMPTY_ITEMS_MAX: Final = 1 << 20
_DAY_MS: Final = 86_400_000
_PROMOTIONS: Final = {
    ("int", "long"),
    ("int", "float"),
    ("int", "double"),
    ("long", "float"),
    ("long", "double"),
    ("float", "double"),
    ("string", "bytes"),
    ("bytes", "string"),
}


class _UnresolvedError(Exception):
    """Values of the writer's type do not fit the reader's."""


def record_reader(writer: AvroType, reader: AvroType) -> Callable[[bytes], Any]:
    """Return what decodes a whole record; it raises `BadValueError`.

    Raises `ConfigError` if no record of the writer's schema can be read.
    """
    try:
        read = _Resolution().read_of(writer, reader)
    except _UnresolvedError as error:
        raise ConfigError(f"the writer's schema does not fit the reader's: {error}") from None

    def whole(data: bytes) -> Any:
        try:
            value, end = read(data, 0)
        except (IndexError, struct.error):
            raise BadValueError("the record is too short") from None
        except UnicodeDecodeError as error:
            raise BadValueError(f"a string is not valid UTF-8: {error.reason}") from None
        if end != len(data):
            raise BadValueError(f"{len(data) - end} bytes follow the record")
        return value

    return whole


class _Resolution:
    """What reads each pair of types, made once for each: unions try many pairs."""

    def __init__(self) -> None:
        self._reads: dict[tuple[int, int], Read | _UnresolvedError] = {}

    def read_of(self, writer: AvroType, reader: AvroType) -> Read:
        """Return what reads the writer's type and returns the reader's; raise `_UnresolvedError`."""
        pair = id(writer), id(reader)
        if pair not in self._reads:
            try:
                self._reads[pair] = _resolved(self.read_of, writer, reader)
            except _UnresolvedError as error:
                self._reads[pair] = error
        read = self._reads[pair]
        if isinstance(read, _UnresolvedError):
            raise read
        return read


_Resolve: TypeAlias = Callable[[AvroType, AvroType], Read]


def _resolved(resolve: _Resolve, writer: AvroType, reader: AvroType) -> Read:
    if writer.kind == "union":
        return _union_read(resolve, writer, reader)
    if reader.kind == "union":
        member = _member_for(resolve, writer, reader)
        return _converted(resolve(writer, member), _in_union(reader, member))
    _check_names(writer, reader)
    if reader.kind == "record":
        return _record_read(resolve, writer, reader)
    if reader.kind == "array":
        return _array_read(writer.members[0], resolve(writer.members[0], reader.members[0]))
    if reader.kind == "map":
        return _map_read(resolve(writer.members[0], reader.members[0]))
    if reader.kind == "enum":
        return _enum_read(writer, reader)
    return _converted(_read_of(writer), _conversion(writer, reader))


def _check_names(writer: AvroType, reader: AvroType) -> None:
    kinds = writer.kind, reader.kind
    if writer.kind != reader.kind and kinds not in _PROMOTIONS:
        raise _UnresolvedError(f"{writer.name} was written, and {reader.name} is expected")
    if reader.kind in ("record", "enum", "fixed"):
        is_alias = writer.name in reader.aliases
        if writer.short_name != reader.short_name and not is_alias:
            raise _UnresolvedError(f"{writer.name} was written, and {reader.name} is expected")
    if reader.kind == "fixed" and writer.size != reader.size:
        raise _UnresolvedError(f"{reader.name} has {writer.size} bytes, {reader.size} are expected")
    own, theirs = _meaning(writer), _meaning(reader)
    if own and theirs and own != theirs:
        raise _UnresolvedError(f"{own} was written, and {theirs} is expected")


def _meaning(avro: AvroType) -> str:
    """Return what numbers and bytes mean: readers must not take one for another."""
    if avro.logical == "decimal":
        return f"decimal({avro.precision}, {avro.scale})"
    return avro.logical or ""


def _member_for(resolve: _Resolve, writer: AvroType, reader: AvroType) -> AvroType:
    """Return the member of a reader's union that takes a writer's type: one of the same type, else the first that can."""
    reasons = []
    for member in sorted(reader.members, key=lambda member: member.kind != writer.kind):
        try:
            resolve(writer, member)
        except _UnresolvedError as error:
            reasons.append(str(error))
        else:
            return member
    raise _UnresolvedError(reasons[0] if reasons else "the union has no members")


def _in_union(union: AvroType, member: AvroType) -> _Convert | None:
    """Return what makes a member's value a value of the union: of several members, a struct of which one is set."""
    if member.kind == "null" or len(values_of(union.members)) == 1:
        return None
    name = member_name(union.members, member)
    return lambda value: {name: value}


def _union_read(resolve: _Resolve, writer: AvroType, reader: AvroType) -> Read:
    reads: list[Read] = []
    refusals: list[_UnresolvedError] = []
    for member in writer.members:
        try:
            reads.append(resolve(member, reader))
        except _UnresolvedError as error:
            reads.append(_refused(str(error)))
            refusals.append(error)
    if len(refusals) == len(reads):
        raise refusals[0]

    def read(data: bytes, at: int) -> tuple[Any, int]:
        branch, at = _long(data, at)
        if not 0 <= branch < len(reads):
            raise BadValueError(f"a union of {len(reads)} has the branch {branch}")
        return reads[branch](data, at)

    return read


def _refused(reason: str) -> Read:
    def read(_: bytes, at: int) -> tuple[Any, int]:
        raise BadValueError(f"{reason} (at byte {at})")

    return read


def _record_read(resolve: _Resolve, writer: AvroType, reader: AvroType) -> Read:
    wanted = {part.name: part for part in reader.fields}
    for part in reader.fields:
        for alias in part.aliases:
            wanted.setdefault(alias, part)
    reads: list[tuple[str | None, Read]] = []
    present = set()
    for part in writer.fields:
        target = wanted.get(part.name)
        if target is None or target.name in present:
            reads.append((None, resolve(part.type, part.type)))
            continue
        present.add(target.name)
        try:
            reads.append((target.name, resolve(part.type, target.type)))
        except _UnresolvedError as error:
            raise _UnresolvedError(f"field {part.name}: {error}") from None
    missing = [part for part in reader.fields if part.name not in present]
    defaults = {part.name: _default_of(part) for part in missing}

    def read(data: bytes, at: int) -> tuple[Any, int]:
        record = defaults.copy()
        for name, read_field in reads:
            value, at = read_field(data, at)
            if name is not None:
                record[name] = value
        return record, at

    return read


def _array_read(written: AvroType, read_item: Read) -> Read:
    is_empty = written.is_empty

    def read(data: bytes, at: int) -> tuple[Any, int]:
        items: list[Any] = []
        while True:
            count, at = _block(data, at, is_empty=is_empty, before=len(items))
            if not count:
                return items, at
            for _ in range(count):
                item, at = read_item(data, at)
                items.append(item)

    return read


def _map_read(read_value: Read) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        entries: dict[str, Any] = {}
        while True:
            count, at = _block(data, at, is_empty=False, before=0)
            if not count:
                return list(entries.items()), at
            for _ in range(count):
                key, at = _string(data, at)
                entries[key], at = read_value(data, at)

    return read


def _block(data: bytes, at: int, *, is_empty: bool, before: int) -> tuple[int, int]:
    """Return the number of items of the next block, and where they begin; checked before anything is made for them."""
    count, at = _long(data, at)
    if count < 0:
        count = -count
        _, at = _long(data, at)
    most = _EMPTY_ITEMS_MAX - before if is_empty else len(data) - at
    if count > most:
        raise BadValueError(f"{count:,} items, and {len(data) - at:,} bytes are left")
    return count, at


def _enum_read(writer: AvroType, reader: AvroType) -> Read:
    known = frozenset(reader.symbols)
    symbols = [symbol if symbol in known else reader.default_symbol for symbol in writer.symbols]

    def read(data: bytes, at: int) -> tuple[Any, int]:
        index, at = _long(data, at)
        if not 0 <= index < len(symbols):
            raise BadValueError(f"an enum of {len(symbols)} symbols has the index {index}")
        if (symbol := symbols[index]) is None:
            raise BadValueError(f"{reader.name} has no symbol {writer.symbols[index]!r}")
        return symbol, at

    return read


def _converted(read: Read, convert: _Convert | None) -> Read:
    if convert is None:
        return read

    def read_and_convert(data: bytes, at: int) -> tuple[Any, int]:
        value, at = read(data, at)
        return convert(value), at

    return read_and_convert


def _conversion(writer: AvroType, reader: AvroType) -> _Convert | None:
    """Return what makes a primitive value as written one of the reader's type, checked."""
    if reader.logical == "decimal":
        return lambda value: _decimal(value, reader.precision, reader.scale)
    if reader.logical == "uuid":
        return _uuid_of_bytes if reader.kind == "fixed" else _uuid_of_text
    if reader.logical in ("time-millis", "time-micros"):
        day = _DAY_MS if reader.logical == "time-millis" else _DAY_MS * 1_000
        return lambda value: _time(value, day)
    if reader.kind in ("float", "double") and writer.kind in ("int", "long"):
        return float
    if (writer.kind, reader.kind) == ("string", "bytes"):
        return str.encode
    if (writer.kind, reader.kind) == ("bytes", "string"):
        return bytes.decode
    return None


def _decimal(unscaled: bytes, precision: int, scale: int) -> Decimal:
    number = int.from_bytes(unscaled, "big", signed=True)
    digits = tuple(map(int, str(abs(number)))) if len(unscaled) <= 40 else ()
    if not 0 < len(digits) <= precision:
        raise BadValueError(f"a decimal has more than {precision} digits")
    return Decimal((int(number < 0), digits, -scale))


def _time(value: int, day: int) -> int:
    if not 0 <= value < day:
        raise BadValueError(f"{value} is not a time of day")
    return value


def _uuid_of_text(text: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise BadValueError("a text is not a UUID") from None


def _uuid_of_bytes(data: bytes) -> str:
    return str(uuid.UUID(bytes=data))


# --- primitive types -----------------------------------------------------------------------------


def _read_of(avro: AvroType) -> Read:
    """Return what reads a primitive type, or a fixed, as written."""
    if avro.kind == "fixed":
        size = avro.size
        return lambda data, at: (data[at : at + size], _within(data, at + size))
    return _READS[avro.kind]


def _within(data: bytes, end: int) -> int:
    if end > len(data):
        raise BadValueError("the record is too short")
    return end


def _null(_: bytes, at: int) -> tuple[None, int]:
    return None, at


def _boolean(data: bytes, at: int) -> tuple[bool, int]:
    if data[at] > 1:
        raise BadValueError(f"a boolean has the byte {data[at]}")
    return data[at] == 1, at + 1


def _long(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise BadValueError("a number has more than 64 bits")
    if number >> 64:
        raise BadValueError("a number has more than 64 bits")
    return (number >> 1) ^ -(number & 1), at


def _int(data: bytes, at: int) -> tuple[int, int]:
    number, at = _long(data, at)
    if not -(2**31) <= number < 2**31:
        raise BadValueError(f"the int {number} has more than 32 bits")
    return number, at


def _float(data: bytes, at: int) -> tuple[float, int]:
    return struct.unpack_from("<f", data, at)[0], at + 4


def _double(data: bytes, at: int) -> tuple[float, int]:
    return struct.unpack_from("<d", data, at)[0], at + 8


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _long(data, at)
    if not 0 <= size <= len(data) - at:
        raise BadValueError(f"a length of {size:,}, and {len(data) - at:,} bytes are left")
    return data[at : at + size], at + size


def _string(data: bytes, at: int) -> tuple[str, int]:
    text, at = _bytes(data, at)
    return text.decode(), at


_READS: Final[dict[str, Read]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": _float,
    "double": _double,
    "bytes": _bytes,
    "string": _string,
}


# --- defaults ------------------------------------------------------------------------------------


def _default_of(part: AvroField) -> Any:
    if not part.has_default:
        raise _UnresolvedError(f"field {part.name} was not written, and has no default")
    try:
        return _from_json(part.default, part.type)
    except (BadValueError, KeyError, TypeError, ValueError, UnicodeError) as error:
        raise _UnresolvedError(f"field {part.name} has an invalid default: {error}") from None


def _from_json(value: Any, avro: AvroType) -> Any:
    """Return a default of a schema as decoding returns values."""
    if avro.kind == "union":
        for member in avro.members:
            try:
                default = _from_json(value, member)
            except (BadValueError, KeyError, TypeError, ValueError):
                continue
            wrap = _in_union(avro, member)
            return default if wrap is None else wrap(default)
        raise BadValueError("no member of the union has such values")
    if avro.kind == "record":
        return {
            part.name: _from_json(value[part.name], part.type)
            if part.name in value
            else _default_of(part)
            for part in avro.fields
        }
    if avro.kind == "array":
        if not isinstance(value, list):
            raise BadValueError("a list is expected")
        return [_from_json(item, avro.members[0]) for item in value]
    if avro.kind == "map":
        return [(str(key), _from_json(item, avro.members[0])) for key, item in value.items()]
    if avro.kind == "enum":
        if value not in avro.symbols:
            raise BadValueError(f"{value!r} is not a symbol")
        return value
    return _primitive_default(value, avro)


def _primitive_default(value: Any, avro: AvroType) -> Any:
    kinds: dict[str, tuple[type, ...]] = {
        "null": (type(None),),
        "boolean": (bool,),
        "int": (int,),
        "long": (int,),
        "float": (int, float),
        "double": (int, float),
        "string": (str,),
        "bytes": (str,),
        "fixed": (str,),
    }
    if type(value) not in kinds[avro.kind]:
        raise BadValueError(f"{value!r} is not of the type {avro.kind}")
    if avro.kind in ("bytes", "fixed"):
        value = value.encode("latin-1")
    if avro.kind in ("float", "double"):
        value = float(value)
    if avro.kind == "fixed" and len(value) != avro.size:
        raise BadValueError(f"{avro.size} bytes are expected")
    convert = _conversion(avro, avro)
    return value if convert is None else convert(value)
