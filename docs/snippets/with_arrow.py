"""The hour that has passed, as Arrow: python with_arrow.py BOOTSTRAP TOPIC."""

import sys
from datetime import UTC, datetime

from kafka_ordered_ops import OrderedWindows, Window

bootstrap, topic = sys.argv[1:3]
hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
windows = OrderedWindows(bootstrap, group_id=f"{topic}-arrow")

# [start window]
question = Window(topic, cutoff=hour, starting_offsets="earliest")

with windows.open(question) as window:  # committed if the block ends well
    table = window.to_arrow()  # or window.to_batches(): a stream, in order of time
    keys = table.group_by("key").aggregate([("offset", "count")])
# [end window]

print(table.num_rows, "orders of", keys.num_rows, "keys")
