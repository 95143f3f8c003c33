"""Exact, ordered windows of Kafka records for scheduled jobs.

::

    windows = OrderedWindows({"bootstrap.servers": "localhost:9092"}, group_id="orders-hourly")
    plan = windows.plan(Window(["orders"], cutoff=noon, starting_offsets=Earliest()))
    ...  # read exactly the plan's records, for example with kafka_ordered_ops.spark.read_window
    windows.commit(plan)

Names are loaded when they are first used: importing the package loads neither the Kafka client nor
PySpark, so that a scheduler can parse a hundred files that mention it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafka_ordered_ops.api import OpenWindow as OpenWindow
    from kafka_ordered_ops.api import OrderedWindows as OrderedWindows
    from kafka_ordered_ops.api import RunResult as RunResult
    from kafka_ordered_ops.core import errors as errors
    from kafka_ordered_ops.core.errors import *  # noqa: F403 - each is a public name
    from kafka_ordered_ops.core.group.adoption import Adoption as Adoption
    from kafka_ordered_ops.core.group.gaps import Gap as Gap
    from kafka_ordered_ops.core.liveness.liveness import Liveness as Liveness
    from kafka_ordered_ops.core.offset_set import OffsetSet as OffsetSet
    from kafka_ordered_ops.core.types import Isolation as Isolation
    from kafka_ordered_ops.core.types import Mode as Mode
    from kafka_ordered_ops.core.types import OnCovered as OnCovered
    from kafka_ordered_ops.core.types import OnDataLoss as OnDataLoss
    from kafka_ordered_ops.core.types import OnForeignCommit as OnForeignCommit
    from kafka_ordered_ops.core.types import OnOpenClaim as OnOpenClaim
    from kafka_ordered_ops.core.types import PlanContent as PlanContent
    from kafka_ordered_ops.core.types import TopicPartition as TopicPartition
    from kafka_ordered_ops.core.types import WindowStatus as WindowStatus
    from kafka_ordered_ops.core.window.bounds import AtOffset as AtOffset
    from kafka_ordered_ops.core.window.bounds import AtTime as AtTime
    from kafka_ordered_ops.core.window.bounds import Bound as Bound
    from kafka_ordered_ops.core.window.bounds import Committed as Committed
    from kafka_ordered_ops.core.window.bounds import Earliest as Earliest
    from kafka_ordered_ops.core.window.bounds import Latest as Latest
    from kafka_ordered_ops.core.window.bounds import Relative as Relative
    from kafka_ordered_ops.core.window.plan import PartitionPlan as PartitionPlan
    from kafka_ordered_ops.core.window.plan import WindowPlan as WindowPlan
    from kafka_ordered_ops.core.window.policy import Policy as Policy
    from kafka_ordered_ops.core.window.window import Window as Window
    from kafka_ordered_ops.kafka.settings import ClientSettings as ClientSettings
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
    "Adoption": "core.group.adoption",
    "AtOffset": "core.window.bounds",
    "AtTime": "core.window.bounds",
    "Bound": "core.window.bounds",
    "ClientSettings": "kafka.settings",
    "Committed": "core.window.bounds",
    "Earliest": "core.window.bounds",
    "Gap": "core.group.gaps",
    "Isolation": "core.types",
    "Latest": "core.window.bounds",
    "Liveness": "core.liveness.liveness",
    "Mode": "core.types",
    "OffsetSet": "core.offset_set",
    "OnCovered": "core.types",
    "OnDataLoss": "core.types",
    "OnForeignCommit": "core.types",
    "OnOpenClaim": "core.types",
    "OpenWindow": "api",
    "OrderedWindows": "api",
    "PartitionPlan": "core.window.plan",
    "PlanContent": "core.types",
    "Policy": "core.window.policy",
    "Relative": "core.window.bounds",
    "RunResult": "api",
    "TopicPartition": "core.types",
    "Window": "core.window.window",
    "WindowPlan": "core.window.plan",
    "WindowStatus": "core.types",
}

__all__ = sorted([*_HOMES, "errors"])


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
