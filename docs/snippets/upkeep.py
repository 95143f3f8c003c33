"""Adopt changes of another program, and prune: python upkeep.py BOOTSTRAP TOPIC."""

import sys
from datetime import UTC, datetime, timedelta

from confluent_kafka import Consumer, TopicPartition

from kafka_ordered_ops import OrderedWindows, Window

bootstrap, topic = sys.argv[1:3]
hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
windows = OrderedWindows(bootstrap, group_id=f"{topic}-upkeep")
plan = windows.plan(
    Window(topic, cutoff=hour, starting_offsets="earliest"), window_id="first"
)
windows.commit(plan)

# `kafka-consumer-groups.sh --reset-offsets` does the same.
other = Consumer({"bootstrap.servers": bootstrap, "group.id": windows.group_id})
other.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
other.close()

# [start adopt]
adoption = windows.adopt(dry_run=True)
for one in adoption.moved:
    print(one.tp, one.cause, one.base_before, "->", one.base_after)
print("rewound:", adoption.rewound)
windows.adopt()
# [end adopt]

# [start prune]
print("pruned:", windows.prune(timedelta(days=90)))
# [end prune]
windows.close()
