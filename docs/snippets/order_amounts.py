"""A Spark application for the windows that it is submitted for."""

from pyspark.sql import SparkSession

from kafka_ordered_ops.spark import current_window

spark = SparkSession.builder.getOrCreate()
window = current_window(spark)

# Exactly the records of the window, in total order.
orders = window.read()
amount = "get_json_object(cast(value as string), '$.amount') as amount"

# Into a hidden folder, and a word to the submitter. It is the submitter that commits.
window.write(orders.selectExpr("*", amount))
