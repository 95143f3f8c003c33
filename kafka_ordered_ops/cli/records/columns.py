"""Columns of records as text and as JSON, all rows at once."""

from __future__ import annotations

import binascii
from collections.abc import Collection
from json.encoder import encode_basestring
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_ordered_ops.cli.records.choices import Bytes
from kafka_ordered_ops.cli.records.strict import all_invalid, first_invalid
from kafka_ordered_ops.core.errors import ReadError
from kafka_ordered_ops.core.times import TIME_MS_MAX, TIME_MS_MIN, time_text
from kafka_ordered_ops.core.types import TopicPartition

#: The beginning of a cell that spreadsheets run as a formula: also after whitespace, and with full-width signs.
_FORMULA: Final = r"\A\s*[=+\-@\x{FF1D}\x{FF0B}\x{FF0D}\x{FF20}]|\A[\t\r\n]"

#: Where a date ends and a time begins.
_DATE: Final = len("2026-11-20")


def joined(*parts: Any) -> Any:
    """Return the parts of each row as one text; null if a part is null."""
    return pc.binary_join_element_wise(*parts, "")


def or_null(texts: Any) -> Any:
    """Return JSON with ``null`` for each null."""
    return pc.fill_null(texts, "null") if texts.null_count else texts


def bytes_text(batch: pa.RecordBatch, name: str, how: Bytes) -> Any:
    """Return a column of bytes as text; nulls stay.

    Raises:
        ReadError: `how` is JSON, and a value is not.
    """
    column: Any = batch.column(name)
    return _json_text(batch, name, column) if how is Bytes.JSON else _text(column, how)


def is_bad(batch: pa.RecordBatch, names: Collection[str]) -> Any:
    """Return for each record whether one of these columns is not JSON."""
    bad = np.zeros(len(batch), dtype=np.bool_)
    for name in names:
        column: Any = batch.column(name)
        try:
            texts = column.cast(pa.string())
        except pa.ArrowInvalid:
            # Not UTF-8, which is rare: row by row, with a text that is not JSON.
            texts = pa.array([_utf8_or_none(value) for value in column.to_pylist()], pa.string())
        bad[[row for row, _ in all_invalid(texts)]] = True
    return bad


def _utf8_or_none(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return "not UTF-8"


def bytes_json(batch: pa.RecordBatch, name: str, how: Bytes) -> Any:
    """Return a column of bytes as JSON; raises as `bytes_text`."""
    texts = bytes_text(batch, name, how)
    return or_null(texts if how is Bytes.JSON else _quoted(texts))


def headers_json(batch: pa.RecordBatch, how: Bytes) -> Any:
    """Return the headers as lists of [key, value]; values are text, or Base64 if `how` is."""
    lists: Any = batch.column("headers")
    if lists.null_count == len(lists):
        return "[]"
    headers = lists.flatten()
    values = _text(headers.field("value"), Bytes.BASE64 if how is Bytes.BASE64 else Bytes.TEXT)
    pairs = joined("[", _quoted(headers.field("key")), ",", or_null(_quoted(values)), "]")
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    offsets = np.concatenate(([0], np.cumsum(counts)))
    by_record = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pairs)
    return joined("[", pc.binary_join(by_record, ","), "]")


def times_text(batch: pa.RecordBatch) -> Any:
    """Return the timestamps in ISO 8601 with milliseconds, in UTC; beyond year 9999 as ``@<ms>``."""
    column: Any = batch.column("timestamp")
    # Without a zone: with one, Arrow looks it up for each row.
    local = pc.binary_replace_slice(
        column.cast(pa.timestamp("ms")).cast(pa.string()), _DATE, _DATE + 1, "T"
    )
    texts = joined(local, "Z")
    times_ms = column.view(pa.int64()).to_numpy()
    beyond = (times_ms < TIME_MS_MIN) | (times_ms > TIME_MS_MAX)
    if not beyond.any():
        return texts
    beyond_texts = pa.array([time_text(int(ms)) for ms in times_ms[beyond]])
    return pc.replace_with_mask(texts, pa.array(beyond), beyond_texts)


def guarded(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows in which texts that a spreadsheet would run as a formula begin with an apostrophe."""
    columns: list[Any] = []
    for column in rows.columns:
        if pa.types.is_string(column.type):
            runs: Any = pc.match_substring_regex(column, _FORMULA)
            column = pc.if_else(pc.fill_null(runs, False), joined("'", column), column)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


def characters(texts: Any) -> Any:
    """Return the bytes of all rows in one piece, without a copy."""
    _, offsets, data = texts.buffers()
    if data is None:
        return np.empty(0, np.uint8)
    bounds = np.frombuffer(offsets, np.int32)
    first, end = bounds[texts.offset], bounds[texts.offset + len(texts)]
    return np.frombuffer(data, np.uint8)[first:end]


def _text(column: Any, how: Bytes) -> Any:
    if how is Bytes.BASE64:
        encoded = (
            None if value is None else binascii.b2a_base64(value, newline=False)
            for value in column.to_pylist()
        )
        return pa.array(encoded, pa.binary()).cast(pa.string())
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        # Not UTF-8, which is rare: row by row.
        return pa.array(
            [
                None if value is None else value.decode(errors="backslashreplace")
                for value in column.to_pylist()
            ],
            pa.string(),
        )


def _json_text(batch: pa.RecordBatch, name: str, column: Any) -> Any:
    try:
        texts = column.cast(pa.string())
    except pa.ArrowInvalid:
        row, why = _first_not_utf8(column), "it is not UTF-8"
    else:
        if (invalid := first_invalid(texts)) is None:
            # JSON strings have no line breaks, so these are between tokens: one record stays one line.
            return pc.replace_substring_regex(texts, "[\r\n]", " ") if _has_breaks(texts) else texts
        row, why = invalid
    tp = TopicPartition(batch.column("topic")[row].as_py(), batch.column("partition")[row].as_py())
    offset = batch.column("offset")[row].as_py()
    raise ReadError(
        f"the {name} of the record at {tp} offset {offset} is not JSON: {why}. Give --{name}s text or base64, or --on-bad skip or keep",
        partition=str(tp),
        offset=offset,
    )


def _first_not_utf8(column: Any) -> int:
    for row, value in enumerate(column.to_pylist()):
        try:
            if value is not None:
                value.decode()
        except UnicodeDecodeError:
            return row
    raise AssertionError("a column that Arrow refuses as UTF-8 has a row that Python refuses")


def _has_breaks(texts: Any) -> bool:
    data = characters(texts)
    return bool(((data == ord("\n")) | (data == ord("\r"))).any())


def _quoted(texts: Any) -> Any:
    """Return texts as JSON strings; nulls stay."""
    data = characters(texts)
    if data.size and data.min() < ord(" "):
        # Control characters are rare.
        return pa.array(
            [None if text is None else encode_basestring(text) for text in texts.to_pylist()],
            pa.string(),
        )
    # Backslashes first: escaping a quote adds one.
    for character in ("\\", '"'):
        if (data == ord(character)).any():
            texts = pc.replace_substring(texts, character, f"\\{character}")
    return joined('"', texts, '"')
