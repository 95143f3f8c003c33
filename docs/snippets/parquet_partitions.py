"""Write a window to a partitioned folder of plain Parquet: python parquet_partitions.py BOOTSTRAP TOPIC."""

import sys
from datetime import UTC, datetime
from pathlib import Path

from kafka_ordered_ops import OrderedWindows, Window
from kafka_ordered_ops.spark.session import local_session

bootstrap, topic = sys.argv[1:3]
spark = local_session("orders")
hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
question = Window(topic, cutoff=hour, starting_offsets="earliest")
folder = f"file://{Path('out/orders').absolute()}"

# [start window]
windows = OrderedWindows(bootstrap, group_id=f"{topic}-parquet")

with windows, windows.open(question, spark=spark) as window:
    writer = window.read().write.mode("overwrite").partitionBy("window_id")
    writer.option("partitionOverwriteMode", "dynamic").parquet(folder)
# [end window]

print(window.window_id, spark.read.parquet(folder).count(), "rows")
spark.stop()
