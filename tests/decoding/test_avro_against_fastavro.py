"""Random schemas and values in Avro: the same as fastavro's, or refused where fastavro refuses too."""

from __future__ import annotations

import io
import json
import math
from decimal import Decimal
from typing import Any

import fastavro
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops.decoding import Avro, decode
from tests.support.decoders import stored
from tests.support.encoded_values import batch_of, encoded

Schema = Any

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
#: A primitive or logical type, and its values as stored.
PLAIN: list[tuple[Schema, st.SearchStrategy[Any]]] = [
    ("null", st.none()),
    ("boolean", st.booleans()),
    ("int", INT32),
    ("long", INT64),
    ("float", st.floats(width=32, allow_nan=False)),
    ("double", st.floats(allow_nan=False)),
    ("bytes", st.binary(max_size=9)),
    ("string", st.text(max_size=9)),
    ({"type": "int", "logicalType": "date"}, st.integers(-700_000, 2_000_000)),
    ({"type": "int", "logicalType": "time-millis"}, st.integers(0, 86_399_999)),
    ({"type": "long", "logicalType": "time-micros"}, st.integers(0, 86_399_999_999)),
    ({"type": "long", "logicalType": "timestamp-millis"}, INT64),
    ({"type": "long", "logicalType": "timestamp-micros"}, INT64),
    ({"type": "long", "logicalType": "timestamp-nanos"}, INT64),
    ({"type": "long", "logicalType": "local-timestamp-millis"}, INT64),
    ({"type": "string", "logicalType": "uuid"}, st.uuids().map(str)),
    ({"type": "string", "logicalType": "unknown"}, st.text(max_size=3)),
]


class Names:
    """Names that no other type of a schema has."""

    def __init__(self) -> None:
        self._count = 0

    def next(self, prefix: str) -> str:
        """Return another name."""
        self._count += 1
        return f"{prefix}{self._count}"


