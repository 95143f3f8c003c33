"""Passing arguments on by name: public functions and operators of hosts spell out the parameters of others."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, ParamSpec, TypeVar

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.window.policy import Policy
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.spec.destination import Folder
from kafka_ordered_ops.spec.jobs import Application, Function
from kafka_ordered_ops.spec.process import Process
from kafka_ordered_ops.spec.table import Table

#: Parameters, and the classes of their values.
Values = Sequence[tuple[str, type]]
#: Those of all hosts.
_VALUES: Final[Values] = (
    ("window", Window),
    ("policy", Policy),
    ("output", Folder),
    ("output", Table),
    ("job", Function),
    ("job", Application),
    ("job", Process),
)

P = ParamSpec("P")
R = TypeVar("R")

#: Names in a method's locals that are not arguments.
_NO_ARGUMENTS: Final = ("self", "__class__", "kwargs")

#: Arguments without a default: their receiver reports None as an error.
_NEEDED: Final = ("topics", "group_id", "window")


def arguments(variables: Mapping[str, Any], *, own: Collection[str] = ()) -> dict[str, Any]:
    """Return a function's arguments, to pass on by name; arguments that are `None` are left out, so that the receiver's default counts.

    Args:
        variables: its ``locals()``, before it has others; the content of its ``**kwargs`` is passed on as well.
        own: arguments that are not passed on.
    """
    values = {**variables, **variables.get("kwargs", {})}
    left_out = {*own, *_NO_ARGUMENTS}
    left_out.update(name for name in values.keys() - {*_NEEDED} if values[name] is None)
    return {name: value for name, value in values.items() if name not in left_out}


def check_names(
    what: str, names: Iterable[str], parameters: Collection[str], values: Values = _VALUES
) -> None:
    """Raise `ConfigError` for a parameter that `what` does not have, with a hint about the intended one."""
    unknown = [name for name in names if name not in parameters]
    if not unknown:
        return
    problems = [f"{name!r}{_hint(name, parameters, values)}" for name in unknown]
    raise ConfigError(f"{what} has no parameter {', '.join(problems)}")


def _hint(name: str, parameters: Collection[str], values: Values) -> str:
    """Return a hint about an unknown name: a similar parameter, or the field of a parameter's value."""
    hints = {candidate: f" (did you mean {candidate!r}?)" for candidate in parameters}
    for parameter, kind in values:
        for field in inspect.signature(kind).parameters if parameter in parameters else ():
            hints.setdefault(field, f" (give {parameter}={kind.__name__}(..., {field}=...))")
    near = difflib.get_close_matches(name, hints, n=1)
    return hints[near[0]] if near else ""


def with_known_names(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function, or an ``__init__``, that raises the `ConfigError` of `check_names` for unknown names."""
    return with_known_values()(function)


def with_known_values(*values: tuple[str, type]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return `with_known_names` for a function with further values: parameters, and the classes of their values."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(function).parameters

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            is_class = function.__name__ == "__init__"
            name = type(args[0]).__name__ if is_class else function.__name__
            check_names(name, kwargs, parameters, (*_VALUES, *values))
            return function(*args, **kwargs)

        return checked

    return decorate


def with_known_fields(kind: type[R]) -> type[R]:
    """Return a class whose constructor raises the `ConfigError` of `check_names` for unknown names."""
    kind.__init__ = with_known_names(kind.__init__)  # type: ignore[method-assign]
    return kind
