"""Run the last full hour without Spark: python stage_window.py BOOTSTRAP TOPIC."""

import sys
from datetime import UTC, datetime

import pyarrow.parquet as pq

from kafka_ordered_ops import OrderedWindows, Window

bootstrap, topic = sys.argv[1:3]
hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
question = Window(topic, cutoff=hour, starting_offsets="earliest")

# [start window]
windows = OrderedWindows(bootstrap, group_id=f"{topic}-stage")
result = windows.run(question, "out/orders-by-stage")
# [end window]

table = pq.read_table(f"{result.output}/part-00000.parquet")
times = table["timestamp"].to_pylist()
if times != sorted(times) or times[-1] >= hour:
    sys.exit("the window is not in order, or not before its cutoff")
print(table.num_rows, "records from", times[0], "to", times[-1])
