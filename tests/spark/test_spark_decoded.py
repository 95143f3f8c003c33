"""Values that Spark's tasks decode, with the types that Spark has."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from kafka_ordered_ops import Copy, Folder, OrderedWindows, Window, WindowPlan
from kafka_ordered_ops.decoding import Json, Protobuf
from kafka_ordered_ops.decoding.discarded import discarded_in
from kafka_ordered_ops.delivery.host import Host, Stop
from kafka_ordered_ops.delivery.job import WindowJob
from kafka_ordered_ops.delivery.open_windows import OpenWindows
from kafka_ordered_ops.output.writing.reported import result_facts
from kafka_ordered_ops.testing import InMemoryKafka
from kafka_ordered_ops.windows import Staged
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


@pytest.mark.slow
@pytest.mark.parametrize("ordered", [True, False])
def test_fields_that_are_left_out_are_counted(
    spark: SparkSession, tmp_path: Path, ordered: bool
) -> None:
    """In the written files, of one window and of several at once; no column has the counts."""
    with InMemoryKafka() as kafka, OrderedWindows(kafka.settings, group_id="g") as windows:
        kafka.create_topic("orders", partitions=2)
        for number in range(40):
            # The first window does not have the field.
            is_new = number > 3 and number % 4
            value = {"id": number, "new": 1} if is_new else {"id": number}
            at_ms = number * 3_600_000
            kafka.produce(
                "orders", partition=number % 2, timestamp_ms=at_ms, value=json.dumps(value).encode()
            )
        values = Json(infer="discard")
        first, second, third, fourth = (
            Window("orders", f"1970-01-{cutoff}Z", "earliest", values=values)
            for cutoff in ("01T04:00", "01T10:00", "01T20:00", "03T00:00")
        )
        copy = Copy("python", ordered=ordered)
        assert windows.run(first, tmp_path).discarded == 0
        result = windows.run(second, tmp_path, job=copy, spark=spark)
        assert (result.records, result.discarded) == (6, 4)
        assert result.discarded_fields == {"value.new": 4}
        work = WindowJob(job=copy, to=Folder(str(tmp_path)), spark=spark)

        def write(plans: Sequence[WindowPlan]) -> Sequence[Staged]:
            host = Host(Stop("the test"), "", print)
            return work.deliver(
                OpenWindows(
                    plans, windows.settings, work.to, host, engine=work.engine, ordered=ordered
                )
            )

        plans = windows.plan_many([third, fourth])
        done = windows.deliver_many(plans, write, lambda _: None)
        counted = [discarded_in(result_facts(one.record.result)) for one in done]
        assert counted == [
            {"discarded": count, "discarded_fields": {"value.new": count}} for count in (8, 15)
        ]
        for file in tmp_path.rglob("*.parquet"):
            assert "_koo_discarded" not in pq.read_schema(file).names
