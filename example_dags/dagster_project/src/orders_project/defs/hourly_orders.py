"""Each partition is an hour: exactly the orders stamped in it, once, in order, through Spark.

Hours may be materialised in any order, and a backfill of many of them is one read and one write. An order that
comes in after its hour was planned is in the next hour to be planned, flagged as late.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import dagster as dg

from kafka_ordered_ops import Window
from kafka_ordered_ops.dagster import (
    AssetWindows,
    build_partitions_live_sensor,
    ordered_window_asset,
)


@ordered_window_asset(
    key="hourly_orders",
    window=Window(
        [os.environ.get("ORDERS_TOPIC", "orders")], starting_offsets="earliest"
    ),
    group_id="dagster-hourly-orders",
    output=os.environ.get("ORDERS_OUTPUT", "/data") + "/hourly",
    partitions_def=dg.HourlyPartitionsDefinition("2026-01-01-00:00"),
)
def hourly_orders(context: dg.AssetExecutionContext, windows: AssetWindows) -> None:
    """Orders by the hour, with their text."""
    # Here, so that loading the definitions loads no Spark.
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    # Workers would take the first Python of the path, perhaps without the packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    master = os.environ.get("SPARK_MASTER", "local[2]")
    spark = SparkSession.builder.master(master).appName("hourly_orders").getOrCreate()
    orders = windows.read(spark).withColumn("text", f.col("value").cast("string"))
    windows.write(orders)
    context.log.info("windows in one pass: %s", len(windows.plans))


#: Requests an hour once every partition has reached its end; off until turned on.
hourly_orders_live = build_partitions_live_sensor(
    hourly_orders, lookback=timedelta(days=7)
)
