"""Process the window that this Spark application was submitted for."""

from pyspark.sql import SparkSession

from kafka_ordered_ops import OpenWindow, current_window


def add_amounts(window: OpenWindow) -> None:
    """Read exactly the window, in total order; write to a hidden folder."""
    amount = "get_json_object(cast(value as string), '$.amount') as amount"
    window.write(window.read().selectExpr("*", amount))


if __name__ == "__main__":
    add_amounts(current_window(SparkSession.builder.getOrCreate()))
