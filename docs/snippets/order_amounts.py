"""Process the window that this Spark application was submitted for."""

from pyspark.sql import SparkSession

from kafka_ordered_ops.spark import current_window

spark = SparkSession.builder.getOrCreate()
window = current_window(spark)

# Exactly the records of the window, in total order.
orders = window.read()
amount = "get_json_object(cast(value as string), '$.amount') as amount"

# Writes to a hidden folder and reports to the submitter, which commits.
window.write(orders.selectExpr("*", amount))
