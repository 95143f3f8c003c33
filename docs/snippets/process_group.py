"""Process a topic as a member of a group: python process_group.py BOOTSTRAP TOPIC."""

import sys

from kafka_ordered_ops.decoding import Decoding
from kafka_ordered_ops.processing import Processor

bootstrap, topic = sys.argv[1:3]


def charge(record):
    """Charge one order."""
    return record.offset


# [start group]
processor = Processor(bootstrap, max_concurrency=64)
results = processor.subscribe(topic, charge, group_id=f"{topic}-live")
for count, result in enumerate(results, start=1):
    print(f"{result.record}: {result.value}")
    # [end group]
    if count == 10_000:
        processor.stop()


# [start decoding]
def price(record):
    """Return the amount of one order."""
    return record.value["amount"]


orders = Decoding(values="json:order int64, amount int32")
processor = Processor(bootstrap, decoding=orders)
results = processor.subscribe(topic, price, group_id=f"{topic}-prices")
print(f"{next(results).value} EUR")
# [end decoding]
processor.stop()
