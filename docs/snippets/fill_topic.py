"""Fill a new topic with orders of the last two hours: python fill_topic.py BOOTSTRAP TOPIC."""

import json
import random
import sys
from datetime import UTC, datetime, timedelta

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

bootstrap, topic = sys.argv[1:3]
admin = AdminClient({"bootstrap.servers": bootstrap})
admin.create_topics([NewTopic(topic, num_partitions=4)])[topic].result()

producer = Producer({"bootstrap.servers": bootstrap})
now = datetime.now(UTC)
chance = random.Random(1)
for number in range(10_000):
    # An order is written up to 15 minutes after it happened: times are out of order.
    happened = now - timedelta(hours=2) + number * timedelta(seconds=0.72)
    happened -= timedelta(seconds=chance.uniform(0, 900))
    producer.produce(
        topic,
        key=str(number % 100),
        value=json.dumps({"order": number, "amount": chance.randint(1, 500)}),
        timestamp=int(happened.timestamp() * 1000),
    )
producer.flush()
print("wrote 10,000 orders")
