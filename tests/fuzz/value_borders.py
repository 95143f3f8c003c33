"""Keys and values of records, and the schemas that decode them: in Python, and in the native decoder, with equal results."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import pyarrow as pa

from kafka_ordered_ops import ConfigError
from kafka_ordered_ops.core.window.formats import Avro, Debezium, Format, Json, OnBad, Protobuf
from kafka_ordered_ops.decoding.decoder import Decoder
from kafka_ordered_ops.decoding.json.inference import JsonInference
from kafka_ordered_ops.decoding.json.schema import columns_of
from kafka_ordered_ops.kafka.schema_registry import RegisteredSchema, Registry, RegistryClient
from tests.fuzz.borders import Border, Text
from tests.support.decoders import decoded_by, stored
from tests.support.encoded_values import batch_of

#: Nobody is there.
_REGISTRY: Final = Registry("http://127.0.0.1:1")
_SCHEMAS: Final = 12
_VALUES: Final = 4
_RECORD: Final = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "map", "values": ["null", "string"]}, "default": {}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {
            "name": "kind",
            "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]},
            "default": "A",
        },
        {"name": "hash", "type": {"type": "fixed", "name": "F", "size": 4}, "aliases": ["digest"]},
        {"name": "lines", "type": {"type": "array", "items": "double"}},
    ],
}
_JSON_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "connect.type": "int32"},
        "price": {
            "type": "number",
            "title": "org.apache.kafka.connect.data.Decimal",
            "connect.parameters": {"scale": "2"},
        },
        "at": {"type": ["null", "string"], "format": "date-time"},
        "tags": {"type": "array", "items": {"oneOf": [{"type": "null"}, {"$ref": "#/$defs/tag"}]}},
        "more": {"type": "object", "additionalProperties": {"enum": ["a", "b"]}},
        "both": {"allOf": [{"$ref": "#/$defs/tag"}, {"properties": {"x": {"const": 1}}}]},
    },
    "$defs": {"tag": {"type": "object", "properties": {"name": {"type": "string"}}}},
}


class _Decoders:
    """A byte chooses the decoder of a value after it."""

    def __init__(self, formats: Sequence[Format], by: Sequence[str]) -> None:
        self._decoders = [
            [decoder for name in by if (decoder := _decoder(wanted, name)) is not None]
            for wanted in formats
        ]

    def read(self, data: bytes) -> None:
        decoders = self._decoders[data[0] % len(self._decoders) if data else 0]
        batch = _batch([data[1:], None])
        decoded = [decoder.decoded(batch) for decoder in decoders]
        for result in decoded:
            result.validate(full=True)
            reason = result["value_error"][0].as_py()
            # A bad value is null, with its bytes beside it; any other has no reason.
            assert reason is None or (result["value"].null_count and len(reason) <= 500)
            assert result["value_raw"][0].as_py() == (data[1:] if reason else None)
        if len(decoded) == 2:
            python, native = decoded
            assert native["value_error"].equals(python["value_error"])
            if not native["value"].equals(python["value"]):
                # As text: a number that is none is not equal to itself.
                assert repr(stored(native["value"]).to_pylist()) == repr(
                    stored(python["value"]).to_pylist()
                )


def _decoder(wanted: Format, by: str) -> Decoder | None:
    """Return a decoder; None for a schema that it refuses, and where the native one leaves all values to Python."""
    decoder = Decoder(wanted, None, OnBad.KEEP)
    with decoded_by(by):
        try:
            decoder.schema_of(_batch([]).schema)
        except ConfigError:
            return None
    return decoder


def _batch(values: list[bytes | None]) -> pa.RecordBatch:
    batch = batch_of(values)
    return batch.append_column("key", pa.nulls(len(values), pa.binary()))


def _values(
    make: Callable[[], Iterable[tuple[Format, Sequence[bytes]]]], *by: str, cost: int = 10
) -> Border:
    cases = [case for case in make() if _decoder(case[0], "python") is not None]
    assert len(cases) > 2
    decoders = _Decoders([wanted for wanted, _ in cases], by)
    valid = [
        bytes([number]) + value for number, (_, values) in enumerate(cases) for value in values
    ]
    return Border(valid, decoders.read, cost=cost)


def _avro() -> Iterable[tuple[Format, Sequence[bytes]]]:
    from tests.support.random_avro import RandomAvro

    for seed in range(_SCHEMAS):
        make = RandomAvro(seed)
        schema = make.record()
        evolved = make.evolved(schema) if seed % 2 else schema
        text, writer = json.dumps(evolved), json.dumps(schema)
        yield (
            Avro(text, writer=writer, framing="none"),
            [make.value(schema) for _ in range(_VALUES)],
        )
    framed = b"\3\0" + bytes(16)
    yield (
        Avro('"string"', framing="glue"),
        [framed + b"\x06abc", framed[:1] + b"\5" + framed[2:] + zlib.compress(b"\x06abc")],
    )


def _json() -> Iterable[tuple[Format, Sequence[bytes]]]:
    from tests.support.random_json import RandomJson

    for seed in range(_SCHEMAS):
        make = RandomJson(seed)
        unknown = "bad" if seed % 2 else "ignore"
        yield Json(make.columns, unknown), [make.text() for _ in range(_VALUES)]


def _protobuf() -> Iterable[tuple[Format, Sequence[bytes]]]:
    from tests.support.random_protobuf import RandomProtobuf

    for seed in range(_SCHEMAS):
        make = RandomProtobuf(seed)
        wanted = Protobuf(make.message, descriptor=make.descriptor, framing="none")
        yield wanted, [make.payload() for _ in range(_VALUES)]


def _debezium() -> Iterable[tuple[Format, Sequence[bytes]]]:
    from tests.support.debezium import FORMATS, changes

    for (encoding, table), wanted in FORMATS.items():
        found = [change.value for change in changes(encoding, table) if change.value]
        yield Debezium(wanted.values), found[:10]


def _inference() -> Border:
    from tests.support.random_json import RandomJson

    def read(data: bytes) -> None:
        inference = JsonInference()
        for offset, text in enumerate(data.split(b"\n", 3)):
            inference.add(text, ("orders", 0, offset))
        found = inference.columns()
        wanted = Json(infer="freeze").with_columns(found.columns)
        # The group stores them.
        assert wanted.columns == [*found.columns]

    texts = [b'{"id": 1, "at": [{"x": 1.5}, {"y": null}]}\n{"id": 2.5, "more": {"a": "b"}}']
    for seed in range(_SCHEMAS):
        text = json.dumps(json.loads(RandomJson(seed).text())).encode()
        # Without the field with values that no column holds.
        texts += [text + b"\n" + text] * (b'"more"' not in text)
    return Border(texts, read, cost=5)


# --- schemas -------------------------------------------------------------------------------------


def _reader_schema(data: bytes) -> None:
    """The schema of a column, as people and registries give it."""
    wanted = Avro(Text(data).decode(), framing="none")
    Decoder(wanted, None).schema_of(_batch([]).schema)


def _writer_schema(kind: str, wanted: Format, value: bytes) -> Callable[[bytes], None]:
    """Return what reads a writer's schema, which a registry has: if it is unusable, the value is bad."""
    client = RegistryClient(_REGISTRY)

    def read(data: bytes) -> None:
        # Another client for each would take a tenth of a second.
        client._known = {1: RegisteredSchema(1, kind, Text(data).decode())}
        decoder = Decoder(wanted, None, OnBad.KEEP, registry=client)
        decoder.decoded(_batch([b"\0\0\0\0\1" + value])).validate(full=True)

    return read


