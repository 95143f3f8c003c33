"""What the numbers depend on besides the code: said with every table."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import confluent_kafka

from benchmarks.peers import Peer
from benchmarks.sessions import DRIVER_MEMORY, SPARK_VERSION
from kafka_ordered_ops.embedded import find_java
from kafka_ordered_ops.embedded.jars import KAFKA_VERSION

_JAVA_TIMEOUT_S = 60.0


def environment() -> dict[str, str]:
    """Names and values, in the order in which they are shown; nothing that names a machine or a folder."""
    return {
        "cores": f"{os.cpu_count()} ({_processor()})",
        "memory": f"{_memory_gib():.0f} GiB",
        "system": f"{platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
        "Java": _java(),
        "Spark": f"{version('pyspark')}, local[*], {DRIVER_MEMORY} heap",
        "Kafka connector": f"spark-sql-kafka-0-10_2.13 {SPARK_VERSION}",
        "broker": f"Apache Kafka {KAFKA_VERSION}, one node on the same cores",
        "confluent-kafka": f"{version('confluent-kafka')} (librdkafka {confluent_kafka.libversion()[0]})",
        "pyarrow": version("pyarrow"),
        **_peers(),
        "kafka-ordered-ops": version("kafka-ordered-ops"),
    }


def _peers() -> dict[str, str]:
    """Those that are installed: only comparisons of ordered reads need them."""
    found = {}
    for peer in Peer:
        with suppress(PackageNotFoundError):
            found[peer.value] = version(peer)
    return found


def _processor() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    except FileNotFoundError:
        found = None
    return found.group(1) if found else platform.processor() or platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3


def _java() -> str:
    done = subprocess.run(
        [find_java().executable, "-version"],
        capture_output=True,
        text=True,
        timeout=_JAVA_TIMEOUT_S,
        check=True,
    )
    found = re.search(r'version "([^"]+)"', done.stderr)
    return found.group(1) if found else "unknown"
