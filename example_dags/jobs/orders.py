"""A Spark application that a window's task submits: what comes in goes out, in order."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from kafka_ordered_ops import current_window


def main() -> None:
    """Read exactly the window's records, and stage the result; the task commits."""
    spark = SparkSession.builder.getOrCreate()
    window = current_window(spark)
    orders = window.read().withColumn("text", f.col("value").cast("string"))
    window.write(orders)
    spark.stop()


if __name__ == "__main__":
    main()
