"""Each partition is an hour of orders that a Spark program of its own has written: spark-submit through Pipes.

The job is told which windows to write, and reads their exact offsets from Kafka. It commits nothing: the step does,
when the job has ended well and has written every window.
"""

from __future__ import annotations

import os
from pathlib import Path

import dagster as dg

from kafka_ordered_ops import Window
from kafka_ordered_ops.dagster import AssetWindows, ordered_window_asset

JOB = Path(__file__).parent.parent / "jobs" / "piped_orders.py"


@ordered_window_asset(
    key="piped_orders",
    window=Window(
        [os.environ.get("ORDERS_TOPIC", "orders")], starting_offsets="earliest"
    ),
    group_id="dagster-piped-orders",
    output=os.environ.get("ORDERS_OUTPUT", "/data") + "/piped",
    partitions_def=dg.HourlyPartitionsDefinition("2026-01-01-00:00"),
)
def piped_orders(
    context: dg.AssetExecutionContext,
    windows: AssetWindows,
    pipes: dg.PipesSubprocessClient,
) -> None:
    """Orders by the hour, with their text."""
    # Here, so that loading the definitions loads nothing of Spark.
    from kafka_ordered_ops.spark import SparkSubmit

    # spark-submit, and this Python for driver and workers: not the first of the path.
    how = SparkSubmit(master=os.environ.get("SPARK_MASTER", "local[2]"))
    ran = pipes.run(
        context=context,
        command=[how.command, *how.options(), str(JOB)],
        env=how.variables(),
        extras=windows.extras(),
    )
    # What the job wrote of every window, or a SinkError; the step commits it.
    windows.collect()
    for result in ran.get_results():
        windows.tell(result.metadata or {})


@dg.definitions
def definitions() -> dg.Definitions:
    """The asset, and what it runs programs with."""
    return dg.Definitions(
        assets=[piped_orders], resources={"pipes": dg.PipesSubprocessClient()}
    )
