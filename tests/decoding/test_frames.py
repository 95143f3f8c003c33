"""What stands before values beside four bytes of an id: GUIDs in headers, and the frames of AWS Glue."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import OrderedWindows, Window
from kafka_ordered_ops.core.record_schema import RECORD_SCHEMA
from kafka_ordered_ops.decoding import Avro, Debezium, Framing, Json, Protobuf, decode
from kafka_ordered_ops.decoding.bad import BadValueError
from kafka_ordered_ops.decoding.decoder import decoder_of
from kafka_ordered_ops.decoding.frames import content
from kafka_ordered_ops.kafka.settings import ClientSettings
from tests.conftest import MakeTopic
from tests.support.encoded_values import batch_of, encoded
from tests.support.protobuf_schemas import descriptor_of
from tests.support.stub_registry import StubRegistry, stub_registry

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
VALUE_HEADER, KEY_HEADER = "__value_schema_id", "__key_schema_id"


@pytest.fixture
def registry() -> Iterator[StubRegistry]:
    """A registry with GUIDs, which Apicurio does not have."""
    with stub_registry() as running:
        yield running


def framed(
    values: Sequence[bytes | None], headers: Sequence[Any], keys: Sequence[bytes | None] = ()
) -> pa.RecordBatch:
    """Return records with headers."""
    batch = batch_of(values)
    lists = [[{"key": name, "value": value} for name, value in one] for one in headers]
    field = RECORD_SCHEMA.field("headers")
    batch = batch.append_column(field, pa.array(lists, field.type))
    return batch.append_column("key", pa.array(keys or [None] * len(values), pa.binary()))


def guid(one: dict[str, Any]) -> bytes:
    """Return a schema's GUID as it is in a header."""
    return b"\1" + UUID(one["guid"]).bytes


@pytest.mark.slow
def test_guids_in_headers_and_ids_before_values_are_read_alike(registry: StubRegistry) -> None:
    """Record by record, of keys and values; what is bad is kept as it was written."""
    one = registry.register("orders-value", ORDER)
    plain = encoded({"id": 7}, ORDER)
    nobody = b"\1" + UUID(int=9).bytes
    rows: list[tuple[bytes | None, list[tuple[str, bytes | None]]]] = [
        (plain, [("x", b"1"), (VALUE_HEADER, guid(one))]),
        (encoded({"id": 8}, ORDER, one["id"]), []),
        (plain, [(VALUE_HEADER, b"\0" + one["id"].to_bytes(4, "big"))]),
        (None, [(VALUE_HEADER, guid(one))]),
        (plain, [(VALUE_HEADER, nobody)]),
        (plain, [(VALUE_HEADER, None)]),
        (plain, [(KEY_HEADER, guid(one))]),
        (plain, [(VALUE_HEADER, guid(one)), (VALUE_HEADER, nobody)]),
    ]
    batch = framed([value for value, _ in rows], [headers for _, headers in rows])
    table = decode(
        batch, values=Avro(subject="orders-value"), registry=registry.url, on_bad="keep"
    ).read_all()
    good: list[Any] = [{"id": 7}, {"id": 8}, {"id": 7}, None, None, None, None, {"id": 7}]
    assert table["value"].to_pylist() == good
    assert table["value_raw"].to_pylist() == [None] * 4 + [plain] * 3 + [None]
    reasons: list[Any] = table["value_error"].to_pylist()
    assert reasons[4] == f"the registry has no schema {UUID(int=9)}"
    assert "does not begin with a zero byte" in reasons[5]
    keyed = framed([None], [[(KEY_HEADER, guid(one))]], [plain])
    decoded = decode(keyed, keys=Avro(subject="orders-value"), registry=registry.url).read_all()
    assert decoded["key"].to_pylist() == [{"id": 7}]


