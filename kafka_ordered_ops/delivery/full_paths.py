"""Local paths of a scheduler's jobs. A relative path may lead to another place on each worker and in each attempt."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from kafka_ordered_ops.core.arguments import FILE_SETTINGS, NO_FILES, path_text, shown
from kafka_ordered_ops.core.errors import ConfigError

if TYPE_CHECKING:
    from kafka_ordered_ops.spark import SparkSubmit

#: The start of a path that is not on this machine: ``hdfs://``, ``local:``, ``https://``.
_ELSEWHERE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


def check_full_path(path: object, *, what: str) -> None:
    """Raise `ConfigError` for a relative path; leave other mistakes to the checks of the value itself."""
    text = path_text(path)
    if text is None or not text.strip() or _ELSEWHERE.match(text) or os.path.isabs(text):
        return
    raise ConfigError(
        f"{what} is the relative path {shown(text)}, which depends on the folder that the process of a task starts in: "
        "give the full path"
    )


def check_full_paths(how: SparkSubmit | None) -> None:
    """Raise `ConfigError` for a relative path among the options of spark-submit."""
    if how is None:
        return
    for name in ("py_files", "files", "archives", "jars"):
        for path in getattr(how, name):
            check_full_path(path, what=f"a path in {name} of submit")
    for name in ("program", "java_home"):
        check_full_path(getattr(how, name), what=f"{name} of submit")


def check_full_files(settings: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a relative path to a certificate, key or keytab among a client's settings."""
    for name, value in settings.items():
        if (name.endswith(".location") or name in FILE_SETTINGS) and value not in NO_FILES:
            check_full_path(value, what=name)
