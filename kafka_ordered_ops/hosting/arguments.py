"""Passing arguments on by name: public functions and operators of hosts spell out the parameters of others."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, ParamSpec, TypeVar

from kafka_ordered_ops.core.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")

#: Names in a method's locals that are not arguments.
_NO_ARGUMENTS: Final = ("self", "__class__", "kwargs")

#: Arguments without a default: their receiver reports None as an error.
_NEEDED: Final = ("topics", "group_id", "window")


def arguments(found: Mapping[str, Any], *, own: Collection[str] = ()) -> dict[str, Any]:
    """Return a function's arguments, to pass on by name; None is left out, so that the receiver's default counts.

    Args:
        found: its ``locals()``, before it has others; the content of its ``**kwargs`` is passed on as well.
        own: arguments that are not passed on.
    """
    given = {**found, **found.get("kwargs", {})}
    left_out = {*own, *_NO_ARGUMENTS}
    left_out.update(name for name in given.keys() - {*_NEEDED} if given[name] is None)
    return {name: one for name, one in given.items() if name not in left_out}


def check_names(what: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise `ConfigError` for a parameter that `what` does not have; the error names the one probably meant."""
    unknown = [name for name in given if name not in known]
    if not unknown:
        return
    named = []
    for name in unknown:
        near = difflib.get_close_matches(name, known, n=1)
        named.append(f"{name!r}{f' (did you mean {near[0]!r}?)' if near else ''}")
    raise ConfigError(f"{what} has no parameter {', '.join(named)}")


def with_known_names(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function, or an ``__init__``, that raises the `ConfigError` of `check_names` for unknown names."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        is_class = function.__name__ == "__init__"
        check_names(type(args[0]).__name__ if is_class else function.__name__, kwargs, known)
        return function(*args, **kwargs)

    return checked


def with_known_fields(kind: type[R]) -> type[R]:
    """Return a class whose constructor raises the `ConfigError` of `check_names` for unknown names."""
    kind.__init__ = with_known_names(kind.__init__)  # type: ignore[method-assign]
    return kind