def test_other_formats_have_headers_too(registry: StubRegistry) -> None:
    """JSON Schema, whose ids are not looked up; and the parts of Debezium's envelopes, with the keys of tombstones."""
    columns = pa.schema([("id", pa.int64())])
    headers = [[(VALUE_HEADER, b"\1" + bytes(16))], []]
    values = Json(columns, framing="confluent")
    read = decode(framed([b'{"id": 1}', b'\0\0\0\0\1{"id": 2}'], headers), values=values)
    assert read.read_all()["value"].to_pylist() == [{"id": 1}, {"id": 2}]
    row = {**ORDER, "name": "Value"}
    envelope = {
        "type": "record",
        "name": "Envelope",
        "fields": [
            {"name": "before", "type": ["null", row]},
            {"name": "after", "type": ["null", "Value"]},
            {"name": "op", "type": "string"},
            {
                "name": "source",
                "type": {
                    "type": "record",
                    "name": "Source",
                    "fields": [{"name": "ts_ms", "type": "long"}],
                },
            },
        ],
    }
    change, key = registry.register("t-value", envelope), registry.register("t-key", ORDER)
    insert = {"before": None, "after": {"id": 5}, "op": "c", "source": {"ts_ms": 3}}
    both = [(VALUE_HEADER, guid(change)), (KEY_HEADER, guid(key))]
    batch = framed([encoded(insert, envelope), None], [both, both], [encoded({"id": 5}, ORDER)] * 2)
    wanted = Debezium(Avro(subject="t-value"), keys=Avro(subject="t-key"))
    table = decode(batch, values=wanted, registry=registry.url).read_all()
    rows: list[Any] = table["value"].to_pylist()
    assert [(one["id"], one["__deleted"]) for one in rows] == [(5, False), (5, True)]


def test_tasks_know_the_guids_of_the_subject(registry: StubRegistry) -> None:
    """They travel with the decoder: no task asks for them."""
    one = registry.register("orders-value", ORDER)
    settings = ClientSettings.of(
        {"bootstrap.servers": "127.0.0.1:1", "schema.registry.url": registry.url}
    )
    decoder = decoder_of(Window("orders", values=Avro()), settings)
    assert decoder is not None
    registry.status, asked = 500, len(registry.requests)
    decoded = decoder.decoded(framed([encoded({"id": 7}, ORDER)], [[(VALUE_HEADER, guid(one))]]))
    assert decoded.column("value").to_pylist() == [{"id": 7}]
    assert len(registry.requests) == asked


@pytest.mark.slow
def test_a_window_of_confluent_s_serializer_with_headers(
    registry: StubRegistry, bootstrap: str, topic: MakeTopic, group_id: str, tmp_path: Path
) -> None:
    """Written by confluent-kafka, with the GUID in a header; read from a broker."""
    name = topic()
    registry.register(f"{name}-value", ORDER)
    options: dict[str, Any] = {
        "auto.register.schemas": False,
        "use.latest.version": True,
        "schema.id.serializer": header_schema_id_serializer,
    }
    client = SchemaRegistryClient({"url": registry.url})
    serialize = AvroSerializer(client, json.dumps(ORDER), conf=options)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(3):
        headers: list[Any] = []
        context = SerializationContext(name, MessageField.VALUE, headers)
        value = serialize({"id": number}, context)
        assert [header for header, _ in headers] == [VALUE_HEADER]
        producer.produce(name, value=value, headers=headers, timestamp=1_000 + number)
    producer.flush()
    settings = {"bootstrap.servers": bootstrap, "schema.registry.url": registry.url}
    window = Window(name, "1970-01-02T00:00Z", "earliest", values=Avro(), flatten=True)
    table = OrderedWindows(settings, group_id).run(window, tmp_path / "lake").to_arrow()
    assert table["id"].to_pylist() == [0, 1, 2]


# --- AWS Glue ------------------------------------------------------------------------------------------

_FRAME = bytes(16)


