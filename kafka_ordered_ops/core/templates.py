"""Parts of values that a scheduler fills in when a task runs: they are checked then."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from os import PathLike
from typing import Any, Final

from kafka_ordered_ops.core.errors import ConfigError

#: How Jinja's expressions, statements and comments begin.
_TEMPLATE: Final = re.compile(r"\{[{%#]")


def is_literal(value: Any) -> bool:
    """Return whether a parameter is its own value: neither a template nor another task's result."""
    if isinstance(value, str):
        return _TEMPLATE.search(value) is None
    if isinstance(value, Mapping):
        return all(is_literal(item) for pair in value.items() for item in pair)
    if isinstance(value, Sequence | set | frozenset):
        return all(map(is_literal, value))
    # Another task's result, or a placeholder of it. A path has a `resolve` method as well.
    return isinstance(value, PathLike) or not hasattr(value, "resolve")


def if_literal(value: Any, check: Callable[[Any], Any]) -> Any:
    """Return the checked value; a template, or a value that contains one, unchanged."""
    return check(value) if is_literal(value) else value


def is_known(value: Any) -> bool:
    """Return whether no field of a dataclass is a template; for any other value, the same as `is_literal`."""
    if is_dataclass(value):
        return all(is_known(getattr(value, field.name)) for field in fields(value))
    return is_literal(value)


def check_rendered(value: Any, what: str) -> None:
    """Raise `ConfigError` for a value with a field that is still a template: only a scheduler fills it in."""
    for field in fields(value):
        if not is_literal(field_value := getattr(value, field.name)):
            raise ConfigError(
                f"{field.name} of {what} is {str(field_value)!r:.200}, a template: only tasks of Airflow fill in templates. Give the value"
            )
