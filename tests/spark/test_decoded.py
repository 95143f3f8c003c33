"""Values as columns in Spark: every engine gives the same rows, typed, in order."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
import pytest

from kafka_ordered_ops import ConfigError, DecodeError, OrderedWindows, Window
from kafka_ordered_ops.decoding import Avro, Json
from kafka_ordered_ops.spark import read_windows
from tests.support.encoded_values import encoded
from tests.support.spark_support import ENGINES, settings_of, spark
from tests.support.stub_registry import stub_registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]  # a fixture

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MakeTopic = Callable[..., str]
Produce = Callable[..., list[int]]

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "string"}}},
        {"name": "note", "type": ["null", "string"]},
    ],
}
AVRO = Avro(json.dumps(ORDER), framing="none")
HOUR_MS = 3_600_000


def order(number: int) -> bytes:
    """Return an order in Avro."""
    return encoded(
        {
            "id": number,
            "at": datetime.fromtimestamp(number, UTC),
            "clock": time(1, 2, 3),
            "price": Decimal("12.34"),
            "kind": "B",
            "tags": {"a": ["x", "y"]},
            "note": None,
        },
        ORDER,
    )


def window(topic: str, hour: int = 1, **more: Any) -> Window:
    """Return the window up to the end of an hour."""
    more = {"starting_offsets": "earliest", "values": AVRO, **more}
    return Window(topic, cutoff=datetime.fromtimestamp(hour * 3_600, UTC), **more)


def fill(produce: Produce, name: str, hours: int = 1) -> None:
    """Write thirty orders an hour, out of order."""
    produce(
        (
            name,
            number % 3,
            None,
            order(number),
            number % hours * HOUR_MS + 1_000 + number * 7 % 30,
            [],
        )
        for number in range(30 * hours)
    )


def test_all_engines_decode_alike(
    bootstrap: str, topic: MakeTopic, produce: Produce, group_id: str, spark: SparkSession
) -> None:
    """In Spark's types, in total order; the same as without Spark."""
    name = topic(partitions=3)
    fill(produce, name)
    windows = OrderedWindows(bootstrap, group_id)
    plan = windows.plan(window(name))
    with windows.open(window(name)) as opened:
        values: list[Any] = opened.to_arrow()["value"].to_pylist()
        expected = [row["id"] for row in values]
    rows = {}
    for engine in ENGINES:
        frame = read_windows(spark, [plan], settings_of(bootstrap), ordered=True, engine=engine)
        assert dict(frame.select("value.*").dtypes) == {
            "id": "bigint",
            "at": "timestamp",
            "clock": "int",
            "price": "decimal(9,2)",
            "kind": "string",
            "tags": "map<string,array<string>>",
            "note": "string",
        }
        rows[engine] = frame.select("offset", "value").collect()
        assert [row.value.id for row in rows[engine]] == expected
    first, *others = rows.values()
    assert all(other == first for other in others)
    assert first[0].value.clock == 3_723_000
    assert first[0].value.tags == {"a": ["x", "y"]}


def test_guids_in_headers_are_read_by_every_engine(
    spark: SparkSession, topic: MakeTopic, produce: Produce, bootstrap: str
) -> None:
    """The tasks know the schemas of the subject: the registry is asked by the driver alone."""
    name = topic()
    with stub_registry() as registry:
        known = registry.register(f"{name}-value", ORDER)
        header = ("__value_schema_id", b"\1" + UUID(known["guid"]).bytes)
        produce((name, 0, None, order(number), 1 + number, [header]) for number in range(3))
        settings = settings_of(bootstrap).merged({"schema.registry.url": registry.url})
        windows = OrderedWindows(settings, name)
        plan = windows.plan(window(name, values=Avro(), flatten=True))
        for engine in ENGINES:
            rows = read_windows(spark, [plan], settings, engine=engine).collect()
            assert sorted(row.id for row in rows) == [0, 1, 2]
        assert not [path for path in registry.requests if "/schemas/guids/" in path]


def test_several_windows_are_written_with_typed_columns(
    bootstrap: str,
    topic: MakeTopic,
    produce: Produce,
    group_id: str,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """Of one read, each window sorted in its own folder, without sorting them again."""
    name = topic(partitions=3)
    fill(produce, name, hours=3)
    windows = OrderedWindows(bootstrap, group_id)
    hours = [window(name, hour, flatten=True) for hour in (1, 2, 3)]
    results = [windows.run(hour, tmp_path / "lake", spark=spark).to_arrow() for hour in hours]
    assert [table.num_rows for table in results] == [30, 30, 30]
    for table in results:
        order: list[Any] = [(name, "ascending") for name in ("timestamp", "partition", "offset")]
        assert table.equals(table.sort_by(order))
        assert set(table["kind"].to_pylist()) == {"B"}
    assert {number for table in results for number in table["id"].to_pylist()} == {*range(90)}


def test_a_bad_value_fails_the_job_with_its_place(
    bootstrap: str,
    topic: MakeTopic,
    produce: Produce,
    group_id: str,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """By the error's own name, from a task; kept, it is a row as the others."""
    name = topic()
    produce([(name, 0, None, value, 1_000, []) for value in (order(0), b"\x02", order(2))])
    windows = OrderedWindows(bootstrap, group_id)
    with pytest.raises(DecodeError) as failure:
        windows.run(window(name), tmp_path / "lake", spark=spark)
    assert f"{name}[0] at offset 1: the value cannot be decoded" in str(failure.value)
    assert not failure.value.retriable
    table = windows.run(window(name, on_bad="keep"), tmp_path / "lake", spark=spark).to_arrow()
    assert table["value_raw"].to_pylist() == [None, b"\x02", None]


def test_types_that_spark_lacks_are_named_before_anything_runs(
    bootstrap: str, topic: MakeTopic, produce: Produce, group_id: str, spark: SparkSession
) -> None:
    """With the column."""
    name = topic()
    produce([(name, 0, None, b"{}", 1_000, [])])
    values = Json(pa.schema([("huge", pa.decimal256(50, 0))]))
    windows = OrderedWindows(bootstrap, group_id)
    plan = windows.plan(window(name, values=values))
    with pytest.raises(ConfigError, match="value: huge: decimals of files and of Spark"):
        read_windows(spark, [plan], settings_of(bootstrap))
