"""Measure what importing this package adds to a host's own import time.

``python -m benchmarks.imports`` in an environment that has Airflow and Dagster; prints the tables.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Final

from benchmarks.statistics import Spread
from benchmarks.tables import spread_text

ROUNDS: Final = 5

#: Seconds that the package may add to the host's own import.
LIMIT_S: Final = 2.0

_TIMEOUT_S: Final = 120.0

#: Code around the steps of a host: prints how long each step took.
_BEFORE: Final = """import sys, time
moments = [time.perf_counter()]
"""
_BETWEEN: Final = "\nmoments.append(time.perf_counter())\n"
_AFTER: Final = """
heavy = [name for name in ('pyspark', 'pyarrow', 'numpy', 'confluent_kafka') if name in sys.modules]
assert not heavy, heavy
print(*(later - sooner for sooner, later in zip(moments, moments[1:])))
"""

#: As Dagster's command line does it with every package that registers components.
_ALL_NAMES: Final = "for name in room.__all__:\n    getattr(room, name)"


@dataclass(frozen=True)
class Step:
    """One step of the imports, run after the steps before it."""

    label: str
    code: str


@dataclass(frozen=True)
class Host:
    """The imports for one host; the first step is the host itself."""

    title: str
    steps: Sequence[Step]
    #: How to read the numbers.
    note: str = ""


def hosts() -> list[Host]:
    """Return all hosts, with their installed versions."""
    airflow = Host(
        "A DAG's file in Airflow",
        [
            Step(
                f"Airflow {version('apache-airflow')}: `DAG`, `BaseOperator`, `BaseSensorOperator`",
                "from airflow.sdk import DAG, BaseOperator, BaseSensorOperator",
            ),
            Step(
                "then every name of `kafka_ordered_ops.airflow`",
                f"import kafka_ordered_ops.airflow as room\n{_ALL_NAMES}",
            ),
        ],
    )
    dagster = Host(
        "A code location in Dagster",
        [
            Step(f"Dagster {version('dagster')}: `import dagster`", "import dagster"),
            Step(
                "then `import kafka_ordered_ops.dagster`",
                "import kafka_ordered_ops.dagster as room",
            ),
            Step("then every name of `kafka_ordered_ops.dagster`", _ALL_NAMES),
        ],
        note="""
Names load on first use, so a code location pays only for the names that it uses. One asset uses nearly all of them. `dg`
looks up every name of each installed package that registers components, in every project. The rows below the first are
therefore what `dg` pays in every project once this package is installed.
""",
    )
    return [airflow, dagster]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.imports", description=__doc__)
    parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "AIRFLOW_HOME": home, "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
        measured = [(host, _rounds(host, environment)) for host in hosts()]
    print(_report(measured))


def _rounds(host: Host, environment: dict[str, str]) -> list[list[float]]:
    """Return the seconds of each step, for each round."""
    _seconds(host, environment)  # Airflow writes its configuration, and Python its caches.
    return [_seconds(host, environment) for _ in range(ROUNDS)]


def _seconds(host: Host, environment: dict[str, str]) -> list[float]:
    """Return the seconds of each step in a fresh interpreter."""
    steps = "".join(step.code + _BETWEEN for step in host.steps)
    ran = subprocess.run(
        [sys.executable, "-c", _BEFORE + steps + _AFTER],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=True,
    )
    return [float(word) for word in ran.stdout.split()[-len(host.steps) :]]


def _report(measured: Sequence[tuple[Host, list[list[float]]]]) -> str:
    beyond = [Spread.of([sum(one[1:]) for one in rounds]) for _, rounds in measured]
    met = all(one is not None and one.median <= LIMIT_S for one in beyond)
    tables = "\n".join(_table(host, rounds) for host, rounds in measured)
    return f"""# Import times

Each table is measured in {ROUNDS} fresh interpreters and shows the median, with the least and
the greatest in parentheses. Goal: at most {LIMIT_S:g} s on top of the host's own import, {"met" if met else "not met"}. The imports load neither
PySpark, PyArrow, NumPy nor the Kafka client.

{tables}
Measured on {datetime.now(UTC):%d %B %Y}: `python -m benchmarks.imports`.
"""


def _table(host: Host, rounds: list[list[float]]) -> str:
    lines = [f"## {host.title}", "", "| | seconds |", "| --- | ---: |"]
    for step, seconds in zip(host.steps, zip(*rounds, strict=True), strict=True):
        lines.append(f"| {step.label} | {spread_text(Spread.of(seconds))} |")
    return "\n".join([*lines, host.note])


if __name__ == "__main__":
    main()
