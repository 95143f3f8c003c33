"""The one door to Spark: windows as a DataFrame, and a DataFrame as windows' outputs.

Names load when they are used: importing this package costs neither pyspark nor a Kafka client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafka_ordered_ops.spark.output import StagedOutput as StagedOutput
    from kafka_ordered_ops.spark.read import read_window as read_window
    from kafka_ordered_ops.spark.read import read_windows as read_windows
    from kafka_ordered_ops.spark.stage import stage_window as stage_window
    from kafka_ordered_ops.spark.stage import stage_windows as stage_windows
    from kafka_ordered_ops.spark.write import write_window as write_window
    from kafka_ordered_ops.spark.write_many import write_windows as write_windows

_HOMES = {
    "StagedOutput": "kafka_ordered_ops.spark.output",
    "read_window": "kafka_ordered_ops.spark.read",
    "read_windows": "kafka_ordered_ops.spark.read",
    "stage_window": "kafka_ordered_ops.spark.stage",
    "stage_windows": "kafka_ordered_ops.spark.stage",
    "write_window": "kafka_ordered_ops.spark.write",
    "write_windows": "kafka_ordered_ops.spark.write_many",
}

__all__ = [
    "StagedOutput",
    "read_window",
    "read_windows",
    "stage_window",
    "stage_windows",
    "write_window",
    "write_windows",
]


def __getattr__(name: str) -> Any:
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
