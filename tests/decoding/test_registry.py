"""Writer schemas from a real registry, by the id in each record."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kafka_ordered_ops import (
    AuthenticationError,
    ConfigError,
    OrderedWindows,
    RegistryError,
    SettingNotAllowedError,
    Window,
)
from kafka_ordered_ops.decoding import Avro, Registry, decode
from kafka_ordered_ops.decoding.decoder import decoder_of
from kafka_ordered_ops.kafka.schema_registry import RegistryClient
from kafka_ordered_ops.testing import InMemoryKafka
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
def test_a_window_keeps_the_schema_that_it_was_planned_with(
    registry: registries.Registry, tmp_path: Path
) -> None:
    """The newest of the topic's subject then; a retry needs it no more, and the next window gets the newer one."""
    old = registry.register("sales-value", OLD)
    row = {"id": 1, "to": {"city": "Oslo"}}
    with InMemoryKafka() as kafka:
        kafka.create_topic("sales")
        kafka.produce("sales", timestamp_ms=1_000, value=encoded(row, OLD, old))
        settings = {**kafka.settings, "schema.registry.url": registry.url}

        def day(number: int) -> Window:
            return Window(
                "sales",
                cutoff=f"1970-01-{number + 1:02}T00:00:00Z",
                starting_offsets="earliest",
                values=Avro(),
                flatten=True,
            )

        windows = OrderedWindows(settings, group_id="g")
        plan = windows.plan(day(1))
        assert isinstance(plan.window.values, Avro)
        assert plan.window.values.subject == "sales-value"
        inlined = newer(ADDRESS)
        new = registry.register("sales-value", inlined)
        table = windows.run(day(1), tmp_path / "lake").to_arrow()
        assert table.schema.names[6:8] == ["id", "to"]
        assert table["id"].type == pa.int32()
        kafka.produce(
            "sales", timestamp_ms=90_000_000, value=encoded({**row, "paid": True}, inlined, new)
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
