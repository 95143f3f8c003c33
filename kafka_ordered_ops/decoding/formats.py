"""How values are encoded, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from kafka_ordered_ops.core.arguments import check_choice, check_text, shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.masked import shown_fields
from kafka_ordered_ops.kafka.schema_registry import Registry

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

_SUBJECT_LENGTH_MAX: Final = 1_024


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

    The writer schema comes from the registry, by the id before each value. All values become columns of one reader schema.

    Args:
        schema: the reader schema, as JSON text; None means the newest one of `subject`, read when decoding begins.
        registry: a URL, or the settings of Confluent's client; see `Registry`. None: all values were written with `schema`.
        subject: whose newest schema is the reader schema: ``orders-value`` for the topic ``orders``.
        framing: what stands before each value; ``confluent`` with a registry, otherwise ``none``.
        writer: without a registry, the schema that all values were written with, if it is not the reader schema.

    Raises:
        ConfigError: there is neither a schema nor a subject, or a part is missing or of no use.
    """

    schema: str | None
    registry: Registry | None
    subject: str | None
    framing: Framing
    writer: str | None

    def __init__(
        self,
        schema: str | None = None,
        *,
        registry: Registry | str | Mapping[str, str] | None = None,
        subject: str | None = None,
        framing: Framing | str | None = None,
        writer: str | None = None,
    ) -> None:
        if registry is not None and not isinstance(registry, Registry):
            registry = Registry(registry)
        if framing is None:
            framing = Framing.CONFLUENT if registry else Framing.NONE
        framing = check_choice(framing, Framing, what="framing")
        if subject is not None:
            subject = check_text(subject, what="subject", length_max=_SUBJECT_LENGTH_MAX)
        if (schema is None) == (subject is None):
            raise ConfigError("give Avro either a schema, or the subject whose newest schema it is")
        if subject is not None and registry is None:
            raise ConfigError(f"subject is {shown(subject)}: give the registry that has it")
        if registry is not None and framing is Framing.NONE and subject is None:
            raise ConfigError(
                "without framing and subject, no schema comes from a registry: leave it out"
            )
        if registry is not None and writer is not None:
            raise ConfigError(
                "the registry has the writer schemas: leave out writer, or the registry"
            )
        for name, value in (
            ("schema", schema),
            ("registry", registry),
            ("subject", subject),
            ("framing", framing),
            ("writer", writer),
        ):
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return shown_fields(
            self,
            schema=None if self.schema is None else shown(self.schema),
            registry=self.registry,
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
        ConfigError: `schema` is not a schema of pyarrow.
    """

    schema: pa.Schema
    unknown: UnknownFields | str = UnknownFields.IGNORE

    def __post_init__(self) -> None:
        if not hasattr(self.schema, "field") or not hasattr(self.schema, "names"):
            raise ConfigError(f"schema is {shown(self.schema)}: give a pyarrow.Schema")
        object.__setattr__(
            self, "unknown", check_choice(self.unknown, UnknownFields, what="unknown")
        )
