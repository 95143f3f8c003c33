"""Charge the orders of the last full hour, and go on after a crash: python process_window.py BOOTSTRAP TOPIC."""

import json
import sys
import time
from datetime import UTC, datetime

from kafka_ordered_ops import OrderedWindows, Window
from kafka_ordered_ops.processing import Processor, process_window

bootstrap, topic = sys.argv[1:3]


def charge(record):
    """Charge one order. The key is its customer."""
    order = json.loads(record.value)
    time.sleep(0.001)  # a call to another service
    return order["amount"]


# [start window]
hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
question = Window(topic, cutoff=hour, starting_offsets="earliest")
with OrderedWindows(bootstrap, group_id=f"{topic}-kept") as windows:
    done = process_window(
        windows,
        question,
        charge,
        window_id=f"{hour:%Y-%m-%dT%H}",
        processor=Processor(bootstrap, max_concurrency=64),
    )
print(f"charged {done.succeeded:,} orders, {done.failed:,} failed")
# [end window]