def _avro_schemas() -> Border:
    from tests.support.random_avro import RandomAvro

    schemas = [_RECORD, *(RandomAvro(seed).record() for seed in range(_SCHEMAS))]
    return Border([json.dumps(schema).encode() for schema in schemas], _reader_schema, cost=5)


def _avro_writers() -> Border:
    value = b"\x02\x04\x00\x02\x07\x00abcd\x00"
    read = _writer_schema("AVRO", Avro(json.dumps(_RECORD)), value)
    return Border([json.dumps(_RECORD).encode()], read, cost=20)


def _json_schemas() -> Border:
    def read(data: bytes) -> None:
        columns_of(Text(data).decode(), (("other", '{"type": "string"}'),))

    return Border([json.dumps(_JSON_SCHEMA).encode()], read)


def _descriptors() -> Border:
    from tests.support.random_protobuf import RandomProtobuf

    def read(data: bytes) -> None:
        Decoder(Protobuf(descriptor=data, framing="none"), None).schema_of(_batch([]).schema)

    return Border([RandomProtobuf(seed).descriptor for seed in range(3)], read, cost=50)


def _descriptors_of_writers() -> Border:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    from tests.support.random_protobuf import RandomProtobuf

    make = RandomProtobuf(1)
    wanted = Protobuf(make.message, descriptor=make.descriptor, subject="x")

    written = _writer_schema("PROTOBUF", wanted, b"\0" + make.payload())

    def read(data: bytes) -> None:
        written(base64.b64encode(data))

    file = FileDescriptorSet.FromString(make.descriptor).file[-1]
    return Border([file.SerializeToString()], read, cost=50)


_MAKES: Final = {"Avro": _avro, "JSON": _json, "Protobuf": _protobuf, "Debezium": _debezium}

BORDERS: Final[dict[str, Callable[[], Border]]] = {
    **{f"values: {name}": partial(_values, make, "python") for name, make in _MAKES.items()},
    **{
        f"values: {name}, both decoders": partial(_values, make, "python", "native")
        for name, make in _MAKES.items()
    },
    "values: inferred columns": _inference,
    "schema: Avro": _avro_schemas,
    "schema: Avro, of a writer": _avro_writers,
    "schema: JSON": _json_schemas,
    "schema: Protobuf": _descriptors,
    "schema: Protobuf, of a writer": _descriptors_of_writers,
}
#: Those that need the native decoder.
NATIVE: Final = frozenset(name for name in BORDERS if name.endswith("both decoders"))
