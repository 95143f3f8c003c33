"""Options of an ordered reader: python reader_options.py BOOTSTRAP TOPIC."""

import sys

from kafka_ordered_ops import OrderedReader, Ordering, ReadLimits

bootstrap, topic = sys.argv[1:3]

# [start batches]
with OrderedReader(
    bootstrap,
    f"^{topic}.*",
    exclude=f"^{topic}-test.*",
    batch_size=1_000,
    max_bytes=1_000_000,
    order=Ordering(max_out_of_orderness="PT10M"),
    limits=ReadLimits(held_bytes_max=16_000_000),
) as records:
    for batch in records:
        print(batch.num_rows, batch.nbytes)
# [end batches]
