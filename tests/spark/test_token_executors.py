"""Tokens of a provider in a whole window: planned, read by Spark's executors, committed."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from kafka_ordered_ops import Earliest, Window
from kafka_ordered_ops.spark import read_windows
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.spark_support import spark
from tests.support.token_broker import token_broker
from tests.support.windows_support import BASE_MS, TIMEOUT_S, at

__all__ = ["spark"]  # a fixture

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_executors_call_the_function_themselves(spark: SparkSession, tmp_path: Path) -> None:
    """What is sent to them is its name; the driver's clients share one token."""
    calls = tmp_path / "calls"
    with token_broker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.plain})
        new = NewTopic("orders", 1, 1, config={"retention.ms": "-1"})
        admin.create_topics([new])["orders"].result(TIMEOUT_S)
        producer = Producer({"bootstrap.servers": broker.plain})
        for number in range(30):
            producer.produce("orders", b"%d" % number, partition=0, timestamp=BASE_MS + number)
        assert producer.flush(TIMEOUT_S) == 0
        settings = broker.settings(f"file {calls}")
        with OrderedWindows(settings, "hourly") as windows:
            plan = windows.plan(Window(["orders"], at(60), starting_offsets=Earliest()))
            before = calls.read_text()
            rows = read_windows(spark, [plan], settings, engine="python").collect()
            assert sorted(int(row.value) for row in rows) == list(range(30))
            assert len(calls.read_text()) > len(before)
            windows.commit(plan)
