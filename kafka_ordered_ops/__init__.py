"""Exact, ordered windows of Kafka records for scheduled jobs.

::

    windows = OrderedWindows("localhost:9092", group_id="orders-hourly")
    windows.run(Window("orders", cutoff=noon, starting_offsets="earliest"), output="/lake/orders")

    with windows.open(Window("orders", cutoff=noon)) as window:  # commits if the block does not raise
        table = window.to_arrow()

Names load on first use: importing the package loads neither the Kafka client nor PySpark, so a scheduler can
parse hundreds of files that use it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafka_ordered_ops.api import OpenWindow as OpenWindow
    from kafka_ordered_ops.api import OrderedWindows as OrderedWindows
    from kafka_ordered_ops.core import errors as errors
    from kafka_ordered_ops.core.errors import *  # noqa: F403 - each is a public name
    from kafka_ordered_ops.core.window.bounds import AtOffset as AtOffset
    from kafka_ordered_ops.core.window.bounds import AtTime as AtTime
    from kafka_ordered_ops.core.window.bounds import Committed as Committed
    from kafka_ordered_ops.core.window.bounds import Earliest as Earliest
    from kafka_ordered_ops.core.window.bounds import Latest as Latest
    from kafka_ordered_ops.core.window.bounds import Relative as Relative
    from kafka_ordered_ops.core.window.plan import WindowPlan as WindowPlan
    from kafka_ordered_ops.core.window.policy import Policy as Policy
    from kafka_ordered_ops.core.window.window import Window as Window
    from kafka_ordered_ops.kafka.settings import ClientSettings as ClientSettings
    from kafka_ordered_ops.ordered.ordered_reader import OrderedReader as OrderedReader
    from kafka_ordered_ops.output.writing.stage import stage_window as stage_window
    from kafka_ordered_ops.output.writing.stage import stage_windows as stage_windows
    from kafka_ordered_ops.output.writing.staged_output import StagedOutput as StagedOutput
else:  # A type checker that saw this would let any name pass.

    def __getattr__(name: str) -> Any:
        if name == "errors":
            return importlib.import_module("kafka_ordered_ops.core.errors")
        if name in _HOMES:
            return getattr(importlib.import_module(f"kafka_ordered_ops.{_HOMES[name]}"), name)
        if name.endswith("Error"):
            errors = importlib.import_module("kafka_ordered_ops.core.errors")
            if hasattr(errors, name):
                return getattr(errors, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__version__ = "0.1.0"

#: Where each public name lives; the errors of `core.errors` are public as well.
_HOMES = {
    "AtOffset": "core.window.bounds",
    "AtTime": "core.window.bounds",
    "ClientSettings": "kafka.settings",
    "Committed": "core.window.bounds",
    "Earliest": "core.window.bounds",
    "Latest": "core.window.bounds",
    "OpenWindow": "api",
    "OrderedReader": "ordered.ordered_reader",
    "OrderedWindows": "api",
    "Policy": "core.window.policy",
    "Relative": "core.window.bounds",
    "StagedOutput": "output.writing.staged_output",
    "Window": "core.window.window",
    "WindowPlan": "core.window.plan",
    "stage_window": "output.writing.stage",
    "stage_windows": "output.writing.stage",
}

__all__ = sorted([*_HOMES, "errors"])


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
