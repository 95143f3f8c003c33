"""Records whose keys and values are decoded, as columns or as JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from kafka_ordered_ops.cli.records.choices import Format, OnBad
from kafka_ordered_ops.cli.records.formats import Writer
from kafka_ordered_ops.decoding.decoder import Decoder

#: Columns that are decoded; a bad one has its bytes and the reason in columns of their own.
_NAMES: Final = ("key", "value")


class DecodedRecords:
    """What a format's writer gets in place of bytes.

    Args:
        decoder: keeps bad values, unless `on_bad` is fail.
        form: text has JSON in place of columns.
        on_bad: a kept value is a text in JSON, and in Arrow and Parquet a row with its bytes and the reason.
    """

    def __init__(self, decoder: Decoder, form: Format, on_bad: OnBad) -> None:
        self._decoder = decoder
        self._is_text = form.is_text
        self._on_bad = on_bad

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of the records that are written."""
        return self._shown(self._decoder.decoded(_no_records(schema))).schema

    def decoded(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records as they are written; raise `DecodeError`."""
        rows = self._decoder.decoded(batch)
        if self._on_bad is OnBad.SKIP:
            for reason in _present(rows, "error"):
                rows = rows.filter(pc.is_null(rows.column(reason)))
        return self._shown(rows)

    def _shown(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if self._is_text:
            for name in _NAMES:
                rows = _as_json(rows, name)
        if self._is_text or self._on_bad is not OnBad.KEEP:
            rows = rows.drop_columns([*_present(rows, "raw"), *_present(rows, "error")])
        return rows


class DecodedWriter:
    """Decodes, then writes."""

    def __init__(self, writer: Writer, records: DecodedRecords) -> None:
        self._writer, self._records = writer, records

    def write(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Write the records; return those that were not skipped."""
        return self._writer.write(self._records.decoded(batch))

    def close(self) -> None:
        """Write the end of the format."""
        self._writer.close()


def shown_as_json(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return records with keys and values as text: decoded ones as JSON."""
    for name in _NAMES:
        rows = _as_json(rows, name)
    rows = rows.select(["topic", "partition", "offset", *_NAMES])
    texts: list[Any] = rows.to_pylist()
    return [
        {
            name: value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
            for name, value in row.items()
        }
        for row in texts
    ]


def _no_records(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema)


def _present(rows: pa.RecordBatch, what: str) -> list[str]:
    names = [f"{name}_{what}" for name in _NAMES]
    return [name for name in names if name in rows.schema.names]


def _as_json(rows: pa.RecordBatch, name: str) -> pa.RecordBatch:
    """Return the records with a decoded column as JSON, and bad ones as text."""
    index = rows.schema.get_field_index(name)
    column: Any = rows.column(index)
    if pa.types.is_binary(column.type):
        return rows
    plain = _plain(column.type)
    texts = [
        None if value is None else json.dumps(plain(value), ensure_ascii=False)
        for value in column.cast(_shown_type(column.type)).to_pylist()
    ]
    if f"{name}_raw" in rows.schema.names:
        for row, raw in enumerate(rows.column(f"{name}_raw").to_pylist()):
            if raw is not None:
                texts[row] = json.dumps(raw.decode(errors="backslashreplace"), ensure_ascii=False)
    encoded = [None if text is None else text.encode() for text in texts]
    field = pa.field(name, pa.binary())
    return rows.set_column(index, field, pa.array(encoded, pa.binary()))


def _shown_type(kind: Any) -> pa.DataType:
    """Return the type with text in place of times and decimals, which JSON has no exact values for."""
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([field.with_type(_shown_type(field.type)) for field in kind])
    if types.is_list(kind):
        return pa.list_(_shown_type(kind.value_type))
    if types.is_large_list(kind):
        return pa.large_list(_shown_type(kind.value_type))
    if types.is_map(kind):
        return pa.map_(kind.key_type, _shown_type(kind.item_type))
    if types.is_duration(kind):
        return pa.int64()
    # Nulls too: Arrow's cast of a list of nulls to itself is invalid.
    is_text = types.is_temporal(kind) or types.is_decimal(kind) or types.is_null(kind)
    return pa.string() if is_text else kind


def _plain(kind: Any) -> Callable[[Any], Any]:
    """Return what makes a value one that JSON has: bytes become base64, and maps objects."""
    types = pa.types
    if types.is_struct(kind):
        fields = {field.name: _plain(field.type) for field in kind}
        return lambda value: {
            name: None if value[name] is None else plain(value[name])
            for name, plain in fields.items()
        }
    if types.is_list(kind) or types.is_large_list(kind):
        item = _plain(kind.value_type)
        return lambda value: [None if part is None else item(part) for part in value]
    if types.is_map(kind):
        item = _plain(kind.item_type)
        return lambda value: {
            key: None if part is None else item(part) for key, part in dict(value).items()
        }
    if types.is_timestamp(kind):
        return lambda value: value.replace(" ", "T")
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return lambda value: base64.b64encode(value).decode()
    return lambda value: value
