"""Functions of the user's, before they are called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from kafka_ordered_ops.core.errors import ConfigError


def check_does_work(function: Callable[..., Any]) -> None:
    """Raises `ConfigError` for what does nothing when it is called: its window would be committed all the same."""
    for check, kind in (
        (inspect.iscoroutinefunction, "an async function"),
        (inspect.isgeneratorfunction, "a generator"),
        (inspect.isasyncgenfunction, "a generator"),
    ):
        if check(function):
            name = getattr(function, "__qualname__", repr(function))
            raise ConfigError(
                f"{name} is {kind}: calling it does no work, and its window would be committed. Make it a plain "
                "function"
            )
