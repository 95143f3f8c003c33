"""How the values and keys of records are encoded, as values that are stored with a plan."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta

from kafka_ordered_ops.core.arguments import check_choice, check_text, check_texts, shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.masked import shown_fields
from kafka_ordered_ops.core.strict_json import Stored, Text
from kafka_ordered_ops.core.window.column_types import fields_from_json, fields_to_json

if TYPE_CHECKING:
    import pyarrow as pa

_SUBJECT_LENGTH_MAX: Final = 1_024
#: Characters of a schema, and of those that it uses, together: they are stored with each plan.
SCHEMA_LENGTH_MAX: Final = 524_288
_REFERENCES_MAX: Final = 200
_PLACEHOLDER_LENGTH_MAX: Final = 1_024

_SchemaText = Annotated[str, Meta(max_length=SCHEMA_LENGTH_MAX, pattern="\\A[^\ud800-\udfff]*\\Z")]


class Framing(StrEnum):
    """What stands before each value."""

    #: A zero byte and the writer schema's id in 4 bytes, as Confluent's serializers write it.
    CONFLUENT = "confluent"
    #: A zero byte and the id in 8 bytes, as older serializers of Apicurio write it.
    APICURIO_8 = "apicurio-8"
    #: Nothing.
    NONE = "none"


class OnBad(StrEnum):
    """What happens to a value that cannot be decoded."""

    FAIL = "fail"
    #: The decoded column is null; the bytes and the reason are in columns of their own.
    KEEP = "keep"


class UnknownFields(StrEnum):
    """What happens to fields of a JSON object that the schema does not have."""

    IGNORE = "ignore"
    BAD = "bad"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Avro:
    """Values in Avro.

    The writer schema of each value comes from the schema registry, by the id before the value. All values become columns of one
    reader schema.

    Args:
        schema: the reader schema, as JSON text. None means the newest one of `subject`, looked up once: when a window is
            planned, or when `decode` is called.
        subject: whose newest schema is the reader schema: ``orders-value`` for the topic ``orders``.
        framing: what stands before each value.
        writer: the schema that all values were written with, whatever id stands before them. Without framing, None means `schema`.
        references: the schemas that `schema` uses, each after those that it uses itself.

    Raises:
        ConfigError: there is neither a schema nor a subject, or a part is missing or of no use.
    """

    schema: str | None
    subject: str | None
    framing: Framing
    writer: str | None
    references: tuple[str, ...]

    def __init__(
        self,
        schema: str | None = None,
        *,
        subject: str | None = None,
        framing: Framing | str = Framing.CONFLUENT,
        writer: str | None = None,
        references: Sequence[str] = (),
    ) -> None:
        framing = check_choice(framing, Framing, what="framing")
        if subject is not None:
            subject = check_text(subject, what="subject", length_max=_SUBJECT_LENGTH_MAX)
        if schema is None and subject is None:
            raise ConfigError("give Avro a schema, or the subject whose newest schema it is")
        references = check_texts(references, what="references")
        texts = [text for text in (schema, writer, *references) if text is not None]
        if not all(isinstance(text, str) for text in texts):
            raise ConfigError(f"schema is {shown(schema)}: give JSON as text")
        if len(references) > _REFERENCES_MAX or sum(map(len, texts)) > SCHEMA_LENGTH_MAX:
            raise ConfigError(
                f"the schemas have {sum(map(len, texts)):,} characters and {len(references):,} references: at most "
                f"{SCHEMA_LENGTH_MAX:,} and {_REFERENCES_MAX:,} are stored with a plan"
            )
        if schema is None and references:
            raise ConfigError(f"references of no schema: the subject {subject} has its own")
        for name, value in (
            ("schema", schema),
            ("subject", subject),
            ("framing", framing),
            ("writer", writer),
            ("references", references),
        ):
            object.__setattr__(self, name, value)

    @property
    def needs_registry(self) -> bool:
        """Whether schemas come from a registry: those of writers, by their ids, or the newest of the subject."""
        return self.schema is None or (self.framing is not Framing.NONE and self.writer is None)

    def fixed(self, schema: str, references: Sequence[str]) -> Avro:
        """Return the format with the reader schema of its subject."""
        return Avro(
            schema,
            subject=self.subject,
            framing=self.framing,
            writer=self.writer,
            references=references,
        )

    def __repr__(self) -> str:
        return shown_fields(
            self,
            schema=None if self.schema is None else shown(self.schema),
            subject=self.subject,
            framing=str(self.framing),
            writer=None if self.writer is None else shown(self.writer),
        )


@dataclass(frozen=True, slots=True)
class Json:
    """Values in JSON, in UTF-8.

    Args:
        schema: the columns. Times are texts of RFC 3339, or numbers in the column's unit; binary is base64; decimals are
            numbers or texts.
        unknown: what happens to fields that the schema does not have.

    Raises:
        ConfigError: `schema` is not a schema of pyarrow, or has a type that JSON has no values for.
    """

    schema: pa.Schema
    unknown: UnknownFields | str = UnknownFields.IGNORE

    def __post_init__(self) -> None:
        if not hasattr(self.schema, "field") or not hasattr(self.schema, "names"):
            raise ConfigError(f"schema is {shown(self.schema)}: give a pyarrow.Schema")
        fields_to_json(self.schema)
        object.__setattr__(
            self, "unknown", check_choice(self.unknown, UnknownFields, what="unknown")
        )


@dataclass(frozen=True, slots=True)
class Debezium:
    """Changes of rows, in Debezium's envelopes; each value becomes the row.

    The row is that of ``after``, and for a delete that of ``before``. Three more columns have the names that Debezium's
    ``ExtractNewRecordState`` gives them: ``__op`` is ``c``, ``u``, ``r`` or ``d``; ``__deleted`` is true for deletes;
    ``__source_ts_ms`` is the time of the change in the database. A table with ``mode="merge"`` and ``delete_tombstones``
    deletes the rows that ``__deleted`` marks.

    Args:
        values: how envelopes are encoded: `Avro`, whose schema is the envelope's, or `Json`, whose schema is the row's, with or
            without the ``schema`` and ``payload`` of Connect's converter around each value.
        keys: how the records' keys are encoded. Then a tombstone becomes a row with its key's columns, marked as deleted:
            compaction may have left nothing else of a delete. None leaves tombstones null.
        unavailable: what the connector writes in place of a value that it does not know, as its
            ``unavailable.value.placeholder`` says. Such a row is a bad value.

    Raises:
        ConfigError: another format in it.
    """

    values: Avro | Json
    keys: Avro | Json | None = None
    unavailable: str = "__debezium_unavailable_value"

    def __post_init__(self) -> None:
        if not isinstance(self.values, Avro | Json):
            raise ConfigError(
                f"the envelopes of Debezium are {shown(self.values)}: give Avro(...) or Json(...)"
            )
        if self.keys is not None and not isinstance(self.keys, Avro | Json):
            raise ConfigError(
                f"the keys of Debezium are {shown(self.keys)}: give Avro(...) or Json(...)"
            )
        check_text(self.unavailable, what="unavailable", length_max=_PLACEHOLDER_LENGTH_MAX)


Format = Avro | Json | Debezium


def check_format(value: object, what: str) -> Format | None:
    """Return a format or None; raise `ConfigError` for anything else."""
    if isinstance(value, Debezium) and what == "keys":
        raise ConfigError(
            "keys is Debezium(...), and envelopes are values: give Debezium(..., keys=...) as values"
        )
    if value is None or isinstance(value, Format):
        return value
    raise ConfigError(f"{what} is {shown(value)}: give Avro(...), Json(...) or Debezium(...)")


def avro_in(value: Format | None) -> list[Avro]:
    """Return the parts of a format whose schemas a registry may have."""
    if isinstance(value, Debezium):
        return [*avro_in(value.values), *avro_in(value.keys)]
    return [value] if isinstance(value, Avro) else []


def kept(asked: Format | None, planned: Format | None) -> Format | None:
    """Return how a planned window is read when it is asked for again.

    The schema that was looked up for the plan stays, as long as it is that of the same subject. Everything else is as the
    caller has it: wrong arguments can be corrected and the window read again.
    """
    if isinstance(asked, Debezium) and isinstance(planned, Debezium):
        values: Any = kept(asked.values, planned.values)
        keys: Any = kept(asked.keys, planned.keys)
        return replace(asked, values=values, keys=keys)
    if not isinstance(asked, Avro) or not isinstance(planned, Avro):
        return asked
    if asked.schema is not None or planned.schema is None or asked.subject != planned.subject:
        return asked
    return asked.fixed(planned.schema, planned.references)


def format_to_json(value: Format | None) -> dict[str, Any] | None:
    """Return the JSON that is stored with a plan."""
    if isinstance(value, Json):
        return {
            "format": "json",
            "fields": fields_to_json(value.schema),
            "unknown": str(value.unknown),
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

    schema: _SchemaText | None
    subject: Text | None
    framing: Framing
    writer: _SchemaText | None
    references: tuple[_SchemaText, ...]

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

    columns: list[Any]
    unknown: UnknownFields

    @property
    def value(self) -> Json:
        """The format; raises `JsonError` or `ConfigError` for an invalid one."""
        return Json(fields_from_json(self.columns), self.unknown)


class StoredDebezium(Stored, frozen=True, tag_field="format", tag="debezium"):
    """The JSON of a `Debezium`."""

    values: StoredAvro | StoredJson
    keys: StoredAvro | StoredJson | None
    unavailable: Text

    @property
    def value(self) -> Debezium:
        """The format; raises `JsonError` or `ConfigError` for an invalid one."""
        keys = None if self.keys is None else self.keys.value
        return Debezium(self.values.value, keys, self.unavailable)


StoredFormat = StoredAvro | StoredJson | StoredDebezium
