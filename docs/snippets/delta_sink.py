"""Write a window to a Delta table: python delta_sink.py BOOTSTRAP TOPIC. Needs Delta's jars on the session."""

import sys
from datetime import UTC, datetime
from pathlib import Path

from kafka_ordered_ops import OpenWindow, OrderedWindows, Window
from kafka_ordered_ops.spark import DeltaSink
from kafka_ordered_ops.spark.session import local_session

bootstrap, topic = sys.argv[1:3]
spark = local_session("orders")
hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
question = Window(topic, cutoff=hour, starting_offsets="earliest")

# [start window]
lake = Path("lake").absolute()
table, staging = f"delta.`{lake}/orders`", f"delta.`{lake}/orders_staging`"
columns = "timestamp timestamp, value string, window_id string"
spark.sql(f"CREATE TABLE IF NOT EXISTS {table} ({columns}) USING delta PARTITIONED BY (window_id)")

windows = OrderedWindows(bootstrap, group_id=f"{topic}-delta")
sink = DeltaSink(spark, table, staging)


def job(window: OpenWindow) -> None:
    """Run any job whose result has the table's columns."""
    window.write(window.read().selectExpr("timestamp", "cast(value as string) as value"))


with windows:  # stages rows, commits in Kafka, then shows them in the table
    result = windows.run(question, function=job, spark=spark, output=sink)
# [end window]

print(result.window_id, spark.table(table).count(), "rows")
spark.stop()