def test_values_of_glue_are_read_with_the_schema_that_is_given() -> None:
    """Plain or compressed, in Avro and JSON; other frames are bad values."""
    value = encoded({"id": 7}, ORDER)
    rows = [
        b"\3\0" + _FRAME + value,
        b"\3\5" + _FRAME + zlib.compress(value),
        b"\3\1" + _FRAME + value,
        b"\0\0" + _FRAME + value,
        b"\3\5" + _FRAME + zlib.compress(value)[:-1],
        b"\3\5" + _FRAME + zlib.compress(value) + b"x",
        b"\3\5" + _FRAME + value,
        b"\3\0" + _FRAME[:-1],
        b"",
    ]
    schema = json.dumps(ORDER)
    avro = Avro(schema, framing="glue", writer=schema)
    table = decode(batch_of(rows), values=avro, on_bad="keep").read_all()
    assert table["value"].to_pylist() == [{"id": 7}, {"id": 7}, *[None] * 7]
    assert all(table["value_error"].to_pylist()[2:])
    values = Json(pa.schema([("id", pa.int64())]), framing=Framing.GLUE)
    zipped = b"\3\5" + _FRAME + zlib.compress(b'{"id": 8}')
    assert decode(batch_of([zipped]), values=values).read_all()["value"].to_pylist() == [{"id": 8}]
    renamed = {**ORDER, "fields": [{"name": "id", "type": "int"}]}
    old = Avro(json.dumps(ORDER), framing="glue", writer=json.dumps(renamed))
    assert decode(batch_of(rows[:1]), values=old).read_all()["value"].to_pylist() == [{"id": 7}]


@given(st.binary(max_size=100), st.booleans())
def test_what_glue_s_serializer_writes_is_returned(data: bytes, is_compressed: bool) -> None:
    """Whatever it is."""
    written = zlib.compress(data) if is_compressed else data
    assert content(bytes([3, 5 * is_compressed]) + _FRAME + written, Framing.GLUE) == data


def test_a_compressed_value_has_a_limit() -> None:
    """A few bytes cannot ask for gigabytes."""
    bomb = b"\3\5" + _FRAME + zlib.compress(bytes(17 * 1024**2))
    assert len(bomb) < 20_000
    with pytest.raises(BadValueError, match="more than 16,777,216 bytes"):
        content(bomb, Framing.GLUE)


#: The sorted names are A, A.B, A.B.C, A.LinesEntry, A.X, N: Glue counts messages within messages, and maps.
_NESTED = descriptor_of(
    """
    syntax = "proto3"; package shop;
    message N { int32 id = 1; }
    message A { int32 id = 1; map<string, int32> lines = 2;
      message X { int32 id = 1; } message B { int32 id = 1; message C { int32 id = 1; } } }
    """
)


@pytest.mark.parametrize(
    ("name", "index"), [("A", 0), ("A.B", 1), ("A.B.C", 2), ("A.X", 4), ("N", 5)]
)
def test_glue_s_index_is_the_place_among_sorted_names(name: str, index: int) -> None:
    """Plain or compressed; the indexes of all other messages are bad values."""
    values = Protobuf(f"shop.{name}", descriptor=_NESTED, framing="glue")
    written = [bytes([number]) + b"\x08\x07" for number in range(7)]
    rows = [b"\3\0" + _FRAME + value for value in written]
    rows += [b"\3\5" + _FRAME + zlib.compress(value) for value in written]
    table = decode(batch_of(rows), values=values, on_bad="keep").read_all()
    good = [row for row, value in enumerate(table["value"].to_pylist()) if value is not None]
    assert good == [index, index + 7]
    assert [table["value"][row].as_py()["id"] for row in good] == [7, 7]
    reasons = table["value_error"].to_pylist()
    assert reasons[3] == f"it is a message shop.A.LinesEntry, not shop.{name}"
    assert reasons[6] == "the schema has no message with the index [6]"


def test_values_that_glue_does_not_write_are_bad() -> None:
    """Another frame, no index, an index that does not end, or bytes that are no message."""
    values = Protobuf("shop.N", descriptor=_NESTED, framing="glue")
    rows = [
        b"\0\0" + _FRAME + b"\5\x08\7",
        b"\3\0" + _FRAME,
        b"\3\5" + _FRAME + zlib.compress(b""),
        b"\3\5" + _FRAME + b"\5\x08\7",
        b"\3\0" + _FRAME + b"\x85",
        b"\3\0" + _FRAME + b"\5\x08",
        b"",
    ]
    table = decode(batch_of(rows), values=values, on_bad="keep").read_all()
    assert table["value"].null_count == len(rows)
    assert table["value_error"].to_pylist() == [
        "it does not begin with the frame of AWS Glue",
        "it ends before its message begins",
        "it ends before its message begins",
        "it cannot be decompressed: Error -3 while decompressing data: incorrect header check",
        "it ends before its message begins",
        "the bytes are not a message shop.N",
        "it does not begin with the frame of AWS Glue",
    ]
