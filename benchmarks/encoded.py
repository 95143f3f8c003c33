"""Orders as values in Avro, Protobuf and JSON, for the benchmarks of decoding."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import fastavro
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from kafka_ordered_ops.decoding import Avro, Json, Protobuf

_AT_MS: Final = 1_700_000_000_000
_STATES: Final = ("NEW", "PAID")

_LINE: Final = {
    "type": "record",
    "name": "Line",
    "fields": [{"name": "sku", "type": "string"}, {"name": "count", "type": "int"}],
}
_AVRO: Final = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "lines", "type": {"type": "array", "items": _LINE}},
        {"name": "tags", "type": {"type": "map", "values": "long"}},
        {"name": "state", "type": {"type": "enum", "name": "S", "symbols": list(_STATES)}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
#: The schema of the orders in Avro, also for Spark's `from_avro`.
AVRO_SCHEMA: Final = json.dumps(_AVRO)

_JSON_FIELDS: Final[list[pa.Field[Any]]] = [
    pa.field("id", pa.string()),
    pa.field("amount", pa.float64()),
    pa.field("note", pa.string()),
    pa.field("lines", pa.list_(pa.struct([("sku", pa.string()), ("count", pa.int32())]))),
    pa.field("address", pa.struct([("street", pa.string()), ("city", pa.string())])),
    pa.field("state", pa.string()),
    pa.field("at", pa.timestamp("ms", tz="UTC")),
]
_JSON: Final = pa.schema(_JSON_FIELDS)


@dataclass(frozen=True)
class Encoding:
    """A format, and what writes an order in it."""

    name: str
    #: What a window is asked for.
    wanted: Avro | Protobuf | Json
    writer: Callable[[], Callable[[dict[str, Any]], bytes]]

    def values(self, count: int, bad_one_in: int | None = None) -> list[bytes]:
        """Return orders, of which some are cut off."""
        random, write = Random(1), self.writer()
        encoded = [write(_order(random, number)) for number in range(count)]
        if bad_one_in is None:
            return encoded
        return [
            data[:-3] if number % bad_one_in == 7 else data for number, data in enumerate(encoded)
        ]


def _order(random: Random, number: int) -> dict[str, Any]:
    """An order; each format takes the fields that it has."""
    return {
        "id": f"order-{number:06d}",
        "amount": random.random(),
        "note": random.choice((None, "call first")),
        "lines": [{"sku": f"s{random.randrange(99)}", "count": 1}] * random.randrange(1, 3),
        "tags": {"shop": number % 9},
        "address": {"street": f"{number % 900} Long Harbour Street", "city": "Springfield"},
        "state": "PAID",
        "at": _AT_MS + number,
    }


def _in_avro() -> Callable[[dict[str, Any]], bytes]:
    schema = fastavro.parse_schema(_AVRO)

    def write(order: dict[str, Any]) -> bytes:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, schema, order)
        return buffer.getvalue()

    return write


def _protobuf_file() -> descriptor_pb2.FileDescriptorProto:
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    for number, (name, kind) in enumerate(
        (
            ("id", field.TYPE_STRING),
            ("amount", field.TYPE_DOUBLE),
            ("shop", field.TYPE_INT64),
            ("is_paid", field.TYPE_BOOL),
            ("at", field.TYPE_SFIXED64),
            ("city", field.TYPE_STRING),
            ("street", field.TYPE_STRING),
        ),
        start=1,
    ):
        message.field.add(name=name, number=number, type=kind, label=field.LABEL_OPTIONAL)
    return file


def _in_protobuf() -> Callable[[dict[str, Any]], bytes]:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_protobuf_file())
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))

    def write(order: dict[str, Any]) -> bytes:
        message = made(
            id=order["id"],
            amount=order["amount"],
            shop=order["tags"]["shop"],
            is_paid=order["state"] == "PAID",
            at=order["at"],
            **order["address"],
        )
        data: bytes = message.SerializeToString()
        return data

    return write


def _in_json() -> Callable[[dict[str, Any]], bytes]:
    # Indented, as many producers write it: some 300 bytes.
    return lambda order: json.dumps(
        {name: order[name] for name in _JSON.names} | {"at": _rfc_3339(order["at"])}, indent=1
    ).encode()


def _rfc_3339(at_ms: int) -> str:
    return (
        f"2023-11-14T22:{at_ms // 60_000 % 60:02d}:{at_ms // 1_000 % 60:02d}.{at_ms % 1_000:03d}Z"
    )


AVRO: Final = Encoding("Avro", Avro(AVRO_SCHEMA, framing="none"), _in_avro)
PROTOBUF: Final = Encoding(
    "Protobuf",
    Protobuf(
        "shop.Order",
        descriptor=descriptor_pb2.FileDescriptorSet(file=[_protobuf_file()]).SerializeToString(),
        framing="none",
    ),
    _in_protobuf,
)
JSON: Final = Encoding("JSON", Json(_JSON), _in_json)
ENCODINGS: Final = (AVRO, PROTOBUF, JSON)
