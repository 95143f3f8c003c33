"""Decode batches of records, by the formats that a window or a caller names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_ordered_ops.core.cluster.cluster_facts import is_pattern
from kafka_ordered_ops.core.errors import ConfigError, DecodeError
from kafka_ordered_ops.core.record_schema import WINDOW_SCHEMA
from kafka_ordered_ops.core.window.dead_letters import DeadLetter
from kafka_ordered_ops.core.window.formats import (
    Avro,
    Debezium,
    Format,
    Framing,
    Json,
    OnBad,
    Protobuf,
    in_registries,
    is_open,
)
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.decoding.avro.reader import AvroReader
from kafka_ordered_ops.decoding.bad import ColumnTooLargeError
from kafka_ordered_ops.decoding.column_reader import ColumnReader, CountingReader, native_or_python
from kafka_ordered_ops.decoding.debezium.columns import DebeziumColumnReader
from kafka_ordered_ops.decoding.debezium.values import DebeziumReader
from kafka_ordered_ops.decoding.discarded import Discarded
from kafka_ordered_ops.decoding.frames import id_text
from kafka_ordered_ops.decoding.header_frames import IdOf, no_id, with_frames
from kafka_ordered_ops.decoding.json.columns import json_column_reader
from kafka_ordered_ops.decoding.json.schema import columns_of
from kafka_ordered_ops.decoding.left_out import Reasons
from kafka_ordered_ops.kafka.schema_registry import RegisteredSchema, Registry, SchemaClient
from kafka_ordered_ops.kafka.settings import ClientSettings

_Field: TypeAlias = "pa.Field[Any]"
_Array: TypeAlias = "pa.Array[Any]"

#: Reasons are cut: they may quote the value.
_REASON_MAX: Final = 500
#: Records that are decoded together: as objects of Python, they take many times their bytes.
DECODED_ROWS: Final = 10_000


#: Takes a batch, and the reasons why rows of it are left out.
LeaveOut = Callable[[pa.RecordBatch, Reasons], object]


@dataclass(frozen=True)
class Decoder:
    """Columns in place of ``key`` and ``value``. Pickled for tasks, with the known schemas, and the registry's credentials.

    Args:
        values: how the column ``value`` is encoded; None leaves it as it is.
        keys: the same for the column ``key``.
        on_bad: what happens to bad values.
        flatten: put the fields of a struct in its place.
        registry: has the schemas of writers.
    """

    values: Format | None
    keys: Format | None
    on_bad: OnBad | DeadLetter = OnBad.FAIL
    flatten: bool = False
    registry: SchemaClient | None = None

    def schema_of(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of decoded batches.

        Raises:
            ConfigError: invalid schemas; a column is missing, or does not hold bytes, or its name is there twice.
            RegistryError, AuthenticationError: the registry fails, or refuses the credentials.
        """
        wanted = set(self._columns)
        if any(column.reader.needs_keys for column in self._columns.values()):
            wanted.add("key")
        for name in sorted(wanted):
            if schema.get_field_index(name) < 0:
                raise ConfigError(f"there is no column {name!r} among {', '.join(schema.names)}")
        fields: list[_Field] = []
        for part in schema:
            column = self._columns.get(part.name)
            fields += [part] if column is None else column.fields(part)
        names = [part.name for part in fields]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ConfigError(
                f"decoded columns have the names of others, {', '.join(sorted(twice))}: use flatten=False"
            )
        return pa.schema(fields)

    def decoded(
        self,
        batch: pa.RecordBatch,
        leave_out: LeaveOut | None = None,
        discarded: Discarded | None = None,
    ) -> pa.RecordBatch:
        """Return a batch with the columns of `schema_of`; raise `DecodeError`, or as the registry does.

        Bad rows that become dead letters are left out, and passed to `leave_out`. Without it, they raise as well. `discarded`
        counts fields that have no column.
        """
        fields: list[_Field] = []
        arrays: list[_Array] = []
        bad: dict[int, dict[str, str]] | None = None if leave_out is None else {}
        framed = with_frames(batch, self._in_headers)
        for part, array in zip(batch.schema, batch.columns, strict=True):
            column = self._columns.get(part.name)
            fields += [part] if column is None else column.fields(part)
            arrays += [array] if column is None else column.arrays(framed, array, bad, discarded)
        decoded = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
        if leave_out is None or not bad:
            return decoded
        leave_out(batch, bad)
        return decoded.filter(pa.array(~_mask(bad, batch.num_rows)))

    def schema_ids(self, batch: pa.RecordBatch) -> dict[str, Counter[str]]:
        """Return how often each schema's id stands before the values of ``key`` and ``value``, where they should have one."""
        framed = with_frames(batch, self._in_headers)
        counts: dict[str, Counter[str]] = {}
        for name, wanted in self._encoded.items():
            for part in in_registries(wanted):
                framing = Framing(part.framing or Framing.NONE)
                values: list[bytes | None] = framed.column(name).to_pylist()
                ids = (id_text(value, framing) for value in values if value is not None)
                counts[name] = Counter(filter(None, ids))
        return {name: ids for name, ids in counts.items() if ids}

    @property
    def discards(self) -> bool:
        """Whether fields without a column are left out, and counted."""
        return any(isinstance(part, Json) and part.discards for part in (self.values, self.keys))

    def __reduce__(self) -> tuple[Any, ...]:
        # Without what was made for this process.
        return Decoder, (self.values, self.keys, self.on_bad, self.flatten, self.registry)

    @cached_property
    def _in_headers(self) -> dict[str, IdOf]:
        """The columns whose schema ids may be in headers, and what returns the id of a GUID."""
        registry = self.registry
        return {
            name: registry.id_of if registry and part.needs_registry else no_id
            for name, wanted in self._encoded.items()
            for part in in_registries(wanted)
            if part.framing == Framing.CONFLUENT
        }

    @property
    def _encoded(self) -> dict[str, Format | None]:
        """How the bytes of each column are encoded."""
        values, keys = self.values, self.keys
        if isinstance(values, Debezium):
            keys, values = keys or values.keys, values.values
        return {"key": keys, "value": values}

    @cached_property
    def _columns(self) -> dict[str, _Column]:
        return {
            name: self._column(name, wanted)
            for name, wanted in (
                ("key", _with_schema(self.keys, self.registry)),
                ("value", _with_schema(self.values, self.registry)),
            )
            if wanted is not None
        }

    def _column(self, name: str, wanted: Format) -> _Column:
        if not isinstance(wanted, Json):
            return _Column(name, reader_of(wanted, self.registry), self.on_bad, self.flatten, False)
        reader = json_column_reader(wanted)
        is_left_out = bool(wanted.infer) and not wanted.columns
        counting = reader if wanted.discards else None
        return _Column(name, reader, self.on_bad, self.flatten, is_left_out, counting)


