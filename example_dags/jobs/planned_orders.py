"""A Spark application that any Spark operator submits: it reads a window that another task has planned.

Usage: planned_orders.py BOOTSTRAP GROUP WINDOW_ID ATTEMPT OUTPUT
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from kafka_ordered_ops.spark import planned_window, read_window, write_window


def main(
    bootstrap: str, group_id: str, window_id: str, attempt: str, output: str
) -> None:
    """Read the plan from the ledger, the records from Kafka; another task commits."""
    settings = {"bootstrap.servers": bootstrap}
    spark = SparkSession.builder.getOrCreate()
    plan, client = planned_window(settings, group_id, window_id, attempt=int(attempt))
    write_window(read_window(spark, plan, client, ordered=True), output, plan)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
