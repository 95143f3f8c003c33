"""Explain Spark's errors about Python workers that cannot run this package."""

from __future__ import annotations

import re
import sys
from typing import Any, Final

from kafka_ordered_ops.core.errors import ConfigError

#: Spark's own message.
_OTHER_VERSION: Final = re.compile(
    r"Python in worker has different version: (\S+?),? than that in driver:? (\d[\d.]*\d)"
)
_NO_PROGRAM: Final = re.compile(
    r'Cannot run program "([^"]*python[^"]*)"[^\n]*?error=\d+, ([^\n]+)'
)
#: A module that this package needs, missing in another process.
_NO_MODULE: Final = re.compile(
    r"ModuleNotFoundError: No module named '((?:kafka_ordered_ops|confluent_kafka|msgspec|pyarrow|numpy|sortedcontainers|zstandard)"
    r"[\w.]*)'"
)
_NO_PACKAGE: Final = re.compile(
    r"\b(PyArrow|pyarrow|NumPy|numpy|Pandas|pandas) >= \S+ must be installed; however, ([^\n.]*)"
)
_DEAD: Final = re.compile(
    r"Error from python worker:\s*(.+?)(?=\n(?:PYTHONPATH|org\.|java\.|\s+at )|\Z)", re.DOTALL
)
#: The place of a module in the workers' Python.
_LIBRARY: Final = re.compile(r"/python(\d+\.\d+)/")

_SETTING: Final = (
    "Executors and driver need the same minor version of Python with kafka-ordered-ops[spark] installed: set "
    "PYSPARK_PYTHON (or spark.pyspark.python with spark-submit) to such an interpreter before Spark starts"
)


def wrong_python(text: str) -> ConfigError | None:
    """Return the error for a text of Spark about the workers' Python; None for any other text."""
    if match := _OTHER_VERSION.search(text):
        worker, driver = match.groups()
        why = f"the workers' Python is version {worker}, but the driver's is {driver}"
    elif match := _NO_PROGRAM.search(text):
        program, said = match.groups()
        why = f"the workers' Python {program} cannot be started: {said.strip()}"
    elif match := _NO_MODULE.search(text):
        why = f"the workers' Python{_version(text)} has no module {match[1]}"
    elif match := _NO_PACKAGE.search(text):
        why = f"the workers' Python{_version(text)} has no usable {match[1]}: {match[2].strip()}"
    elif match := _DEAD.search(text):
        why = f"the workers' Python cannot run Spark's worker: {match[1].strip().splitlines()[-1]}"
    else:
        return None
    return ConfigError(
        f"{why}. The workers' is {_workers()}; the driver's is {_driver()}. {_SETTING}"
    )


def _version(text: str) -> str:
    versions = _LIBRARY.findall(text)
    return f" {versions[-1]}" if versions else ""


def _driver() -> str:
    return f"{sys.executable} ({sys.version_info.major}.{sys.version_info.minor})"


def _workers() -> str:
    """Return the Python program of Spark's workers, without importing pyspark."""
    pyspark: Any = sys.modules.get("pyspark")
    context = getattr(getattr(pyspark, "SparkContext", None), "_active_spark_context", None)
    program = getattr(context, "pythonExec", None)
    return f"{program}" if program else "the cluster's own choice"
