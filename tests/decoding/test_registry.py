"""Writer schemas from a real registry, by the id in each record."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kafka_ordered_ops import (
    AuthenticationError,
    ClientSettings,
    ConfigError,
    Copy,
    OrderedWindows,
    RegistryError,
    SettingNotAllowedError,
    Table,
    Window,
)
from kafka_ordered_ops.decoding import Avro, Debezium, Protobuf, Registry, decode
from kafka_ordered_ops.decoding.decoder import decoder_of, fixed
from kafka_ordered_ops.decoding.protobuf import schemas as protobuf_schemas
from kafka_ordered_ops.delivery.job import WindowJob
from kafka_ordered_ops.kafka.schema_registry import RegistryClient
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support import debezium
from tests.support import registry as registries
from tests.support.answering import answering
from tests.support.encoded_values import batch_of, encoded
from tests.support.protobuf_schemas import class_of, descriptor_of
from tests.support.relay_server import free_port

ADDRESS = {"type": "record", "name": "shop.Address", "fields": [{"name": "city", "type": "string"}]}
OLD = {
    "type": "record",
    "name": "shop.Order",
    "fields": [{"name": "id", "type": "int"}, {"name": "to", "type": ADDRESS}],
}


def newer(to: Any = "shop.Address") -> dict[str, Any]:
    """Return a schema with a promoted field, and one more."""
    return {
        "type": "record",
        "name": "shop.Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "to", "type": to},
            {"name": "paid", "type": "boolean", "default": False},
        ],
    }


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[registries.Registry]:
    """Apicurio, which needs some seconds to start, and to be downloaded once: 159 MB."""
    try:
        with registries.registry(tmp_path_factory.mktemp("registry")) as running:
            yield running
    except registries.NotServedError as error:
        pytest.skip(f"the registry cannot be downloaded: {error}")


@pytest.mark.slow
def test_two_writers_are_read_with_the_newest_schema(registry: registries.Registry) -> None:
    """Promoted, with a default, and through a reference; ids of nobody and other bytes are bad values."""
    subject = "orders-value"
    old = registry.register(subject, OLD)
    registry.register("address", ADDRESS)
    reference = {"name": "shop.Address", "subject": "address", "version": 1}
    new = registry.register(subject, newer(), [reference])
    strange = registry.register("strange", {"type": "record", "name": "X", "fields": []})
    row = {"id": 1, "to": {"city": "Oslo"}}
    rows = [
        encoded(row, OLD, old),
        encoded({**row, "paid": True}, newer(ADDRESS), new),
        None,
        encoded(row, OLD, 2**31 - 1),
        encoded({}, {"type": "record", "name": "X", "fields": []}, strange),
        b"\x01" + encoded(row, OLD, old)[1:],
        b"\0\0",
        # As a GUID, which this registry does not have.
        b"\x01" + bytes(range(20)),
    ]
    avro = Avro(subject=subject)
    table = decode(batch_of(rows), values=avro, registry=registry.url, on_bad="keep").read_all()
    assert table["value"].to_pylist() == [
        {"id": 1, "to": {"city": "Oslo"}, "paid": False},
        {"id": 1, "to": {"city": "Oslo"}, "paid": True},
        *[None] * 6,
    ]
    reasons = table["value_error"].to_pylist()
    assert reasons[:3] == [None] * 3
    assert reasons[3] == f"the registry has no schema {2**31 - 1}"
    assert reasons[4] is not None
    assert f"schema {strange}: the writer's schema does not fit the reader's" in reasons[4]
    assert reasons[5] == reasons[6] == "it does not begin with a zero byte and a schema id"


@pytest.mark.slow
def test_a_sample_counts_the_schemas_of_writers(registry: registries.Registry) -> None:
    """By their ids, also those that the registry does not have; values without an id are not counted."""
    subject = "sampled-value"
    old = registry.register(subject, OLD)
    row = {"id": 1, "to": {"city": "Oslo"}}
    values = [
        encoded(row, OLD, old),
        encoded(row, OLD, old),
        encoded(row, OLD, 2**31 - 1),
        None,
        b"\1",
    ]
    with InMemoryKafka() as kafka:
        kafka.create_topic("sampled", partitions=2)
        for number, value in enumerate(values):
            kafka.produce("sampled", partition=number % 2, timestamp_ms=1_000, value=value)
        settings = {**kafka.settings, "schema.registry.url": registry.url}
        windows = OrderedWindows(settings, group_id="g")
        window = Window("sampled", "1970-01-02T00:00Z", "earliest", values=Avro())
        sample = windows.sample(windows.preview(window))
    assert sample.schema_ids == {"value": {str(old): 2, str(2**31 - 1): 1}}
    assert sample.bad == 2


MONEY = 'syntax = "proto3"; package shop; message Money { int64 units = 1; }'
SALE = 'syntax = "proto3"; package shop; message Sale { int64 id = 1; }'
NEWER_SALE = """
    syntax = "proto3"; package shop; import "money.proto"; import "google/protobuf/timestamp.proto";
    message Sale { int64 id = 1; Money total = 2; google.protobuf.Timestamp at = 3; } message Other { int64 id = 1; }
