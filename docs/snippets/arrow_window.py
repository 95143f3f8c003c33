"""A window as an Arrow table: python arrow_window.py BOOTSTRAP TOPIC."""

import sys
from datetime import UTC, datetime

from kafka_ordered_ops import OrderedWindows, Window

bootstrap, topic = sys.argv[1:3]

# [start window]
hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
windows = OrderedWindows(bootstrap, group_id=f"{topic}-arrow")

# The offsets are committed if the block ends without an exception.
with windows.open(Window(topic, cutoff=hour, starting_offsets="earliest")) as window:
    table = window.to_arrow()  # sorted by timestamp
    counts = table.group_by("key").aggregate([([], "count_all")])
    print(table.num_rows, "records of", counts.num_rows, "keys")
# [end window]

if table.num_rows == 0 or table["timestamp"][-1].as_py() >= hour:
    sys.exit("the window is empty, or not before its cutoff")
windows.close()
