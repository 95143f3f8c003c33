"""Columns as JSON: ``["id", "int64"]``, ``["at", "timestamp[ms, UTC]"]``, ``["tags", {"list": "string"}]``."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.strict_json import JsonError

if TYPE_CHECKING:
    import pyarrow as pa

#: Types within types: each level is a call of Python.
_LEVELS_MAX: Final = 32
_DECIMAL: Final = re.compile(r"decimal(128|256)\((\d{1,2}), ?(-?\d{1,2})\)")
#: Between columns, and not within the brackets of a type.
_COMMA: Final = re.compile(r",(?![^\[(]*[\])])")
_TIMESTAMP: Final = re.compile(
    r"timestamp\[(s|ms|us|ns)(?:, ?(?:tz=)?([\w+:/-]{1,64}))?\]", re.ASCII
)


@cache
def _plain() -> dict[str, pa.DataType]:
    """The types without parameters, by their names in Arrow."""
    import pyarrow as pa

    integers = [getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64)]
    floats = [pa.float16(), pa.float32(), pa.float64()]
    texts = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]
    times = [
        pa.date32(),
        pa.date64(),
        pa.time32("s"),
        pa.time32("ms"),
        pa.time64("us"),
        pa.time64("ns"),
    ]
    names: dict[str, pa.DataType] = {
        "date32": pa.date32(),
        "float32": pa.float32(),
        "float64": pa.float64(),
    }
    return names | {str(kind): kind for kind in (pa.bool_(), *integers, *floats, *texts, *times)}


def fields_to_json(fields: Any) -> list[Any]:
    """Return the fields of a schema as JSON; raise `ConfigError` for a type that has none, or a name that is there twice."""
    return _fields_to_json(fields, _LEVELS_MAX)


def _fields_to_json(fields: Any, levels: int) -> list[Any]:
    names = [field.name for field in fields]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"the columns have names twice: {', '.join(sorted(twice))}")
    return [_field_to_json(field, levels) for field in fields]


def _field_to_json(field: Any, levels: int) -> list[Any]:
    json = [field.name, _to_json(field.type, levels)]
    return json if field.nullable else [*json, "not null"]


def _to_json(kind: Any, levels: int) -> Any:
    import pyarrow as pa

    if not levels:
        raise ConfigError(f"a type has more than {_LEVELS_MAX} levels")
    if pa.types.is_struct(kind):
        return {"struct": _fields_to_json(kind, levels - 1)}
    if pa.types.is_list(kind):
        return {"list": _to_json(kind.value_type, levels - 1)}
    if pa.types.is_large_list(kind):
        return {"large_list": _to_json(kind.value_type, levels - 1)}
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return {"map": _to_json(kind.item_type, levels - 1)}
    text = str(kind)
    if pa.types.is_timestamp(kind):
        text = text.replace("tz=", "")
    if text in _plain() or _DECIMAL.fullmatch(text) or _TIMESTAMP.fullmatch(text):
        return text
    raise ConfigError(f"JSON has no values for the Arrow type {kind}")


def fields_from_json(json: Any) -> pa.Schema:
    """Return the columns of `fields_to_json`; raise `JsonError` for anything else."""
    import pyarrow as pa

    return pa.schema(_fields(json, _LEVELS_MAX))


def fields_of_text(text: str) -> pa.Schema:
    """Return the columns of ``id int64, at timestamp[ms, UTC]``; raise `JsonError` for anything else."""
    columns = [part.strip().partition(" ") for part in _COMMA.split(text)]
    return fields_from_json([[name, kind.strip()] for name, _, kind in columns])


def _fields(json: Any, levels: int) -> list[pa.Field[Any]]:
    import pyarrow as pa

    if not isinstance(json, list):
        raise JsonError("columns are not a list")
    fields = []
    for item in json:
        match item:
            case [str(name), kind]:
                fields.append(pa.field(_encodable(name), _type(kind, levels)))
            case [str(name), kind, "not null"]:
                fields.append(pa.field(_encodable(name), _type(kind, levels), nullable=False))
            case _:
                raise JsonError(f"a column is {ascii(item)[:80]}: a name and a type are expected")
    return fields


def _encodable(name: str) -> str:
    """Return a name unchanged; raise `JsonError` for halves of surrogate pairs, as arguments have them that are not UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise JsonError(f"a column's name is {ascii(name)[:80]}, which is not UTF-8") from None
    return name


def _type(json: Any, levels: int) -> pa.DataType:
    import pyarrow as pa

    if not levels:
        raise JsonError(f"a type has more than {_LEVELS_MAX} levels")
    match json:
        case {"struct": fields, **others} if not others:
            return pa.struct(_fields(fields, levels - 1))
        case {"list": item, **others} if not others:
            return pa.list_(_type(item, levels - 1))
        case {"large_list": item, **others} if not others:
            return pa.large_list(_type(item, levels - 1))
        case {"map": item, **others} if not others:
            return pa.map_(pa.string(), _type(item, levels - 1))
        case str():
            return _type_named(json)
        case _:
            raise JsonError(f"a type is {ascii(json)[:80]}")


def _type_named(name: str) -> pa.DataType:
    import pyarrow as pa

    if (kind := _plain().get(name)) is not None:
        return kind
    try:
        if match := _DECIMAL.fullmatch(name):
            bits, precision, scale = map(int, match.groups())
            return (pa.decimal128 if bits == 128 else pa.decimal256)(precision, scale)
        if match := _TIMESTAMP.fullmatch(name):
            unit: Any = match[1]
            return pa.timestamp(unit, match[2])
    except ValueError as error:
        raise JsonError(f"a type is {name}: {error}") from None
    raise JsonError(
        f"a type is {ascii(name)[:80]}: give one of {', '.join(_plain())}, timestamp[us, UTC], decimal128(9, 2); in JSON also "
        '{"list": TYPE}, {"map": TYPE} or {"struct": [[NAME, TYPE]]}'
    )
