"""Formats as text, and as the JSON that is stored with a plan."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from msgspec import Meta

from kafka_ordered_ops.core.arguments import shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.strict_json import JsonError, Stored, Text, dumps, loads
from kafka_ordered_ops.core.window.column_types import (
    fields_from_json,
    fields_of_text,
    fields_to_json,
)
from kafka_ordered_ops.core.window.formats import (
    SCHEMA_LENGTH_MAX,
    UNAVAILABLE,
    Avro,
    Debezium,
    Format,
    Framing,
    Infer,
    Json,
    Protobuf,
    UnknownFields,
)

_SchemaText = Annotated[str, Meta(max_length=SCHEMA_LENGTH_MAX, pattern="\\A[^\ud800-\udfff]*\\Z")]

#: What `as_format` takes: ``avro``, ``avro:SUBJECT``, the same with ``protobuf`` and ``json``, ``debezium-avro``,
#: ``json-inferred``, ``json-inferred:evolve``, ``json:id int64, at timestamp[ms, UTC]``, or the JSON of a format.
GivenFormat = Format | str | Mapping[str, Any]


def as_format(value: object, what: str) -> Format | None:
    """Return a format, passed as one, as text or as a mapping; raise `ConfigError` for anything else."""
    if value is None or isinstance(value, Format):
        return _not_for_keys(value, what)
    try:
        if isinstance(value, str):
            return _not_for_keys(_format_of_text(value.strip(), what), what)
        if isinstance(value, Mapping):
            return _not_for_keys(_format_of_json(value, what), what)
    except JsonError as error:
        raise ConfigError(f"{what}: {error}") from None
    raise _not_a_format(value, what)


def _not_for_keys(value: Format | None, what: str) -> Format | None:
    if isinstance(value, Debezium) and what == "keys":
        raise ConfigError(
            "keys is Debezium(...), and envelopes are values: give Debezium(..., keys=...) as values"
        )
    return value


def _format_of_text(text: str, what: str) -> Format:
    kind, _, rest = text.partition(":")
    if text.startswith("{"):
        return _format_of_json(loads(text, limit_bytes=2**20), what)
    if kind == "avro":
        return Avro(subject=rest.strip() or None)
    if kind == "protobuf":
        return Protobuf(subject=rest.strip() or None)
    if text == "debezium-avro":
        return Debezium(Avro(), Avro())
    if kind == "json-inferred":
        return Json(infer=rest.strip() or True)
    if kind == "json":
        is_columns = " " in rest.strip()
        return Json(fields_of_text(rest)) if is_columns else Json(subject=rest.strip() or None)
    raise _not_a_format(text, what)


def _format_of_json(json: Mapping[str, Any], what: str) -> Format:
    """Return the format of a mapping, in which a schema of Avro may be JSON instead of text."""
    schema = json.get("schema")
    if isinstance(schema, Mapping | list):
        json = {**json, "schema": dumps(schema)}
    return _StoredFormat.parse({"format": dict(json)}, what).format.value


def _not_a_format(value: object, what: str) -> ConfigError:
    return ConfigError(
        f"{what} is {shown(value)}: give Avro(...), Json(...), Protobuf(...) or Debezium(...); or as text 'avro', "
        "'protobuf', 'json', 'avro:SUBJECT', ..., 'debezium-avro', 'json-inferred' or 'json:id int64, at timestamp[ms, UTC]'"
    )


def kept(asked: Format | None, planned: Format | None) -> Format | None:
    """Return how a planned window is read when it is asked for again.

    A schema that was looked up for the plan stays, as long as it is that of the same subject. Everything else is as the
    caller has it: wrong arguments can be corrected and the window read again.
    """
    if isinstance(asked, Debezium) and isinstance(planned, Debezium):
        values: Any = kept(asked.values, planned.values)
        keys: Any = kept(asked.keys, planned.keys)
        return replace(asked, values=values, keys=keys)
    if isinstance(asked, Json) and isinstance(planned, Json) and asked.infer:
        # The columns stay; given ones may have other types than were inferred.
        return asked if planned.inferred is None else asked.with_columns(planned.inferred)
    if (
        asked is None
        or planned is None
        or isinstance(asked, Debezium)
        or isinstance(planned, Debezium)
    ):
        return asked
    # Without a subject, the caller gave the schema.
    if planned.subject is None or asked.subject not in (None, planned.subject):
        return asked
    match asked, planned:
        case Avro(schema=None), Avro(schema=str(schema)):
            return asked.fixed(planned.subject, schema, planned.references)
        case Protobuf(descriptor=None), Protobuf(descriptor=str(text)):
            return asked.fixed(planned.subject, text)
        case Json(schema=None), Json() if planned.schema is not None:
            return asked.fixed(planned.subject, planned.schema)
    return asked


def format_to_json(value: Format | None) -> dict[str, Any] | None:
    """Return the JSON that is stored with a plan."""
    if isinstance(value, Json):
        return {
            "format": "json",
            "fields": None if value.schema is None else fields_to_json(value.schema),
            "unknown": str(value.unknown),
            "subject": value.subject,
            "framing": str(value.framing),
            "infer": None if value.infer is None else str(value.infer),
            "inferred": None if value.inferred is None else fields_to_json(value.inferred),
        }
    if isinstance(value, Protobuf):
        return {
            "format": "protobuf",
            "message": value.message,
            "subject": value.subject,
            "descriptor": value.descriptor,
            "framing": str(value.framing),
        }
    if isinstance(value, Debezium):
        return {
            "format": "debezium",
            "values": format_to_json(value.values),
            "keys": format_to_json(value.keys),
            "unavailable": value.unavailable,
        }
    if value is None:
        return None
    return {
        "format": "avro",
        "schema": value.schema,
        "subject": value.subject,
        "framing": str(value.framing),
        "writer": value.writer,
        "references": list(value.references),
    }


class StoredAvro(Stored, frozen=True, tag_field="format", tag="avro"):
    """The JSON of an `Avro`."""

    schema: _SchemaText | None = None
    subject: Text | None = None
    framing: Framing = Framing.CONFLUENT
    writer: _SchemaText | None = None
    references: tuple[_SchemaText, ...] = ()

    @property
    def value(self) -> Avro:
        """The format; raises `ConfigError` for an invalid one."""
        # The same texts are in each plan of a group: keep them once.
        return Avro(
            None if self.schema is None else sys.intern(self.schema),
            subject=self.subject,
            framing=self.framing,
            writer=None if self.writer is None else sys.intern(self.writer),
            references=tuple(map(sys.intern, self.references)),
        )


class StoredJson(Stored, frozen=True, tag_field="format", tag="json", rename={"columns": "fields"}):
    """The JSON of a `Json`."""

    columns: list[Any] | None = None
    unknown: UnknownFields = UnknownFields.IGNORE
    subject: Text | None = None
    framing: Framing | None = None
    infer: Infer | bool | None = None
    inferred: list[Any] | None = None

    @property
    def value(self) -> Json:
        """The format; raises `JsonError` or `ConfigError` for an invalid one."""
        schema = None if self.columns is None else fields_from_json(self.columns)
        inferred = None if self.inferred is None else fields_from_json(self.inferred)
        return Json(schema, self.unknown, self.subject, self.framing, self.infer, inferred)


class StoredProtobuf(Stored, frozen=True, tag_field="format", tag="protobuf"):
    """The JSON of a `Protobuf`."""

    message: Text | None = None
    subject: Text | None = None
    descriptor: _SchemaText | None = None
    framing: Framing = Framing.CONFLUENT

    @property
    def value(self) -> Protobuf:
        """The format; raises `ConfigError` for an invalid one."""
        value = Protobuf(
            self.message,
            subject=self.subject,
            descriptor=self.descriptor,
            framing=self.framing,
        )
        # As with Avro: the same text is in each plan of a group.
        if value.descriptor is not None:
            object.__setattr__(value, "descriptor", sys.intern(value.descriptor))
        return value


class StoredDebezium(Stored, frozen=True, tag_field="format", tag="debezium"):
    """The JSON of a `Debezium`."""

    values: StoredAvro | StoredJson
    keys: StoredAvro | StoredJson | None = None
    unavailable: Text = UNAVAILABLE

    @property
    def value(self) -> Debezium:
        """The format; raises `JsonError` or `ConfigError` for an invalid one."""
        keys = None if self.keys is None else self.keys.value
        return Debezium(self.values.value, keys, self.unavailable)


StoredFormat = StoredAvro | StoredJson | StoredProtobuf | StoredDebezium


class _StoredFormat(Stored, frozen=True):
    format: StoredFormat
