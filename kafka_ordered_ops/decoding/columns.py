"""Turn the bytes of records into columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from kafka_ordered_ops.core.arguments import check_choice, check_flag, shown
from kafka_ordered_ops.core.errors import ConfigError, DecodeError
from kafka_ordered_ops.decoding.avro_records import record_reader
from kafka_ordered_ops.decoding.avro_schema import AvroType, parse_avro
from kafka_ordered_ops.decoding.bad import BadValueError
from kafka_ordered_ops.decoding.formats import Avro, Framing, Json, OnBad, UnknownFields
from kafka_ordered_ops.decoding.json_records import json_reader
from kafka_ordered_ops.kafka.schema_registry import RegistryClient

_Field: TypeAlias = "pa.Field[Any]"
_Array: TypeAlias = "pa.Array[Any]"

#: Bytes of a schema's id, after a zero byte.
_ID_BYTES: Final = {Framing.CONFLUENT: 4, Framing.APICURIO_8: 8}
#: Reasons are cut: they may quote the value.
_REASON_MAX: Final = 500


class _Decoder(Protocol):
    """Decodes the values of one column."""

    @property
    def arrow(self) -> pa.DataType:
        """What values become."""

    def read(self, data: bytes) -> Any:
        """Return a value as pyarrow takes it; raise `BadValueError`."""


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of bytes that is decoded."""

    name: str
    decoder: _Decoder
    on_bad: OnBad
    flatten: bool

    @property
    def flat(self) -> list[_Field]:
        """The fields of the struct that values become, if they are wanted in its place."""
        arrow: Any = self.decoder.arrow
        return [*arrow] if self.flatten and pa.types.is_struct(arrow) else []

    def fields(self, field: _Field) -> list[_Field]:
        """Return the fields in place of the column's."""
        if field.type not in (pa.binary(), pa.large_binary()):
            raise ConfigError(
                f"the column {self.name!r} has the type {field.type}: bytes are expected"
            )
        fields = [pa.field(part.name, part.type) for part in self.flat]
        fields = fields or [pa.field(self.name, self.decoder.arrow)]
        if self.on_bad is OnBad.KEEP:
            raw, reason = f"{self.name}_raw", f"{self.name}_error"
            fields += [pa.field(raw, field.type), pa.field(reason, pa.string())]
        return fields

    def arrays(self, batch: pa.RecordBatch, column: _Array) -> list[_Array]:
        """Return the arrays of `fields`; raise `DecodeError`."""
        rows: list[Any] = []
        reasons: dict[int, str] = {}
        for row, data in enumerate(column.to_pylist()):
            value = None
            if data is not None:
                try:
                    value = self.decoder.read(data)
                except BadValueError as error:
                    reasons[row] = str(error)[:_REASON_MAX]
            rows.append(value)
        if reasons and self.on_bad is OnBad.FAIL:
            raise _decode_error(self.name, batch, reasons)
        decoded: Any = pa.array(rows, self.decoder.arrow)
        arrays = decoded.flatten() if self.flat else [decoded]
        if self.on_bad is OnBad.KEEP:
            bad = pa.array([row in reasons for row in range(len(rows))], pa.bool_())
            nothing = pa.scalar(None, column.type)
            arrays += [
                pc.if_else(bad, column, nothing),
                pa.array([reasons.get(row) for row in range(len(rows))], pa.string()),
            ]
        return arrays


def decode(
    data: Any,
    *,
    values: Avro | Json | None = None,
    keys: Avro | Json | None = None,
    on_bad: OnBad | str = OnBad.FAIL,
    flatten: bool = False,
) -> pa.RecordBatchReader:
    """Decode the values, or the keys, of records that were read.

    The column ``value`` becomes a struct, or whatever type the schema has; the same holds for ``key``. All other columns stay
    as they are. A null value (a tombstone) stays null. Batches are decoded one by one, as they are read.

    Args:
        data: what has the columns: an open window, `to_batches`, `to_arrow`, an `OrderedReader` or a batch of it, anything
            with Arrow's stream interface.
        values: how the column ``value`` is encoded; None leaves it as it is.
        keys: the same for the column ``key``.
        on_bad: ``fail`` raises a `DecodeError` at the first batch with a value that cannot be decoded. ``keep`` has null
            there, and two more columns: ``value_raw`` with the bytes, and ``value_error`` with the reason, both null for
            all other records.
        flatten: put the fields of a struct in its place.

    Returns:
        A reader of record batches. `read_all()` returns a table; `OpenWindow.write`, Polars and DuckDB accept it as it is.

    Raises:
        ConfigError: invalid arguments or schemas; a column is missing, or does not hold bytes, or its name is there twice.
        DecodeError: while batches are read.
        RegistryError: the schema registry cannot be reached; retriable.
        AuthenticationError: it refuses the credentials.
    """
    on_bad = check_choice(on_bad, OnBad, what="on_bad")
    check_flag(flatten, what="flatten")
    columns = {
        name: _Column(name, _decoder(name, wanted), on_bad, flatten)
        for name, wanted in (("key", keys), ("value", values))
        if wanted is not None
    }
    schema, batches = _stream(data)
    for name in columns:
        if schema.get_field_index(name) < 0:
            raise ConfigError(f"there is no column {name!r} among {', '.join(schema.names)}")
    fields: list[_Field] = []
    for field in schema:
        column = columns.get(field.name)
        fields += [field] if column is None else column.fields(field)
    names = [field.name for field in fields]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(
            f"decoded columns have the names of others, {', '.join(sorted(twice))}: use flatten=False"
        )
    decoded = pa.schema(fields)
    return pa.RecordBatchReader.from_batches(decoded, _decoded(batches, columns, decoded))