def decoder_of(window: Window, settings: ClientSettings) -> Decoder | None:
    """Return the decoder of a window; None if its records stay bytes.

    It knows all schemas of the window's subjects, so that tasks on other machines need no registry.

    Raises:
        ConfigError: the settings name no registry, and a format needs one; or as `Decoder.schema_of`.
        RegistryError, AuthenticationError: the registry fails, or refuses the credentials.
    """
    if not window.is_decoded:
        return None
    window, registry = _with_schemas(window, settings)
    for wanted in _of_registries(window):
        if registry is not None and wanted.needs_registry and wanted.subject is not None:
            registry.learn(wanted.subject, _stored(wanted))
    return _decoder(window, registry)


def fixed(window: Window, settings: ClientSettings) -> Window:
    """Return a window whose formats have their reader schemas: the newest ones of their subjects now.

    Raises:
        ConfigError: a subject is unknown, a schema is invalid or of another kind, or the settings name no registry.
        RegistryError, AuthenticationError: the registry fails, or refuses the credentials.
    """
    if not window.is_decoded:
        return window
    window, registry = _with_schemas(window, settings)
    # Invalid schemas are found before anything is planned.
    _decoder(_with_given_columns(window), registry).schema_of(WINDOW_SCHEMA)
    return window


def _with_given_columns(window: Window) -> Window:
    """Return a window that has, of columns that are still to be inferred, the given ones."""
    values: Any = window.values
    keys: Any = window.keys
    if is_open(values):
        values = values.with_columns(None)
    if is_open(keys):
        keys = keys.with_columns(None)
    return replace(window, values=values, keys=keys)


def _decoder(window: Window, registry: SchemaClient | None) -> Decoder:
    return Decoder(window.values, window.keys, window.on_bad, window.flatten, registry)


def _with_schemas(window: Window, settings: ClientSettings) -> tuple[Window, SchemaClient | None]:
    """Return a window with its reader schemas, and the registry, if a format needs one; those of a plan stay."""
    registry, topic = _registry_of(window, settings), _only_topic(window)
    values = _with_schema(window.values, registry, topic)
    keys = _with_schema(window.keys, registry, topic, "key")
    return replace(window, values=values, keys=keys), registry


