"""Copy the windows of a submission."""

from __future__ import annotations

from pyspark.sql import SparkSession

from kafka_ordered_ops import current_windows

spark = SparkSession.builder.getOrCreate()
windows = current_windows(spark)
windows.write(windows.read())
