"""Avro schemas, parsed and checked, with the Arrow type of each.

Follows the specification of Avro 1.12. Logical types that it does not know are ignored, as the specification demands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.arguments import shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.strict_json import JsonError

SCHEMA_BYTES_MAX: Final = 4 * 1024 * 1024
#: Arrow's limit for a decimal.
_PRECISION_MAX: Final = 76
#: Types within a type: names that are used twice at each of 30 levels would be a billion of them.
_TYPES_MAX: Final = 20_000
#: The field that has a value's default: None would be a default.
_NO_DEFAULT: Final = object()

_PRIMITIVES: Final[Mapping[str, pa.DataType]] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
#: (Kind, logical type) to Arrow's type.
_LOGICAL: Final[Mapping[tuple[str, str], pa.DataType]] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
    ("string", "uuid"): pa.string(),
}


@dataclass(frozen=True, slots=True)
class AvroField:
    """A field of a record."""

    name: str
    type: AvroType
    aliases: tuple[str, ...] = ()
    #: JSON; of no meaning unless `has_default`.
    default: Any = field(default=_NO_DEFAULT, repr=False)

    @property
    def has_default(self) -> bool:
        """Whether readers use `default` where writers have no such field."""
        return self.default is not _NO_DEFAULT


@dataclass(frozen=True, slots=True)
class AvroType:
    """A type of a schema."""

    #: Of the specification: ``int``, ``record``, ``union``, ...
    kind: str
    #: What values become; nullable everywhere.
    arrow: pa.DataType
    #: The full name of a record, an enum or a fixed; else the kind.
    name: str
    aliases: tuple[str, ...] = ()
    logical: str | None = None
    fields: tuple[AvroField, ...] = ()
    #: An array's item, a map's value, a union's members.
    members: tuple[AvroType, ...] = ()
    symbols: tuple[str, ...] = ()
    #: An enum's symbol for those that a reader does not know.
    default_symbol: str | None = None
    #: Bytes of a fixed.
    size: int = 0
    precision: int = 0
    scale: int = 0
    #: Types in it, itself included.
    count: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        count = 1 + sum(part.type.count for part in self.fields)
        count += sum(member.count for member in self.members)
        if count > _TYPES_MAX:
            raise ConfigError(f"the Avro type {self.name} has more than {_TYPES_MAX:,} types in it")
        object.__setattr__(self, "count", count)

    @property
    def short_name(self) -> str:
        """The name without its namespace."""
        return self.name.rpartition(".")[2]

    @property
    def is_empty(self) -> bool:
        """Whether each value takes no bytes."""
        return (
            self.kind == "null"
            or (self.kind == "fixed" and self.size == 0)
            or (self.kind == "record" and all(part.type.is_empty for part in self.fields))
        )


def parse_avro(text: str, references: Sequence[str] = ()) -> AvroType:
    """Parse a schema; `references` are the schemas whose names it uses, in the order of their dependencies.

    Raises `ConfigError` for an invalid schema, a recursive type, or a type that Arrow does not have.
    """
    names: dict[str, AvroType | None] = {}
    for reference in references:
        _parse(_json(reference), "", names)
    return _parse(_json(text), "", names)


def _json(text: str) -> Any:
    if not isinstance(text, str):
        raise ConfigError(f"an Avro schema is {shown(text)}: give its JSON as text")
    # The name of a primitive type alone is a schema as well.
    if text.strip() in _PRIMITIVES:
        return text.strip()
    try:
        return strict_json.loads(text, limit_bytes=SCHEMA_BYTES_MAX)
    except JsonError as error:
        raise ConfigError(f"an Avro schema is not valid JSON: {error}") from None


def _parse(schema: Any, namespace: str, names: dict[str, AvroType | None]) -> AvroType:
    if isinstance(schema, str):
        return _named(schema, namespace, names)
    if isinstance(schema, list):
        return _union(schema, namespace, names)
    if not isinstance(schema, dict) or "type" not in schema:
        raise ConfigError(f"an Avro schema has {shown(schema)} where a type is expected")
    kind = schema["type"]
    if not isinstance(kind, str):
        return _parse(kind, namespace, names)
    if kind in _PRIMITIVES:
        return _primitive(kind, schema)
    if kind == "array":
        item = _parse(_part(schema, "items"), namespace, names)
        return AvroType(kind, pa.list_(item.arrow), kind, members=(item,))
    if kind == "map":
        item = _parse(_part(schema, "values"), namespace, names)
        return AvroType(kind, pa.map_(pa.string(), item.arrow), kind, members=(item,))
    if kind in ("record", "error", "enum", "fixed"):
        return _definition(kind, schema, namespace, names)
    return _named(kind, namespace, names)


def _named(name: str, namespace: str, names: dict[str, AvroType | None]) -> AvroType:
    if name in _PRIMITIVES:
        return _primitive(name, {})
    full = _full_name(name, namespace)
    known = full if full in names else name
    if known not in names:
        raise ConfigError(f"an Avro schema uses the type {shown(name)}, which it does not define")
    if (definition := names[known]) is None:
        raise ConfigError(
            f"the Avro type {known} contains itself: Arrow has no recursive types, so it cannot become columns"
        )
    return definition


def _definition(
    kind: str, schema: dict[str, Any], outer: str, names: dict[str, AvroType | None]
) -> AvroType:
    name = _text(schema, "name")
    namespace = schema.get("namespace", outer)
    full = _full_name(name, namespace if isinstance(namespace, str) else outer)
    if full in names:
        raise ConfigError(f"an Avro schema defines {full} twice")
    inner = full.rpartition(".")[0]
    aliases = tuple(_full_name(alias, inner) for alias in _texts(schema, "aliases"))
    names[full] = None
    if kind == "enum":
        parsed = _enum(full, schema, aliases)
    elif kind == "fixed":
        parsed = _fixed(full, schema, aliases)
    else:
        fields = tuple(_field(part, inner, names, full) for part in _list(schema, "fields"))
        if len({part.name for part in fields}) < len(fields):
            raise ConfigError(f"the Avro record {full} has two fields of one name")
        arrow = pa.struct([(part.name, part.type.arrow) for part in fields])
        parsed = AvroType("record", arrow, full, aliases, fields=fields)
    names[full] = parsed
    return parsed


def _field(part: Any, namespace: str, names: dict[str, AvroType | None], record: str) -> AvroField:
    if not isinstance(part, dict):
        raise ConfigError(f"the Avro record {record} has {shown(part)} where a field is expected")
    return AvroField(
        _text(part, "name"),
        _parse(_part(part, "type"), namespace, names),
        tuple(_texts(part, "aliases")),
        part.get("default", _NO_DEFAULT),
    )


def _enum(name: str, schema: dict[str, Any], aliases: tuple[str, ...]) -> AvroType:
    symbols = tuple(_texts(schema, "symbols"))
    if not symbols or len(set(symbols)) < len(symbols):
        raise ConfigError(f"the Avro enum {name} has no symbols, or one of them twice")
    default = schema.get("default")
    if default is not None and default not in symbols:
        raise ConfigError(f"the Avro enum {name} has the default {shown(default)}, not a symbol")
    # Text, not a dictionary: pyarrow gives a null record an index into one that may be empty.
    return AvroType("enum", pa.string(), name, aliases, symbols=symbols, default_symbol=default)


def _fixed(name: str, schema: dict[str, Any], aliases: tuple[str, ...]) -> AvroType:
    size = _whole(schema, "size", 0)
    if schema.get("logicalType") == "decimal":
        precision, scale = _digits(schema)
        arrow = _decimal(precision, scale)
        return AvroType(
            *("fixed", arrow, name, aliases, "decimal"), size=size, precision=precision, scale=scale
        )
    if schema.get("logicalType") == "uuid" and size == 16:
        return AvroType("fixed", pa.string(), name, aliases, "uuid", size=size)
    return AvroType("fixed", pa.binary(size), name, aliases, size=size)


def _primitive(kind: str, schema: Mapping[str, Any]) -> AvroType:
    logical = schema.get("logicalType")
    if kind == "bytes" and logical == "decimal":
        precision, scale = _digits(schema)
        arrow = _decimal(precision, scale)
        return AvroType(kind, arrow, kind, logical="decimal", precision=precision, scale=scale)
    if isinstance(logical, str) and (kind, logical) in _LOGICAL:
        return AvroType(kind, _LOGICAL[kind, logical], kind, logical=logical)
    return AvroType(kind, _PRIMITIVES[kind], kind)


def _union(schema: list[Any], namespace: str, names: dict[str, AvroType | None]) -> AvroType:
    members = tuple(_parse(member, namespace, names) for member in schema)
    if any(member.kind == "union" for member in members):
        raise ConfigError("an Avro union contains another union")
    if not members or len({member.name for member in members}) < len(members):
        raise ConfigError("an Avro union has no members, or one of them twice")
    arrows = {member_name(members, member): member.arrow for member in values_of(members)}
    if len(arrows) > 1:
        arrow: pa.DataType = pa.struct(list(arrows.items()))
    else:
        arrow = next(iter(arrows.values()), pa.null())
    return AvroType("union", arrow, "union", members=members)


def values_of(members: Sequence[AvroType]) -> list[AvroType]:
    """Return the members of a union that have values."""
    return [member for member in members if member.kind != "null"]


def member_name(members: Sequence[AvroType], member: AvroType) -> str:
    """Return a member's field in the struct of a union: its short name, unless another member has the same."""
    short = member.short_name
    is_unique = sum(other.short_name == short for other in members) == 1
    return short if is_unique else member.name


