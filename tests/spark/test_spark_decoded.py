"""Values that Spark's tasks decode, with the types that Spark has."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from kafka_ordered_ops import OrderedWindows, Window
from kafka_ordered_ops.decoding import Protobuf
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.protobuf_schemas import class_of, descriptor_of
from tests.support.spark_support import spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]  # a fixture

pytestmark = [pytest.mark.spark]

ORDERS = descriptor_of(
    """
    syntax = "proto3"; import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto";
    message Order { int64 id = 1; uint64 hash = 2; map<int32, google.protobuf.Timestamp> times = 3;
      google.protobuf.Duration took = 4; }
    """
)


@pytest.mark.slow
def test_protobuf_has_types_of_spark(spark: SparkSession) -> None:
    """Large numbers are decimals, and times are cut to microseconds."""
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders", partitions=2)
        for number in range(6):
            order = class_of(ORDERS, "Order")(id=number, hash=2**64 - 1)
            order.times[7].FromNanoseconds(1_234_567_890 + number)
            order.took.FromNanoseconds(5_000_001_999)
            payload = order.SerializeToString()
            kafka.produce("orders", partition=number % 2, timestamp_ms=number, value=payload)
        windows = OrderedWindows(kafka.settings, group_id="g")
        window = Window(
            "orders",
            cutoff="1970-01-02T00:00:00Z",
            starting_offsets="earliest",
            values=Protobuf(descriptor=ORDERS, framing="none"),
            flatten=True,
        )
        with windows.open(window, spark=spark, engine="local") as opened:
            frame = opened.read().selectExpr(
                "id", "hash", "unix_micros(times['7']) AS micros", "extract(SECOND FROM took) AS s"
            )
            rows = sorted(tuple(row) for row in frame.collect())
    assert rows == [
        (number, Decimal(2**64 - 1), 1_234_567, Decimal("5.000001")) for number in range(6)
    ]
