"""A Spark with two executors, one of which sees another folder: python -m tests.support.split_folder_script FOLDER.

Prints for each way to write what became of it, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from kafka_ordered_ops import SinkError
from kafka_ordered_ops.spark import write_window, write_windows
from tests.support.spark_support import plan_of
from tests.support.stages import stages_of

ROWS = 1_000

#: Stands for `java`. Executor 1 mounts an empty folder over that of the outputs and the stages, in a name space of its own.
_JAVA = """#!/bin/sh
id= before=
for one; do [ "$before" = --executor-id ] && id=$one; before=$one; done
if [ "$id" = 1 ]; then
  exec unshare -m --propagation private sh -c 'mount -t tmpfs none "$0" && exec "$@"' '{lake}' '{java}' "$@"
fi
exec '{java}' "$@"
"""


def main(folder: Path) -> None:
    """Writes one window and two, from tasks of both executors."""
    output = folder / "lake" / "output"
    output.mkdir(parents=True)
    spark = _session(folder, output.parent)
    frame = spark.range(0, ROWS, numPartitions=8).selectExpr("id", "'w0' AS window_id")
    plans = [plan_of([], window_id=f"w{n}") for n in range(2)]
    both = frame.selectExpr("id", "concat('w', id % 2) AS window_id")
    ways: dict[str, Callable[[], Any]] = {
        "one": lambda: write_window(frame, output, plans[0], ordered=False),
        "many": lambda: write_windows(both, output, plans, ordered=False),
    }
    # Both executors must be there, or all tasks run on the one that came first.
    spark.range(0, 8, numPartitions=8).count()
    told = {name: _became(write) for name, write in ways.items()}
    left = [path.name for path in stages_of(output).glob("*/*")] + [*output.glob("window_id=*")]
    print(json.dumps({"told": told, "left": left}))
    spark.stop()


def _became(write: Callable[[], Any]) -> str:
    try:
        write()
    except SinkError as error:
        return error.message
    return "written"


def _session(folder: Path, lake: Path) -> SparkSession:
    wrapper = folder / "java" / "bin" / "java"
    wrapper.parent.mkdir(parents=True)
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java"
    wrapper.write_text(_JAVA.format(lake=lake, java=java))
    wrapper.chmod(0o755)
    conf = {
        "spark.executorEnv.JAVA_HOME": str(folder / "java"),
        "spark.executor.memory": "500m",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        "spark.locality.wait": "0s",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(folder / "local"),
    }
    # Executors work below Spark's home.
    home = folder / "home"
    home.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        (home / part.name).symlink_to(part)
    os.environ["SPARK_HOME"] = str(home)
    builder = SparkSession.builder.master("local-cluster[2,1,500]").appName("split folder")
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
