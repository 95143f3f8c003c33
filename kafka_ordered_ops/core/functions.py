"""Functions of the user's, before they are called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from kafka_ordered_ops.core.errors import ConfigError


def check_does_work(function: Callable[..., Any]) -> None:
    """Raises `ConfigError` for what does nothing when it is called: its window would be committed all the same."""
    called = function
    while isinstance(called, functools.partial):
        called = called.func
    # Of an object that can be called, what is called; a class is an object of its own kind.
    kinds = () if inspect.isclass(called) else type(called).__mro__
    own = next((vars(kind)["__call__"] for kind in kinds if "__call__" in vars(kind)), None)
    for check, kind in (
        (inspect.iscoroutinefunction, "an async function"),
        (inspect.isgeneratorfunction, "a generator"),
        (inspect.isasyncgenfunction, "a generator"),
    ):
        if check(called) or check(own):
            raise ConfigError(
                f"{name_of(function)} is {kind}: calling it does no work, and its window would be committed. Make "
                "it a plain function"
            )


def name_of(function: Callable[..., Any]) -> str:
    """What a function is called, for messages."""
    return str(getattr(function, "__qualname__", repr(function)))
