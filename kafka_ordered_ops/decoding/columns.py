"""Turn the bytes of records into columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from kafka_ordered_ops.core.arguments import check_choice, check_flag, shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.window.formats import OnBad
from kafka_ordered_ops.core.window.stored_formats import GivenFormat, as_format
from kafka_ordered_ops.decoding.decoder import Decoder
from kafka_ordered_ops.kafka.schema_registry import Registry


def decode(
    data: Any,
    *,
    values: GivenFormat | None = None,
    keys: GivenFormat | None = None,
    registry: Registry | str | Mapping[str, str] | None = None,
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
        registry: has the schemas of Avro and Protobuf: a URL, or the settings of Confluent's client; see `Registry`.
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
    if registry is not None and not isinstance(registry, Registry):
        registry = Registry(registry)
    decoder = Decoder(
        as_format(values, "values"),
        as_format(keys, "keys"),
        check_choice(on_bad, OnBad, what="on_bad"),
        check_flag(flatten, what="flatten"),
        None if registry is None else registry.connect(),
    )
    schema, batches = _stream(data)
    decoded = decoder.schema_of(schema)
    return pa.RecordBatchReader.from_batches(decoded, map(decoder.decoded, batches))


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
