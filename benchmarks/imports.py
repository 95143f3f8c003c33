"""What a DAG's file costs to parse: Airflow alone, and with every name of this package's Airflow room.

``python -m benchmarks.imports`` in an environment that has Airflow; writes ``imports.md``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

from benchmarks.statistics import Spread
from benchmarks.tables import spread_text

ROUNDS: Final = 5

#: Seconds beyond Airflow's own that a file may cost.
LIMIT_S: Final = 2.0

_TIMEOUT_S: Final = 120.0

_SCRIPT: Final = """import sys, time
started = time.perf_counter()
from airflow.sdk import DAG, BaseOperator, BaseSensorOperator
there = time.perf_counter()
import kafka_ordered_ops.airflow as room
for name in room.__all__:
    getattr(room, name)
heavy = [name for name in ('pyspark', 'confluent_kafka') if name in sys.modules]
assert not heavy, heavy
print(there - started, time.perf_counter() - there)"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, and writes the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.imports", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    out: Path = parser.parse_args(arguments).out
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "AIRFLOW_HOME": home, "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
        _seconds(environment)  # Airflow writes its configuration, and Python its caches.
        measured = [_seconds(environment) for _ in range(ROUNDS)]
    (out / "imports.md").write_text(_report(measured), encoding="utf-8")


def _seconds(environment: dict[str, str]) -> tuple[float, float]:
    """Of a fresh interpreter: seconds until Airflow was there, and those from then on."""
    ran = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=True,
    )
    alone, beyond = map(float, ran.stdout.split()[-2:])
    return alone, beyond


def _report(measured: Sequence[tuple[float, float]]) -> str:
    alone, beyond = (Spread.of(column) for column in zip(*measured, strict=True))
    met = "yes" if beyond is not None and beyond.median <= LIMIT_S else "no"
    return f"""# What a DAG's file costs to parse

Made by `make bench`: {len(measured)} fresh interpreters; the median, and the least and the greatest in
parentheses. The goal is at most {LIMIT_S:g} s beyond Airflow's own: {met}. Neither PySpark nor the Kafka client is loaded.

| | seconds |
| --- | ---: |
| Airflow {version("apache-airflow")}: `DAG`, `BaseOperator`, `BaseSensorOperator` | {spread_text(alone)} |
| and then every name of `kafka_ordered_ops.airflow` | {spread_text(beyond)} |

Measured on {datetime.now(UTC):%d %B %Y}: `python -m benchmarks.imports`.
"""


if __name__ == "__main__":
    main()
