"""Spark writes windows to HDFS by its own Hadoop client, and this package publishes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kafka_ordered_ops.testing import InMemoryKafka
from tests.spark.test_spark_objects import plans, run
from tests.support.hdfs_support import globbed_rows, hdfs, staged_names

pytestmark = [pytest.mark.spark, pytest.mark.long]

_BASE_MS = 1_700_000_000_000


@pytest.mark.timeout(1_800)
def test_spark_writes_windows_to_hdfs(tmp_path: Path) -> None:
    """One window, several in a job, and a split one; after a driver that was killed when Spark had written all."""
    with hdfs(tmp_path / "hdfs") as address, InMemoryKafka() as kafka:
        root = f"{address}/lake/orders"
        kafka.create_topic("orders")
        for number in range(100):
            kafka.produce("orders", value=b"v", timestamp_ms=_BASE_MS + number)
        conf = {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
        }
        task = {"root": root, "options": None, "conf": conf, "plans": plans(kafka), "die": True}
        died = run(tmp_path, task)
        assert died.returncode == -9, died.stderr[-3_000:]
        assert [one for one in staged_names(root) if one.endswith(".parquet")]
        assert globbed_rows(root) == []
        done = run(tmp_path, {**task, "die": False})
        assert done.returncode == 0, done.stderr[-5_000:]
        told = json.loads(done.stdout.strip().splitlines()[-1])
        assert told == {
            "before": 0,
            "counts": {"one": 1_000, "two": 400, "three": 600, "four": 1_000},
            "records": [1_000, 400, 600, 1_000],
            "distinct": 3_000,
        }
        assert sorted(globbed_rows(root)) == sorted([*range(1_000)] * 3)
        assert staged_names(root) == []
