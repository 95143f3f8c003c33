"""What a host pays for a file with this package in it: its own import, and then every name of the host's room.

``python -m benchmarks.imports`` in an environment that has Airflow and Dagster; writes ``imports.md``.
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
from pathlib import Path
from typing import Final

from benchmarks.statistics import Spread
from benchmarks.tables import spread_text

ROUNDS: Final = 5

#: Seconds beyond the host's own that a file may cost.
LIMIT_S: Final = 2.0

_TIMEOUT_S: Final = 120.0

#: Around the steps of a host: prints when each of them was done.
_BEFORE: Final = """import sys, time
moments = [time.perf_counter()]
"""
_BETWEEN: Final = "\nmoments.append(time.perf_counter())\n"
_AFTER: Final = """
heavy = [name for name in ('pyspark', 'pyarrow', 'confluent_kafka') if name in sys.modules]
assert not heavy, heavy
print(*(later - sooner for sooner, later in zip(moments, moments[1:])))
"""

#: As Dagster's command line does it with every package that registers components.
_ALL_NAMES: Final = "for name in room.__all__:\n    getattr(room, name)"


@dataclass(frozen=True)
class Step:
    """A part of what is imported, after those before it."""

    told: str
    code: str


@dataclass(frozen=True)
class Host:
    """What is imported for one host; the first step is the host's own."""

    title: str
    steps: Sequence[Step]
    #: What is to be known of the numbers.
    note: str = ""


def hosts() -> list[Host]:
    """All of them, with the versions that are installed."""
    airflow = Host(
        "A DAG's file in Airflow",
        [
            Step(
                f"Airflow {version('apache-airflow')}: `DAG`, `BaseOperator`, `BaseSensorOperator`",
                "from airflow.sdk import DAG, BaseOperator, BaseSensorOperator",
            ),
            Step(
                "and then every name of `kafka_ordered_ops.airflow`",
                f"import kafka_ordered_ops.airflow as room\n{_ALL_NAMES}",
            ),
        ],
    )
    dagster = Host(
        "A code location in Dagster",
        [
            Step(f"Dagster {version('dagster')}: `import dagster`", "import dagster"),
            Step(
                "and then `import kafka_ordered_ops.dagster`",
                "import kafka_ordered_ops.dagster as room",
            ),
            Step("and then NumPy, of which plans are made", "import numpy"),
            Step("and then every name of `kafka_ordered_ops.dagster`", _ALL_NAMES),
        ],
        note="""
Its names load when they are used, so a code location pays for those that it uses: with one asset, nearly all. `dg` looks
at every name of each installed package that registers components, in every project: all rows below the first are what it
costs to have this package installed.
""",
    )
    return [airflow, dagster]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, and writes the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.imports", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    out: Path = parser.parse_args(arguments).out
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "AIRFLOW_HOME": home, "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
        measured = [(host, _rounds(host, environment)) for host in hosts()]
    (out / "imports.md").write_text(_report(measured), encoding="utf-8")


def _rounds(host: Host, environment: dict[str, str]) -> list[list[float]]:
    """Of each round the seconds of each step."""
    _seconds(host, environment)  # Airflow writes its configuration, and Python its caches.
    return [_seconds(host, environment) for _ in range(ROUNDS)]


def _seconds(host: Host, environment: dict[str, str]) -> list[float]:
    """Of a fresh interpreter."""
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
    return f"""# What an import costs

Made by `make bench`: {ROUNDS} fresh interpreters for each table; the median, and the least and the greatest in
parentheses. The goal is at most {LIMIT_S:g} s beyond the host's own: {"yes" if met else "no"}. PySpark, PyArrow and the Kafka client
are not loaded.

{tables}
Measured on {datetime.now(UTC):%d %B %Y}: `python -m benchmarks.imports`.
"""


def _table(host: Host, rounds: list[list[float]]) -> str:
    lines = [f"## {host.title}", "", "| | seconds |", "| --- | ---: |"]
    for step, seconds in zip(host.steps, zip(*rounds, strict=True), strict=True):
        lines.append(f"| {step.told} | {spread_text(Spread.of(seconds))} |")
    return "\n".join([*lines, host.note])


if __name__ == "__main__":
    main()
