"""Write a job's result as a window's output without Spark, from any library that exports Arrow data."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final, Protocol

import pyarrow as pa

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.window.partition import columns_of
from kafka_ordered_ops.core.window.plan import WindowPlan, check_not_covered
from kafka_ordered_ops.ordered.records.columns import STAGE_SCHEMA
from kafka_ordered_ops.output.writing.draft import drafts_of
from kafka_ordered_ops.output.writing.stage_files import FILE_BYTES_MAX, ROWS_PER_FILE, StageFiles
from kafka_ordered_ops.output.writing.staged_output import StagedOutput

#: The name that pandas gives to the index of a filtered frame.
_INDEX: Final = re.compile(r"__index_level_\d+__")

#: The greatest precision of Spark's decimals.
_DIGITS_MAX: Final = 38


class ArrowStream(Protocol):
    """A stream of Arrow's PyCapsule interface, as `pyarrow`, Polars, pandas and DuckDB export it."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the stream."""


def stage_stream(
    stream: ArrowStream,
    plan: WindowPlan,
    root: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    partition_by: str | None = None,
) -> StagedOutput:
    """Write a result as Parquet to the window's stage below `root`, in the order of its rows.

    One file's rows and one batch of the stream are held in memory. A column ``window_id`` and the index of a pandas frame
    are left out. Nanoseconds are cut to microseconds, and half floats are written as floats, for readers without these
    types. A column of type null gets the type of the records' column with that name.

    Facts of the result: ``records``, ``bytes``, ``files``, ``elapsed_ms``.

    Raises:
        ConfigError: no columns; columns whose names differ by case alone; a type that Spark cannot read from Parquet; or a
            column that `partition_by` adds.
        SinkError: the file system failed, or another group's window is in the window's place.
        WindowCoveredError: other windows deliver its records.
    """
    check_not_covered(plan)
    started = time.monotonic()
    output = StagedOutput.of(plan, root, storage_options, partition_by)
    reader = pa.RecordBatchReader.from_stream(stream)
    schema = _written_schema(reader.schema, output)
    with drafts_of([output]) as (draft,):
        records = 0
        with StageFiles([draft.path], draft.files, schema) as files:
            for rows in _files(reader, schema):
                records += rows.num_rows
                files.write(0, partial(_same, rows))
            written = files.close(0)
        elapsed_ms = round((time.monotonic() - started) * 1000)
        return draft.seal({"records": records, **written, "elapsed_ms": elapsed_ms})


def _same(rows: pa.Table) -> pa.Table:
    return rows


def _written_schema(schema: pa.Schema, output: StagedOutput) -> pa.Schema:
    """Return the columns to write, without those that libraries add to a schema; raise `ConfigError`."""
    fields: list[pa.Field[Any]] = []
    misfits: list[str] = []
    added = columns_of(output.partition)
    for field in schema:
        if field.name == "window_id" or _INDEX.fullmatch(field.name):
            continue
        kind = field.type
        if pa.types.is_null(kind) and field.name in STAGE_SCHEMA.names:
            kind = STAGE_SCHEMA.field(field.name).type
        plain = _plain(kind)
        if plain is None:
            misfits.append(f"{field.name} is {kind}")
        elif field.name.lower() in added:
            misfits.append(f"{field.name} is a column that partition_by adds")
        else:
            fields.append(pa.field(field.name, plain, field.nullable))
    names = [field.name.lower() for field in fields]
    misfits += [f"{name} is there twice" for name in dict.fromkeys(names) if names.count(name) > 1]
    what = f"the result of window {output.window_id}"
    if misfits:
        raise ConfigError(
            f"{what} has columns that not every reader of Parquet takes: {', '.join(misfits)}. Cast, rename or drop them"
        )
    if not fields:
        raise ConfigError(f"{what} has no columns: a file of Parquet needs at least one")
    return pa.schema(fields)


def _plain(kind: pa.DataType) -> pa.DataType | None:
    """Return the type to write a column in; None for a type that Spark does not read."""
    is_ = pa.types
    if is_.is_dictionary(kind):
        return _plain(kind.value_type)
    if is_.is_string_view(kind):
        return pa.string()
    if is_.is_binary_view(kind):
        return pa.binary()
    if is_.is_float16(kind):
        return pa.float32()
    if is_.is_timestamp(kind):
        return pa.timestamp("us", kind.tz) if kind.unit == "ns" else kind
    if is_.is_decimal(kind):
        return kind if kind.precision <= _DIGITS_MAX else None
    if is_.is_struct(kind):
        parts = [(part, _plain(part.type)) for part in kind]
        if any(plain is None for _, plain in parts):
            return None
        return pa.struct([part.with_type(plain) for part, plain in parts if plain is not None])
    if is_.is_map(kind):
        key, item = _plain(kind.key_type), _plain(kind.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    if is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        value = _plain(kind.value_type)
        return None if value is None else pa.list_(kind.value_field.with_type(value))
    is_read = (
        is_.is_boolean,
        is_.is_integer,
        is_.is_floating,
        is_.is_string,
        is_.is_large_string,
        is_.is_binary,
        is_.is_large_binary,
        is_.is_fixed_size_binary,
        is_.is_date,
    )
    return kind if any(check(kind) for check in is_read) else None


def _files(reader: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of one file after another."""
    held = list[pa.Table]()
    rows = held_bytes = 0
    for batch in reader:
        left = pa.Table.from_batches([batch]).select(schema.names)
        while left.num_rows:
            row_bytes = max(1, left.nbytes // left.num_rows)
            fitting = min(ROWS_PER_FILE - rows, (FILE_BYTES_MAX - held_bytes) // row_bytes)
            # Unsafe: nanoseconds are cut.
            piece = left.slice(0, max(1, fitting)).cast(schema, safe=False)
            left = left.slice(piece.num_rows)
            held.append(piece)
            rows += piece.num_rows
            held_bytes += piece.nbytes
            if rows >= ROWS_PER_FILE or held_bytes >= FILE_BYTES_MAX:
                yield pa.concat_tables(held)
                held, rows, held_bytes = [], 0, 0
    if held:
        yield pa.concat_tables(held)
