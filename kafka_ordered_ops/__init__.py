"""Exact, ordered windows of Kafka records for scheduled jobs.

::

    windows = OrderedWindows("localhost:9092", group_id="orders-hourly")
    windows.run(Window("orders", cutoff=noon, starting_offsets="earliest"), "/lake/orders")

    with windows.open(Window("orders", cutoff=noon)) as window:  # commits if the block does not raise
        table = window.to_arrow()

Names load on first use: importing the package loads neither the Kafka client nor PySpark, so a scheduler can
parse hundreds of files that use it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kafka_ordered_ops.core.lazy_face import lazy_face

if TYPE_CHECKING:
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
    from kafka_ordered_ops.delivery.current import current_window as current_window
    from kafka_ordered_ops.delivery.current import current_windows as current_windows
    from kafka_ordered_ops.delivery.open_window import OpenWindow as OpenWindow
    from kafka_ordered_ops.delivery.ordered_windows import OrderedWindows as OrderedWindows
    from kafka_ordered_ops.kafka.settings import ClientSettings as ClientSettings
    from kafka_ordered_ops.ordered.options import Member as Member
    from kafka_ordered_ops.ordered.options import Ordering as Ordering
    from kafka_ordered_ops.ordered.options import ReadLimits as ReadLimits
    from kafka_ordered_ops.ordered.ordered_reader import OrderedReader as OrderedReader
    from kafka_ordered_ops.output.writing.stage import stage_window as stage_window
    from kafka_ordered_ops.output.writing.stage import stage_windows as stage_windows
    from kafka_ordered_ops.output.writing.staged_output import StagedOutput as StagedOutput
    from kafka_ordered_ops.spec.destination import Folder as Folder
    from kafka_ordered_ops.spec.jobs import Application as Application
    from kafka_ordered_ops.spec.jobs import Copy as Copy
    from kafka_ordered_ops.spec.jobs import Function as Function
    from kafka_ordered_ops.spec.process import Process as Process
    from kafka_ordered_ops.spec.table import Table as Table
    from kafka_ordered_ops.windows.queries.offsets_before import offsets_before as offsets_before

__version__ = "0.1.0"

#: Where each public name lives; the errors of `core.errors` are public as well.
_HOMES = {
    "Application": "spec.jobs",
    "AtOffset": "core.window.bounds",
    "AtTime": "core.window.bounds",
    "ClientSettings": "kafka.settings",
    "Committed": "core.window.bounds",
    "Copy": "spec.jobs",
    "Earliest": "core.window.bounds",
    "Folder": "spec.destination",
    "Function": "spec.jobs",
    "Latest": "core.window.bounds",
    "Member": "ordered.options",
    "OpenWindow": "delivery.open_window",
    "OrderedReader": "ordered.ordered_reader",
    "OrderedWindows": "delivery.ordered_windows",
    "Ordering": "ordered.options",
    "Policy": "core.window.policy",
    "Process": "spec.process",
    "ReadLimits": "ordered.options",
    "Relative": "core.window.bounds",
    "StagedOutput": "output.writing.staged_output",
    "Table": "spec.table",
    "Window": "core.window.window",
    "WindowPlan": "core.window.plan",
    "current_window": "delivery.current",
    "current_windows": "delivery.current",
    "offsets_before": "windows.queries.offsets_before",
    "stage_window": "output.writing.stage",
    "stage_windows": "output.writing.stage",
}

if not TYPE_CHECKING:  # A type checker that saw this would let any name pass.
    _load = lazy_face(__name__, _HOMES)

    def __getattr__(name: str) -> Any:
        if name == "errors" or name.endswith("Error"):
            errors = importlib.import_module("kafka_ordered_ops.core.errors")
            if name == "errors":
                return errors
            if hasattr(errors, name):
                return getattr(errors, name)
        return _load(name)


__all__ = sorted([*_HOMES, "errors"])


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
