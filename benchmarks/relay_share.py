"""Kafka's own share group, by its Java client, at work beside the relay."""

from __future__ import annotations

import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.values import Outcome, Place, Work
from kafka_ordered_ops.embedded import find_java
from kafka_ordered_ops.embedded.jars import class_path

_SOURCE: Final = Path(__file__).parent / "java" / "ShareGroupLoad.java"
_JVM: Final = ("-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")


@dataclass(frozen=True)
class ShareGroup:
    """Reads and acknowledges records from a topic's start, as a new group in each run.

    Args:
        topic: what is read.
        records: how many are acknowledged.
        batch: the most records of a read.
        members: consumers; each has one read or acknowledgement at a time.
    """

    topic: str
    records: int
    batch: int
    members: int

    def start(self, place: Place) -> Work:
        """Compiles the program and starts it: one JVM does all runs."""
        from tests.support.parallel_consumer import compiled

        classes = compiled(_SOURCE, tuple(class_path()))
        # It ends with the end of its input, which this process's end is.
        program = subprocess.Popen(
            [
                *(find_java().executable, *_JVM, "-cp", classes, _SOURCE.stem),
                *(place.bootstrap, self.topic, str(self.members)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

        def run(_: int) -> Outcome:
            if program.stdin is None or program.stdout is None:
                raise AssertionError("both are pipes")
            program.stdin.write(f"share-{uuid.uuid4().hex} {self.batch} {self.records}\n")
            program.stdin.flush()
            if not (said := program.stdout.readline().split()):
                raise ChildProcessError(f"{_SOURCE.stem} ended with {program.wait()}")
            first_ns, took_ns = map(int, said)
            return Outcome(
                seconds=took_ns / 1e9,
                records=self.records,
                beyond_s={"first record": first_ns / 1e9},
            )

        return Work(run)
