"""An asset of windows and its tests, without a broker: python -m pytest test_orders_asset.py."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import dagster as dg
from kafka_ordered_ops import Window
from kafka_ordered_ops.dagster import AssetWindows, KafkaResource, ordered_window_asset
from kafka_ordered_ops.testing import InMemoryKafka


# [start asset]
@ordered_window_asset(
    key="orders",
    window=Window(["orders"], starting_offsets="earliest"),
    group_id="lake-orders",
    partitions_def=dg.HourlyPartitionsDefinition("2025-11-20-00:00"),
)
def orders(
    context: dg.AssetExecutionContext,
    windows: AssetWindows,
    lake: dg.ResourceParam[str],
) -> None:
    windows.copy(lake)


# [start tests]
NOON = datetime(2025, 11, 20, 12, tzinfo=UTC)
HOURS = ["2025-11-20-11:00", "2025-11-20-12:00"]


@pytest.fixture
def kafka() -> Iterator[InMemoryKafka]:
    """A cluster of this test's own, with records of two hours, and one behind them."""
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders")
        for minute in (-55, 5, -20, 30, 61):
            kafka.produce(
                "orders", timestamp_ms=int(NOON.timestamp() * 1000) + minute * 60_000
            )
        yield kafka


def materialize(
    kafka: InMemoryKafka, lake: Path, hour: str
) -> dict[str, dg.MetadataValue]:
    """Materialize one hour, and return its metadata."""
    resources = {"kafka": KafkaResource(config=dict(kafka.settings)), "lake": str(lake)}
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize(
            [orders], instance=instance, resources=resources, partition_key=hour
        )
    [event] = result.get_asset_materialization_events()
    return dict(event.materialization.metadata)


def test_each_hour_has_its_own_records(kafka: InMemoryKafka, tmp_path: Path) -> None:
    """In order of time, also the record written after one of the next hour."""
    for hour in reversed(HOURS):
        told = materialize(kafka, tmp_path, hour)
        assert told["dagster/partition_row_count"].value == 2
    times = pq.read_table(told["dagster/uri"].value)["timestamp"].to_pylist()
    assert [time.minute for time in times] == [5, 40]


def test_again_it_is_the_same_hour(kafka: InMemoryKafka, tmp_path: Path) -> None:
    """What came later is not in it."""
    materialize(kafka, tmp_path, HOURS[0])
    kafka.produce("orders", timestamp_ms=int(NOON.timestamp() * 1000) - 1)
    told = materialize(kafka, tmp_path, HOURS[0])
    assert told["dagster/partition_row_count"].value == 2


# [end tests]
