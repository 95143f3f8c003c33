"""The one door to Spark: windows as DataFrames, and DataFrames as windows' outputs.

Names load when they are used: importing this package costs neither pyspark nor a Kafka client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafka_ordered_ops.spark.applications.context import current_window as current_window
    from kafka_ordered_ops.spark.applications.planned import planned_window as planned_window
    from kafka_ordered_ops.spark.applications.planned import planned_windows as planned_windows
    from kafka_ordered_ops.spark.applications.submitter import submit as submit
    from kafka_ordered_ops.spark.keyed import map_by_key as map_by_key
    from kafka_ordered_ops.spark.read.published import read_output as read_output
    from kafka_ordered_ops.spark.read.read import read_window as read_window
    from kafka_ordered_ops.spark.read.read import read_windows as read_windows
    from kafka_ordered_ops.spark.write.tables import TableSink as TableSink
    from kafka_ordered_ops.spark.write.write import write_window as write_window
    from kafka_ordered_ops.spark.write.write_many import write_windows as write_windows
    from kafka_ordered_ops.spec.spark_submit import SparkSubmit as SparkSubmit
else:  # A type checker that saw this would let any name pass.

    def __getattr__(name: str) -> Any:
        try:
            home = _HOMES[name]
        except KeyError:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
        return getattr(import_module(home), name)


_HOMES = {
    "SparkSubmit": "kafka_ordered_ops.spec.spark_submit",
    "TableSink": "kafka_ordered_ops.spark.write.tables",
    "current_window": "kafka_ordered_ops.spark.applications.context",
    "map_by_key": "kafka_ordered_ops.spark.keyed",
    "planned_window": "kafka_ordered_ops.spark.applications.planned",
    "planned_windows": "kafka_ordered_ops.spark.applications.planned",
    "read_output": "kafka_ordered_ops.spark.read.published",
    "read_window": "kafka_ordered_ops.spark.read.read",
    "read_windows": "kafka_ordered_ops.spark.read.read",
    "submit": "kafka_ordered_ops.spark.applications.submitter",
    "write_window": "kafka_ordered_ops.spark.write.write",
    "write_windows": "kafka_ordered_ops.spark.write.write_many",
}

__all__ = [
    "SparkSubmit",
    "TableSink",
    "current_window",
    "map_by_key",
    "planned_window",
    "planned_windows",
    "read_output",
    "read_window",
    "read_windows",
    "submit",
    "write_window",
    "write_windows",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
