"""Write a window to a Delta table: python delta_table.py BOOTSTRAP TOPIC. Needs Delta's jars on the session."""

import sys
from datetime import UTC, datetime
from pathlib import Path

from kafka_ordered_ops import OrderedWindows, Table, Window
from kafka_ordered_ops.spark.session import local_session

bootstrap, topic = sys.argv[1:3]
spark = local_session("orders")
hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
table = f"delta.`{Path('lake').absolute()}/orders`"
columns = "timestamp timestamp, key binary, value binary"
spark.sql(f"CREATE TABLE IF NOT EXISTS {table} ({columns}) USING delta")

# [start window]
windows = OrderedWindows(bootstrap, group_id=f"{topic}-delta")
question = Window(topic, cutoff=hour, starting_offsets="earliest")
result = windows.run(question, Table(table), spark=spark)
# [end window]

windows.close()
print(result.window_id, spark.table(table).count(), "rows")
spark.stop()
