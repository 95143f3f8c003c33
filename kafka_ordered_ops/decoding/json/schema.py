"""The columns of a JSON Schema.

Follows drafts 4 to 2020-12, and the annotations by which Confluent's converter keeps the types of Connect. All columns may be
null: records of older versions may lack what a newer one requires.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.strict_json import JsonError
from kafka_ordered_ops.core.window.formats import SCHEMA_LENGTH_MAX

#: Types within types, and in all.
_LEVELS_MAX: Final = 32
_TYPES_MAX: Final = 20_000

_PLAIN: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "string": pa.string(),
}
#: By ``format``; the reader refuses what does not fit exactly.
_FORMATS: Final[Mapping[str, pa.DataType]] = {
    "date-time": pa.timestamp("us", "UTC"),
    "date": pa.date32(),
}
#: By ``connect.type``.
_CONNECT: Final[Mapping[str, pa.DataType]] = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "bytes": pa.binary(),
}
#: By ``title``, where a number is a time or a decimal.
_LOGICAL: Final[Mapping[str, pa.DataType]] = {
    "org.apache.kafka.connect.data.Timestamp": pa.timestamp("ms", "UTC"),
    "org.apache.kafka.connect.data.Date": pa.date32(),
}
_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_DIGITS: Final = 38
_SCALE: Final = re.compile(r"\d{1,2}", re.ASCII)


def columns_of(text: str, references: Sequence[tuple[str, str]] = ()) -> pa.Schema:
    """Return the columns of a schema.

    Args:
        text: the schema.
        references: the names and texts of the schemas that it refers to.

    Raises:
        ConfigError: it is invalid, or a value may be of several types, or of any.
    """
    schemas = _Schemas({"": _json(text), **{name: _json(other) for name, other in references}})
    kind = schemas.type("", schemas.documents[""], (), "the schema")
    if not pa.types.is_struct(kind):
        raise ConfigError(
            "the JSON Schema is not one of an object with properties: it has no columns"
        )
    return pa.schema(list(kind))


def _json(text: str) -> Any:
    try:
        return strict_json.loads(text, limit_bytes=4 * SCHEMA_LENGTH_MAX)
    except JsonError as error:
        raise ConfigError(f"the JSON Schema is not valid JSON: {error}") from None


class _Schemas:
    """A schema and those that it refers to, by their names."""

    def __init__(self, documents: Mapping[str, Any]) -> None:
        self.documents = documents
        self._left = _TYPES_MAX

    def type(self, document: str, schema: Any, within: tuple[int, ...], where: str) -> Any:
        """Return the Arrow type of a schema in a document; `within` are the schemas that it is part of."""
        self._left -= 1
        if not isinstance(schema, Mapping):
            raise _refused(where, "any value is allowed")
        if id(schema) in within:
            raise _refused(where, "it contains itself, and Arrow has no such types")
        if len(within) >= _LEVELS_MAX or self._left < 0:
            raise _refused(where, f"more than {_LEVELS_MAX} levels, or {_TYPES_MAX:,} types")
        within = (*within, id(schema))
        if (reference := schema.get("$ref")) is not None:
            document, target = self._referred(document, reference, where)
            return self.type(document, target, within, where)
        for word in ("oneOf", "anyOf"):
            if word in schema:
                return self.type(document, _only(schema[word], word, where), within, where)
        if "allOf" in schema:
            return self._all_of(document, schema, within, where)
        return self._simple(document, schema, within, where)

    def _simple(
        self, document: str, schema: Mapping[str, Any], within: tuple[int, ...], where: str
    ) -> Any:
        kind = _kind(schema, where)
        if kind == "array":
            item = self.type(document, schema.get("items"), within, f"{where}[]")
            return pa.list_(item)
        if kind == "object":
            return self._object(document, schema, within, where)
        title = schema.get("title")
        if kind in ("integer", "number"):
            if title == _DECIMAL:
                return pa.decimal128(_DIGITS, _scale(schema, where))
            if (logical := _LOGICAL.get(str(title))) is not None:
                return logical
        if kind == "string" and schema.get("contentEncoding") == "base64":
            return pa.binary()
        named = _FORMATS.get(str(schema.get("format"))) if kind == "string" else None
        return named or _CONNECT.get(str(schema.get("connect.type"))) or _PLAIN[kind]

    def _object(
        self, document: str, schema: Mapping[str, Any], within: tuple[int, ...], where: str
    ) -> Any:
        properties, more = schema.get("properties"), schema.get("additionalProperties")
        if isinstance(properties, Mapping) and properties:
            return pa.struct(
                [
                    pa.field(name, self.type(document, part, within, f"{where}.{name}"))
                    for name, part in properties.items()
                ]
            )
        if isinstance(more, Mapping):
            return pa.map_(pa.string(), self.type(document, more, within, f"{where}.*"))
        raise _refused(where, "it does not say which properties the object has")

    def _all_of(
        self, document: str, schema: Mapping[str, Any], within: tuple[int, ...], where: str
    ) -> Any:
        """Return the type of an object that has the properties of all parts, and its own."""
        own = {name: part for name, part in schema.items() if name != "allOf"}
        parts = [*_list(schema["allOf"], "allOf", where)]
        if "properties" in own:
            parts.append(own)
        types = [self.type(document, part, within, where) for part in parts]
        if len(types) == 1:
            return types[0]
        if not all(map(pa.types.is_struct, types)):
            raise _refused(where, "allOf joins what are not objects with properties")
        fields = {field.name: field for kind in types for field in kind}
        return pa.struct(list(fields.values()))

    def _referred(self, document: str, reference: object, where: str) -> tuple[str, Any]:
        name, _, pointer = str(reference).partition("#")
        document = name or document
        if document not in self.documents:
            raise _refused(where, f"it refers to {name!r}, which is not among its references")
        target = self.documents[document]
        for part in pointer.strip("/").split("/") if pointer.strip("/") else ():
            part = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, Mapping) or part not in target:
                raise _refused(where, f"it refers to {str(reference)!r}, which is not there")
            target = target[part]
        return document, target


def _kind(schema: Mapping[str, Any], where: str) -> str:
    """Return the type of values that are not null."""
    kinds = schema.get("type")
    if kinds is None:
        kinds = _kinds_of_values(schema, where)
    kinds = [kinds] if isinstance(kinds, str) else _list(kinds or [], "type", where)
    if not all(isinstance(kind, str) for kind in kinds):
        raise _refused(where, f"the type {ascii(kinds)[:40]} is not made of names")
    kinds = {*kinds} - {"null"}
    if kinds == {"integer", "number"}:
        kinds = {"number"}
    if len(kinds) != 1:
        text = " or ".join(sorted(map(str, kinds)))
        raise _refused(where, f"a value may be {text or 'anything'}")
    [kind] = kinds
    if kind not in _PLAIN and kind not in ("array", "object"):
        raise _refused(where, f"the type {kind!r} is unknown")
    return str(kind)


def _kinds_of_values(schema: Mapping[str, Any], where: str) -> Any:
    """Return the types of ``enum`` or ``const``, or those that the other words imply."""
    if "properties" in schema:
        return "object"
    if "items" in schema:
        return "array"
    constants = [schema["const"]] if "const" in schema else []
    values = _list(schema["enum"], "enum", where) if "enum" in schema else constants
    names = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
    return [names.get(type(value), "object") for value in values]


def _only(parts: Any, word: str, where: str) -> Any:
    """Return the only alternative that is not null."""
    wanted = [
        part
        for part in _list(parts, word, where)
        if not (isinstance(part, Mapping) and part.get("type") == "null")
    ]
    if len(wanted) != 1:
        raise _refused(where, f"{word} has {len(wanted)} alternatives besides null")
    return wanted[0]


def _list(value: Any, word: str, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise _refused(where, f"{word} is not a list")
    return value


def _scale(schema: Mapping[str, Any], where: str) -> int:
    parameters = schema.get("connect.parameters")
    scale = parameters.get("scale") if isinstance(parameters, Mapping) else None
    if not isinstance(scale, str) or not _SCALE.fullmatch(scale) or int(scale) > _DIGITS:
        raise _refused(where, f"a decimal has the scale {ascii(scale)[:40]}")
    return int(scale)


def _refused(where: str, reason: str) -> ConfigError:
    return ConfigError(
        f"JSON Schema, {where}: {reason}. Say which columns you want with Json(pyarrow.schema(...))"
    )
