"""The only package that uses Spark: windows as DataFrames, and DataFrames as windows' outputs.

Names are loaded on first use: importing this package loads neither pyspark nor a Kafka client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_ordered_ops.core.lazy_face import lazy_face

if TYPE_CHECKING:
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

#: The module of each public name.
_HOMES = {
    "SparkSubmit": "spec.spark_submit",
    "TableSink": "spark.write.tables",
    "map_by_key": "spark.keyed",
    "planned_window": "spark.applications.planned",
    "planned_windows": "spark.applications.planned",
    "read_output": "spark.read.published",
    "read_window": "spark.read.read",
    "read_windows": "spark.read.read",
    "submit": "spark.applications.submitter",
    "write_window": "spark.write.write",
    "write_windows": "spark.write.write_many",
}

if not TYPE_CHECKING:  # A type checker that saw this would let any name pass.
    __getattr__ = lazy_face(__name__, _HOMES)

__all__ = sorted(_HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
