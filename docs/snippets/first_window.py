"""Run the last full hour in one call: python first_window.py BOOTSTRAP TOPIC."""

import sys
from datetime import UTC, datetime

from kafka_ordered_ops import OrderedWindows, Window

bootstrap, topic = sys.argv[1:3]
hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)

# [start window]
windows = OrderedWindows(bootstrap, group_id=f"{topic}-first")
question = Window(topic, cutoff=hour, starting_offsets="earliest")

print(windows.run(question, "out/orders"))
print(windows.run(question, "out/orders"))  # repeated: nothing is left to do
# [end window]
