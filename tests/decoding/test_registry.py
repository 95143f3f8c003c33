"""Writer schemas from a real registry, by the id in each record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from kafka_ordered_ops import (
    AuthenticationError,
    ClientSettings,
    ConfigError,
    RegistryError,
    SettingNotAllowedError,
    Window,
)
from kafka_ordered_ops.decoding import Avro, Debezium, Registry, decode
from kafka_ordered_ops.decoding.decoder import decoder_of, fixed
from tests.support import debezium
from tests.support import registry as registries
from tests.support.answering import answering
from tests.support.encoded_values import batch_of, encoded
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
    ]
    avro = Avro(subject=subject)
    table = decode(batch_of(rows), values=avro, registry=registry.url, on_bad="keep").read_all()
    assert table["value"].to_pylist() == [
        {"id": 1, "to": {"city": "Oslo"}, "paid": False},
        {"id": 1, "to": {"city": "Oslo"}, "paid": True},
        *[None] * 5,
    ]
    reasons = table["value_error"].to_pylist()
    assert reasons[:3] == [None] * 3
    assert reasons[3] == f"the registry has no schema {2**31 - 1}"
    assert reasons[4] is not None
    assert f"schema {strange}: the writer's schema does not fit the reader's" in reasons[4]
    assert reasons[5] == reasons[6] == "it does not begin with a zero byte and a schema id"


@pytest.mark.slow
def test_unknown_subjects_and_other_kinds_are_named(registry: registries.Registry) -> None:
    """Before any record is read."""
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}}
    registry.register("json-value", schema, kind="JSON")
    with pytest.raises(ConfigError, match="has no subject 'nothing'"):
        decode(batch_of([]), values=Avro(subject="nothing"), registry=registry.url)
    with pytest.raises(ConfigError, match="the newest schema of json-value is JSON, not Avro"):
        decode(batch_of([]), values=Avro(subject="json-value"), registry=registry.url)


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
