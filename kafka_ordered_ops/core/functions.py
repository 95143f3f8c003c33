"""Check a user's function before it is called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from kafka_ordered_ops.core.errors import ConfigError


def check_does_work(function: Callable[..., Any], *, may_be_async: bool = False) -> None:
    """Raise `ConfigError` for async functions and generators: calling them does nothing, yet the window would commit.

    With `may_be_async`, async functions pass: the caller awaits what they return.
    """
    called = function
    while isinstance(called, functools.partial):
        called = called.func
    # For a callable object, its `__call__`; a class is called differently.
    kinds = () if inspect.isclass(called) else type(called).__mro__
    own = next((vars(kind)["__call__"] for kind in kinds if "__call__" in vars(kind)), None)
    for check, kind in (
        (inspect.iscoroutinefunction, "an async function"),
        (inspect.isgeneratorfunction, "a generator"),
        (inspect.isasyncgenfunction, "a generator"),
    ):
        if may_be_async and check is inspect.iscoroutinefunction:
            continue
        if check(called) or check(own):
            raise ConfigError(
                f"{name_of(function)} is {kind}: calling it does no work, and its window would be committed. Make "
                f"it a plain function{' or an async one' if may_be_async else ''}"
            )


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function for messages."""
    return str(getattr(function, "__qualname__", repr(function)))
