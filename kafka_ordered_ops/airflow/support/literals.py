"""Parameters that are known when a DAG's file is parsed: an invalid one is an import error of the DAG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeVar

from kafka_ordered_ops.core.arguments import check_choice

_Choice = TypeVar("_Choice", bound=StrEnum)

#: How Jinja's expressions, statements and comments begin.
_JINJA = ("{{", "{%", "{#")


def is_literal(value: Any) -> bool:
    """Return whether a parameter is its own value: neither a template nor another task's result."""
    if isinstance(value, str):
        return not any(mark in value for mark in _JINJA)
    if isinstance(value, Mapping):
        return all(is_literal(one) for pair in value.items() for one in pair)
    if isinstance(value, Sequence | set | frozenset):
        return all(map(is_literal, value))
    # An output of another task, or a placeholder of one.
    return not hasattr(value, "resolve")


def choice_or_template(value: Any, kind: type[_Choice], what: str) -> Any:
    """Return the member of an enumeration, or a template unchanged; raise `ConfigError` for any other value."""
    return check_choice(value, kind, what=what) if is_literal(value) else value