@st.composite
def typed(draw: st.DrawFn, names: Names, depth: int = 3) -> Any:
    """Return a schema and a strategy for its values, as fastavro writes them without logical types."""
    kinds = ["plain", "enum", "fixed", "decimal"]
    kind = draw(
        st.sampled_from(kinds + ["array", "map", "optional", "union", "record"] * (depth > 0))
    )
    if kind == "plain":
        return draw(st.sampled_from(PLAIN))
    if kind == "enum":
        symbols = ["A", "B", "C"][: draw(st.integers(1, 3))]
        return {"type": "enum", "name": names.next("E"), "symbols": symbols}, st.sampled_from(
            symbols
        )
    if kind == "fixed":
        size = draw(st.integers(1, 8))
        return {"type": "fixed", "name": names.next("F"), "size": size}, st.binary(
            min_size=size, max_size=size
        )
    if kind == "decimal":
        precision = draw(st.sampled_from([1, 5, 18, 38, 39, 76]))
        scale = draw(st.integers(0, precision))
        most = 10**precision - 1
        numbers = st.integers(-most, most).map(
            lambda n: n.to_bytes((n.bit_length() // 8) + 1, "big", signed=True)
        )
        return {
            "type": "bytes",
            "logicalType": "decimal",
            "precision": precision,
            "scale": scale,
        }, numbers
    if kind == "array":
        item, values = draw(typed(names, depth - 1))
        return {"type": "array", "items": item}, st.lists(values, max_size=3)
    if kind == "map":
        item, values = draw(typed(names, depth - 1))
        return {"type": "map", "values": item}, st.dictionaries(
            st.text(max_size=3), values, max_size=3
        )
    if kind == "optional":
        item, values = draw(
            typed(names, depth - 1).filter(
                lambda pair: pair[0] != "null" and type(pair[0]) is not list
            )
        )
        return draw(st.permutations(["null", item])), st.none() | values
    if kind == "union":
        members = {
            "null": st.none(),
            "int": INT32,
            "string": st.text(max_size=3),
            "boolean": st.booleans(),
        }
        chosen = draw(st.permutations(list(members)))[: draw(st.integers(2, 4))]
        return list(chosen), st.one_of([members[name] for name in chosen])
    return draw(records(names, depth))


@st.composite
def records(draw: st.DrawFn, names: Names, depth: int = 3) -> tuple[Schema, Any]:
    """Return a record's schema, and a strategy for its values."""
    parts = [draw(typed(names, depth - 1)) for _ in range(draw(st.integers(1, 4)))]
    fields = [{"name": f"f{n}", "type": schema} for n, (schema, _) in enumerate(parts)]
    values = st.fixed_dictionaries({f"f{n}": values for n, (_, values) in enumerate(parts)})
    return {"type": "record", "name": names.next("R"), "fields": fields}, values


@st.composite
def evolved(draw: st.DrawFn, written: Schema) -> Schema:
    """Return a reader's schema: fields go, come with a default, change places, and are promoted."""
    promotions = {
        "int": ["long", "double"],
        "long": ["double"],
        "float": ["double"],
        "string": ["bytes"],
    }
    fields = []
    for field in written["fields"]:
        if len(written["fields"]) > 1 and draw(st.integers(0, 5)) == 0:
            continue
        kind = field["type"]
        if isinstance(kind, str) and kind in promotions and draw(st.booleans()):
            kind = draw(st.sampled_from(promotions[kind]))
        if isinstance(kind, str) and kind != "null" and draw(st.integers(0, 3)) == 0:
            kind = ["null", kind]
        fields.append({**field, "type": kind})
    if draw(st.booleans()):
        kind, default = draw(
            st.sampled_from(
                [("int", 5), ("string", "x"), (["null", "long"], None), ("double", 1.5)]
            )
        )
        fields.append({"name": "added", "type": kind, "default": default})
    return {**written, "fields": draw(st.permutations(fields))}


def without_logical(schema: Schema) -> Schema:
    """Return the schema with what is stored alone, so that fastavro returns numbers and bytes as they are."""
    if isinstance(schema, list):
        return [without_logical(member) for member in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {
        name: part
        for name, part in schema.items()
        if name not in ("logicalType", "precision", "scale")
    }
    for name in ("items", "values"):
        if name in plain:
            plain[name] = without_logical(plain[name])
    if "fields" in plain:
        plain["fields"] = [
            {**field, "type": without_logical(field["type"])} for field in plain["fields"]
        ]
    return plain


def expected(value: Any, schema: Schema) -> Any:
    """Return fastavro's value as `decode` has it."""
    if isinstance(schema, list):
        members = [member for member in schema if member != "null"]
        if value is None:
            return None
        if len(members) == 1:
            return expected(value, members[0])
        kinds = {bool: "boolean", int: "int", str: "string"}
        return {name: value if name == kinds[type(value)] else None for name in members}
    if not isinstance(schema, dict):
        return value
    kind = schema["type"]
    if kind == "record":
        return {
            field["name"]: expected(value[field["name"]], field["type"])
            for field in schema["fields"]
        }
    if kind == "array":
        return [expected(item, schema["items"]) for item in value]
    if kind == "map":
        return [(key, expected(item, schema["values"])) for key, item in value.items()]
    if schema.get("logicalType") == "decimal":
        unscaled = int.from_bytes(value, "big", signed=True)
        digits = tuple(map(int, str(abs(unscaled))))
        return Decimal((int(unscaled < 0), digits, -schema["scale"]))
    return value


def same(own: Any, theirs: Any) -> bool:
    """Whether two values are equal, floats of single precision included."""
    if isinstance(theirs, float) and isinstance(own, float):
        return own == theirs or math.isclose(own, theirs, rel_tol=1e-6)
    if isinstance(theirs, dict):
        return own.keys() == theirs.keys() and all(same(own[name], theirs[name]) for name in theirs)
    if isinstance(theirs, list | tuple):
        return len(own) == len(theirs) and all(map(same, own, theirs))
    return bool(own == theirs)


def fastavro_reads(data: bytes, written: Schema, read: Schema | None) -> Any:
    """Return what fastavro reads."""
    plain = fastavro.parse_schema(without_logical(written))
    reader = None if read is None else fastavro.parse_schema(without_logical(read))
    return fastavro.schemaless_reader(io.BytesIO(data), plain, reader)


def bytes_of(value: Any, schema: Schema) -> bytes:
    """Return a value in Avro, as fastavro writes it."""
    return encoded(value, without_logical(schema))


@given(st.data())
def test_values_are_those_of_fastavro(data: st.DataObject) -> None:
    """Random schemas, nested and with every logical type; written and read with the same one."""
    schema, values = data.draw(records(Names()))
    rows = data.draw(st.lists(values, min_size=1, max_size=4))
    payloads = [bytes_of(row, schema) for row in rows]
    table = decode(batch_of(payloads), values=Avro(json.dumps(schema), framing="none")).read_all()
    table.validate(full=True)
    own = stored(table["value"].combine_chunks()).to_pylist()
    theirs = [expected(fastavro_reads(payload, schema, None), schema) for payload in payloads]
    assert same(own, theirs)


@given(st.data())
def test_evolved_readers_read_what_fastavro_reads(data: st.DataObject) -> None:
    """Fields that are dropped, added, moved and promoted."""
    schema, values = data.draw(records(Names()))
    reader = data.draw(evolved(schema))
    payload = bytes_of(data.draw(values), schema)
    values = Avro(json.dumps(reader), writer=json.dumps(schema), framing="none")
    table = decode(batch_of([payload]), values=values).read_all()
    own = stored(table["value"].combine_chunks()).to_pylist()
    assert same(own, [expected(fastavro_reads(payload, schema, reader), reader)])


@given(st.data())
def test_damaged_records_are_bad_or_as_fastavro_reads_them(data: st.DataObject) -> None:
    """A changed byte, a cut, bytes at the end: an error of this record, or a value that fastavro has too."""
    schema, values = data.draw(records(Names()))
    payload = bytearray(bytes_of(data.draw(values), schema))
    for _ in range(data.draw(st.integers(1, 3))):
        if payload:
            payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(payload)[: data.draw(st.integers(0, len(payload)))] + data.draw(
        st.binary(max_size=2)
    )
    whole = bytes_of(data.draw(values), schema)
    table = decode(
        batch_of([whole, damaged, whole]),
        values=Avro(json.dumps(schema), framing="none"),
        on_bad="keep",
    ).read_all()
    table.validate(full=True)
    reasons = table["value_error"].to_pylist()
    assert reasons[0] is reasons[2] is None
    assert table["value"][0] == table["value"][2]
    if reasons[1] is not None:
        assert table["value"][1].as_py() is None
        assert table["value_raw"][1].as_py() == damaged
        return
    theirs = expected(fastavro_reads(damaged, schema, None), schema)
    assert same(stored(table["value"].combine_chunks()).to_pylist()[1], theirs)
