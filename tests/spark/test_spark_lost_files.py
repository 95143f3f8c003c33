"""A real Spark whose tasks' files are not where the driver looks: nothing is ever complete without them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from kafka_ordered_ops import SinkError, StagedOutput, WindowPlan
from kafka_ordered_ops.spark import write_window, write_windows
from tests.support.spark_support import plan_of, spark
from tests.support.stages import stages_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["spark"]  # a fixture

pytestmark = pytest.mark.spark

ROWS = 1_000
#: Three JVMs start one after the other, and one of the machine's two cores may be busy.
_TIMEOUT_S = 850.0
_WAIT_S = 60.0

Write = Callable[["DataFrame", Path, list[WindowPlan]], list[StagedOutput]]


def _write_one(frame: DataFrame, root: Path, plans: list[WindowPlan]) -> list[StagedOutput]:
    return [write_window(frame.where("window_id = 'w0'"), root, plans[0], ordered=False)]


def _write_many(frame: DataFrame, root: Path, plans: list[WindowPlan]) -> list[StagedOutput]:
    return write_windows(frame, root, plans, ordered=False)


def rows(spark: SparkSession) -> DataFrame:
    """Rows of two windows, in two tasks."""
    frame = spark.range(0, ROWS, numPartitions=2)
    return frame.selectExpr("id", "concat('w', id % 2) AS window_id")


def losing(spark: SparkSession, root: Path, aside: Path) -> DataFrame:
    """Two tasks' rows; the second task takes away what the first one has written and reported."""

    def take_away(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows and batch.column("id")[-1].as_py() == ROWS - 1:
                deadline = time.monotonic() + _WAIT_S
                while not (written := [*stages_of(root).glob("*/*/_temporary/0/task_*")]):
                    if time.monotonic() > deadline:
                        raise TimeoutError("the first task has written nothing")
                    time.sleep(0.01)
                written[0].rename(aside)
            yield batch

    frame = rows(spark)
    return frame.mapInArrow(take_away, frame.schema)


@pytest.mark.parametrize("write", [_write_one, _write_many], ids=["one", "many"])
def test_files_that_a_task_has_reported_and_nobody_finds(
    spark: SparkSession, tmp_path: Path, write: Write
) -> None:
    """The job ends well with half of the rows: the error has both numbers, and nothing is left behind."""
    root, aside = tmp_path / "output", tmp_path / "aside"
    plans = [plan_of([], window_id=f"w{n}") for n in range(2)]
    with pytest.raises(SinkError, match=r"(500|1,000) r.* hold (250|500).* mounted on each"):
        write(losing(spark, root, aside), root, plans)
    assert aside.exists()
    assert [*stages_of(root).glob("*/*")] == []
    # The same without the loss.
    shutil.rmtree(aside)
    outputs = write(rows(spark), root, plans)
    assert sum(one.facts["records"] or 0 for one in outputs) in (ROWS // 2, ROWS)


def _may_mount() -> bool:
    tried = subprocess.run(
        ["unshare", "-m", "--propagation", "private", "mount", "-t", "tmpfs", "none", "/mnt"],
        capture_output=True,
        check=False,
    )
    return tried.returncode == 0


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_executor_that_sees_another_folder(tmp_path: Path) -> None:
    """Two executors in processes of their own, one of which lacks the mount: no window is complete."""
    if not (shutil.which("unshare") and _may_mount()):
        pytest.skip("mounting in a name space of one's own is not permitted here")
    java = os.environ.get("JAVA_HOME")
    if java is None:
        from kafka_ordered_ops.embedded import java_home_for_spark

        java = str(java_home_for_spark())
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.split_folder_script", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
        env={
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "JAVA_HOME": java,
        },
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    for told in seen["told"].values():
        assert "1,000 r" in told
        assert "mounted on each" in told
    assert seen["left"] == []
