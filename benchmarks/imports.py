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
from statistics import median
from typing import Final

ROUNDS: Final = 5

#: Seconds beyond Airflow's own that a file may cost.
LIMIT_S: Final = 2.0

_TIMEOUT_S: Final = 120.0

_ALONE: Final = "from airflow.sdk import DAG, BaseOperator, BaseSensorOperator"
_WITH: Final = f"""{_ALONE}
before = time.perf_counter()
import kafka_ordered_ops.airflow as room
for name in room.__all__:
    getattr(room, name)
heavy = [name for name in ('pyspark', 'confluent_kafka') if name in sys.modules]
assert not heavy, heavy"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, and writes the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.imports", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    out: Path = parser.parse_args(arguments).out
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "AIRFLOW_HOME": home, "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
        _seconds(_WITH, environment)  # Airflow writes its configuration, and Python its caches.
        pairs = [
            (_seconds(_ALONE, environment), _seconds(_WITH, environment)) for _ in range(ROUNDS)
        ]
    (out / "imports.md").write_text(_report(pairs), encoding="utf-8")


def _seconds(code: str, environment: dict[str, str]) -> tuple[float, float]:
    """Of a fresh interpreter: seconds in all, and those after Airflow was there."""
    script = (
        "import sys, time\n"
        "started = before = time.perf_counter()\n"
        f"{code}\n"
        "now = time.perf_counter()\n"
        "print(now - started, now - before)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=True,
    )
    whole, beyond = map(float, ran.stdout.split()[-2:])
    return whole, beyond


def _report(pairs: Sequence[tuple[tuple[float, float], tuple[float, float]]]) -> str:
    alone, beyond = [one[0][0] for one in pairs], [one[1][1] for one in pairs]
    met = "yes" if median(beyond) <= LIMIT_S else "no"
    return f"""# What a DAG's file costs to parse

Made by `make bench`: fresh interpreters, {len(pairs)} of each kind in turn; the median, and the least and the greatest in
parentheses. The goal is at most {LIMIT_S:g} s beyond Airflow's own: {met}. Neither PySpark nor the Kafka client is loaded.

| | seconds |
| --- | ---: |
| Airflow {version("apache-airflow")}: `DAG`, `BaseOperator`, `BaseSensorOperator` | {_shown(alone)} |
| and then every name of `kafka_ordered_ops.airflow` | {_shown(beyond)} |

Measured on {datetime.now(UTC):%d %B %Y}: `python -m benchmarks.imports`.
"""


def _shown(seconds: Sequence[float]) -> str:
    return f"{median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"


if __name__ == "__main__":
    main()
