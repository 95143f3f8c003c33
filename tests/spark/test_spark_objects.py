"""Spark writes windows to S3 by its own file system, and this package publishes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kafka_ordered_ops import OrderedWindows, Window
from kafka_ordered_ops.core.times import time_at
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.objects_support import globbed_rows, s3_server, staged_names
from tests.support.spark_support import on_spark41

pytestmark = [pytest.mark.spark41, pytest.mark.long]

_JOB = Path(__file__).parents[1] / "support" / "spark_objects_job.py"
_JOB_S = 900
_BASE_MS = 1_700_000_000_000


def conf(options: dict[str, str]) -> dict[str, str]:
    """What Spark needs for S3: Hadoop's file system, the single parts of Amazon's library, and credentials."""
    from kafka_ordered_ops.embedded.jars import listed_jars

    jars = [str(one) for one in listed_jars(_JOB.with_name("s3a.sha256"), "hadoop-aws-3.4.2")]
    s3a = {
        "endpoint": options["aws_endpoint"],
        "endpoint.region": options["aws_region"],
        "access.key": options["aws_access_key_id"],
        "secret.key": options["aws_secret_access_key"],
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
    }
    return {
        "spark.jars": ",".join(jars),
        "spark.driver.extraClassPath": ":".join(jars),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        **{f"spark.hadoop.fs.s3a.{key}": value for key, value in s3a.items()},
    }


def plans(kafka: InMemoryKafka) -> dict[str, str]:
    """Four windows, the last of them split."""
    with OrderedWindows(kafka.settings, group_id="g") as windows:
        found = {}
        for number, name in enumerate(("one", "two", "three", "four"), start=1):
            window = Window(
                "orders",
                cutoff=time_at(_BASE_MS + 25 * number),
                starting_offsets="earliest" if number == 1 else None,
            )
            found[name] = windows.plan(window, name)
        for part in windows.split(found["four"], 2):
            found[f"part {part.part.index}"] = part  # type: ignore[union-attr]
        return {name: plan.to_text() for name, plan in found.items()}


def run(tmp_path: Path, task: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """The job in a process of its own."""
    (tmp_path / "task.json").write_text(json.dumps(task))
    return subprocess.run(
        [sys.executable, str(_JOB), str(tmp_path / "task.json")],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(_JOB.parents[2])},
        capture_output=True,
        text=True,
        timeout=_JOB_S,
        check=False,
    )


@pytest.mark.timeout(2 * _JOB_S)
def test_spark_writes_windows_to_s3(tmp_path: Path) -> None:
    """One window, several in a job, and a split one; after a driver that was killed when Spark had written all."""
    assert on_spark41()
    root = "s3://bucket/lake/orders"
    with s3_server() as options, InMemoryKafka() as kafka:
        kafka.create_topic("orders")
        for number in range(100):
            kafka.produce("orders", value=b"v", timestamp_ms=_BASE_MS + number)
        task = {
            "root": root,
            "options": options,
            "conf": conf(options),
            "plans": plans(kafka),
            "die": True,
        }
        died = run(tmp_path, task)
        assert died.returncode == -9, died.stderr[-3_000:]
        assert [one for one in staged_names(root, options) if one.endswith(".parquet")]
        assert globbed_rows(root, options) == []
        done = run(tmp_path, {**task, "die": False})
        assert done.returncode == 0, done.stderr[-5_000:]
        told = json.loads(done.stdout.strip().splitlines()[-1])
        assert told == {
            "before": 0,
            "counts": {"one": 1_000, "two": 400, "three": 600, "four": 1_000},
            "records": [1_000, 400, 600, 1_000],
            "distinct": 3_000,
        }
        assert sorted(globbed_rows(root, options)) == sorted([*range(1_000)] * 3)
        assert staged_names(root, options) == []