def _decoded(
    batches: Iterable[pa.RecordBatch], columns: Mapping[str, _Column], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        arrays: list[_Array] = []
        for field, array in zip(batch.schema, batch.columns, strict=True):
            column = columns.get(field.name)
            arrays += [array] if column is None else column.arrays(batch, array)
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _stream(data: Any) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    """Return columns and batches of anything that has them."""
    if isinstance(data, pa.RecordBatch):
        return data.schema, [data]
    if hasattr(data, "__arrow_c_stream__"):
        reader = pa.RecordBatchReader.from_stream(data)
        return reader.schema, reader
    if not isinstance(data, Iterable):
        raise ConfigError(f"data is {shown(data)}: give a table, batches, or an Arrow stream")
    if isinstance(schema := getattr(data, "schema", None), pa.Schema):
        return schema, data
    batches = iter(data)
    first = next(batches, None)
    if first is None:
        raise ConfigError(
            "there are no batches, and so no columns: give to_arrow(), or the window itself"
        )
    if not isinstance(first, pa.RecordBatch):
        raise ConfigError(f"data has {shown(first)}: give record batches of Arrow")

    def all_batches() -> Iterator[pa.RecordBatch]:
        yield first
        yield from batches

    return first.schema, all_batches()


def _decode_error(name: str, batch: pa.RecordBatch, reasons: Mapping[int, str]) -> DecodeError:
    row = min(reasons)
    where = {
        part: batch.column(part)[row].as_py() if part in batch.schema.names else None
        for part in ("topic", "partition", "offset")
    }
    place = "{topic}[{partition}] at offset {offset}".format(**where)
    return DecodeError(
        f"{place}: the {name} cannot be decoded: {reasons[row]}. In this batch of {batch.num_rows:,} records, "
        f"{len(reasons):,} are bad. Fix the schema, or keep such records with on_bad='keep'",
        **where,
        bad=len(reasons),
    )


# --- decoders ----------------------------------------------------------------------------------


def _decoder(name: str, wanted: object) -> _Decoder:
    if isinstance(wanted, Avro):
        return _AvroDecoder(wanted)
    if isinstance(wanted, Json):
        return _JsonDecoder(wanted)
    raise ConfigError(f"{name}s is {shown(wanted)}: give Avro(...) or Json(...)")


class _JsonDecoder:
    def __init__(self, json: Json) -> None:
        self.arrow: pa.DataType = pa.struct(list(json.schema))
        self.read = json_reader(self.arrow, refuses_unknown=json.unknown is UnknownFields.BAD)


class _AvroDecoder:
    def __init__(self, avro: Avro) -> None:
        self._registry: RegistryClient | None = avro.registry.connect() if avro.registry else None
        self._id_bytes = _ID_BYTES.get(avro.framing, 0)
        if avro.subject is not None and self._registry is not None:
            newest = self._registry.newest(avro.subject)
            if newest.kind != "AVRO":
                raise ConfigError(f"the newest schema of {avro.subject} is {newest.kind}, not Avro")
            self._reader: AvroType = parse_avro(newest.text, newest.references)
        else:
            self._reader = parse_avro(avro.schema or "")
        self.arrow = self._reader.arrow
        #: By the writer schema's id; None for that of values without one.
        self._reads: dict[int | None, Callable[[bytes], Any]] = {}
        if self._registry is None or not self._id_bytes:
            writer = self._reader if avro.writer is None else parse_avro(avro.writer)
            self._reads[None] = record_reader(writer, self._reader)

    def read(self, data: bytes) -> Any:
        if not self._id_bytes:
            return self._reads[None](data)
        start = 1 + self._id_bytes
        if len(data) < start or data[0] != 0:
            raise BadValueError("it does not begin with a zero byte and a schema id")
        if self._registry is None:
            return self._reads[None](data[start:])
        schema_id = int.from_bytes(data[1:start], "big")
        if schema_id not in self._reads:
            self._reads[schema_id] = self._read_of(self._registry, schema_id)
        return self._reads[schema_id](data[start:])

    def _read_of(self, registry: RegistryClient, schema_id: int) -> Callable[[bytes], Any]:
        written = registry.schema(schema_id)
        if written is None:
            return _refused(f"the registry has no schema {schema_id}")
        if written.kind != "AVRO":
            return _refused(f"schema {schema_id} is {written.kind}, not Avro")
        try:
            return record_reader(parse_avro(written.text, written.references), self._reader)
        except ConfigError as error:
            return _refused(f"schema {schema_id}: {error}")


def _refused(reason: str) -> Callable[[bytes], Any]:
    def read(_: bytes) -> Any:
        raise BadValueError(reason)

    return read
