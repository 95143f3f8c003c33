"""Reads a window with a Spark whose workers run another Python: prints the error's kind and message.

Arguments: the workers' Python; Java's home.
"""

from __future__ import annotations

import os
import sys

from kafka_ordered_ops import KafkaOrderedOpsError
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.spark import read_window
from tests.support.spark_support import part_of, plan_of, settings_of


def main(python: str, java_home: str) -> None:
    """Starts Spark as a user does, and reads."""
    os.environ |= {"PYSPARK_PYTHON": python, "JAVA_HOME": java_home, "SPARK_LOCAL_IP": "127.0.0.1"}
    from pyspark.sql import SparkSession

    builder = SparkSession.Builder().master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    plan = plan_of([part_of("orders", 0, OffsetSet.of((0, 5)))])
    try:
        read_window(spark, plan, settings_of("127.0.0.1:1"))
    except KafkaOrderedOpsError as error:
        print(type(error).__name__, error, flush=True)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