def _digits(schema: Mapping[str, Any]) -> tuple[int, int]:
    precision, scale = _whole(schema, "precision", 1), schema.get("scale", 0)
    if not isinstance(scale, int) or isinstance(scale, bool) or not 0 <= scale <= precision:
        raise ConfigError(f"an Avro decimal of precision {precision} has the scale {shown(scale)}")
    if precision > _PRECISION_MAX:
        raise ConfigError(
            f"an Avro decimal has the precision {precision}: Arrow's limit is {_PRECISION_MAX}"
        )
    return precision, scale


def _decimal(precision: int, scale: int) -> pa.DataType:
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _part(schema: Mapping[str, Any], key: str) -> Any:
    if key not in schema:
        raise ConfigError(f"an Avro schema has {shown(dict(schema))} without {key!r}")
    return schema[key]


def _text(schema: Mapping[str, Any], key: str) -> str:
    value = _part(schema, key)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"an Avro schema has {key!r} {shown(value)}: text is expected")
    return value


def _list(schema: Mapping[str, Any], key: str) -> list[Any]:
    value = _part(schema, key)
    if not isinstance(value, list):
        raise ConfigError(f"an Avro schema has {key!r} {shown(value)}: a list is expected")
    return value


def _texts(schema: Mapping[str, Any], key: str) -> list[str]:
    value = schema.get(key, [])
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ConfigError(f"an Avro schema has {key!r} {shown(value)}: a list of texts is expected")
    return value


def _whole(schema: Mapping[str, Any], key: str, least: int) -> int:
    value = _part(schema, key)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= 2**31 - 1:
        raise ConfigError(f"an Avro schema has {key!r} {shown(value)}: a whole number is expected")
    return value
