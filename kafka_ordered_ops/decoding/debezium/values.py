"""Turn Debezium's envelopes into rows, each with what happened to it.

What would leave a wrong row in a table is a bad value: a placeholder for a value that the connector does not know, a truncated
table, whose rows no record names, and a decimal whose scale is not there.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import uuid
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, Final, TypeAlias

import pyarrow as pa

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.window.formats import Avro, Debezium, Json, UnknownFields
from kafka_ordered_ops.decoding.bad import BadValueError
from kafka_ordered_ops.decoding.column_reader import ValueReader
from kafka_ordered_ops.decoding.json.records import json_converter, parsed_json

_Field: TypeAlias = "pa.Field[Any]"
_Envelope: TypeAlias = Callable[[bytes], Mapping[str, Any]]

#: Beside the row's own columns; the names are those of Debezium's ``ExtractNewRecordState``.
_OP: Final = "__op"
_DELETED: Final = "__deleted"
_SOURCE_TS_MS: Final = "__source_ts_ms"
_COLUMNS: Final = ((_OP, pa.string()), (_DELETED, pa.bool_()), (_SOURCE_TS_MS, pa.int64()))
#: The part of an envelope that has the row, by what happened.
SIDES: Final = {"c": "after", "u": "after", "r": "after", "d": "before"}
#: What Connect's JSON converter puts around each value with ``schemas.enable``.
_WRAPPED: Final = {"schema", "payload"}
_CONNECT_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
#: More than any column has; Python would take long for a number of megabytes.
_DECIMAL_BYTES_MAX: Final = 160
_SCALE_MAX: Final = 400


class DebeziumReader(ValueReader):
    """Decodes the values of one column, and the keys of tombstones."""

    def __init__(self, wanted: Debezium, avro_values: Callable[[Avro], ValueReader]) -> None:
        if isinstance(wanted.values, Json):
            row = wanted.values.columns
            self._envelope: _Envelope = _JsonEnvelopes(wanted.values)
        else:
            envelopes = avro_values(wanted.values)
            row = _row_of(envelopes.arrow)
            self._envelope = envelopes.read
        # Of a deleted row, often the key alone is known.
        fields = [*(part.with_nullable(True) for part in row), *(pa.field(*c) for c in _COLUMNS)]
        names = [part.name for part in fields]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ConfigError(
                f"the row has a column twice, or one of Debezium's: {', '.join(twice)}"
            )
        self.arrow = pa.struct(fields)
        self._nulls = dict.fromkeys(names)
        #: What stands for a value that the connector does not know.
        self.unavailable = wanted.unavailable
        self._placeholders = _placeholders(wanted.unavailable)
        self._read_key = None if wanted.keys is None else self._key_reader(wanted.keys, avro_values)
        self.needs_keys = self._read_key is not None

    def read(self, data: bytes) -> dict[str, Any]:
        """Return the row of an envelope; raise `BadValueError`."""
        envelope = self._envelope(data)
        op = envelope["op"]
        if op == "t":
            raise BadValueError(
                "the table was truncated (op is t), and no record names the rows that are gone. Delete them, and go on with the "
                "records after this one"
            )
        side = SIDES.get(op) if isinstance(op, str) else None
        if side is None:
            raise BadValueError(f"op is {ascii(op)[:20]}: c, u, r or d is expected")
        row = envelope[side]
        if row is None:
            raise BadValueError(f"op is {op}, and {side} is null")
        for name, value in row.items():
            if value is not None and value in self._placeholders:
                raise BadValueError(
                    f"{name}: the database did not send the value, because it has not changed. In PostgreSQL, ALTER TABLE ... "
                    "REPLICA IDENTITY FULL sends all values"
                )
        source = envelope["source"]
        time = None if source is None else source["ts_ms"]
        return {**row, _OP: op, _DELETED: op == "d", _SOURCE_TS_MS: time}

    def read_null(self, key: bytes | None) -> dict[str, Any] | None:
        """Return the deleted row of a tombstone's key; None if there is no key, or its format is not known."""
        if self._read_key is None or key is None:
            return None
        try:
            columns = self._read_key(key)
        except BadValueError as error:
            raise BadValueError(f"the key of a tombstone: {error}") from None
        if columns is None:
            raise BadValueError("the key of a tombstone is the text null")
        return {**self._nulls, **columns, _DELETED: True}

    def _key_reader(
        self, keys: Avro | Json, avro_values: Callable[[Avro], ValueReader]
    ) -> Callable[[bytes], Any]:
        read: Callable[[bytes], Any]
        if isinstance(keys, Json):
            arrow: Any = pa.struct(keys.columns)
            read = _json_keys(keys)
        else:
            values = avro_values(keys)
            arrow, read = values.arrow, values.read
        row: Any = self.arrow
        types = {part.name: part.type for part in row}
        parts = list(arrow) if pa.types.is_struct(arrow) else []
        if not parts or any(types.get(part.name) != part.type for part in parts):
            raise ConfigError(
                f"the keys have the type {arrow}, and are to be columns of the row, {self.arrow}: give both the same names and types"
            )
        return read


