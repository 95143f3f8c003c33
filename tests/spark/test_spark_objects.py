"""Spark writes windows to S3 by its own file system, and this package publishes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafka_ordered_ops import OrderedWindows, Window
from kafka_ordered_ops.core.times import time_at
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.object_servers import versitygw
from tests.support.objects_support import globbed_rows, staged_names
from tests.support.spark_support import on_spark41

pytestmark = [pytest.mark.spark41, pytest.mark.long]

_JOB = Path(__file__).parents[1] / "support" / "spark_objects_job.py"
_JOB_S = 900
_BASE_MS = 1_700_000_000_000
_WRONG = "canary-wr0ng"


def conf() -> dict[str, str]:
    """What Spark needs for S3: Hadoop's file system, the single parts of Amazon's library, and no credentials."""
    from kafka_ordered_ops.embedded.jars import listed_jars

    jars = [str(one) for one in listed_jars(_JOB.with_name("s3a.sha256"), "hadoop-aws-3.4.2")]
    return {
        "spark.jars": ",".join(jars),
        "spark.driver.extraClassPath": ":".join(jars),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        # Everything that Spark shows of itself.
        "spark.ui.enabled": "true",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
    }


def conf_with_keys(options: dict[str, str]) -> dict[str, str]:
    """The same with credentials of the session's own, for one that is given none: a server's, or a host's."""
    s3a = {
        "endpoint": options["aws_endpoint"],
        "endpoint.region": options["aws_region"],
        "access.key": options["aws_access_key_id"],
        "secret.key": options["aws_secret_access_key"],
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
    }
    return {
        **conf(),
        "spark.ui.enabled": "false",
        "spark.eventLog.enabled": "false",
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


def check_windows_are_written(
    tmp_path: Path,
    task: dict[str, Any],
    rows: Callable[[], list[int]],
    left: Callable[[], list[str]],
) -> tuple[dict[str, Any], str]:
    """One window, several in a job, and a split one; after a driver that was killed when Spark had written all.

    Returns what else the job reports, and all that it printed.
    """
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders")
        for number in range(100):
            kafka.produce("orders", value=b"v", timestamp_ms=_BASE_MS + number)
        task = {**task, "plans": plans(kafka)}
        died = run(tmp_path, {**task, "die": True})
        assert died.returncode == -9, died.stderr[-3_000:]
        assert [one for one in left() if one.endswith(".parquet")]
        assert rows() == []
        done = run(tmp_path, {**task, "die": False})
        assert done.returncode == 0, done.stderr[-5_000:]
        told = json.loads(done.stdout.strip().splitlines()[-1])
        wanted = {
            "before": 0,
            "counts": {"one": 1_000, "two": 400, "three": 600, "four": 1_000},
            "records": [1_000, 400, 600, 1_000],
            "distinct": 3_000,
        }
        assert {name: told.pop(name) for name in wanted} == wanted
        assert sorted(rows()) == sorted([*range(1_000)] * 3)
        assert left() == []
        return told, done.stdout + done.stderr + died.stdout + died.stderr


@pytest.mark.timeout(2 * _JOB_S)
def test_spark_writes_windows_to_s3_with_the_keys_of_the_storage_options(tmp_path: Path) -> None:
    """Spark has no others, and shows them nowhere; those that the server refuses do not stay."""
    assert on_spark41()
    (events := tmp_path / "events").mkdir()
    with versitygw(tmp_path / "s3" / "files") as server:
        root, options = server.root, server.options
        logs = {"spark.eventLog.dir": f"file://{events}"}
        task = {"root": root, "options": options, "conf": {**conf(), **logs}, "wrong": _WRONG}
        told, printed = check_windows_are_written(
            tmp_path,
            task,
            lambda: globbed_rows(root, options),
            lambda: staged_names(root, options),
        )
    logged = "".join(one.read_text() for one in events.rglob("*") if one.is_file())
    # Their names are there, and Spark itself hides the values.
    for shown in (logged, told["pages"]):
        assert "fs.s3a.bucket.bucket.secret.key" in shown
    assert "403" in told["refused"], told["refused"]
    for shown in (logged, told["pages"], told["refused"], printed):
        assert options["aws_secret_access_key"] not in shown
        assert _WRONG not in shown
