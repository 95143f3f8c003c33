"""An hour as rows of a Delta table: python delta_sink.py BOOTSTRAP TOPIC. With Delta's jars on the session."""

import sys
from datetime import UTC, datetime
from pathlib import Path

from kafka_ordered_ops import Earliest, OrderedWindows, Window
from kafka_ordered_ops.spark import DeltaSink, read_window
from kafka_ordered_ops.spark.session import local_session

bootstrap, topic = sys.argv[1:3]
spark = local_session("orders")
hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
window = Window([topic], cutoff=hour, starting_offsets=Earliest())

# [start window]
lake = Path("lake").absolute()
table, staging = f"delta.`{lake}/orders`", f"delta.`{lake}/orders_staging`"
columns = "timestamp timestamp, value string, window_id string"
spark.sql(f"CREATE TABLE IF NOT EXISTS {table} ({columns}) USING delta PARTITIONED BY (window_id)")

windows = OrderedWindows({"bootstrap.servers": bootstrap}, group_id=f"{topic}-delta")
sink = DeltaSink(spark, table, staging)


def write(plan):
    orders = read_window(spark, plan, windows.settings)
    return sink.write(orders.selectExpr("timestamp", "cast(value as string) as value"), plan)


with windows:
    plan = windows.plan(window, window_id=f"{hour:%Y-%m-%dT%H}")
    windows.deliver(plan, write, sink.found)  # staged, committed in Kafka, then shown in the table
# [end window]

print(plan.window_id, spark.table(table).count(), "rows")
spark.stop()
