"""The native decoder of Avro: the same columns, bad values and reasons as the one in Python."""

from __future__ import annotations

import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa
import pytest

from kafka_ordered_ops import ConfigError
from kafka_ordered_ops.core.window.formats import OnBad
from kafka_ordered_ops.decoding import Avro, Registry
from kafka_ordered_ops.decoding.decoder import Decoder
from kafka_ordered_ops.kafka.schema_registry import RegisteredSchema, RegistryClient
from tests.support.decoders import decoded_by, stored
from tests.support.encoded_values import batch_of
from tests.support.random_avro import RandomAvro
from tests.support.readers import needs_native

pytestmark = [pytest.mark.native, needs_native]

#: Random schemas of one run.
CASES: Final = int(os.environ.get("RANDOM_SCHEMAS", "3000"))
#: Nobody is there.
REGISTRY: Final = Registry("http://127.0.0.1:1")


def decoded(by: str, decoder: Decoder, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch that one of the decoders has decoded, and is valid."""
    with decoded_by(by):
        result = decoder.decoded(batch)
    result.validate(full=True)
    return result


def assert_same(decoder: Decoder, batch: pa.RecordBatch) -> int:
    """Check that both decoders return the same; return how many values are bad."""
    native, python = (
        # A decoder keeps its readers.
        decoded(by, Decoder(*decoder.__reduce__()[1]), batch)
        for by in ("native", "python")
    )
    assert native.schema == python.schema
    for column in ("value_error", "value_raw"):
        assert native[column].to_pylist() == python[column].to_pylist()
    if not native["value"].equals(python["value"]):
        plain = [stored(part["value"]) for part in (native, python)]
        # As text: a number that is none is not equal to itself.
        assert repr(plain[0].to_pylist()) == repr(plain[1].to_pylist())
    return native.num_rows - native["value_error"].null_count


def some_values(make: RandomAvro, schema: Any, count: int) -> list[bytes | None]:
    """Return values, of which some are damaged or null."""
    values: list[bytes | None] = []
    for _ in range(count):
        data = make.value(schema)
        values.append(None if make.chance(9) else make.damaged(data) if make.chance(4) else data)
    return values


def batches(make: RandomAvro, values: list[bytes | None]) -> pa.RecordBatch:
    """Return values in one of the ways in which Arrow has them."""
    batch = batch_of(values)
    if make.chance(3):
        column: Any = batch["value"].cast(pa.large_binary())
        batch = batch.set_column(batch.schema.get_field_index("value"), "value", column)
    start = make.below(len(values)) if make.chance(3) else 0
    return batch.slice(start, 1 + make.below(len(values) - start))


@pytest.mark.parametrize("part", range(8))
def test_random_schemas_readers_and_values(part: int) -> None:
    """Thousands of schemas, half of them read by an evolved one, with good, damaged and null values in one column."""
    bad = refused = 0
    for seed in range(part * CASES // 8, (part + 1) * CASES // 8):
        make = RandomAvro(seed)
        schema = make.schema()
        reader = make.evolved(schema) if make.chance(2) else schema
        wanted = Avro(json.dumps(reader), writer=json.dumps(schema), framing="none")
        decoder = Decoder(wanted, None, OnBad.KEEP)
        try:
            decoder.schema_of(batch_of([]).schema)
        except ConfigError:
            refused += 1
            continue
        try:
            bad += assert_same(decoder, batches(make, some_values(make, schema, 12)))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {schema}\nread as {reader}") from error
    assert refused < CASES / 8 / 4
    assert bad > CASES / 8


@pytest.mark.parametrize("framing", ["confluent", "apicurio-8"])
def test_values_of_several_writers(framing: str) -> None:
    """In any order, with ids that are unknown, of another kind, or of a schema that does not fit, and broken frames."""
    width = 4 if framing == "confluent" else 8
    for seed in range(CASES // 20):
        make = RandomAvro(seed)
        writers = [make.record()]
        writers += [make.evolved(writers[0]) for _ in range(3)]
        known: dict[int, RegisteredSchema | None] = {
            number: RegisteredSchema(number, "AVRO", json.dumps(schema))
            for number, schema in enumerate(writers)
        }
        known |= {100: None, 101: RegisteredSchema(101, "JSON", "{}")}
        known[102] = RegisteredSchema(102, "AVRO", '"string"')
        known[103] = RegisteredSchema(103, "AVRO", "no schema")
        wanted = Avro(known[0].text if known[0] else "", framing=framing)
        decoder = Decoder(wanted, None, OnBad.KEEP, registry=RegistryClient(REGISTRY, known))
        values: list[bytes | None] = []
        for _ in range(20):
            number = make.below(len(writers))
            value = make.value(writers[number])
            odd = make.below(104) if make.chance(9) else number
            number = odd if odd in known else number
            framed = b"\0" + number.to_bytes(width, "big") + value
            values.append(
                framed[:3] if make.chance(30) else b"\1" + framed if make.chance(30) else framed
            )
        assert_same(decoder, batches(make, values))


def test_few_bytes_take_little_memory() -> None:
    """Five bytes cannot ask for millions of items, nor for a text of gigabytes."""
    empty = {"type": "record", "name": "E", "fields": []}
    filled = {
        "type": "record",
        "name": "E",
        "fields": [{"name": "n", "type": "long", "default": 1}],
    }
    schema = json.dumps({"type": "array", "items": empty})
    wanted = Avro(json.dumps({"type": "array", "items": filled}), writer=schema, framing="none")
    many = bytes([0x80, 0x80, 0x80, 0x10, 0])
    assert assert_same(Decoder(wanted, None, OnBad.KEEP), batch_of([many])) == 1
    few = bytes([0x80, 0x10, 0])
    assert assert_same(Decoder(wanted, None, OnBad.KEEP), batch_of([few] * 3)) == 0
    text = Decoder(Avro('"string"', framing="none"), None, OnBad.KEEP)
    assert assert_same(text, batch_of([many, b"\2x"])) == 1


def test_threads_share_a_decoder() -> None:
    """Without Python's lock, each with its own batch."""
    decoder = Decoder(Avro('"long"', framing="none"), None)
    batches = [batch_of([bytes([2 * number])] * 10_000) for number in range(8)]
    with decoded_by("native"):
        decoder.schema_of(batches[0].schema)
    with ThreadPoolExecutor(4) as pool:
        columns = list(pool.map(decoder.decoded, batches * 4))
    for number, column in enumerate(columns):
        assert set(column["value"].to_pylist()) == {number % 8}


def test_python_decodes_what_the_extension_does_not_know(caplog: pytest.LogCaptureFixture) -> None:
    """A row of many bytes that are not there; the log says so once, and whoever insists gets an error."""
    wide = {"type": "fixed", "name": "Wide", "size": 100_000}
    wanted = Avro(json.dumps(["null", wide]), framing="none")
    batch = batch_of([b"\0", b"\2" + bytes(100_000)])
    caplog.set_level(logging.INFO, "kafka_ordered_ops")
    for _ in range(2):
        column = Decoder(wanted, None).decoded(batch)["value"]
        assert column.to_pylist() == [None, bytes(100_000)]
    assert [record.message for record in caplog.records] == [
        "values are decoded in Python, not by the native decoder: a row of nulls takes 100000 bytes"
    ]
    with decoded_by("native"), pytest.raises(ConfigError, match="a row of nulls takes 100000"):
        Decoder(wanted, None).decoded(batch)
