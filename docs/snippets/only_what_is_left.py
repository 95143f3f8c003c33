"""Run a task that may be retried, cleared or killed: python only_what_is_left.py BOOTSTRAP TOPIC."""

import sys
from datetime import UTC, datetime

from kafka_ordered_ops import OrderedWindows, Window

bootstrap, topic = sys.argv[1:3]
hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
question = Window(topic, cutoff=hour, starting_offsets="earliest")

# [start window]
with OrderedWindows(bootstrap, group_id=f"{topic}-again") as windows:
    for _ in range(2):  # the second round simulates a retry
        result = windows.run(question, "out/orders-again")
        print(result.status, "by this call" if result.ran else "already")
# [end window]