def _registry_of(window: Window, settings: ClientSettings) -> SchemaClient | None:
    """Return the registry of the settings, if a format of the window needs one."""
    wanted = [part for part in _of_registries(window) if part.needs_registry]
    if not wanted:
        return None
    if (registry := Registry.of(settings)) is None:
        raise ConfigError(
            f"{wanted[0]!r} needs a schema registry: set schema.registry.url in the client settings. Without one, give the schema "
            "yourself, and in Avro say with framing='none' that no schema id stands before a value"
        )
    return registry.connect()


def _with_schema(
    wanted: Format | None,
    registry: SchemaClient | None,
    topic: str | None = None,
    part: str = "value",
) -> Format | None:
    """Return a format with its reader schema: by default the newest of the topic's subject for this part of a record."""
    if isinstance(wanted, Debezium):
        values: Any = _with_schema(wanted.values, registry, topic)
        keys: Any = _with_schema(wanted.keys, registry, topic, "key")
        return replace(wanted, values=values, keys=keys)
    if registry is not None and wanted is not None and wanted.needs_registry:
        _check_goes_with(wanted, registry)
    default = None if topic is None or registry is None else registry.subject_of(topic, part)
    if isinstance(wanted, Avro) and wanted.schema is None:
        subject = wanted.subject or default
        newest = _newest(wanted, subject, registry, "AVRO")
        return wanted.fixed(subject, newest.text, newest.reference_texts)
    if isinstance(wanted, Protobuf) and wanted.descriptor is None:
        with _needs_protobuf():
            from kafka_ordered_ops.decoding.protobuf.schemas import compiled
        subject = wanted.subject or default
        return wanted.fixed(subject, compiled(_newest(wanted, subject, registry, "PROTOBUF")))
    if isinstance(wanted, Json) and wanted.needs_registry:
        subject = wanted.subject or default
        newest = _newest(wanted, subject, registry, "JSON")
        return wanted.fixed(subject, columns_of(newest.text, newest.references))
    return wanted


def _check_goes_with(wanted: Avro | Json | Protobuf, registry: SchemaClient) -> None:
    """Raise `ConfigError` for ids that a registry does not have."""
    if (wanted.framing == Framing.GLUE) is not registry.is_glue:
        raise ConfigError(
            f"{wanted!r}: framing='glue' needs the registry of AWS Glue, by the URL glue://REGION, and that registry needs framing='glue'"
        )


def _newest(
    wanted: Avro | Json | Protobuf, subject: str | None, registry: SchemaClient | None, kind: str
) -> RegisteredSchema:
    """Return the newest schema of a format's subject."""
    if subject is None:
        raise ConfigError(
            f"{wanted!r}: give a schema, or the subject whose newest schema it is. Without a window, or with several topics or a "
            "pattern, no subject follows from the topic"
        )
    if registry is None:
        raise ConfigError(f"subject is {subject!r}: give the registry that has it")
    newest = registry.newest(subject)
    if newest.kind != kind:
        raise ConfigError(
            f"the newest schema of {subject} is {newest.kind}, not {type(wanted).__name__}"
        )
    return newest


def _only_topic(window: Window) -> str | None:
    """Return a window's only topic, by which serializers name subjects; None if there may be several."""
    [topic, *others] = window.topics
    return None if others or is_pattern(topic) else topic


def _stored(
    wanted: Avro | Json | Protobuf,
) -> Callable[[RegisteredSchema], RegisteredSchema] | None:
    """Return what tasks keep of a writer's schema; None for all of it."""
    if not isinstance(wanted, Protobuf):
        return None
    with _needs_protobuf():
        from kafka_ordered_ops.decoding.protobuf.schemas import as_descriptor
    return as_descriptor


def _of_registries(window: Window) -> list[Avro | Json | Protobuf]:
    return [*in_registries(window.values), *in_registries(window.keys)]


