"""Parameters that are known when a DAG's file is parsed: an invalid one is an import error of the DAG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from os import PathLike
from typing import Any, TypeVar

from kafka_ordered_ops.core.arguments import check_choice, shown
from kafka_ordered_ops.core.errors import ConfigError

_Choice = TypeVar("_Choice", bound=StrEnum)

#: How Jinja's expressions, statements and comments begin.
_JINJA = ("{{", "{%", "{#")

#: How the texts of lists, tuples, sets and mappings begin.
_BRACKETS = ("[", "(", "{")


def is_literal(value: Any) -> bool:
    """Return whether a parameter is its own value: neither a template nor another task's result."""
    if isinstance(value, str):
        return not any(mark in value for mark in _JINJA)
    if isinstance(value, Mapping):
        return all(is_literal(one) for pair in value.items() for one in pair)
    if isinstance(value, Sequence | set | frozenset):
        return all(map(is_literal, value))
    # An output of another task, or a placeholder of one. A path has a method of this name, too.
    return isinstance(value, PathLike) or not hasattr(value, "resolve")


def choice_or_template(value: Any, kind: type[_Choice], what: str) -> Any:
    """Return the member of an enumeration, or a template unchanged; raise `ConfigError` for any other value."""
    return check_choice(value, kind, what=what) if is_literal(value) else value


def check_native(value: Any, what: str) -> None:
    """Raise `ConfigError` for the text of a list or mapping, which is what a template renders one to.

    Args:
        value: a rendered parameter that takes a list or a mapping, and no text that begins with a bracket.
        what: its name.
    """
    if isinstance(value, str) and value.lstrip().startswith(_BRACKETS) and is_literal(value):
        raise ConfigError(
            f"{what} is the text {shown(value)}: a template renders a list or mapping, such as one of params, to its text. "
            "Set render_template_as_native_obj=True for the DAG, and it stays what it is"
        )
