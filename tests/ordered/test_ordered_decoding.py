"""Ordered reads with decoded values: what is returned, committed and refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafka_ordered_ops import (
    ConfigError,
    DecodeError,
    OrderedReader,
    OrderedWindows,
    RegistryError,
    Window,
)
from kafka_ordered_ops.decoding import Avro, Decoding
from tests.support.encoded_values import encoded
from tests.support.memory_world import MemoryWorld
from tests.support.ordered_support import NEVER, Tail
from tests.support.stub_registry import stub_registry
from tests.support.windows_support import at
from tests.support.worlds import World

JSON = "json:id int64"
ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


def write(world: World, values: Sequence[bytes | None], partition: int = 0) -> None:
    """Write values, one each second."""
    world.write_content(
        "orders", partition, [(float(n), b"k", value, ()) for n, value in enumerate(values)]
    )


def test_values_are_columns_in_the_order_of_records(world: World) -> None:
    """The schema is that of the batches; flattened on request, and bad values beside their reasons."""
    world.create("orders", partitions=2)
    write(world, [b'{"id": 0}', b"x", None])
    write(world, [b'{"id": 3}'], partition=1)
    decoding = Decoding(JSON, on_bad="keep", flatten=True)
    with OrderedReader(world.settings, world.named("orders"), decoding=decoding) as reader:
        table = pa.Table.from_batches(reader, reader.schema)
    assert table["id"].to_pylist() == [0, 3, None, None]
    assert table["value_raw"].to_pylist() == [None, None, b"x", None]
    assert [bool(reason) for reason in table["value_error"].to_pylist()] == [
        False,
        False,
        True,
        False,
    ]
    assert table["key"].to_pylist() == [b"k"] * 4


def test_a_bad_value_is_not_committed(world: World) -> None:
    """Its batch stays, and what was returned before it is committed; the next member keeps it beside its reason."""
    world.create("orders")
    write(world, [b'{"id": 0}', b'{"id": 1}', b"x", b'{"id": 3}', b"{}"])
    options: dict[str, Any] = {"group_id": "live", "grace": NEVER, "batch_size": 1}
    ids: list[Any] = []

    def read(tail: Tail) -> None:
        while True:
            if (batch := tail.poll()) is not None:
                ids.extend(batch.column("value").to_pylist())

    with (
        Tail(world, "orders", decoding=Decoding(JSON), **options) as tail,
        pytest.raises(DecodeError) as failure,
    ):
        read(tail)
    assert (failure.value.partition, failure.value.offset) == (0, 2)
    assert ids == [{"id": 0}, {"id": 1}]
    found: Any = world.committed("orders", group_id="live")[str(world.tp("orders"))]
    assert found[0] == 2
    with Tail(world, "orders", decoding=Decoding(JSON, on_bad="keep"), **options) as tail:
        tail.until(lambda: len(tail.rows) == 3)
    assert [row.offset for row in tail.rows] == [2, 3, 4]


@pytest.mark.slow
def test_the_schema_is_fixed_when_the_reader_starts() -> None:
    """A newer one counts for the next reader; while the registry is away, a batch waits and nothing is lost."""
    newer = {**ORDER, "fields": [*ORDER["fields"], {"name": "to", "type": "string", "default": ""}]}
    with MemoryWorld() as world, stub_registry() as registry:
        world.create("orders")
        subject = f"{world.named('orders')}-value"
        first = registry.register(subject, ORDER)
        write(world, [encoded({"id": 0}, ORDER, first["id"])])
        settings = world.settings.merged({"schema.registry.url": registry.url})
        topic, decoding = world.named("orders"), Decoding(Avro())
        with OrderedReader(settings, topic, decoding=decoding) as reader:
            columns = reader.schema
            second = registry.register(subject, newer)
            write(world, [encoded({"id": 1, "to": "x"}, newer, second["id"])])
            assert [batch.column("value").to_pylist() for batch in reader] == [[{"id": 0}]]
        late = registry.register("elsewhere", newer)
        write(world, [encoded({"id": 2, "to": "y"}, newer, late["id"])])
        with OrderedReader(settings, topic, decoding=decoding) as reader:
            assert reader.schema != columns
            registry.status = 503
            with pytest.raises(RegistryError):
                next(iter(reader))
            registry.status = None
            [batch] = list(reader)
        values: list[Any] = batch.column("value").to_pylist()
        assert [one["to"] for one in values] == ["", "x", "y"]


def test_a_missing_schema_is_found_before_the_group_is_joined() -> None:
    """Without a registry in the settings, or without the subject in it; several topics have none."""
    with MemoryWorld() as world, stub_registry() as registry:
        world.create("orders")
        topic = world.named("orders")
        settings = world.settings.merged({"schema.registry.url": registry.url})
        for given_settings, topics, said in (
            (world.settings, [topic], "needs a schema registry"),
            (settings, [topic], f"no subject '{topic}-value'"),
            (settings, [topic, "other"], "give a schema, or the subject"),
        ):
            reader = OrderedReader(
                given_settings, topics, follow=True, group_id="g", decoding=Decoding("avro")
            )
            with pytest.raises(ConfigError, match=said):
                reader.__enter__()


def test_a_plan_is_read_as_its_window_says(world: World) -> None:
    """The plan has the format; a window whose bad records become dead letters is delivered by `run` alone."""
    world.create("orders")
    write(world, [b'{"id": 0}', None])
    windows = OrderedWindows(world.settings, group_id=world.named("g"))
    window = Window(world.named("orders"), at(10), "earliest", values=JSON)
    with OrderedReader.of_plan(windows.plan(window), world.settings) as reader:
        table = pa.Table.from_batches(reader, reader.schema)
    assert table["value"].to_pylist() == [{"id": 0}, None]
    bad = Window(
        world.named("orders"),
        at(10),
        values=JSON,
        on_bad=f"dead_letter:{world.named('bad')}",
    )
    plan = windows.plan(window)
    object.__setattr__(plan, "window", bad)
    with pytest.raises(ConfigError, match="an OrderedReader cannot report"):
        OrderedReader.of_plan(plan, world.settings)


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(st.sampled_from([b'{"id": 7}', b"x", None]), max_size=8), max_size=3),
    st.integers(1, 5),
)
def test_decoding_changes_neither_records_nor_their_order(
    partitions: list[list[bytes | None]], size: int
) -> None:
    """The same rows as bytes and as columns, with the bytes of each bad value, whatever the batches are."""
    with MemoryWorld() as world:
        world.create("orders", partitions=max(1, len(partitions)))
        for number, values in enumerate(partitions):
            write(world, values, number)
        tables = []
        for decoding in (None, Decoding(JSON, on_bad="keep")):
            with OrderedReader(
                world.settings, world.named("orders"), batch_size=size, decoding=decoding
            ) as reader:
                tables.append(pa.Table.from_batches(reader, reader.schema))
        plain, decoded = tables
        place = ["topic", "partition", "offset", "timestamp", "late"]
        assert plain.select(place) == decoded.select(place)
        for value, struct, raw in zip(
            plain["value"].to_pylist(),
            decoded["value"].to_pylist(),
            decoded["value_raw"].to_pylist(),
            strict=True,
        ):
            assert struct == ({"id": 7} if value == b'{"id": 7}' else None)
            assert raw == (b"x" if value == b"x" else None)