"""
REFERENCE = {"name": "money.proto", "subject": "money", "version": 1}


@pytest.mark.slow
def test_texts_in_protobuf_are_compiled_with_their_imports(
    registry: registries.Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the plan; tasks have the messages of known ids without registry and compiler."""
    old = registry.register("sales-value", SALE, kind="PROTOBUF")
    registry.register("money", MONEY, kind="PROTOBUF")
    new = registry.register("sales-value", NEWER_SALE, [REFERENCE], kind="PROTOBUF")
    avro = registry.register("avro-value", OLD)
    ids_and_rests = [
        (old, b"\0\x08\x05"),
        (new, b"\0\x08\x05\x12\x02\x08\x07\x1a\x00"),
        (new, b"\x02\x02\x08\x05"),
        (old, b"\x02\x02\x08\x05"),
        (avro, b"\0\x08\x05"),
        (2**31 - 1, b"\0\x08\x05"),
    ]
    with InMemoryKafka() as kafka:
        kafka.create_topic("sales", partitions=1)
        for number, (schema_id, rest) in enumerate(ids_and_rests):
            value = b"\0" + schema_id.to_bytes(4, "big") + rest
            kafka.produce("sales", partition=0, timestamp_ms=number, value=value)
        settings = {**kafka.settings, "schema.registry.url": registry.url}
        windows = OrderedWindows(settings, group_id="g")
        window = Window(
            "sales",
            cutoff="1970-01-02T00:00:00Z",
            starting_offsets="earliest",
            values=Protobuf("shop.Sale", subject="sales-value"),
            on_bad="keep",
        )
        planned = windows.plan(window).window
        decoder = pickle.loads(pickle.dumps(decoder_of(planned, windows.settings)))
        # From here on, nothing is compiled.
        monkeypatch.setattr(protobuf_schemas, "compiled", None)
        with windows.open(window.undecoded) as opened:
            table = pa.Table.from_batches(map(decoder.decoded, opened.to_arrow().to_batches()))
    rows: list[Any] = table["value"].to_pylist()
    assert rows[1]["total"] == {"units": 7}
    assert [row and row["id"] for row in rows] == [5, 5, *[None] * 4]
    assert table["value_error"].to_pylist() == [
        None,
        None,
        "it is a message shop.Other, not shop.Sale",
        f"schema {old} has no message with the index [1]",
        f"schema {avro} is AVRO, not Protobuf",
        f"the registry has no schema {2**31 - 1}",
    ]


@pytest.mark.slow
def test_records_of_the_protobuf_serializer_are_read(registry: registries.Registry) -> None:
    """It registers descriptors in base64, with a reference for each import."""
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    message = class_of(descriptor_of(NEWER_SALE, ("money.proto", MONEY)), "shop.Other")
    sale = class_of(descriptor_of(NEWER_SALE, ("money.proto", MONEY)), "shop.Sale")
    context = SerializationContext("serialized", MessageField.VALUE)
    with SchemaRegistryClient({"url": registry.url}) as client:
        rows = [
            ProtobufSerializer(type(record), client)(record, context)
            for record in (sale(id=1, total={"units": 7}), message(id=2))
        ]
    tables = [
        decode(
            batch_of(rows),
            values=Protobuf(name, subject="serialized-value"),
            registry=registry.url,
            on_bad="keep",
        ).read_all()
        for name in ("shop.Sale", "shop.Other")
    ]
    assert tables[0]["value"].to_pylist() == [
        {"id": 1, "total": {"units": 7}, "at": None},
        None,
    ]
    assert tables[1]["value"].to_pylist() == [None, {"id": 2}]


