"""A Spark application that a step runs through Pipes: it writes the windows that the step has planned."""

from __future__ import annotations

import os

from dagster_pipes import open_dagster_pipes
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from kafka_ordered_ops.spark import planned_windows, read_windows, write_windows


def main() -> None:
    """Read the plans from the ledger, the records from Kafka; the step commits."""
    spark = SparkSession.builder.getOrCreate()
    with open_dagster_pipes() as pipes:
        told = pipes.extras
        # Addresses and passwords come by the environment, not by Pipes.
        settings = {"bootstrap.servers": os.environ["KAFKA_BOOTSTRAP"]}
        plans, client = planned_windows(
            settings, told["group"], told["attempts"], ledger_topic=told["ledger_topic"]
        )
        orders = read_windows(spark, plans, client, ordered=True)
        staged = write_windows(
            orders.withColumn("text", f.col("value").cast("string")),
            told["output"],
            plans,
        )
        pipes.report_asset_materialization(
            {"spark_version": spark.version, "windows_written": len(staged)}
        )
    spark.stop()


if __name__ == "__main__":
    main()
