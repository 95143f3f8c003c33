"""The window of a host's task or asset: without times, which come from its runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from kafka_ordered_ops.core.arguments import as_span, shown
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.window.window import Window


def window_asked(topics: str | Sequence[str] | None, window: Window | None) -> Window:
    """Return the window for topics, or a `Window` without times.

    Raises:
        ConfigError: neither or both are passed, or `window` is not a `Window` or has times.
    """
    if window is None:
        if topics is None:
            raise ConfigError("topics is missing: give topics, or window, a Window without times")
        return Window(topics)
    if not isinstance(window, Window):
        raise ConfigError(f"window is {shown(window)}: give a Window without times")
    if topics is not None:
        raise ConfigError("topics and window are both given: a Window has the topics")
    if window.cutoff is not None or window.sweep:
        raise ConfigError(
            f"window is {window!r}: its times come from the run, or from the arguments cutoff and since. Leave them out of "
            "the Window"
        )
    return window


def span_of(value: timedelta | str | None, what: str) -> timedelta | None:
    """Return a span from an argument; raise `ConfigError` if it is invalid."""
    return None if value is None else as_span(value, what=what)
