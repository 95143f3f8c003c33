"""The hour that has passed, without Spark: python stage_window.py BOOTSTRAP TOPIC."""

import sys
from datetime import UTC, datetime

import pyarrow.parquet as pq

from kafka_ordered_ops import Earliest, OrderedWindows, Window, stage_window

bootstrap, topic = sys.argv[1:3]
hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
window = Window([topic], cutoff=hour, starting_offsets=Earliest())

# [start window]
with OrderedWindows({"bootstrap.servers": bootstrap}, group_id=f"{topic}-stage") as windows:
    plan = windows.plan(window, window_id=f"{hour:%Y-%m-%dT%H}")
    staged = stage_window(plan, windows.settings, "out/orders-by-stage")
    windows.commit(plan, staged)
# [end window]

table = pq.read_table(f"{staged.final_path}/part-00000.parquet")
times = table["timestamp"].to_pylist()
if times != sorted(times) or times[-1] >= hour:
    sys.exit("the window is not in order, or not before its cutoff")
print(table.num_rows, "records from", times[0], "to", times[-1])