@pytest.mark.slow
def test_a_planned_window_keeps_its_schema_in_protobuf(registry: registries.Registry) -> None:
    """A newer version is that of the next window; what it adds is skipped."""
    subject = "kept-value"
    registry.register(subject, SALE, kind="PROTOBUF")
    newer = SALE.replace("int64 id = 1;", "int64 id = 1; int32 n = 2;")
    with InMemoryKafka() as kafka:
        kafka.create_topic("kept", partitions=1)
        settings = {**kafka.settings, "schema.registry.url": registry.url}
        windows = OrderedWindows(settings, group_id="g")
        hours = [
            Window(
                "kept",
                cutoff=f"1970-01-0{day}T00:00:00Z",
                starting_offsets="earliest",
                values=Protobuf(subject=subject),
                flatten=True,
            )
            for day in (2, 3)
        ]
        windows.plan(hours[0])
        new = registry.register(subject, newer, kind="PROTOBUF")
        value = b"\0" + new.to_bytes(4, "big") + b"\0\x08\x05\x10\x07"
        kafka.produce("kept", partition=0, timestamp_ms=100_000_000, value=value)
        with windows.open(hours[0]) as window:
            assert window.to_arrow().schema.names[6:7] == ["id"]
            assert "n" not in window.to_arrow().schema.names
        with windows.open(hours[1]) as window:
            assert window.to_arrow().select(["id", "n"]).to_pylist() == [{"id": 5, "n": 7}]


@pytest.mark.slow
def test_subjects_of_another_kind_are_named_for_protobuf(registry: registries.Registry) -> None:
    """Before any record is read."""
    registry.register("avro-value", OLD)
    with pytest.raises(ConfigError, match="the newest schema of avro-value is AVRO, not Protobuf"):
        decode(batch_of([]), values=Protobuf(subject="avro-value"), registry=registry.url)


@pytest.mark.slow
def test_unknown_subjects_and_other_kinds_are_named(registry: registries.Registry) -> None:
    """Before any record is read."""
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}}
    registry.register("json-value", schema, kind="JSON")
    with pytest.raises(ConfigError, match="has no subject 'nothing'"):
        decode(batch_of([]), values=Avro(subject="nothing"), registry=registry.url)
    with pytest.raises(ConfigError, match="the newest schema of json-value is JSON, not Avro"):
        decode(batch_of([]), values=Avro(subject="json-value"), registry=registry.url)


def test_a_url_of_no_registry_makes_no_value_bad() -> None:
    """It lacks the path of the API, for example. Only a registry without GUIDs answers in this way about them."""
    with answering((404, b"")) as address:
        client = Registry(f"http://{address}").connect()
        asks: list[Callable[[], object]] = [
            client.check,
            lambda: client.schema(1),
            lambda: client.newest("orders-value"),
        ]
        for ask in asks:
            with pytest.raises(RegistryError, match="give the URL of its API"):
                ask()
        assert client.schema(client.id_of("00000000-0000-0000-0000-000000000007")) is None


@pytest.mark.parametrize("status", [401, 403])
def test_refused_credentials_are_not_retriable(status: int) -> None:
    """And stand in no error."""
    with answering((status, b"")) as address:
        registry = Registry(
            {"url": f"http://{address}", "basic.auth.user.info": "anna:canary-word"}
        )
        with pytest.raises(AuthenticationError) as failure:
            decode(batch_of([]), values=Avro(subject="s"), registry=registry)
    assert not failure.value.retriable
    assert f"HTTP {status}" in str(failure.value)
    assert "canary" not in f"{failure.value!r} {registry!r}"


@pytest.mark.slow
def test_a_registry_that_is_away_is_retriable() -> None:
    """With its address, and without the password in it."""
    address = f"http://anna:canary-word@127.0.0.1:{free_port()}"
    with pytest.raises(RegistryError) as failure:
        decode(batch_of([]), values=Avro(subject="s"), registry=address)
    assert failure.value.retriable
    assert "http://127.0.0.1:" in str(failure.value)
    assert "canary" not in repr(failure.value)


def test_only_known_settings_are_taken() -> None:
    """A proxy could read everything."""
    with pytest.raises(SettingNotAllowedError) as failure:
        Registry({"url": "http://registry", "proxy": "http://elsewhere"})
    assert failure.value.key == "proxy"


