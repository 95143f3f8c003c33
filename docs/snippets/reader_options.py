"""Options of an ordered reader: python reader_options.py BOOTSTRAP TOPIC."""

import sys

from kafka_ordered_ops import OrderedReader, Ordering, ReadLimits
from kafka_ordered_ops.decoding import Decoding

bootstrap, topic = sys.argv[1:3]

# [start batches]
with OrderedReader(
    bootstrap,
    f"^{topic}.*",
    exclude=f"^{topic}-test.*",
    batch_size=1_000,
    order=Ordering(max_out_of_orderness="PT10M"),
    limits=ReadLimits(batch_bytes_max=1_000_000, held_bytes_max=16_000_000),
) as records:
    for batch in records:
        print(batch.num_rows, batch.nbytes)
# [end batches]

# [start decoding]
orders = Decoding(values="json:order int64, amount int32", flatten=True)
with OrderedReader(bootstrap, topic, decoding=orders) as records:
    for batch in records:
        print(batch.column("amount"))
# [end decoding]
