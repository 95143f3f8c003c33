"""Spark and the model in memory, which no executor can reach."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kafka_ordered_ops import Earliest, Window
from kafka_ordered_ops.spark import read_window, write_window
from kafka_ordered_ops.testing import InMemoryKafka
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.spark_support import spark
from tests.support.windows_support import BASE_MS, at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]  # a fixture

pytestmark = pytest.mark.spark


@pytest.mark.slow
@pytest.mark.parametrize("ordered", [False, True])
def test_a_window_in_memory_is_read_and_written_with_spark(
    spark: SparkSession, tmp_path: Path, ordered: bool
) -> None:
    """The driver reads, whatever engine is asked for; the rest is as with a broker."""
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders", 2)
        for number, second in enumerate((0, 10, 20, 5, 30, 15)):
            kafka.produce(
                "orders", partition=number % 2, timestamp_ms=BASE_MS + second * 1000, key=b"k"
            )
        with OrderedWindows(kafka.settings, "g") as windows:
            plan = windows.plan(Window(["orders"], at(18), starting_offsets=Earliest()), "w")
            frame = read_window(spark, plan, windows.settings, ordered=ordered)
            rows = [(row.partition, row.offset) for row in frame.collect()]
            in_order = [(0, 0), (1, 1), (1, 0), (1, 2)]
            assert (rows if ordered else sorted(rows)) == (
                in_order if ordered else sorted(in_order)
            )
            staged = write_window(frame, tmp_path / "out", plan)
            windows.commit(plan, staged)
            nothing = windows.plan(Window(["orders"], at(3)), "covered")
            assert read_window(spark, nothing, windows.settings).collect() == []
        written = spark.read.parquet(staged.final_path)
        assert sorted((row.partition, row.offset) for row in written.collect()) == sorted(in_order)
