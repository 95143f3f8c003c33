"""Workers that run another Python than the driver: a named error with both of them, and what to set."""

from __future__ import annotations

import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from kafka_ordered_ops import ConfigError
from kafka_ordered_ops.embedded import java_home_for_spark
from kafka_ordered_ops.spark.failures import named_error

_TIMEOUT_S = 560.0

TRACE = """[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: Traceback (most recent call last):
  File "/opt/python3.12/lib/python3.12/site-packages/kafka_ordered_ops/spark/source.py", line 15, in <module>
    import pyarrow as pa
{}
 SQLSTATE: 38000"""


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than that in "
            "driver: 3.11, PySpark cannot run with different minor versions.",
            r"version 3\.12, but the driver's is 3\.11",
        ),
        (
            'java.io.IOException: Cannot run program "/opt/python3.12": error=2, No such file or directory',
            r"Python /opt/python3\.12 cannot be started: No such file",
        ),
        (
            'java.io.IOException: Cannot run program "python3" (in directory "/work"): error=13, Permission denied',
            r"Python python3 cannot be started: Permission denied",
        ),
        (
            TRACE.format("ModuleNotFoundError: No module named 'pyarrow'"),
            "Python 3.12 has no module pyarrow",
        ),
        (
            TRACE.format("ModuleNotFoundError: No module named 'kafka_ordered_ops.spark'"),
            "has no module kafka_ordered_ops.spark",
        ),
        (
            "[PACKAGE_NOT_INSTALLED] PyArrow >= 18.0.0 must be installed; however, it was not found.",
            "has no usable PyArrow: it was not found",
        ),
        (
            "\nError from python worker:\n  /usr/bin/python2: No module named pyspark.daemon\nPYTHONPATH was:\n /x",
            "cannot run Spark's worker: /usr/bin/python2: No module named pyspark.daemon",
        ),
    ],
)
def test_what_spark_says_of_its_workers_is_named(said: str, words: str) -> None:
    """Whichever exception of Spark's carries it."""
    found = named_error(RuntimeError(f"Job aborted due to stage failure: {said}"))
    assert isinstance(found, ConfigError)
    assert re.search(words, str(found))
    assert "PYSPARK_PYTHON" in str(found)
    assert sys.executable in str(found)


@pytest.mark.parametrize(
    "said",
    [
        "ModuleNotFoundError: No module named 'my_lookup'",
        'Cannot run program "gzip": error=2, No such file or directory',
        "No module named 'pyarrow'",
    ],
)
def test_other_failures_are_the_jobs_own(said: str) -> None:
    """What a job lacks, or fails to start, is not the workers' Python."""
    assert named_error(RuntimeError(said)) is None


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["missing", "bare"])
def test_a_read_with_wrong_workers_is_named(tmp_path: Path, kind: str) -> None:
    """On a real Spark: an interpreter that is not there, and one without this package's libraries."""
    python = tmp_path / "bin" / "python"
    if kind == "bare":
        venv.create(tmp_path, with_pip=False)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.support.worker_python_script",
            str(python),
            str(java_home_for_spark()),
        ],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.startswith("ConfigError the workers' Python"), done.stderr[-2_000:]
    assert str(python) in done.stdout
    assert "PYSPARK_PYTHON" in done.stdout
