"""Read the last full hour as Arrow: python with_arrow.py BOOTSTRAP TOPIC."""

import sys
from datetime import UTC, datetime

from kafka_ordered_ops import OrderedWindows, Window

bootstrap, topic = sys.argv[1:3]
hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
windows = OrderedWindows(bootstrap, group_id=f"{topic}-arrow")

# [start window]
question = Window(topic, cutoff=hour, starting_offsets="earliest")

with windows.open(question) as window:  # commits if the block does not raise
    table = window.to_arrow()  # sorted by time; window.to_batches() streams
    keys = table.group_by("key").aggregate([("offset", "count")])
# [end window]

print(table.num_rows, "orders of", keys.num_rows, "keys")
