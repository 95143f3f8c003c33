"""A Spark application that holds between reading and writing, and says how it has ended.

Usage: held_orders.py BOOTSTRAP GROUP WINDOW_ID ATTEMPT OUTPUT SIGNALS NAME
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

from kafka_ordered_ops.spark import planned_window, read_window, write_window

#: It goes on when nobody lets it go: it would outlive the test.
HELD_S = 200.0


def main(
    bootstrap: str,
    group_id: str,
    window_id: str,
    attempt: str,
    output: str,
    signals: str,
    name: str,
) -> None:
    """As the example's application, with a wait in the middle."""
    settings = {"bootstrap.servers": bootstrap}
    spark = SparkSession.builder.getOrCreate()
    plan, client = planned_window(settings, group_id, window_id, attempt=int(attempt))
    records = read_window(spark, plan, client, ordered=True)
    folder = Path(signals)
    _say(folder / f"{name}.ready", str(os.getpid()))
    deadline = time.monotonic() + HELD_S
    while not (folder / f"{name}.go").exists():
        if time.monotonic() > deadline:
            raise TimeoutError("nobody let it go on")
        time.sleep(0.05)
    try:
        write_window(records, output, plan)
    except BaseException as error:
        _say(folder / f"{name}.ended", f"{type(error).__name__}: {error}")
        raise
    _say(folder / f"{name}.ended", "written")
    spark.stop()


def _say(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f"{file.name}-{os.getpid()}")
    new.write_text(text)
    new.rename(file)


if __name__ == "__main__":
    main(*sys.argv[1:])
