"""Confluent's Parallel Consumer, the Java library itself, at work for the comparison ``processing``."""

from __future__ import annotations

import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.values import Outcome, Place, Work
from benchmarks.work_records import CONCURRENCY, WorkTopic
from kafka_ordered_ops.core.processing.scheduling import Ordering
from kafka_ordered_ops.embedded import find_java

_SOURCE: Final = Path(__file__).parent / "java" / "WorkConsumer.java"
_JVM: Final = ("-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")


@dataclass(frozen=True)
class JavaSleeping:
    """Works on each record for as long as its value says; its group begins at the topic's start in each run."""

    topic: WorkTopic
    ordering: Ordering

    def start(self, place: Place) -> Work:
        """Compiles the program and starts it: one JVM does all runs, as one process of Python does."""
        from tests.support.parallel_consumer import class_path

        asked = [place.bootstrap, self.topic.name, self.ordering.upper(), CONCURRENCY]
        arguments = [str(one) for one in (*asked, self.topic.records)]
        # It ends with the end of its input, which this process's end is.
        program = subprocess.Popen(
            [find_java().executable, *_JVM, "-cp", class_path(_SOURCE), _SOURCE.stem, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        times = place.folder / "times"

        def run(_: int) -> Outcome:
            if program.stdin is None or program.stdout is None:
                raise AssertionError("both are pipes")
            program.stdin.write(f"work-{uuid.uuid4().hex} {times}\n")
            program.stdin.flush()
            if not program.stdout.readline():
                raise ChildProcessError(f"{_SOURCE.stem} ended with {program.wait()}")
            began, ended = np.fromfile(times, ">i8").reshape(2, -1).tolist()
            return self.topic.outcome(self.ordering, began, ended)

        return Work(run)
