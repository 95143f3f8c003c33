"""Finds our own error in what Spark reports of a failed task."""

from __future__ import annotations

import re
from typing import Final

from kafka_ordered_ops.core import errors
from kafka_ordered_ops.core.errors import KafkaOrderedOpsError

#: How Python prints an error of this package at the end of a traceback; Spark passes on that text only. The
#: message ends where Spark or the JVM goes on.
_NAMED: Final = re.compile(
    rf"^{re.escape(errors.__name__)}\.(\w+): (.*?)(?=\n\s*SQLSTATE:|\n\s+at |\n\nDriver stacktrace|\n*\Z)",
    re.MULTILINE | re.DOTALL,
)


def named_error(error: BaseException) -> KafkaOrderedOpsError | None:
    """The error of this package that made a Spark job fail, if one did.

    What a task raises reaches the driver as text inside an error of Spark's. The result has the type (and
    so `retriable`) and the message; the facts stayed in the task.
    """
    found = _NAMED.findall(str(error))
    for name, message in reversed(found):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, KafkaOrderedOpsError):
            return kind(message.strip())
    return None
