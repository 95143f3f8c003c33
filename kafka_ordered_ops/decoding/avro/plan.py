"""How values of a writer's Avro schema become those of a reader's: a plan of steps, which decoders follow.

Schema resolution as in the specification of Avro 1.12.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.decoding.avro.schema import (
    AvroField,
    AvroType,
    member_name,
    values_of,
)
from kafka_ordered_ops.decoding.avro.values import conversion
from kafka_ordered_ops.decoding.bad import BadValueError

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
#: Bits of whole numbers.
_BITS: Final = {"int": 32, "long": 64}


# --- steps ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Plain:
    """A primitive type or a fixed, checked and converted to the reader's."""

    writer: AvroType
    reader: AvroType


@dataclass(frozen=True, slots=True, eq=False)
class Symbols:
    """An enum: for each written symbol, that of the reader; None if it has none."""

    writer: AvroType
    reader: AvroType
    symbols: tuple[str | None, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Default:
    """Nothing is written: these bytes are read instead."""

    data: bytes
    step: Step


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """Fields in the order in which they are written, with the reader's name for each; None for one that it does not have."""

    reader: AvroType
    fields: tuple[tuple[str | None, Step], ...]
    defaults: tuple[tuple[str, Default], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """An array."""

    item: Step
    #: Whether each item takes no bytes.
    is_empty: bool


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """A map."""

    value: Step


@dataclass(frozen=True, slots=True, eq=False)
class Branches:
    """A union that is written: the members."""

    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A value in a reader's union of several: a struct of which one field is set."""

    union: AvroType
    name: str
    step: Step


@dataclass(frozen=True, slots=True, eq=False)
class Refused:
    """A member of a written union that the reader does not take: why its values are bad."""

    reason: str


Step: TypeAlias = Plain | Symbols | Default | Record | Items | Entries | Branches | Member | Refused


# --- resolution ----------------------------------------------------------------------------------


class _UnresolvedError(Exception):
    """Values of the writer's type do not fit the reader's."""


def plan_of(writer: AvroType, reader: AvroType) -> Step:
    """Return how whole records are read; raise `ConfigError` if no record of the writer's schema can be read."""
    try:
        return _Resolution().step_of(writer, reader)
    except _UnresolvedError as error:
        raise ConfigError(f"the writer's schema does not fit the reader's: {error}") from None


class _Resolution:
    """What reads each pair of types, made once for each: unions try many pairs."""

    def __init__(self) -> None:
        self._steps: dict[tuple[int, int], Step | _UnresolvedError] = {}

    def step_of(self, writer: AvroType, reader: AvroType) -> Step:
        """Return what reads the writer's type and returns the reader's; raise `_UnresolvedError`."""
        pair = id(writer), id(reader)
        if pair not in self._steps:
            try:
                self._steps[pair] = _resolved(self.step_of, writer, reader)
            except _UnresolvedError as error:
                self._steps[pair] = error
        step = self._steps[pair]
        if isinstance(step, _UnresolvedError):
            raise step
        return step


_Resolve: TypeAlias = Callable[[AvroType, AvroType], Step]


def _resolved(resolve: _Resolve, writer: AvroType, reader: AvroType) -> Step:
    if writer.kind == "union":
        return _branches(resolve, writer, reader)
    if reader.kind == "union":
        member = _member_for(resolve, writer, reader)
        step = resolve(writer, member)
        if member.kind == "null" or len(values_of(reader.members)) == 1:
            return step
        return Member(reader, member_name(reader.members, member), step)
    _check_names(writer, reader)
    if reader.kind == "record":
        return _record(resolve, writer, reader)
    if reader.kind == "array":
        written = writer.members[0]
        return Items(resolve(written, reader.members[0]), written.is_empty)
    if reader.kind == "map":
        return Entries(resolve(writer.members[0], reader.members[0]))
    if reader.kind == "enum":
        known = frozenset(reader.symbols)
        default = reader.default_symbol
        symbols = (symbol if symbol in known else default for symbol in writer.symbols)
        return Symbols(writer, reader, tuple(symbols))
    return Plain(writer, reader)


def _check_names(writer: AvroType, reader: AvroType) -> None:
    kinds = writer.kind, reader.kind
    if writer.kind != reader.kind and kinds not in _PROMOTIONS:
        raise _UnresolvedError(f"{writer.name} was written, and {reader.name} is expected")
    if writer.kind != reader.kind and reader.logical in ("decimal", "uuid"):
        raise _UnresolvedError(f"{writer.name} was written, and a {reader.logical} is expected")
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
    for member in sorted(
        reader.members, key=lambda member: (member.kind != writer.kind, member.name != writer.name)
    ):
        try:
            resolve(writer, member)
        except _UnresolvedError as error:
            reasons.append(str(error))
        else:
            return member
    raise _UnresolvedError(reasons[0] if reasons else "the union has no members")


def _branches(resolve: _Resolve, writer: AvroType, reader: AvroType) -> Branches:
    steps: list[Step] = []
    refusals: list[_UnresolvedError] = []
    for member in writer.members:
        try:
            steps.append(resolve(member, reader))
        except _UnresolvedError as error:
            steps.append(Refused(str(error)))
            refusals.append(error)
    if len(refusals) == len(steps):
        raise refusals[0]
    return Branches(tuple(steps))


def _record(resolve: _Resolve, writer: AvroType, reader: AvroType) -> Record:
    wanted = {part.name: part for part in reader.fields}
    for part in reader.fields:
        for alias in part.aliases:
            wanted.setdefault(alias, part)
    fields: list[tuple[str | None, Step]] = []
    present = set()
    for part in writer.fields:
        target = wanted.get(part.name)
        if target is None or target.name in present:
            fields.append((None, resolve(part.type, part.type)))
            continue
        present.add(target.name)
        try:
            fields.append((target.name, resolve(part.type, target.type)))
        except _UnresolvedError as error:
            raise _UnresolvedError(f"field {part.name}: {error}") from None
    missing = [part for part in reader.fields if part.name not in present]
    defaults = tuple(
        (part.name, Default(_default_of(part), resolve(part.type, part.type))) for part in missing
    )
    return Record(reader, tuple(fields), defaults)


# --- defaults ------------------------------------------------------------------------------------


def _default_of(part: AvroField) -> bytes:
    """Return a default as a writer of the reader's schema encodes it."""
    if not part.has_default:
        raise _UnresolvedError(f"field {part.name} was not written, and has no default")
    try:
        return _encoded(part.default, part.type)
    except (BadValueError, KeyError, TypeError, ValueError, UnicodeError) as error:
        raise _UnresolvedError(f"field {part.name} has an invalid default: {error}") from None


def _encoded(value: Any, avro: AvroType) -> bytes:
    """Return a value of JSON in Avro; raise an error if it is not one of the type."""
    if avro.kind == "union":
        for branch, member in enumerate(avro.members):
            try:
                return _long(branch) + _encoded(value, member)
            except (BadValueError, KeyError, TypeError, ValueError):
                continue
        raise BadValueError("no member of the union has such values")
    if avro.kind == "record":
        return b"".join(
            _encoded(value[part.name], part.type) if part.name in value else _default_of(part)
            for part in avro.fields
        )
    if avro.kind == "array":
        if not isinstance(value, list):
            raise BadValueError("a list is expected")
        return _block([_encoded(item, avro.members[0]) for item in value])
    if avro.kind == "map":
        return _block(
            [_sized(key.encode()) + _encoded(item, avro.members[0]) for key, item in value.items()]
        )
    if avro.kind == "enum":
        if value not in avro.symbols:
            raise BadValueError(f"{value!r} is not a symbol")
        return _long(avro.symbols.index(value))
    return _encoded_plain(value, avro)


def _block(items: list[bytes]) -> bytes:
    return (_long(len(items)) + b"".join(items) if items else b"") + b"\0"


def _sized(data: bytes) -> bytes:
    return _long(len(data)) + data


def _long(number: int) -> bytes:
    left = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while left > 0x7F:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*encoded, left])


def _encoded_plain(value: Any, avro: AvroType) -> bytes:
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
    if avro.kind == "fixed" and len(value) != avro.size:
        raise BadValueError(f"{avro.size} bytes are expected")
    if (bits := _BITS.get(avro.kind)) and not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise BadValueError(f"{value} has more than {bits} bits")
    if (convert := conversion(avro, avro)) is not None:
        convert(value)
    match avro.kind:
        case "null":
            return b""
        case "boolean":
            return bytes([value])
        case "int" | "long":
            return _long(value)
        case "float":
            return _single(float(value))
        case "double":
            return struct.pack("<d", value)
        case "fixed":
            return bytes(value)
        case _:
            return _sized(value.encode() if isinstance(value, str) else value)


def _single(value: float) -> bytes:
    with np.errstate(over="ignore"):
        return struct.pack("<f", np.float32(value))
