"""Charge the orders up to now, 64 at a time: python process_orders.py BOOTSTRAP TOPIC."""

import json
import sys
import time
from datetime import UTC, datetime

from kafka_ordered_ops import OrderedWindows, Window
from kafka_ordered_ops.processing import Processor

bootstrap, topic = sys.argv[1:3]


def charge(record):
    """Charge one order. The key is its customer."""
    order = json.loads(record.value)
    time.sleep(0.001)  # a call to another service
    return order["amount"]


windows = OrderedWindows(bootstrap, group_id=f"{topic}-charges")
question = Window(topic, cutoff=datetime.now(UTC), starting_offsets="earliest")
with windows.open(question) as window:
    processor = Processor(bootstrap, ordering="key", max_concurrency=64)
    charged = sum(result.value for result in processor.run(window.plan, charge))
print(f"charged {charged:,}")
