"""Unknown parameters of an operator: the error lists each, with the parameter that was probably meant."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from kafka_ordered_ops.delivery.arguments import check_names


class NamedParameters:
    """Checks parameter names before Airflow, which reports a misspelled required parameter only as missing."""

    def __new__(cls, *_: Any, **parameters: Any) -> Any:
        """Raise `ConfigError` for an unknown name if a required parameter is missing."""
        required = {
            name
            for name, parameter in _parameters(cls)
            if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
        }
        if required - parameters.keys() and "default_args" not in parameters:
            check_parameters(cls, parameters)
        return super().__new__(cls)


def check_parameters(task: Any, parameters: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for parameters that neither the task's class nor Airflow's classes have.

    Args:
        task: an operator under construction, or its class.
        parameters: the arguments left for Airflow's classes.
    """
    kind = task if isinstance(task, type) else type(task)
    known = {name for name, _ in _parameters(kind)}
    # Airflow's own parameters begin with an underscore.
    names = [name for name in parameters if not name.startswith("_")]
    check_names(getattr(task, "custom_operator_name", kind.__name__), names, known)


def _parameters(task_kind: type) -> Iterator[tuple[str, inspect.Parameter]]:
    """Yield the parameters of a class and its base classes."""
    for kind in task_kind.__mro__:
        if "__init__" in vars(kind):
            yield from inspect.signature(vars(kind)["__init__"]).parameters.items()
