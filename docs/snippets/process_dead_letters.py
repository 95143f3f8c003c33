"""Notify customers, and keep what fails: python process_dead_letters.py BOOTSTRAP TOPIC."""

import asyncio
import sys
from datetime import UTC, datetime

from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ordered_ops import OrderedWindows, Window
from kafka_ordered_ops.processing import Processor

bootstrap, topic = sys.argv[1:3]
admin = AdminClient({"bootstrap.servers": bootstrap})
admin.create_topics([NewTopic(f"{topic}.dead", num_partitions=1)])[
    f"{topic}.dead"
].result()

windows = OrderedWindows(bootstrap, group_id=f"{topic}-notes")
question = Window(topic, cutoff=datetime.now(UTC), starting_offsets="earliest")


# [start async]
async def notify(record):
    """Notify a customer; one has no address."""
    if record.key == b"7":
        raise ValueError("no address")
    await asyncio.sleep(0.001)


with windows.open(question) as window:
    processor = Processor(
        bootstrap,
        ordering="unordered",
        max_concurrency=200,
        retries=2,
        backoff=lambda record, error: 0.1 * record.attempt,
        dead_letter_topic=f"{topic}.dead",
    )
    failed = [
        one for one in processor.run(window.plan, notify) if one.error is not None
    ]
# [end async]
print(
    f"{len(failed)} orders are in {topic}.dead, "
    f"such as {failed[0].record}: {failed[0].error}"
)
