"""Move through topics with an ordered reader: python reader_moves.py BOOTSTRAP TOPIC."""

import sys
from datetime import UTC, datetime

import pyarrow as pa

from kafka_ordered_ops import Member, OrderedReader, Ordering

bootstrap, topic = sys.argv[1:3]
now = datetime.now(UTC)

# [start until]
with OrderedReader(bootstrap, topic, until=now) as records:
    table = pa.Table.from_batches(records, records.schema)
# [end until]
print(table.num_rows)

# [start starts]
with OrderedReader(
    bootstrap,
    topic,
    starting_offsets={topic: "earliest", (topic, 0): 1},
    on_data_loss="earliest",
) as records:
    table = pa.Table.from_batches(records, records.schema)
# [end starts]
print(table.num_rows)

# [start moves]
with OrderedReader(
    bootstrap, topic, follow=True, order=Ordering(grace="PT0S")
) as records:
    records.poll(10)
    records.pause((topic, 0), hold=False)  # the other partitions go on
    print(records.paused)
    records.resume((topic, 0))
    records.seek(topic, 0, 0)  # an offset, or a time
    records.seek_all("earliest")
    print(records.poll(10))
# [end moves]


# [start member]
def assigned(positions):
    print("reads", {str(tp): offset for tp, offset in positions.items()})


def revoked(positions):
    records.commit()  # stored before the partitions move


member = Member(
    f"{topic}-billing",
    instance_id="billing-1",
    session_timeout_s=30,
    max_poll_interval_s=600,
    on_assigned=assigned,
    on_revoked=revoked,
    on_lost=lambda positions: print("lost", positions),
)
with OrderedReader(bootstrap, topic, follow=True, group_id=member) as records:
    while not records.is_live:
        records.poll(1)
    # [end member]
    # [start state]
    state = records.state()  # an Arrow record batch
    for row in state.select(
        ["topic", "partition", "position", "lag", "time_lag"]
    ).to_pylist():
        print(row)
    # [end state]