@pytest.mark.slow
def test_a_window_keeps_the_schema_that_it_was_planned_with(
    registry: registries.Registry, tmp_path: Path
) -> None:
    """The newest of the topic's subject then; a retry needs it no more, and the next window gets the newer one."""
    old = registry.register("trades-value", OLD)
    row = {"id": 1, "to": {"city": "Oslo"}}
    with InMemoryKafka() as kafka:
        kafka.create_topic("trades")
        kafka.produce("trades", timestamp_ms=1_000, value=encoded(row, OLD, old))
        settings = {**kafka.settings, "schema.registry.url": registry.url}

        def day(number: int) -> Window:
            return Window(
                "trades",
                cutoff=f"1970-01-{number + 1:02}T00:00:00Z",
                starting_offsets="earliest",
                values=Avro(),
                flatten=True,
            )

        windows = OrderedWindows(settings, group_id="g")
        plan = windows.plan(day(1))
        assert isinstance(plan.window.values, Avro)
        assert plan.window.values.subject == "trades-value"
        inlined = newer(ADDRESS)
        new = registry.register("trades-value", inlined)
        table = windows.run(day(1), tmp_path / "lake").to_arrow()
        assert table.schema.names[6:8] == ["id", "to"]
        assert table["id"].type == pa.int32()
        kafka.produce(
            "trades", timestamp_ms=90_000_000, value=encoded({**row, "paid": True}, inlined, new)
        )
        table = windows.run(day(2), tmp_path / "lake").to_arrow()
        assert table["paid"].to_pylist() == [True]
        # A copy of the decoder in a task: it knows the schemas of the subject, and no registry is there.
        decoder = pickle.loads(pickle.dumps(decoder_of(plan.window, windows.settings)))
        batch = batch_of([encoded(row, OLD, old)])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RegistryClient, "_ask", _refuse)
            values = decoder.decoded(batch)
        assert values["id"].to_pylist() == [1]


def _refuse(*_: object) -> None:
    raise AssertionError("the registry was asked")


@pytest.mark.slow
def test_envelopes_and_keys_are_read_with_their_own_subjects(
    registry: registries.Registry,
) -> None:
    """Debezium's records, with the ids of this registry; a window's tasks need it no more once its subjects are known."""
    ids = {
        name: registry.register(f"notes-{name}", json.loads(debezium.schema_text(number)))
        for name, number in (("key", 3), ("value", 4))
    }

    def framed(data: bytes | None, name: str) -> bytes | None:
        return None if data is None else b"\0" + ids[name].to_bytes(4, "big") + data[5:]

    records = [
        replace(change, key=framed(change.key, "key"), value=framed(change.value, "value"))
        for change in debezium.changes("avro", "notes")
    ]
    wanted = Debezium(Avro(subject="notes-value"), Avro(subject="notes-key"))
    settings = ClientSettings.of(
        {"bootstrap.servers": "127.0.0.1:1", "schema.registry.url": registry.url}
    )
    planned = fixed(Window("notes", cutoff="2026-01-01T00:00:00Z", values=wanted), settings)
    decoder = decoder_of(planned, settings)
    assert decoder is not None
    assert decoder.registry is not None
    for part, schema_id in ids.items():
        subject = f"notes-{part}"
        assert subject in repr(planned.values)
        assert schema_id in decoder.registry._known
    rows: Any = decoder.decoded(debezium.batch_of(records))["value"].to_pylist()
    assert [(row["id"], row["__deleted"]) for row in rows] == [
        (1, False),
        (2, False),
        (1, False),
        (2, True),
        (2, True),
    ]


@pytest.mark.slow
def test_columns_come_from_a_json_schema(registry: registries.Registry) -> None:
    """Through a reference, and as Confluent's own serializer writes values."""
    money = {"type": "object", "properties": {"amount": {"type": "number"}}}
    registry.register("amounts", money, kind="JSON")
    schema = {
        "type": "object",
        "properties": {"id": {"type": "integer"}, "price": {"$ref": "money.json"}},
    }
    reference = {"name": "money.json", "subject": "amounts", "version": 1}
    schema_id = registry.register("prices-value", schema, [reference], kind="JSON")
    frame = b"\0" + schema_id.to_bytes(4, "big")
    rows = [frame + b'{"id": 1, "price": {"amount": 2.5}}', frame + b'{"id": "x"}']
    table = decode(
        batch_of(rows), values="json:prices-value", registry=registry.url, on_bad="keep"
    ).read_all()
    assert table["value"].to_pylist() == [{"id": 1, "price": {"amount": 2.5}}, None]


@pytest.mark.slow
def test_a_table_is_compared_with_the_columns_of_the_topics_own_subject(
    registry: registries.Registry,
) -> None:
    """Before the window is planned, when nothing is looked up yet."""
    registry.register("parcels-value", ADDRESS)
    settings = ClientSettings.of(
        {"bootstrap.servers": "127.0.0.1:1", "schema.registry.url": registry.url}
    )
    window = Window("parcels", values=Avro(), flatten=True)
    work = WindowJob(job=Copy(), to=Table("lake.parcels"))
    columns = work.copied(settings, [window])
    assert columns is not None
    assert columns.field("city").type == pa.string()
