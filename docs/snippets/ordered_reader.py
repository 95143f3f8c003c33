"""Read topics in one order, to the end and on: python ordered_reader.py BOOTSTRAP TOPIC."""

import sys

import pyarrow as pa
import pyarrow.compute as pc

from kafka_ordered_ops import OrderedReader

bootstrap, topic = sys.argv[1:3]

# [start table]
with OrderedReader(bootstrap, topic, starting_offsets="-PT1H") as records:
    table = pa.Table.from_batches(records, records.schema)
# [end table]
print(f"{table.num_rows} records")


def handle(batch: pa.RecordBatch) -> None:
    """Look at the times of some records."""
    print(batch.num_rows, pc.min(batch["timestamp"]), pc.sum(batch["late"]))


# [start follow]
with OrderedReader(
    bootstrap, topic, follow=True, group_id=f"{topic}-ordered"
) as records:
    for batch in records:
        handle(batch)
        # [end follow]
        if records.is_live:
            records.commit()
            break
    print(records.state().to_pandas())
