"""How the values and keys of records are encoded, as values that are stored with a plan."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.core.arguments import check_choice, check_text, check_texts, shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.masked import shown_fields
from kafka_ordered_ops.core.window.column_types import (
    fields_to_json,
)

if TYPE_CHECKING:
    import pyarrow as pa

_SUBJECT_LENGTH_MAX: Final = 1_024
#: Characters of a schema, and of those that it uses, together: they are stored with each plan.
SCHEMA_LENGTH_MAX: Final = 524_288
_REFERENCES_MAX: Final = 200
_PLACEHOLDER_LENGTH_MAX: Final = 1_024
#: What Debezium writes by default in place of a value that it does not know.
UNAVAILABLE: Final = "__debezium_unavailable_value"

_MESSAGE_LENGTH_MAX: Final = 1_024


class Framing(StrEnum):
    """What stands before each value."""

    #: A zero byte and the writer schema's id in 4 bytes, as Confluent's serializers write it; or, in the header
    #: ``__value_schema_id`` or ``__key_schema_id``, the same or the schema's GUID. In Protobuf, the index of the message
    #: follows.
    CONFLUENT = "confluent"
    #: A zero byte and the id in 8 bytes, as older serializers of Apicurio write it. In Protobuf, the name of the message
    #: follows.
    APICURIO_8 = "apicurio-8"
    #: The 18 bytes of AWS Glue's serializers, with the schema's UUID; what follows may be compressed. In Protobuf, it begins
    #: with the index of the message.
    GLUE = "glue"
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


class Infer(StrEnum):
    """What happens to a value with something that a group's inferred columns do not have."""

    #: It is bad.
    FREEZE = "freeze"
    #: New fields are left out.
    DISCARD = "discard"
    #: Each window adds the new fields of its first values as columns; those that come later are left out.
    EVOLVE = "evolve"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Avro:
    """Values in Avro.

    The writer schema of each value comes from the schema registry, by the id before the value. All values become columns of one
    reader schema.

    Args:
        schema: the reader schema, as JSON text. None means the newest one of `subject`, looked up once: when a window is
            planned, or when `decode` is called.
        subject: whose newest schema is the reader schema. None means ``orders-value`` for the values of the topic ``orders``, and
            ``orders-key`` for its keys; in AWS Glue ``orders`` for both.
        framing: what stands before each value.
        writer: the schema that all values were written with, whatever id stands before them. Without framing, None means
            `schema`.
        references: the schemas that `schema` uses, each after those that it uses itself.

    Raises:
        ConfigError: a part is invalid, too long or of no use.
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
            raise ConfigError("references without a schema: the subject has its own")
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
        has_ids = self.framing is not Framing.NONE
        return self.schema is None or (has_ids and self.writer is None)

    def fixed(self, subject: str | None, schema: str, references: Sequence[str]) -> Avro:
        """Return the format with the reader schema of its subject."""
        return Avro(
            schema,
            subject=subject,
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


@dataclass(frozen=True, slots=True, repr=False)
class Json:
    """Values in JSON, in UTF-8.

    Args:
        schema: the columns. Times are texts of RFC 3339, or numbers in the column's unit; binary is base64; decimals are
            numbers or texts. None means those of the newest JSON Schema of `subject`, looked up once: when a window is planned,
            or when `decode` is called.
        unknown: what happens to fields that the schema does not have.
        subject: whose newest JSON Schema has the columns. None means ``orders-value`` for the values of the topic ``orders``,
            and ``orders-key`` for its keys.
        framing: what stands before each value; None means nothing with a `schema` or `infer`, and ``confluent`` without both. Ids
            are not looked up.
        infer: infer the columns from the first values of the group's first window, and keep them for all later ones. What later
            values have besides them makes a value bad (``freeze``; also ``True``), is left out (``discard``) or becomes more
            columns (``evolve``). Columns of `schema` are not inferred.
        inferred: the columns, once they are inferred: set when a window is planned.

    Raises:
        ConfigError: `schema` is not a schema of pyarrow, or has a type that JSON has no values for; or a part is invalid.
    """

    schema: pa.Schema | None = None
    unknown: UnknownFields | str = UnknownFields.IGNORE
    subject: str | None = None
    framing: Framing | str | None = None
    infer: Infer | str | bool | None = None
    inferred: pa.Schema | None = None

    def __post_init__(self) -> None:
        for schema in (self.schema, self.inferred):
            if schema is not None:
                if not hasattr(schema, "field") or not hasattr(schema, "names"):
                    raise ConfigError(f"schema is {shown(schema)}: give a pyarrow.Schema")
                fields_to_json(schema)
        if self.subject is not None:
            check_text(self.subject, what="subject", length_max=_SUBJECT_LENGTH_MAX)
        framing = self.framing
        if framing is None:
            framing = Framing.CONFLUENT if self.needs_registry else Framing.NONE
        framing = check_choice(framing, Framing, what="framing")
        for name, value in (
            ("unknown", check_choice(self.unknown, UnknownFields, what="unknown")),
            ("framing", framing),
            ("infer", self._checked_infer()),
        ):
            object.__setattr__(self, name, value)

    def _checked_infer(self) -> Infer | None:
        if self.infer is None or self.infer is False:
            if self.inferred is not None:
                raise ConfigError("inferred is for columns that are inferred: give them as schema")
            return None
        if self.subject is not None:
            raise ConfigError(
                f"subject is {self.subject!r}, and infer is {self.infer}: the columns are either those of the subject's JSON Schema, or "
                "they are inferred"
            )
        if self.unknown != UnknownFields.IGNORE:
            raise ConfigError(
                "unknown is for fields that a schema does not have: infer='freeze' makes values with new fields bad, "
                "infer='discard' leaves them out"
            )
        word = Infer.FREEZE if self.infer is True else self.infer
        return check_choice(word, Infer, what="infer")

    @property
    def needs_registry(self) -> bool:
        """Whether the columns come from a registry."""
        return self.schema is None and not self.infer

    @property
    def discards(self) -> bool:
        """Whether fields without a column are left out of the inferred ones, which is counted."""
        return self.infer in (Infer.DISCARD, Infer.EVOLVE)

    @property
    def is_open(self) -> bool:
        """Whether the columns are still to be inferred."""
        return bool(self.infer) and self.inferred is None

    @property
    def columns(self) -> list[Any]:
        """The fields of `schema`, or those inferred; none as long as they are not known."""
        return list((self.inferred if self.infer else self.schema) or ())

    def with_columns(self, columns: pa.Schema | None) -> Json:
        """Return the format with inferred columns; those of `schema` keep the type that they have there."""
        known = {} if columns is None else {field.name: field for field in columns}
        given = {field.name: field for field in self.schema or ()}
        fields = [*{**known, **given}.values()]
        return replace(self, inferred=_schema_of(fields))

    def fixed(self, subject: str | None, schema: pa.Schema) -> Json:
        """Return the format with the columns of its subject."""
        return replace(self, subject=subject, schema=schema)

    def __repr__(self) -> str:
        return shown_fields(
            self,
            schema=None if self.schema is None else shown(self.schema),
            unknown=None if self.infer else str(self.unknown),
            subject=self.subject,
            framing=str(self.framing),
            infer=None if self.infer is None else str(self.infer),
            inferred=None if self.inferred is None else shown(self.inferred),
        )


def _schema_of(fields: Sequence[Any]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema(fields)


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Protobuf:
    """Values in Protobuf.

    The descriptor alone decodes the values of all compatible writers: fields that it does not have are skipped, and missing
    ones have their default value, or are null.

    Args:
        message: the full name of the message: ``shop.Order``. None means the first message of the schema.
        subject: whose newest schema in the schema registry has the message, looked up once: when a window is planned, or
            when `decode` is called. None means ``orders-value`` for the values of the topic ``orders``, and ``orders-key`` for its
            keys; in AWS Glue ``orders`` for both. The id before each value is looked up too: its schema must have the message.
        descriptor: the schema, as bytes of a ``FileDescriptorSet`` or as their base64 text; ``protoc --include_imports
            --descriptor_set_out=FILE`` writes the bytes. Without a subject, ids before values are not looked up.
        framing: what stands before each value.

    Raises:
        ConfigError: a part is invalid, or too long.
    """

    message: str | None
    subject: str | None
    #: In base64.
    descriptor: str | None
    framing: Framing

    def __init__(
        self,
        message: str | None = None,
        *,
        subject: str | None = None,
        descriptor: bytes | str | None = None,
        framing: Framing | str = Framing.CONFLUENT,
    ) -> None:
        framing = check_choice(framing, Framing, what="framing")
        if message is not None:
            message = check_text(message, what="message", length_max=_MESSAGE_LENGTH_MAX)
        if subject is not None:
            subject = check_text(subject, what="subject", length_max=_SUBJECT_LENGTH_MAX)
        text = None if descriptor is None else _base64(descriptor)
        for name, value in (
            ("message", message),
            ("subject", subject),
            ("descriptor", text),
            ("framing", framing),
        ):
            object.__setattr__(self, name, value)

    @property
    def needs_registry(self) -> bool:
        """Whether schemas come from a registry: the newest of the subject, or those of writers, by their ids."""
        return self.descriptor is None or (
            self.framing is not Framing.NONE and self.subject is not None
        )

    def fixed(self, subject: str | None, descriptor: bytes | str) -> Protobuf:
        """Return the format with the schema of its subject."""
        return Protobuf(self.message, subject=subject, descriptor=descriptor, framing=self.framing)

    def __repr__(self) -> str:
        return shown_fields(
            self,
            message=self.message,
            subject=self.subject,
            descriptor=None if self.descriptor is None else shown(self.descriptor),
            framing=str(self.framing),
        )


def _base64(descriptor: object) -> str:
    """Return a descriptor as base64 text, the same for the same bytes."""
    data = descriptor
    if isinstance(descriptor, str):
        try:
            # The base64 command breaks lines.
            data = base64.b64decode("".join(descriptor.split()), validate=True)
        except ValueError:
            data = None
    if not isinstance(data, bytes):
        raise ConfigError(
            f"descriptor is {shown(descriptor)}: give the bytes of a FileDescriptorSet, as protoc --include_imports "
            "--descriptor_set_out=FILE writes them, or their base64 text"
        )
    text = base64.b64encode(data).decode()
    if len(text) > SCHEMA_LENGTH_MAX:
        raise ConfigError(
            f"the descriptor has {len(text):,} characters in base64: at most {SCHEMA_LENGTH_MAX:,} are stored with a plan. Write "
            "one with fewer files, and without --include_source_info"
        )
    return text


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
    unavailable: str = UNAVAILABLE

    def __post_init__(self) -> None:
        if not isinstance(self.values, Avro | Json):
            raise ConfigError(
                f"the envelopes of Debezium are {shown(self.values)}: give Avro(...) or Json(...)"
            )
        if self.keys is not None and not isinstance(self.keys, Avro | Json):
            raise ConfigError(
                f"the keys of Debezium are {shown(self.keys)}: give Avro(...) or Json(...)"
            )
        for part in (self.values, self.keys):
            if isinstance(part, Json) and (
                part.schema is None or part.infer or part.framing != Framing.NONE
            ):
                raise ConfigError(
                    f"Debezium has {part!r}: give Json(pyarrow.schema(...)), the columns of a row or of its key, neither framed nor inferred"
                )
        check_text(self.unavailable, what="unavailable", length_max=_PLACEHOLDER_LENGTH_MAX)


Format = Avro | Json | Protobuf | Debezium


def is_open(value: Format | None) -> bool:
    """Return whether a format's columns are still to be inferred."""
    return isinstance(value, Json) and value.is_open


def has_columns(value: Format | None) -> bool:
    """Return whether a format's columns are known: those that are inferred are not before there are values."""
    return not (isinstance(value, Json) and value.infer and not value.columns)


def in_registries(value: Format | None) -> list[Avro | Json | Protobuf]:
    """Return the parts of a format whose schemas a registry may have."""
    if isinstance(value, Debezium):
        return [*in_registries(value.values), *in_registries(value.keys)]
    return [] if value is None else [value]
