"""Refuse outputs of a newer version of this package, instead of treating them as another program's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kafka_ordered_ops.core.errors import OutputVersionError


def check_output_version(value: Any, version: int, names: Iterable[str], what: str) -> None:
    """Raise `OutputVersionError` for stored JSON of a newer version.

    Args:
        value: the JSON. Without a version and all of the names it is another program's, and accepted.
        version: the version that this package reads.
        names: the fields of every version.
        what: the stored object and its place, for the message.
    """
    if not isinstance(value, Mapping) or not value.keys() >= {"version", *names}:
        return
    stored = value["version"]
    if type(stored) is not int or stored <= version:
        return
    raise OutputVersionError(
        f"{what} has version {stored}; this package reads version {version}. A newer version of this package wrote it. "
        "Nothing was changed: upgrade this package",
        version=stored,
        readable=version,
    )
