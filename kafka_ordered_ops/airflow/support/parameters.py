"""Unknown parameters of an operator: the error names each and the one that was probably meant."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from kafka_ordered_ops.hosting.arguments import check_names


class NamedParameters:
    """Checks parameter names before Airflow, which reports a misspelled required parameter only as missing."""

    def __new__(cls, *_: Any, **given: Any) -> Any:
        """Raise `ConfigError` for an unknown name where a required one is missing."""
        required = {
            name
            for name, one in _parameters(cls)
            if one.kind is one.KEYWORD_ONLY and one.default is one.empty
        }
        if required - given.keys() and "default_args" not in given:
            check_parameters(cls, given)
        return super().__new__(cls)


def check_parameters(task: Any, given: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for parameters that neither the task's class nor Airflow's classes have.

    Args:
        task: an operator under construction, or its class.
        given: the arguments left for Airflow's classes.
    """
    made = task if isinstance(task, type) else type(task)
    known = {name for name, _ in _parameters(made)}
    # Airflow's own have an underscore.
    names = [name for name in given if not name.startswith("_")]
    check_names(getattr(task, "custom_operator_name", made.__name__), names, known)


def _parameters(made: type) -> Iterator[tuple[str, inspect.Parameter]]:
    """Yield the parameters of a class and its base classes."""
    for kind in made.__mro__:
        if "__init__" in vars(kind):
            yield from inspect.signature(vars(kind)["__init__"]).parameters.items()