@contextmanager
def _needs_protobuf() -> Iterator[None]:
    """Raise `ConfigError` if the library of Protobuf is missing: other formats do not need it."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"Protobuf needs {error.name}: pip install 'kafka-ordered-ops[protobuf]'"
        ) from None


# --- columns -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of bytes that is decoded."""

    name: str
    reader: ColumnReader
    on_bad: OnBad | DeadLetter
    flatten: bool
    #: Whether there is no column: none was inferred, because the window has no values; files have no empty structs.
    is_left_out: bool
    #: The reader, if it counts fields without a column.
    counting: CountingReader | None = None

    @property
    def flat(self) -> list[_Field]:
        """The fields of the struct that values become, if they are wanted in its place."""
        arrow: Any = self.reader.arrow
        return [*arrow] if self.flatten and pa.types.is_struct(arrow) else []

    def fields(self, column: _Field) -> list[_Field]:
        """Return the fields in place of the column's."""
        if column.type not in (pa.binary(), pa.large_binary()):
            raise ConfigError(
                f"the column {self.name!r} has the type {column.type}: bytes are expected"
            )
        fields = [pa.field(part.name, part.type) for part in self.flat]
        if not self.is_left_out:
            fields = fields or [pa.field(self.name, self.reader.arrow)]
        if self.on_bad is OnBad.KEEP:
            raw, reason = f"{self.name}_raw", f"{self.name}_error"
            fields += [pa.field(raw, column.type), pa.field(reason, pa.string())]
        return fields

    def arrays(
        self,
        batch: pa.RecordBatch,
        column: _Array,
        left_out: dict[int, dict[str, str]] | None,
        discarded: Discarded | None,
    ) -> list[_Array]:
        """Return the arrays of `fields`, and note the rows and count the fields to leave out; raise `DecodeError`.

        `column` has the bytes of the records, and the batch those with their frames.
        """
        keys = batch.column("key") if self.reader.needs_keys else None
        try:
            if discarded is not None and self.counting is not None:
                found = Discarded()
                decoded, whole = self.counting.read_counted(batch.column(self.name), found)
                discarded.merge(found, self.name)
            else:
                decoded, whole = self.reader.read_column(batch.column(self.name), keys)
        except ColumnTooLargeError:
            raise ConfigError(
                f"the column {self.name!r} of {batch.num_rows:,} records takes more than Arrow has in one array: give smaller batches"
            ) from None
        reasons = {row: reason[:_REASON_MAX] for row, reason in whole.items()}
        if isinstance(self.on_bad, DeadLetter) and left_out is not None:
            for row, reason in reasons.items():
                left_out.setdefault(row, {})[self.name] = reason
        elif reasons and self.on_bad is not OnBad.KEEP:
            raise _decode_error(self.name, batch, reasons)
        arrays: list[_Array] = [*cast("Any", decoded).flatten()] if self.flat else [decoded]
        if self.is_left_out:
            arrays = []
        return arrays + (_kept(column, reasons) if self.on_bad is OnBad.KEEP else [])


def _kept(column: _Array, reasons: Mapping[int, str]) -> list[_Array]:
    """Return the bytes of bad values, and the reasons, both null for all other rows."""
    bad: Any = pa.array(_mask(reasons, len(column)))
    texts = pa.array([reasons[row] for row in sorted(reasons)], pa.string())
    raw = pc.if_else(bad, column, pa.scalar(None, column.type))
    return [raw, pc.replace_with_mask(pa.nulls(len(column), pa.string()), bad, texts)]


def _mask(rows: Iterable[int], count: int) -> Any:
    """Return which of so many rows are among `rows`."""
    mask = np.zeros(count, dtype=np.bool_)
    mask[list(rows)] = True
    return mask


def _decode_error(name: str, batch: pa.RecordBatch, reasons: Mapping[int, str]) -> DecodeError:
    row = min(reasons)
    where = {
        part: batch.column(part)[row].as_py() if part in batch.schema.names else None
        for part in ("topic", "partition", "offset")
    }
    place = "{topic}[{partition}] at offset {offset}".format(**where)
    return DecodeError(
        f"{place}: the {name} cannot be decoded: {reasons[row]}. In its batch of {batch.num_rows:,} records, bad ones: "
        f"{len(reasons):,}. Give another schema (a window keeps the one that was looked up for its plan), or say with on_bad that "
        "such records are kept, or become dead letters",
        **where,
        bad=len(reasons),
    )


# --- readers -----------------------------------------------------------------------------------


def reader_of(wanted: Format, registry: SchemaClient | None) -> ColumnReader:
    """Return what decodes values of a format, which has its schema; raises as `Decoder.schema_of`."""
    if isinstance(wanted, Json):
        return json_column_reader(wanted)
    if isinstance(wanted, Protobuf):
        with _needs_protobuf():
            from kafka_ordered_ops.decoding.protobuf.native import NativeProtobufReader
            from kafka_ordered_ops.decoding.protobuf.records import ProtobufReader
        python = ProtobufReader(wanted, registry)
        return native_or_python(lambda module: NativeProtobufReader(module, python), python)
    if isinstance(wanted, Debezium):
        return _debezium_reader(wanted, registry)
    avro = AvroReader(wanted, registry)
    return native_or_python(avro.native, avro)


def _debezium_reader(wanted: Debezium, registry: SchemaClient | None) -> ColumnReader:
    python = DebeziumReader(wanted, lambda part: AvroReader(part, registry))
    if not isinstance(wanted.values, Avro):
        return python
    envelopes = AvroReader(wanted.values, registry)
    return native_or_python(
        lambda module: DebeziumColumnReader(python, envelopes.native(module)), python
    )
