"""The examples of kafkars with an ordered reader: python from_kafkars.py BOOTSTRAP TOPIC."""

import sys
from datetime import UTC, datetime, timedelta

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ordered_ops import OrderedReader

bootstrap, topic = sys.argv[1:3]
events, metrics = topic, f"{topic}-metrics"
admin = AdminClient({"bootstrap.servers": bootstrap})
admin.create_topics([NewTopic(metrics, 2)])[metrics].result()
producer = Producer({"bootstrap.servers": bootstrap})
for number in range(1_000):
    producer.produce(metrics, value=str(number))
producer.flush()

# [start poll]
with OrderedReader(
    {"bootstrap.servers": bootstrap},
    [events, metrics],
    starting_offsets={events: "earliest", metrics: "-PT1H"},
    follow=True,
    batch_size=10_000,
) as records:
    while not records.is_live:
        batch = records.poll(1.0)
        if batch is not None:
            frame = batch.to_pandas()
            print(f"{len(frame)} records up to {frame['timestamp'].max()}")
    print("caught up")
    # [end poll]

    # [start state]
    state = records.state()
    print(state.to_pandas())
    print("held:", sum(state["held"].to_pylist()))
    print(
        "holds the others back:",
        state.filter(state["holds_back"])["partition"].to_pylist(),
    )
    # [end state]

# [start starts]
day_start = datetime.now(UTC) - timedelta(hours=2)
starting_offsets = {
    events: day_start,  # a time
    metrics: "latest",  # only what is new
    (events, 0): "earliest",  # one partition from its start
}
# [end starts]
with OrderedReader(
    bootstrap, [events, metrics], starting_offsets=starting_offsets
) as records:
    print(sum(batch.num_rows for batch in records))

# [start until]
with OrderedReader(bootstrap, events, until=datetime.now(UTC)) as records:
    table = records.to_reader().read_all()
# [end until]
print(table.num_rows)
