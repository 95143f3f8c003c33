"""Decode records of a writer's Avro schema to a reader's, each for itself: the exact values, or the reason why not.

Every byte is checked: a record is bad if it is too short, or too long, or has an unknown symbol, an invalid text, or a number
that its type does not hold.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from kafka_ordered_ops.decoding.avro.plan import (
    Branches,
    Default,
    Entries,
    Items,
    Member,
    Plain,
    Record,
    Step,
    Symbols,
)
from kafka_ordered_ops.decoding.avro.schema import AvroType
from kafka_ordered_ops.decoding.avro.values import conversion
from kafka_ordered_ops.decoding.bad import BadValueError

#: Takes bytes and a position; returns a value as pyarrow takes it, and the position after it.
Read: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
_Convert: TypeAlias = Callable[[Any], Any]

#: Items without bytes in one array: a few bytes could ask for gigabytes.
_EMPTY_ITEMS_MAX: Final = 1 << 10


def record_reader(plan: Step) -> Callable[[bytes], Any]:
    """Return what decodes a whole record; it raises `BadValueError`."""
    read = _Reads().read_of(plan)

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


class _Reads:
    """What follows each step, made once for each."""

    def __init__(self) -> None:
        self._reads: dict[int, Read] = {}

    def read_of(self, step: Step) -> Read:
        """Return what follows a step of the plan."""
        if id(step) not in self._reads:
            self._reads[id(step)] = self._made(step)
        return self._reads[id(step)]

    def _made(self, step: Step) -> Read:
        match step:
            case Plain():
                return _converted(_read_of(step.writer), conversion(step.writer, step.reader))
            case Symbols():
                return _enum_read(step)
            case Record():
                fields = [(name, self.read_of(part)) for name, part in step.fields]
                defaults = {name: self._constant(default) for name, default in step.defaults}
                return _record_read(fields, defaults)
            case Items():
                return _array_read(self.read_of(step.item), is_empty=step.is_empty)
            case Entries():
                return _map_read(self.read_of(step.value))
            case Branches():
                return _union_read([self.read_of(part) for part in step.steps])
            case Member(name=name):
                return _converted(self.read_of(step.step), lambda value: {name: value})
            case Default():
                value = self._constant(step)
                return lambda _, at: (value, at)
            case _:
                return _refused(step.reason)

    def _constant(self, default: Default) -> Any:
        value, _ = self.read_of(default.step)(default.data, 0)
        return value


def _union_read(reads: list[Read]) -> Read:
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


def _record_read(fields: list[tuple[str | None, Read]], defaults: dict[str, Any]) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        record = defaults.copy()
        for name, read_field in fields:
            value, at = read_field(data, at)
            if name is not None:
                record[name] = value
        return record, at

    return read


def _array_read(read_item: Read, *, is_empty: bool) -> Read:
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


def _enum_read(step: Symbols) -> Read:
    symbols, written = step.symbols, step.writer.symbols

    def read(data: bytes, at: int) -> tuple[Any, int]:
        index, at = _long(data, at)
        if not 0 <= index < len(symbols):
            raise BadValueError(f"an enum of {len(symbols)} symbols has the index {index}")
        if (symbol := symbols[index]) is None:
            raise BadValueError(unknown_symbol(step.reader, written[index]))
        return symbol, at

    return read


def unknown_symbol(reader: AvroType, symbol: str) -> str:
    """Return why a symbol that the reader's enum does not have is bad."""
    return f"{reader.name} has no symbol {symbol!r}"


def _converted(read: Read, convert: _Convert | None) -> Read:
    if convert is None:
        return read

    def read_and_convert(data: bytes, at: int) -> tuple[Any, int]:
        value, at = read(data, at)
        return convert(value), at

    return read_and_convert


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
