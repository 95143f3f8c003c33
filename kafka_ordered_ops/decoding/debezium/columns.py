"""Turn a column of Debezium's envelopes into rows, where another reader decodes the envelopes as a column."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_ordered_ops.decoding.bad import BadValueError
from kafka_ordered_ops.decoding.column_reader import ColumnReader, Reasons
from kafka_ordered_ops.decoding.debezium.values import SIDES, DebeziumReader

_Array: TypeAlias = "pa.Array[Any]"


class DebeziumColumnReader:
    """Decodes the values of one column: most rows at once, and each that is not plain with the reader in Python.

    Those are tombstones, envelopes that are no change of a row, and values that may be placeholders.
    """

    def __init__(self, python: DebeziumReader, envelopes: ColumnReader) -> None:
        self.arrow = python.arrow
        self.needs_keys = python.needs_keys
        self._python = python
        self._envelopes = envelopes

    def read_column(self, values: _Array, keys: _Array | None = None) -> tuple[_Array, Reasons]:
        """Return the rows, null for bad values, and why they are bad; see `ColumnReader`."""
        envelopes, bad = self._envelopes.read_column(values)
        rows, is_plain = self._rows(envelopes)
        reasons = dict(bad)
        is_left = ~is_plain
        is_left[list(bad)] = False
        left: list[int] = np.flatnonzero(is_left).tolist()
        others: list[Any] = []
        for row in left:
            other, data = None, values[row].as_py()
            try:
                if data is not None:
                    other = self._python.read(data)
                elif keys is not None:
                    other = self._python.read_null(keys[row].as_py())
            except BadValueError as error:
                reasons[row] = str(error)
            others.append(other)
        return self._with_others(rows, left, others), reasons

    def _rows(self, envelopes: Any) -> tuple[Any, Any]:
        """Return the rows of plain changes, null for all others, and which they are."""
        op = pc.struct_field(envelopes, "op")
        is_delete = pc.fill_null(pc.equal(op, pa.scalar("d")), False)
        before, after = (pc.struct_field(envelopes, side) for side in ("before", "after"))
        row: Any = pc.if_else(is_delete, before, after)
        is_change = pc.is_in(op, value_set=pa.array(list(SIDES), pa.string()))
        is_plain: Any = np.array(pc.and_(is_change, row.is_valid()))
        columns = row.flatten()
        for column in columns:
            is_plain &= ~self._maybe_placeholders(column)
        time = pc.struct_field(envelopes, ["source", "ts_ms"]).cast(pa.int64())
        arrow: Any = self.arrow
        nulls = pa.array(~is_plain)
        parts = [*columns, op, is_delete, time]
        return pa.StructArray.from_arrays(parts, fields=list(arrow), mask=nulls), is_plain

    def _maybe_placeholders(self, column: Any) -> Any:
        """Return which values may stand for those that the connector does not know: all that do, and some more."""
        text = self._python.unavailable
        data = text.encode()
        arrow, types = column.type, pa.types
        if types.is_string(arrow):
            maybe = pc.equal(column, pa.scalar(text))
        elif types.is_binary(arrow):
            maybe = pc.equal(column, pa.scalar(data))
        elif types.is_fixed_size_binary(arrow) and arrow.byte_width == len(data):
            maybe = pc.equal(column, pa.scalar(data, arrow))
        elif types.is_list(arrow):
            maybe = pc.is_in(
                pc.list_value_length(column), value_set=pa.array([1, len(data)], pa.int32())
            )
        elif types.is_map(arrow):
            maybe = column.is_valid()
        else:
            return np.zeros(len(column), dtype=np.bool_)
        return np.array(pc.fill_null(maybe, False))

    def _with_others(self, rows: Any, left: list[int], others: list[Any]) -> Any:
        """Return the rows with others in their places."""
        if not any(other is not None for other in others):
            return rows
        places = np.arange(len(rows))
        places[left] = len(rows) + np.arange(len(left))
        return pa.concat_arrays([rows, pa.array(others, self.arrow)]).take(pa.array(places))
