"""Secrets among the settings of Spark, which Airflow shows among a task's rendered fields.

Airflow masks values by the names that it knows. Spark and the stores that it writes to have others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

#: As ``spark.redaction.regex`` has them, with the names of JAAS, Azure and Google.
_SECRET: Final = re.compile(
    r"secret|passw|passphrase|token|credential|access[._-]?key|account[._-]?key|private[._-]?key|api[._-]?key|jaas"
    r"|[._]sas[._]",
    re.IGNORECASE,
)


def secrets_of(spark_conf: Any, submit: Any) -> Iterator[str]:
    """Yield the secrets among rendered settings; values of other types are refused elsewhere.

    Args:
        spark_conf: Spark's settings in this process.
        submit: the options of spark-submit: a `SparkSubmit`, or its arguments.
    """
    for name in ("conf", "environment"):
        found = submit.get(name) if isinstance(submit, Mapping) else getattr(submit, name, None)
        yield from _among(found)
    yield from _among(spark_conf)


def _among(settings: Any) -> Iterator[str]:
    if isinstance(settings, Mapping):
        for name, value in settings.items():
            if isinstance(value, str) and value and _SECRET.search(str(name)):
                yield value
