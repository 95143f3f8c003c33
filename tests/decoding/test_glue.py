"""Writer schemas from AWS Glue's registry: clients of AWS, and a server that has the same API as AWS."""

from __future__ import annotations

import json
import logging
import pickle
import sys
import zlib
from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
import pytest

from kafka_ordered_ops import (
    AuthenticationError,
    ConfigError,
    Earliest,
    OrderedWindows,
    RegistryError,
    Window,
)
from kafka_ordered_ops.decoding import Avro, Json, Protobuf, Registry, decode
from kafka_ordered_ops.decoding.decoder import decoder_of, fixed
from kafka_ordered_ops.kafka.registry import glue as client
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.answering import answering
from tests.support.encoded_values import batch_of, encoded
from tests.support.relay_server import free_port

OLD: Final = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
NEW: Final = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "paid", "type": "boolean", "default": False},
    ],
}
URL: Final = "glue://eu-west-1"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A server with the API of AWS Glue; gives its address."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def aws(server: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The environment of a process with credentials; gives boto3's client of Glue."""
    import boto3

    monkeypatch.setenv("AWS_ENDPOINT_URL_GLUE", server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-s3cret")
    monkeypatch.setattr(client, "_ATTEMPTS_MAX", 1)
    return boto3.client("glue", region_name="eu-west-1")


def registered(
    aws: Any, name: str, *schemas: Any, kind: str = "AVRO", **registry: str
) -> list[str]:
    """Register versions of a schema; return their UUIDs."""
    first, *others = (
        schema if isinstance(schema, str) else json.dumps(schema) for schema in schemas
    )
    answer = aws.create_schema(
        SchemaName=name,
        DataFormat=kind,
        Compatibility="NONE",
        SchemaDefinition=first,
        **({"RegistryId": registry} if registry else {}),
    )
    place = {"SchemaName": name, "RegistryName": "default-registry", **registry}
    return [
        answer["SchemaVersionId"],
        *(
            aws.register_schema_version(SchemaId=place, SchemaDefinition=other)["SchemaVersionId"]
            for other in others
        ),
    ]


def framed(guid: str, content: bytes, *, is_zipped: bool = False) -> bytes:
    """Return a value as Glue's serializers write it."""
    body = zlib.compress(content) if is_zipped else content
    return bytes([3, 5 if is_zipped else 0]) + UUID(guid).bytes + body


def test_writers_are_looked_up_by_their_uuids(aws: Any) -> None:
    """Each once, and the newest schema is the reader's; what the registry does not have is a bad value."""
    aws.create_registry(RegistryName="lake")
    old, new = registered(aws, "sales", OLD, NEW, RegistryName="lake")
    other = registered(aws, "text", {"type": "object"}, kind="JSON", RegistryName="lake")[0]
    nobody = str(UUID(int=7))
    rows = [
        framed(old, encoded({"id": 1}, OLD)),
        framed(new, encoded({"id": 2, "paid": True}, NEW), is_zipped=True),
        None,
        framed(nobody, b"x"),
        framed(other, b"{}"),
        b"\0\0\0\0\1",
    ]
    values = Avro(subject="sales", framing="glue")
    table = decode(batch_of(rows), values=values, registry=f"{URL}/lake", on_bad="keep").read_all()
    good: list[Any] = [{"id": 1, "paid": False}, {"id": 2, "paid": True}, None, None, None, None]
    assert table["value"].to_pylist() == good
    assert table["value_error"].to_pylist()[3:] == [
        f"the registry has no schema {nobody}",
        f"schema {other} is JSON, not Avro",
        "it does not begin with the frame of AWS Glue",
    ]


@pytest.mark.slow
def test_tasks_know_the_versions_of_the_schema(aws: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a topic are named after it; a copy for another machine needs neither the registry nor boto3."""
    old, _ = registered(aws, "orders", OLD, NEW)
    with InMemoryKafka() as kafka:
        settings = {**kafka.settings, "schema.registry.url": URL}
        with OrderedWindows(settings, "g") as windows:
            window = fixed(Window("orders", values=Avro(framing="glue")), windows.settings)
            decoder = decoder_of(window, windows.settings)
    assert isinstance(window.values, Avro)
    assert window.values.schema == json.dumps(NEW)
    content = pickle.dumps(decoder)
    assert b"canary-s3cret" not in content
    monkeypatch.setenv("AWS_ENDPOINT_URL_GLUE", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setitem(sys.modules, "boto3", None)
    batch = batch_of([framed(old, encoded({"id": 1}, OLD))])
    decoded = pickle.loads(content).decoded(batch)
    assert decoded["value"].to_pylist() == [{"id": 1, "paid": False}]


def test_a_window_is_read_by_glue_s_schemas(aws: Any) -> None:
    """JSON in the frames of Glue, with the columns of its JSON Schema, from the plan to the rows."""
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}}
    guid = registered(aws, "clicks", schema, kind="JSON")[0]
    with InMemoryKafka() as kafka:
        kafka.create_topic("clicks")
        kafka.produce("clicks", value=framed(guid, b'{"id": 5}', is_zipped=True), timestamp_ms=1)
        settings = {**kafka.settings, "schema.registry.url": URL}
        window = Window("clicks", "1970-01-02T00:00Z", Earliest(), values=Json(framing="glue"))
        with OrderedWindows(settings, "g") as windows, windows.open(window) as opened:
            assert opened.to_arrow()["value"].to_pylist() == [{"id": 5}]


def test_messages_are_known_by_their_writers_schemas(
    aws: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index counts in the schema of its UUID; tasks need neither the registry nor a compiler."""
    old_text = 'syntax = "proto3"; package shop; message Order { int64 id = 1; }'
    new_text = old_text + " message Line { int32 n = 1; }"
    old, new = registered(aws, "sold", old_text, new_text, kind="PROTOBUF")
    nobody = str(UUID(int=7))
    rows = [
        framed(old, b"\0\x08\1"),
        framed(new, b"\1\x08\2", is_zipped=True),
        framed(new, b"\0\x08\3"),
        framed(nobody, b"\0\x08\4"),
    ]
    with InMemoryKafka() as kafka:
        settings = {**kafka.settings, "schema.registry.url": URL}
        with OrderedWindows(settings, "g") as windows:
            wanted = Window("sold", values=Protobuf("shop.Order", framing="glue"), on_bad="keep")
            decoder = decoder_of(fixed(wanted, windows.settings), windows.settings)
    assert decoder is not None
    known = pickle.loads(pickle.dumps(decoder))
    assert decoder.decoded(batch_of(rows))["value_error"].to_pylist() == [
        None,
        None,
        "it is a message shop.Line, not shop.Order",
        f"the registry has no schema {nobody}",
    ]
    monkeypatch.setenv("AWS_ENDPOINT_URL_GLUE", f"http://127.0.0.1:{free_port()}")
    for module in ("boto3", "grpc_tools"):
        monkeypatch.setitem(sys.modules, module, None)
    assert known.decoded(batch_of(rows[:2]))["value"].to_pylist() == [{"id": 1}, {"id": 2}]


@pytest.mark.slow
def test_a_registry_that_is_away_makes_no_value_bad(
    aws: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an error that a retry may heal; refused or missing credentials are one that names the right."""
    values = Avro(json.dumps(OLD), framing="glue")
    batch = batch_of([framed(str(UUID(int=1)), b"x")])

    def read() -> None:
        decode(batch, values=values, registry=URL, on_bad="keep").read_all()

    monkeypatch.setenv("AWS_ENDPOINT_URL_GLUE", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(
        RegistryError, match="registry default-registry in eu-west-1 cannot be"
    ) as away:
        read()
    assert away.value.retriable
    refusal = b'{"__type": "AccessDeniedException", "Message": "no"}'
    with answering((400, refusal)) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL_GLUE", f"http://{address}")
        with pytest.raises(AuthenticationError, match="glue:GetSchemaVersion"):
            read()
    with answering((500, b'{"__type": "InternalServiceException", "Message": "no"}')) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL_GLUE", f"http://{address}")
        with pytest.raises(RegistryError, match="fails"):
            read()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/nowhere")
    with pytest.raises(AuthenticationError, match="there are no credentials of AWS"):
        read()


@pytest.mark.parametrize(
    ("values", "registry", "words"),
    [
        (Avro(subject="s"), URL, "that registry needs framing='glue'"),
        (Avro(subject="s", framing="glue"), "http://localhost:1", "needs the registry of AWS Glue"),
        (Avro(subject="s", framing="glue"), "glue://Europe", "give glue://REGION"),
        (Avro(subject="unknown", framing="glue"), URL, "has no schema 'unknown'"),
        (Avro(json.dumps(OLD), framing="glue"), None, "Name the registry"),
        (Avro(framing="glue"), URL, "give a schema, or the subject"),
        (Json(framing="glue"), None, "give a schema, or the subject"),
    ],
)
def test_what_does_not_fit_is_named(
    aws: Any, values: Avro | Json, registry: str | None, words: str
) -> None:
    """Before anything is read."""
    with pytest.raises(ConfigError) as failure:
        decode(batch_of([]), values=values, registry=registry)
    assert words in str(failure.value)


def test_glue_has_no_settings_of_confluent_s_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials are those of the process; and the extra is named where boto3 is missing."""
    with pytest.raises(ConfigError, match=r"has no settings basic\.auth\.user\.info"):
        Registry({"url": URL, "basic.auth.user.info": "a:b"})
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ConfigError, match=r"pip install 'kafka-ordered-ops\[aws-glue\]'"):
        Registry(URL).connect()


def test_values_need_no_registry_with_their_writer_s_schema() -> None:
    """It is given, and no UUID is looked up."""
    values = Avro(json.dumps(NEW), framing="glue", writer=json.dumps(OLD))
    batch = batch_of([framed(str(UUID(int=1)), encoded({"id": 1}, OLD))])
    table = decode(batch, values=values).read_all()
    assert table["value"] == pa.chunked_array([[{"id": 1, "paid": False}]], table["value"].type)
