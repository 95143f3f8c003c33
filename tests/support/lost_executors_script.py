"""Run a window on two executors, and kill one in each pass: lost_executors_script BOOTSTRAP GROUP TOPIC BAD CUTOFF FOLDER."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from kafka_ordered_ops import Earliest, OrderedWindows, Window
from kafka_ordered_ops.spark.read import bad_records
from tests.support.cluster import ancestor

#: The task's own function, which this one stands for.
_BAD_ROWS = bad_records._bad_rows


def kill_once(name: str) -> None:
    """The executor of this task dies, if none has died in this pass yet."""
    try:
        (Path(os.environ["KILLED"]) / name).touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(ancestor(os.getpid(), "CoarseGrainedExecutorBackend"), signal.SIGKILL)


def finds(*arguments: Any) -> Iterator[Any]:
    """Finds bad records; once, the executor dies when it has found some."""
    for batch in _BAD_ROWS(*arguments):
        kill_once("finds")
        yield batch


def passes(batches: Iterator[Any]) -> Iterator[Any]:
    """Passes rows on; once, the executor dies when it has passed some."""
    for batch in batches:
        yield batch
        kill_once("job")


def main(bootstrap: str, group: str, topic: str, bad: str, cutoff: str, folder: str) -> None:
    """Delivers the window to a folder."""
    from pyspark.sql import SparkSession

    killed = Path(folder) / "killed"
    killed.mkdir()
    conf = {
        "spark.executorEnv.KILLED": str(killed),
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", os.getcwd()),
        "spark.executor.memory": "500m",
        "spark.speculation": "true",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": f"{folder}/local",
    }
    builder = SparkSession.builder.master("local-cluster[2,1,500]").appName("lost executors")
    for key, value in conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()

    # By its module's name, so that executors import it.
    from tests.support import lost_executors_script

    setattr(bad_records, "_bad_rows", lost_executors_script.finds)  # noqa: B010
    window = Window(
        [topic],
        datetime.fromisoformat(cutoff),
        starting_offsets=Earliest(),
        values="json:id int64",
        keys="json:id int64",
        on_bad=f"dead_letter:{bad}",
    )

    def job(opened: Any) -> None:
        frame = opened.read()
        opened.write(frame.mapInArrow(lost_executors_script.passes, frame.schema))

    OrderedWindows({"bootstrap.servers": bootstrap}, group).run(
        window, f"{folder}/lake", job=job, spark=spark, window_id="w"
    )
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
