"""A Spark application that copies its window, and has its driver, its JVM or the task that submitted it killed once.

Usage: killed_copy.py SIGNALS HOUR
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kafka_ordered_ops.output.writing.draft import Draft
from tests.support.host_kills import kill_once
from tests.support.sessions import Process

if TYPE_CHECKING:
    import pyarrow as pa

#: By the hour of the window.
VICTIMS = {0: "driver", 1: "jvm", 2: "task"}


def main(signals: str, hour: str) -> None:
    """Copy the window; the driver dies once all is written, the JVM and the task while it is."""
    # A host's definitions have this file's name, and no use for Spark.
    from pyspark.sql import SparkSession

    from kafka_ordered_ops import current_window

    folder, number = Path(signals), int(hour)
    window = current_window(SparkSession.builder.getOrCreate())
    frame = window.read()
    jvm = parent(os.getpid())
    victims = {"driver": os.getpid(), "jvm": jvm, "task": parent(jvm)}
    victim = VICTIMS[number]
    kill = partial(kill_once, folder, number, victim=victim, pid=victims[victim])
    if victim == "driver":
        seal = Draft.seal

        def dying(draft, *arguments):  # type: ignore[no-untyped-def]
            kill()
            return seal(draft, *arguments)

        Draft.seal = dying  # type: ignore[method-assign]
        window.write(frame)
        return

    def killing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kill()
        yield from batches

    window.write(frame.mapInArrow(killing, frame.schema))


def parent(pid: int) -> int:
    """Return the process that has started this one."""
    found = Process.of(pid)
    assert found is not None
    return found.parent


if __name__ == "__main__":
    main(*sys.argv[1:])