def _row_of(envelope: Any) -> list[_Field]:
    """Return the row's columns of an envelope in Avro; raise `ConfigError` for another schema."""
    parts = {part.name: part.type for part in envelope} if pa.types.is_struct(envelope) else {}
    row: Any = parts.get("after")
    source: Any = parts.get("source")
    is_envelope = (
        row is not None
        and pa.types.is_struct(row)
        and parts.get("before") == row
        and parts.get("op") == pa.string()
        and source is not None
        and pa.types.is_struct(source)
        and source.get_field_index("ts_ms") >= 0
    )
    if not is_envelope:
        raise ConfigError(
            f"the schema is not that of Debezium's envelopes, which have before, after, op and source with ts_ms: it has "
            f"{', '.join(parts) or envelope}"
        )
    return list(row)


def _placeholders(text: str) -> tuple[Any, ...]:
    """Return what a connector writes for a value that it does not know, in each type that may have it."""
    data = text.encode()
    name = str(uuid.UUID(bytes=hashlib.md5(data, usedforsecurity=False).digest(), version=3))
    numbers = [byte - 256 if byte > 127 else byte for byte in data]
    return text, data, [text], [data], numbers, [name], [(text, text)]


# --- JSON ----------------------------------------------------------------------------------------


class _JsonEnvelopes:
    """Reads envelopes in JSON: the values of the row's columns, and nothing else."""

    def __init__(self, json: Json) -> None:
        row = json.columns
        refuses_unknown = json.unknown is UnknownFields.BAD
        # A deleted row may have nulls where other rows have none.
        self._rows = {
            "before": _converter([part.with_nullable(True) for part in row], refuses_unknown),
            "after": _converter(row, refuses_unknown),
        }
        self._decimals = _with_decimals(row)

    def __call__(self, data: bytes) -> Mapping[str, Any]:
        envelope, is_typed = _unwrapped(parsed_json(data))
        if not isinstance(envelope, dict) or not isinstance(envelope.get("op"), str):
            raise BadValueError("it is no envelope of Debezium: it has no op")
        source = envelope.get("source")
        time = source.get("ts_ms") if isinstance(source, dict) else None
        if type(time) is not int or not -(2**63) <= time < 2**63:
            raise BadValueError("it is no envelope of Debezium: it has no time in source.ts_ms")
        op = envelope["op"]
        rows: dict[str, Any] = {"before": None, "after": None}
        if side := SIDES.get(op):
            row = envelope.get(side)
            if not is_typed and isinstance(row, dict):
                for part in self._decimals:
                    _refuse_bytes(row.get(part.name), part.type, part.name)
            rows[side] = self._rows[side](row)
        return {**rows, "op": op, "source": {"ts_ms": time}}


def _converter(row: Iterable[_Field], refuses_unknown: bool) -> Callable[[Any], Any]:
    return json_converter(pa.struct(list(row)), refuses_unknown=refuses_unknown)


def _json_keys(json: Json) -> Callable[[bytes], Any]:
    convert = _converter(json.columns, json.unknown is UnknownFields.BAD)
    decimals = _with_decimals(json.columns)

    def read(data: bytes) -> Any:
        key, is_typed = _unwrapped(parsed_json(data))
        if not is_typed and isinstance(key, dict):
            for part in decimals:
                _refuse_bytes(key.get(part.name), part.type, part.name)
        return convert(key)

    return read


def _with_decimals(row: Iterable[_Field]) -> list[_Field]:
    return [part for part in row if "decimal" in str(part.type)]


def _refuse_bytes(value: Any, arrow: Any, name: str) -> None:
    """Refuse decimals that may be the base64 of a number without its scale: ``1234`` may be both."""
    if pa.types.is_decimal(arrow) and isinstance(value, str) and "." not in value:
        raise BadValueError(
            f"{name}: {ascii(value)[:80]} may be base64 of a decimal without its scale. Set decimal.format=NUMERIC or "
            "schemas.enable=true in Connect's converter"
        )
    if isinstance(value, list) and not pa.types.is_map(arrow):
        for item in value:
            _refuse_bytes(item, getattr(arrow, "value_type", arrow), name)


def _unwrapped(value: Any) -> tuple[Any, bool]:
    """Return what Connect's converter has written, and whether the types of the parts were beside it."""
    if not isinstance(value, dict) or value.keys() != _WRAPPED:
        return value, False
    return _typed(value["payload"], value["schema"]), True


def _typed(value: Any, schema: Any) -> Any:
    """Return a value with numbers for Connect's decimals, whose scale is in its schema."""
    if value is None or not isinstance(schema, dict):
        return value
    kind, fields = schema.get("type"), schema.get("fields")
    if kind == "struct" and isinstance(value, dict) and isinstance(fields, list):
        types = {str(part.get("field")): part for part in fields if isinstance(part, dict)}
        return {name: _typed(part, types.get(name)) for name, part in value.items()}
    if kind == "array" and isinstance(value, list):
        return [_typed(item, schema.get("items")) for item in value]
    if kind == "bytes" and schema.get("name") == _CONNECT_DECIMAL and isinstance(value, str):
        return _decimal(value, schema.get("parameters"))
    return value


def _decimal(text: str, parameters: Any) -> Decimal:
    scale = str(parameters.get("scale")) if isinstance(parameters, dict) else ""
    try:
        places, unscaled = int(scale), base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise BadValueError(f"{ascii(text)[:80]} is no decimal of the scale {scale[:20]}") from None
    if not 0 < len(unscaled) <= _DECIMAL_BYTES_MAX or abs(places) > _SCALE_MAX:
        raise BadValueError(f"a decimal has {len(unscaled)} bytes and the scale {scale[:20]}")
    number = int.from_bytes(unscaled, "big", signed=True)
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -places))
