"""The calls of kafka-python's consumer with an ordered reader: python from_kafka_python.py BOOTSTRAP TOPIC."""

import json
import sys

from kafka_ordered_ops import Member, OrderedReader, offsets_before

bootstrap, topic = sys.argv[1:3]


def handle(order):
    """Look at one order."""


# [start loop]
member = Member(f"{topic}-billing", max_poll_interval_s=600)
with OrderedReader(
    bootstrap, topic, follow=True, group_id=member, batch_size=500
) as records:
    for batch in records:
        for value in batch["value"].to_pylist():
            handle(json.loads(value))
        # [end loop]
        if records.is_live:
            break

# [start moves]
with OrderedReader(bootstrap, topic, follow=True) as records:
    records.poll(1.0)
    records.seek(topic, 0, 5)  # seek
    records.seek_all("earliest")  # seek_to_beginning
    records.seek_all("-PT30M")  # offsets_for_times, then seek
    records.pause((topic, 1))
    print(records.paused)
    records.resume((topic, 1))
    columns = [
        "partition",
        "position",
        "committed",
        "end",
        "lag",
    ]  # position, committed, end_offsets
    print(records.state().select(columns).to_pandas())
# [end moves]

# [start times]
for part in offsets_before(bootstrap, topic, "latest", every="PT30M"):
    print(part.tp, part.log_start, part.end_offset, part.offsets[0])
# [end times]
