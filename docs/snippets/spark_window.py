"""Run the last full hour with Spark: python spark_window.py BOOTSTRAP TOPIC."""

import sys
from datetime import UTC, datetime

from kafka_ordered_ops import OrderedWindows, Window
from kafka_ordered_ops.spark import read_window, write_window
from kafka_ordered_ops.spark.session import local_session

bootstrap, topic = sys.argv[1:3]
spark = local_session("orders")
hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
window = Window(topic, cutoff=hour, starting_offsets="earliest")

with OrderedWindows(bootstrap, group_id=f"{topic}-spark") as windows:
    # Decides the offsets of the window and stores them in Kafka.
    plan = windows.plan(window, window_id=f"{hour:%Y-%m-%dT%H}")

    # Reads exactly these records with Spark's executors; add any job here.
    orders = read_window(spark, plan, windows.settings)
    amount = "get_json_object(cast(value as string), '$.amount') as amount"
    orders = orders.selectExpr("*", amount)

    # Writes to a hidden folder, moves progress in one transaction, then publishes.
    staged = write_window(orders, "out/orders", plan)
    plan = windows.commit(plan, staged)

print(
    plan.window_id,
    plan.status,
    staged.facts["records"],
    "records in",
    staged.final_path,
)
spark.stop()
