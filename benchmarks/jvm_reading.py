"""Kafka's own measure of a Java consumer: ``ConsumerPerformance`` counts records, and keeps none of them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.values import Outcome, Place, Work
from kafka_ordered_ops.embedded import find_java
from kafka_ordered_ops.embedded.jars import KAFKA_VERSION, class_path, listed_jars

#: Kafka's tools are no dependency of the broker; all that they need is.
TOOLS: Final = Path(__file__).with_name("kafka_tools.sha256")

#: The heap is that of Kafka's own script. The tool writes numbers as its country does.
_JVM: Final = ("-Xmx512m", "-Duser.language=en", "-Duser.country=US")
_MAIN: Final = "org.apache.kafka.tools.ConsumerPerformance"
_TIMEOUT_S: Final = 600.0

_TUNED: Final = (
    *("--fetch-size", str(8 * 1024**2)),
    *("--socket-buffer-size", str(8 * 1024**2)),
    *("--command-property", f"fetch.max.bytes={128 * 1024**2}"),
    *("--command-property", "max.poll.records=10000"),
)


@dataclass(frozen=True)
class JvmRead:
    """Runs the tool once. Its seconds are its own count, from its subscription to its last record."""

    topic: str
    records: int
    tuned: bool

    def start(self, place: Place) -> Work:
        """Finds Java and the jars."""
        jars = [*class_path(), *listed_jars(TOOLS, f"kafka-tools-{KAFKA_VERSION}")]
        java = [str(find_java().executable), *_JVM, "-cp", os.pathsep.join(map(str, jars))]

        def run(_: int) -> Outcome:
            return _outcome([*java, _MAIN, *self._arguments(place)])

        return Work(run)

    def _arguments(self, place: Place) -> list[str]:
        return [
            *("--bootstrap-server", place.bootstrap),
            *("--topic", self.topic),
            *("--num-records", str(self.records)),
            "--hide-header",
            *(_TUNED if self.tuned else ()),
        ]


def _outcome(command: Sequence[str]) -> Outcome:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=_TIMEOUT_S, check=True
    )
    *_, line = done.stdout.splitlines()
    # start, end, MB, MB/s, records, records/s, ms until it had its partitions, ms after that, and their rates
    fields = [field.strip() for field in line.split(",")]
    records, per_s, fetch_ms = int(fields[4]), float(fields[5]), int(fields[7])
    return Outcome(seconds=records / per_s, records=records, beyond_s={"fetch": fetch_ms / 1000})
